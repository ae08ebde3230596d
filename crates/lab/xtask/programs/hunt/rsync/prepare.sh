set -e
mkdir -p "$PROGRAM_TEMP/new"
for n in 1 2; do head -c 9000 /dev/zero | tr '\0' o > "$PROGRAM_FROM/$n"; head -c 9000 /dev/zero | tr '\0' n > "$PROGRAM_TEMP/new/$n"; done
