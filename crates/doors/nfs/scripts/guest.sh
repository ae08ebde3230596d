#!/bin/bash
# Mounts an image from a virtual machine with Linux's NFS client, and kills the server while the
# guest works: what the guest has synced must be there, and an unpacked tree must be whole.
#
#   guest.sh KEDGE KERNEL-PACKAGE DIR
#
# KERNEL-PACKAGE is a package of Debian's kernel (apt-get download linux-image-…-amd64), unpacked
# in DIR, which is overwritten. Needs qemu-system-x86, busybox-static, cpio. No root. KILLS may be
# set.
source "$(dirname "$(realpath "$0")")/machine.sh"
kedge=$(realpath "$1") kills=${KILLS:-8}
unpack "$2" "$3"
# The tree: the modules of the kernel.
(cd kernel/lib/modules/*/kernel && tar cf - fs | tar xf - -C "$OLDPWD/root/tmp")
(cd root/tmp && find fs -type f | sort | xargs sha256sum > sums && tar cf tree.tar fs && rm -r fs)
init <<'GUEST'
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
GUEST
# With --volatile a kill is a power failure.
start --volatile
boot 900
for n in $(seq "$kills"); do
  kill -0 $guest || { echo "the guest ended before kill $n" >&2; exit 1; }
  sleep "2.$n"; kill -KILL $server; wait $server || true; sleep 0.5; start --volatile
done
stop
grep -a GUEST- guest.log
if grep -aq GUEST-FAILED guest.log; then exit 1; fi
grep -aq GUEST-UNPACKED guest.log
echo "$kills kills: nothing that the guest had synced is missing"
