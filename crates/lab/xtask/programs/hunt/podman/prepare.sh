set -e
mkdir "$PROGRAM_TEMP/data"
for n in 1 2; do head -c 9000 /dev/zero | tr '\0' $n > "$PROGRAM_TEMP/data/file$n"; tar -C "$PROGRAM_TEMP/data" -cf "$PROGRAM_TEMP/$n.tar" "file$n"; done
