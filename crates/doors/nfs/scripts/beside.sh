#!/bin/bash
# What files cost over NFS, beside a mount and beside two other servers over ext4, under one kernel:
# the servers and the client of Linux run there together, without a network.
#
#   beside.sh KEDGE KERNEL-PACKAGE DIR
#
# KERNEL-PACKAGE is Debian's kernel that runs as a process (apt-get download user-mode-linux),
# unpacked in DIR, which is overwritten. Needs root and mmdebstrap, and no /dev/kvm. fs_mark writes
# files of 4 KiB from four threads, with S0 without a sync and with S1 with an fsync of each; then a
# tree is unpacked with tar and synced. Rounds alternate between the places; the table has medians.
# ROUNDS and FILES (of each thread) may be set.
#
# That kernel has one processor, and each system call and switch of a program costs it several
# system calls of the host. So programs as servers are slow beside servers in the kernel, and
# figures count only beside those of another program in the same run.
set -euo pipefail
kedge=$(realpath "$1") package=$(realpath "$2") dir=$3 rounds=${ROUNDS:-3} files=${FILES:-25}
mkdir -p "$dir"; cd "$dir"; rm -rf root kernel guest.log disk.raw
dpkg -x "$package" kernel
packages=fsmark,nfs-kernel-server,nfs-ganesha-vfs,fuse3,kmod,iproute2,e2fsprogs
mmdebstrap --quiet --variant=minbase --include=$packages bookworm root
cp "$kedge" root/usr/bin/kedge
mkdir -p root/disk root/mnt/{fuse,kedge,knfsd} root/lib/modules
cp -a kernel/usr/lib/uml/modules/* root/lib/modules/
chroot root depmod "$(ls root/lib/modules)"
tar -C root/usr/share -cf root/tree.tar bash-completion common-licenses perl5
cat > root/init <<'GUEST'
#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
end() { echo "GUEST-$*"; sync; echo o > /proc/sysrq-trigger; sleep 9; }
trap 'end "FAILED line $LINENO"' ERR
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev 2>/dev/null || true
mount -t tmpfs t /tmp; mount -t tmpfs r /run; mkdir -p /run/rpcbind /run/lock
cp /tree.tar /tmp; count=$(tar -tf /tmp/tree.tar | wc -l)
modprobe -a fuse loop nfs nfsv3 nfsd
ip link set lo up
ln -sf /proc/self/mounts /etc/mtab # for ganesha
mkfs.ext4 -q /dev/ubda; mount /dev/ubda /disk
for image in fuse nfs; do kedge mkfs --size 3G /disk/$image.kedge >/dev/null; done
kedge mount /disk/fuse.kedge /mnt/fuse
kedge serve nfs --listen 20491 /disk/nfs.kedge & server=$!; sleep 2
mount -t nfs -o vers=3,tcp,nolock,port=20491,mountport=20491 127.0.0.1:/ /mnt/kedge
mkdir /disk/ext4 /disk/exported
rpcbind; mount -t nfsd n /proc/fs/nfsd
echo '/disk/exported 127.0.0.1(rw,sync,no_root_squash,no_subtree_check)' > /etc/exports
exportfs -a; rpc.nfsd -N 4 8; rpc.mountd
mount -t nfs -o vers=3,tcp,nolock 127.0.0.1:/disk/exported /mnt/knfsd
# Both servers register the same program, so ganesha gets an rpcbind of its own.
kill $(pidof rpcbind); sleep 1; rpcbind
mkdir -p /disk/ganesha /mnt/ganesha /run/ganesha /var/lib/nfs/ganesha
cat > /tmp/ganesha.conf <<'CONF'
NFS_CORE_PARAM {
  Protocols = 3; NFS_Port = 20492; MNT_Port = 20493; Enable_NLM = false; Enable_RQUOTA = false;
}
EXPORT {
  Export_Id = 1; Path = /disk/ganesha; Pseudo = /ganesha; Access_Type = RW; Squash = No_Root_Squash;
  Protocols = 3; Transports = TCP; SecType = sys; FSAL { Name = VFS; }
}
CONF
ganesha.nfsd -f /tmp/ganesha.conf -L /tmp/ganesha.log -N NIV_EVENT -p /run/ganesha.pid
for try in $(seq 30); do
  mount -t nfs -o vers=3,tcp,nolock,port=20492,mountport=20493 127.0.0.1:/disk/ganesha /mnt/ganesha && break
  sleep 1
done
mountpoint -q /mnt/ganesha || { cat /tmp/ganesha.log; false; }
for round in $(seq ROUNDS); do
  for at in "mount:/mnt/fuse" "NFS:/mnt/kedge" "ganesha, ext4:/mnt/ganesha" "knfsd, ext4:/mnt/knfsd" \
      "ext4:/disk/ext4"; do
    name=${at%:*} place=${at#*:}
    for sync in 0 1; do
      mkdir $place/s$sync.$round
      rate=$(fs_mark -S $sync -s 4096 -n FILES -t 4 -D 4 -d $place/s$sync.$round 2>/dev/null |
        awk '$1 ~ /^[0-9]+$/ && NF >= 5 { print $4 }')
      echo "GUEST-RATE|$name|fs_mark S$sync|$rate"
    done
    mkdir $place/tree.$round
    from=$(date +%s%N); tar -xf /tmp/tree.tar -C $place/tree.$round; sync -f $place/tree.$round
    echo "GUEST-RATE|$name|untar|$((count * 1000000000 / ($(date +%s%N) - from)))"
  done
done
umount /mnt/kedge /mnt/knfsd /mnt/ganesha; kedge umount /mnt/fuse; kill -TERM $server; wait $server
for image in fuse nfs; do kedge fsck -f /disk/$image.kedge >/dev/null; done
end DONE
GUEST
sed -i "s/ROUNDS/$rounds/; s/FILES/$files/" root/init; chmod +x root/init
truncate -s 16G disk.raw
timeout 3000 kernel/usr/bin/linux.uml mem=2G root=none rootfstype=hostfs rootflags="$PWD/root" rw \
  init=/init ubda=disk.raw con=null con0=null,fd:1 quiet > guest.log 2>&1 < /dev/null || true
tr -d '\r' < guest.log | awk -F'|' '
  $1 == "GUEST-RATE" { key = $2 "|" $3; n[key]++; rate[key, n[key]] = $4 }
  function median(key, i, j, t) {
    for (i = 1; i <= n[key]; i++) for (j = i + 1; j <= n[key]; j++)
      if (rate[key, i] > rate[key, j]) { t = rate[key, i]; rate[key, i] = rate[key, j]; rate[key, j] = t }
    return rate[key, int((n[key] + 1) / 2)]
  }
  END {
    print "| files per second | mount | NFS | ganesha, ext4 | knfsd, ext4 | ext4 |\n|---|---|---|---|---|---|"
    split("fs_mark S0,fs_mark S1,untar", loads, ",")
    split("mount;NFS;ganesha, ext4;knfsd, ext4;ext4", places, ";")
    for (l = 1; l <= 3; l++) {
      line = "| " loads[l]
      for (p = 1; p <= 5; p++) line = line " | " median(places[p] "|" loads[l])
      print line " |"
    }
  }'
grep -a GUEST-FAILED guest.log && exit 1
grep -aq GUEST-DONE guest.log
