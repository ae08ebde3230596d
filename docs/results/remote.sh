#!/bin/bash
# Makes the table of remote.md: as root, on Debian, with the packages nbdkit, qemu-utils,
# qemu-block-extra, libnbd-bin, ceph-mon, ceph-osd, ceph-common and fuse3.
#
#     cargo build --release -p kedge -p kedge-bench -p kedge-ceph
#     docs/results/remote.sh target/release [SECONDS [ROUNDS]]
#
# ext4 needs a block device. krbd would be one; where the kernel has no such module, nbdfuse shows
# an NBD export as a file, and a loop device with direct IO makes that a block device.
set -euo pipefail
bin=$(realpath "$1") seconds=${2:-3} rounds=${3:-3}
work=$(mktemp -d /var/tmp/kedge-remote.XXXXXX)
cd "$work"
children=()
end() {
  set +e
  for dir in kedge-nbd kedge-rbd ext4-local ext4-nbd ext4-rbd; do mountpoint -q $dir && umount $dir; done
  for file in ext4.img nbd-file/nbd rbd-file/nbd; do losetup -j "$work/$file" -O NAME -n | xargs -r losetup -d; done
  for dir in nbd-file rbd-file; do mountpoint -q $dir && fusermount3 -u $dir; done
  kill "${children[@]}" 2>/dev/null # some ended with what they showed
  exec 7>&- 8>&-
  wait
  rm -rf "$work"
}
trap end EXIT

# cluster NAME FD WORDS: a cluster that ends when FD is closed; its configuration is conf-NAME.
cluster() {
  mkfifo hold-$1
  "$bin/kedge-ceph" $3 <hold-$1 >said-$1 &
  eval "exec $2>hold-$1"
  for _ in $(seq 600); do grep -q 'The cluster ends' said-$1 && break; sleep 0.1; done
  conf=$(sed -n 's/^export CEPH_CONF=//p' said-$1)
  ln -s "$conf" conf-$1
}
there() { for _ in $(seq 100); do [ -e "$1" ] && return; sleep 0.1; done; echo "$1 does not come" >&2; exit 1; }
# ext4_on FILE DIR
ext4_on() {
  device=$(losetup --find --show --direct-io=on "$work/$1")
  mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 "$device"
  mkdir $2
  mount "$device" $2
}
serve() { there "$1"; children+=($!); }

cluster memory 7 "1 memory"
cluster disk 8 "3 disk"
one="rbd:rbd/one?id=fs&conf=$(readlink conf-memory)"
three="rbd:rbd/three?id=fs&conf=$(readlink conf-disk)"
mounted="rbd:rbd/mounted?id=fs&conf=$(readlink conf-disk)"
for image in "$one" "$three" "$mounted"; do "$bin/kedge" mkfs --size 1G "$image" >/dev/null; done
rbd -c "$(readlink conf-disk)" create --size 1G rbd/ext4

truncate -s 1G local.img kit.img qemu.img mount.img ext4.img kit-ext4.img
nbdkit -f --unix kit.sock file kit.img & serve kit.sock
nbdkit -f --unix mount.sock file mount.img & serve mount.sock
nbdkit -f --unix kit-ext4.sock file kit-ext4.img & serve kit-ext4.sock
qemu-nbd -t -f raw --cache=writeback -k "$work/qemu.sock" qemu.img & serve qemu.sock
qemu-nbd -t -f raw --cache=none --aio=threads -k "$work/rbd-ext4.sock" \
  "rbd:rbd/ext4:id=fs:conf=$(readlink conf-disk)" & serve rbd-ext4.sock

mkdir kedge-nbd kedge-rbd nbd-file rbd-file
"$bin/kedge" mkfs "nbd+unix:///?socket=$work/mount.sock" >/dev/null
"$bin/kedge" mount "nbd+unix:///?socket=$work/mount.sock" kedge-nbd
"$bin/kedge" mount "$mounted" kedge-rbd
nbdfuse nbd-file "nbd+unix:///?socket=$work/kit-ext4.sock" & serve nbd-file/nbd
nbdfuse rbd-file "nbd+unix:///?socket=$work/rbd-ext4.sock" & serve rbd-file/nbd
ext4_on ext4.img ext4-local
ext4_on nbd-file/nbd ext4-nbd
ext4_on rbd-file/nbd ext4-rbd

"$bin/kedge-lab" bench remote --seconds "$seconds" --rounds "$rounds" \
  "$work/local.img" "nbd+unix:///?socket=$work/kit.sock" \
  "nbd+unix:///?socket=$work/qemu.sock&connections=1" "$one" "$three" \
  "$work/kedge-nbd" "$work/kedge-rbd" "$work/ext4-local" "$work/ext4-nbd" "$work/ext4-rbd" |
  sed -e "s#\`$work/local.img\`#a file#" -e 's#`nbd[^`]*kit.sock`#NBD, nbdkit#' \
    -e 's#`nbd[^`]*qemu.sock[^`]*`#NBD, qemu-nbd, one connection#' \
    -e 's#`rbd:rbd/one[^`]*`#RBD, one OSD in memory#' -e 's#`rbd:rbd/three[^`]*`#RBD, three OSDs on disk#' \
    -e "s#\`$work/kedge-nbd\`#a mount on NBD, nbdkit#" \
    -e "s#\`$work/kedge-rbd\`#a mount on RBD, three OSDs on disk#" \
    -e "s#\`$work/ext4-local\`#ext4 on a file#" -e "s#\`$work/ext4-nbd\`#ext4 on NBD, nbdkit#" \
    -e "s#\`$work/ext4-rbd\`#ext4 on RBD, three OSDs on disk#"
