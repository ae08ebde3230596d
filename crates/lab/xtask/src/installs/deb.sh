# In a clean system with fuse3: /given has the package.
# The package is for machines like this one, and names the C library that the program needs.
test "$(dpkg-deb --field /given/kedgefs.deb Architecture)" = "$(dpkg --print-architecture)"
dpkg-deb --field /given/kedgefs.deb Depends | grep libc6
apt-get install --yes /given/kedgefs.deb
man -w kedge mount.kedgefs 5 kedgefs
useradd --create-home person
cd /home/person
cat > try.sh <<'SCRIPT'
cd ~
mkfs -t kedgefs --size 64M disk.kedge
mkdir -p mnt
kedge mount disk.kedge mnt
echo kept > mnt/a
sync mnt/a
kill -9 "$(kedge info mnt | awk '$1 == "mount.pid" { print $2 }')"
kedge mount disk.kedge mnt
test "$(cat mnt/a)" = kept
kedge umount mnt
fsck.kedgefs -f disk.kedge
SCRIPT
runuser -u person -- env HOME=/home/person PATH="$PATH" sh -eux try.sh
# As root, through mount(8).
mkdir /mnt/disk
mount -t kedgefs disk.kedge /mnt/disk
test "$(cat /mnt/disk/a)" = kept
umount /mnt/disk
apt-get remove --yes kedgefs
test ! -e /usr/bin/kedge
