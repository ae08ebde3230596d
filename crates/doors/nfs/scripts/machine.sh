# Sourced by guest.sh and pjdfstest.sh: a virtual machine with Debian's kernel that mounts what a
# server on this machine serves. No root is needed.
set -euo pipefail
port=20491 server= guest=
modules="e1000 sunrpc grace lockd netfs fscache nfs_acl nfs nfsv3"

# unpack KERNEL-PACKAGE DIR: makes the root of the guest in DIR, which is overwritten and entered.
unpack() {
  local package program module
  package=$(realpath "$1")
  for program in qemu-system-x86_64 busybox cpio; do
    command -v $program > /dev/null || { echo "$program is not installed" >&2; exit 1; }
  done
  rm -rf "$2"; mkdir -p "$2"/root/{bin,proc,sys,dev,mnt,tmp,modules}; cd "$2"
  dpkg -x "$package" kernel
  cp "$(command -v busybox)" root/bin/busybox
  for module in $modules; do
    find kernel -name "$module.ko" -exec cp {} root/modules/ \;
  done
}

# init: standard input has the commands that the guest runs in its mount, /mnt. Each of their lines
# that begins with GUEST- is printed at the end. The machine stops after them.
init() {
  {
    cat <<GUEST
#!/bin/busybox sh
/bin/busybox --install -s /bin; export PATH=/bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for m in $modules; do
  [ ! -f /modules/\$m.ko ] || insmod /modules/\$m.ko
done
ifconfig lo up; ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up; sleep 2
o=vers=3,proto=tcp,mountproto=tcp,nolock,addr=10.0.2.2,mountaddr=10.0.2.2,port=$port,mountport=$port
mount -t nfs -o \$o 10.0.2.2:/ /mnt && echo GUEST-MOUNTED && cd /mnt || poweroff -f
GUEST
    cat
    echo 'cd /; umount /mnt && echo GUEST-DONE'
    echo 'poweroff -f'
  } > root/init
  chmod +x root/init
  (cd root && find . | cpio -o -H newc --quiet) | gzip -1 > init.gz
}

# start OPTIONS: the server of disk.kedge, which is made if there is none.
start() {
  [ -e disk.kedge ] || "$kedge" mkfs --size 1G disk.kedge > /dev/null
  "$kedge" serve nfs --any-port --listen $port "$@" disk.kedge >> served.log & server=$!
}
trap 'kill -KILL $server $guest 2> /dev/null || true' EXIT

# boot SECONDS: starts the machine, and returns when it has mounted. It uses KVM if a machine with
# it mounts within a minute, which not every /dev/kvm can, else translates. ACCEL may name QEMU's
# accelerator.
boot() {
  local accel tries
  for accel in ${ACCEL:-kvm tcg}; do
    [ "$accel" != kvm ] || [ -w /dev/kvm ] || continue
    : > guest.log
    timeout "$1" qemu-system-x86_64 -accel "$accel" -cpu max -m 1024 -nographic -no-reboot \
      -kernel kernel/boot/vmlinuz-* -initrd init.gz -append "console=ttyS0 quiet panic=1" \
      -netdev user,id=n -device e1000,netdev=n > guest.log 2>&1 < /dev/null &
    guest=$! tries=$(($1 * 2))
    [ "$accel" != kvm ] || tries=120
    while [ $tries -gt 0 ] && kill -0 $guest 2> /dev/null; do
      if grep -aq GUEST-MOUNTED guest.log; then echo "the guest has mounted ($accel)"; return; fi
      tries=$((tries - 1)); sleep 0.5
    done
    kill $guest 2> /dev/null || true; wait $guest || true
    echo "no machine mounts with $accel here"
  done
  tail -n 20 guest.log; echo "the guest has not mounted" >&2; exit 1
}

# stop: waits for the machine's end, ends the server, and checks the image.
stop() {
  wait $guest
  kill -TERM $server; wait $server
  "$kedge" fsck -f disk.kedge
  grep -aq GUEST-DONE guest.log || { tail -n 20 guest.log; echo "the guest did not end" >&2; exit 1; }
}
