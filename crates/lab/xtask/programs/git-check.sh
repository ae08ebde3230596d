# Every object that a reference needs is intact, and so is every promised commit. $1: "sound" if promises do not count.
git() { command git -c safe.directory='*' "$@"; }
if ! git rev-parse -q --verify HEAD > /dev/null 2>&1; then
    test ! -e .git/refs/heads/master || { echo "the branch is damaged"; exit 1; }
    test "$1" = sound || test "$KEDGE_ACKED_COUNT" = 0 || { echo "no HEAD"; exit 1; }
    exit 0
fi
git fsck --full --no-dangling > "$KEDGE_ACKED_FILE.out" 2>&1 || { tail -n 1 "$KEDGE_ACKED_FILE.out"; exit 1; }
test "$1" = sound && exit 0
commits=$(git rev-list --count HEAD)
test "$commits" -ge "$KEDGE_ACKED_COUNT" || { echo "$commits commits, $KEDGE_ACKED_COUNT promised"; exit 1; }
