# $1 is an empty directory, which becomes the root of the program; $2 has the archives, $3 is QEMU.
tar -xzf "$2"/kedgefs-*-aarch64-unknown-linux-musl.tar.gz --strip-components=1 -C "$1"
size=$(stat -c %s "$1/bin/kedge")
echo "bytes of the program: $size"
test "$size" -lt $((15 << 20))
cp "$3" "$1/qemu"
cd "$1"
run() {
    if test "$(id -u)" = 0; then
        chroot . /qemu /bin/kedge "$@"
    else
        unshare -r chroot . /qemu /bin/kedge "$@"
    fi
}
run --version
run mkfs --size 64M /disk.kedge
run fsck -f /disk.kedge
# As a stream, since this QEMU has no openat2(2), with which kedge opens files of the host.
tar -cf - README.md | ./qemu bin/kedge mkfs --size 64M --from - filled.kedge
./qemu bin/kedge cat filled.kedge:/README.md > copy
cmp README.md copy
run fsck -f /filled.kedge
