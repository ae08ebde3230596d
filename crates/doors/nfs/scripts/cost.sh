#!/bin/bash
# What `kedge mount --nfs` costs the mount: requests and seconds of the same work on a mount without
# and with it, in turn. No client is connected.
# Usage: cost.sh KEDGE DIRECTORY [ROUNDS] [FILES]
set -e
kedge=$1 w=$2/kedge-cost rounds=${3:-5} files=${4:-600}
export files
rm -rf "$w"
mkdir -p "$w/mnt" "$w/src"
python3 - "$w/src" <<'P'
import os, sys
for n in range(int(os.environ["files"])):
    d = f"{sys.argv[1]}/d{n // 50}"
    os.makedirs(d, exist_ok=True)
    with open(f"{d}/f{n}", "wb") as f:
        f.write(os.urandom(500 + n * 13 % 9000))
P
tar -C "$w" -cf "$w/src.tar" src
requests() {
    "$kedge" stats --json "$w/mnt" |
        python3 -c 'import json, sys; print(sum(json.load(sys.stdin)["fuse"]["requests"].values()))'
}
step() { # MODE NAME COMMAND
    local before begun ended
    before=$(requests) begun=$(date +%s%N)
    "${@:3}" >/dev/null
    ended=$(date +%s%N)
    echo "$1 $2 $((ended - begun)) $(($(requests) - before))"
}
python() { python3 -c "$1" "$w/mnt"; }
create() {
    python 'import os, sys
d = sys.argv[1] + "/s0"
os.mkdir(d)
for i in range(int(os.environ["files"])):
    with open(f"{d}/{i}", "wb") as f: f.write(b"x" * 4096)'
}
stats() {
    python 'import os, sys
names = [os.path.join(d, n) for d, _, ns in os.walk(sys.argv[1] + "/src") for n in ns]
for _ in range(3):
    for n in names: os.stat(n)'
}
preads() {
    python 'import os, sys
f = os.open(sys.argv[1] + "/src/d0/f0", os.O_RDONLY)
for _ in range(5000): os.pread(f, 4096, 0)'
}
for _ in $(seq "$rounds"); do
    for mode in plain nfs; do
        rm -f "$w/disk.kedge"
        "$kedge" mkfs --size 512M "$w/disk.kedge" >/dev/null
        nfs=""
        [ $mode = plain ] || nfs="--nfs 23049"
        # shellcheck disable=SC2086
        "$kedge" mount $nfs "$w/disk.kedge" "$w/mnt" >/dev/null
        step $mode create create
        step $mode untar tar -C "$w/mnt" -xf "$w/src.tar"
        step $mode stat-3-times stats
        step $mode cat-twice sh -c "cat $w/mnt/src/*/*; cat $w/mnt/src/*/*"
        step $mode ls-lR sh -c "ls -lR $w/mnt/src"
        step $mode pread-5000 preads
        "$kedge" umount "$w/mnt"
    done
done >"$w/figures"
python3 - "$w/figures" <<'P'
import statistics, sys
found = {}
for line in open(sys.argv[1]):
    mode, name, ns, requests = line.split()
    found.setdefault(name, {}).setdefault(mode, []).append((int(ns) / 1e9, int(requests)))
print("| work | requests | with --nfs | seconds | with --nfs |\n|---|---|---|---|---|")
for name, modes in found.items():
    (a, b), (c, d) = (map(statistics.median, zip(*modes[mode])) for mode in ("plain", "nfs"))
    print(f"| {name} | {b:.0f} | {d:.0f} | {a:.3f} | {c:.3f} |")
P
rm -rf "$w"
