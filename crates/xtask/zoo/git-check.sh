# Every object that a reference needs is there and whole, and so is every commit that was promised.
if ! git -c safe.directory='*' rev-parse -q --verify HEAD > /dev/null 2>&1; then
    test "$KEDGE_ACKED_COUNT" = 0 || { echo "no HEAD"; exit 1; }
    exit 0
fi
git -c safe.directory='*' fsck --full --no-dangling > "$KEDGE_ACKED_FILE.out" 2>&1 || { tail -n 1 "$KEDGE_ACKED_FILE.out"; exit 1; }
commits=$(git -c safe.directory='*' rev-list --count HEAD)
test "$commits" -ge "$KEDGE_ACKED_COUNT" || { echo "$commits commits, $KEDGE_ACKED_COUNT promised"; exit 1; }
