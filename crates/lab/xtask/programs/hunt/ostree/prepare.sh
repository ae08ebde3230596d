set -e
ostree --repo="$PROGRAM_FROM" init --mode=archive
for n in 1 2 3; do mkdir -p "$PROGRAM_TEMP/tree$n/dir$n"; head -c 9000 /dev/zero | tr '\0' $n > "$PROGRAM_TEMP/tree$n/dir$n/file"; done
