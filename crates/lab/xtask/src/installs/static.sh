# In a clean system: /given has the archives.
tar -xzf /given/kedgefs-*-"$(uname -m)"-unknown-linux-musl.tar.gz --strip-components=1 -C /usr/local
size=$(stat -c %s /usr/local/bin/kedge)
echo "bytes of the program: $size"
test "$size" -lt $((15 << 20))
# The fastest of many starts: the machine may have other work.
set +x
fastest=
for _ in $(seq 50); do
    from=$(date +%s%N)
    kedge --version >/dev/null
    took=$((($(date +%s%N) - from) / 1000))
    if test -z "$fastest" || test "$took" -lt "$fastest"; then fastest=$took; fi
done
echo "microseconds of the fastest start, with date(1): $fastest"
set -x
test "$fastest" -lt 20000
cd /root
kedge mount --create 64M disk.kedge mnt
echo kept > mnt/a
sync mnt/a
kill -9 "$(kedge info mnt | awk '$1 == "mount.pid" { print $2 }')"
kedge mount disk.kedge mnt
test "$(cat mnt/a)" = kept
kedge umount mnt
kedge fsck -f disk.kedge
