#!/bin/bash
# Mounts an image from a virtual machine with Linux's NFS client, and kills the server while the
# guest works: what the guest has synced must be there, and an unpacked tree must be whole.
#
#   guest.sh KEDGE KERNEL-PACKAGE DIR
#
# KERNEL-PACKAGE is a package of Debian's kernel (apt-get download linux-image-…-amd64), unpacked
# in DIR, which is overwritten. Needs qemu-system-x86, busybox-static, cpio. No root.
set -euo pipefail
kedge=$(realpath "$1") package=$(realpath "$2") dir=$3 port=20491 kills=${KILLS:-8}
rm -rf "$dir"; mkdir -p "$dir"/root/{bin,proc,sys,dev,mnt,tmp,modules}; cd "$dir"
dpkg -x "$package" kernel
cp "$(command -v busybox)" root/bin/busybox
for module in e1000 sunrpc grace lockd netfs fscache nfs_acl nfs nfsv3; do
  find kernel -name "$module.ko" -exec cp {} root/modules/ \;
done
# The tree: the modules of the kernel.
(cd kernel/lib/modules/*/kernel && tar cf - fs | tar xf - -C "$OLDPWD/root/tmp")
(cd root/tmp && find fs -type f | sort | xargs sha256sum > sums && tar cf tree.tar fs && rm -r fs)
cat > root/init <<'GUEST'
#!/bin/busybox sh
/bin/busybox --install -s /bin; export PATH=/bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for m in e1000 sunrpc grace lockd netfs fscache nfs_acl nfs nfsv3; do
  [ ! -f /modules/$m.ko ] || insmod /modules/$m.ko
done
ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up; sleep 2
o=vers=3,proto=tcp,mountproto=tcp,nolock,port=PORT,mountport=PORT,addr=10.0.2.2,mountaddr=10.0.2.2
mount -t nfs -o $o 10.0.2.2:/ /mnt && echo GUEST-MOUNTED
cd /mnt
tar xf /tmp/tree.tar && echo GUEST-UNPACKED &
n=0; mkdir /tmp/in
while [ $n -lt 400 ]; do
  dd if=/dev/urandom of=/tmp/in/$n bs=1k count=$((1 + n % 60)) 2>/dev/null
  dd if=/tmp/in/$n of=$n bs=4k conv=fsync 2>/dev/null || echo "GUEST-FAILED write of $n"
  n=$((n + 1))
done
wait
echo 3 > /proc/sys/vm/drop_caches
for f in /tmp/in/*; do cmp $f ${f##*/} || echo "GUEST-FAILED $f"; done
sha256sum -c /tmp/sums > /tmp/checked || { echo GUEST-FAILED tree; grep -v OK$ /tmp/checked; }
cd /; umount /mnt && echo GUEST-DONE
poweroff -f
GUEST
sed -i "s/PORT/$port/g" root/init; chmod +x root/init
(cd root && find . | cpio -o -H newc --quiet) | gzip -1 > init.gz
"$kedge" mkfs --size 1G disk.kedge > /dev/null
# With --volatile a kill is a power failure.
start() { "$kedge" serve nfs --volatile --any-port --listen $port disk.kedge >> served.log & server=$!; }
start
trap 'kill -KILL $server 2> /dev/null || true' EXIT
timeout 900 qemu-system-x86_64 -accel "${ACCEL:-tcg}" -cpu max -m 1024 -nographic -no-reboot \
  -kernel kernel/boot/vmlinuz-* -initrd init.gz -append "console=ttyS0 quiet panic=1" \
  -netdev user,id=n -device e1000,netdev=n > guest.log 2>&1 &
guest=$!
until grep -q GUEST-MOUNTED guest.log; do kill -0 $guest; sleep 0.3; done
for n in $(seq "$kills"); do
  sleep "2.$n"; kill -KILL $server; wait $server || true; sleep 0.5; start
done
wait $guest
kill -TERM $server; wait $server
"$kedge" fsck -f disk.kedge
grep -a GUEST- guest.log
! grep -aq GUEST-FAILED guest.log
grep -aq GUEST-DONE guest.log && grep -aq GUEST-UNPACKED guest.log
echo "$kills kills: nothing that the guest had synced is missing"
