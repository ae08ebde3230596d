#!/bin/bash
# Copies 20,000 files of 4 KiB, durable at the end: tar(1) on ext4, and on KedgeFS tar(1) on the mount, `kedge tar -x` and
# `kedge cp -r` into it, and `kedge tar -x` into the image. Seconds, in alternating rounds; all images are written in full.
# usage, as root: bulk.sh KEDGE DIR [ROUNDS]
set -euo pipefail
kedge=$(realpath "$1"); dir=$(mktemp -d "$2/bulk.XXXXXX"); rounds=${3:-5}
cd "$dir"
mkdir source ext4 mnt
trap 'umount ext4 mnt 2>/dev/null || true; cd /; rm -rf "$dir"' EXIT
for d in $(seq 200); do
  mkdir "source/$d"
  head -c 409600 /dev/urandom | split -b 4096 -a 3 - "source/$d/file"
done
tar cf source.tar -C source .

# Seconds that a command takes.
took() { local start end; start=$(date +%s%N); "$@" >/dev/null; end=$(date +%s%N)
  printf ' %s.%02d' $(((end - start) / 1000000000)) $(((end - start) / 10000000 % 100)); }
image() { head -c 2G /dev/zero > "$1"; }
on_mount() { tar xf source.tar -C "$1"; sync -f "$1"; }

for _ in $(seq "$rounds"); do
  image e.img; mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0 e.img; mount -o loop e.img ext4; sync
  printf 'ext4, tar:'; took on_mount ext4; umount ext4
  image k.img; "$kedge" mkfs -f k.img >/dev/null; sync; "$kedge" mount k.img mnt; mkdir mnt/1 mnt/2 mnt/3
  printf '; mount, kedge tar:'; took "$kedge" tar -x -f source.tar mnt/1
  printf '; mount, kedge cp:'; took "$kedge" cp -r source mnt/2
  printf '; mount, tar:'; took on_mount mnt/3; "$kedge" umount mnt
  image k.img; "$kedge" mkfs -f k.img >/dev/null; sync
  printf '; image, kedge tar:'; took "$kedge" tar -x -f source.tar k.img:/; echo
done
