# Each promised image is there, and its file is whole.
if test -z "$AT"; then
    AT="$PROGRAM_TEMP/at" exec unshare --mount sh "$PROGRAMS/hunt/podman/check.sh"
fi
mount --bind "$PWD" "$AT" && mount -t tmpfs none "$PROGRAM_TEMP/runroot" || exit 1
call() { podman --root "$AT/store" --runroot "$PROGRAM_TEMP/runroot" --storage-driver vfs "$@" 2> "$PROGRAM_TEMP/said$$"; }
n=1 code=0
while test $n -le "$KEDGE_ACKED_COUNT"; do
    at=$(call image mount "zoo:$n") && test "$(tr -dc $n < "$at/file$n" | wc -c)" = 9000 ||
        { echo "image $n was imported and is not whole: $(tail -1 "$PROGRAM_TEMP/said$$")"; code=1; break; }
    call image umount "zoo:$n" > /dev/null
    n=$((n + 1))
done
exit $code
