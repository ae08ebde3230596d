set -e
export RESTIC_PASSWORD=zoo RESTIC_CACHE_DIR="$PROGRAM_TEMP/cache"
restic -q init -r "$PROGRAM_FROM"
mkdir "$PROGRAM_TEMP/data"; for n in 1 2 3; do head -c 90000 /dev/urandom > "$PROGRAM_TEMP/data/$n"; done
