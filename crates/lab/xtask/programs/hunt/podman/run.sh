# Images are imported, each promised when the program has exited with 0. The store remembers its own
# path, so it is mounted at the one that the check uses too.
if test -z "$AT"; then
    mkdir -p "$PROGRAM_TEMP/at"
    AT="$PROGRAM_TEMP/at" exec unshare --mount sh "$PROGRAMS/hunt/podman/run.sh"
fi
mkdir -p "$PROGRAM_TEMP/runroot"
mount --bind "$KEDGE_DIR" "$AT" && mount -t tmpfs none "$PROGRAM_TEMP/runroot" || exit 1
for n in 1 2; do
    podman --root "$AT/store" --runroot "$PROGRAM_TEMP/runroot" --storage-driver vfs import -q "$PROGRAM_TEMP/$n.tar" "zoo:$n" > "$PROGRAM_TEMP/log" 2>&1 ||
        { cat "$PROGRAM_TEMP/log"; exit 1; }
    echo "ack $n"
done
