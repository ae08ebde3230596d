set -e
mkdir "$PROGRAM_FROM/near"; mkdir "$PROGRAM_TEMP/far"
for n in 1 2; do
    head -c 9000 /dev/zero | tr '\0' o > "$PROGRAM_FROM/near/$n"
    cp -a "$PROGRAM_FROM/near/$n" "$PROGRAM_TEMP/far/"
done
