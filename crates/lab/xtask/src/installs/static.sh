# In a clean system: /given has the archives.
tar -xzf /given/kedgefs-*-"$(uname -m)"-unknown-linux-musl.tar.gz --strip-components=1 -C /usr/local
size=$(stat -c %s /usr/local/bin/kedge)
echo "bytes of the program: $size"
test "$size" -lt $((15 << 20))
# The processor time of a start, and how long the fastest took: on a busy machine that says little.
set +x
fastest=
times >/tmp/before
for _ in $(seq 50); do
    from=$(date +%s%N)
    kedge --version >/dev/null
    took=$((($(date +%s%N) - from) / 1000))
    if test -z "$fastest" || test "$took" -lt "$fastest"; then fastest=$took; fi
done
times >/tmp/after
# The second line is that of the programs that ended: minutes and seconds, as user and as system.
used=$(cat /tmp/before /tmp/after | awk '
    function seconds(text) { split(text, part, /[ms]/); return part[1] * 60 + part[2] }
    NR == 2 { before = seconds($1) + seconds($2) }
    NR == 4 { printf "%d", (seconds($1) + seconds($2) - before) * 1000000 / 50 }')
echo "microseconds of a start, with two of date(1): $used of the processor, the fastest took $fastest"
set -x
test "$used" -lt 20000
cd /root
kedge mount --create 64M disk.kedge mnt
echo kept > mnt/a
sync mnt/a
kill -9 "$(kedge info mnt | awk '$1 == "mount.pid" { print $2 }')"
kedge mount disk.kedge mnt
test "$(cat mnt/a)" = kept
kedge umount mnt
kedge fsck -f disk.kedge
# Another user needs fusermount3, which is not here, and reads so.
mkdir --mode 777 /tmp/person
if setpriv --reuid 65534 --regid 65534 --clear-groups \
    kedge mount --create 64M /tmp/person/disk.kedge /tmp/person/mnt 2>why; then exit 1; fi
grep "neither fusermount3 nor fusermount was found" why
