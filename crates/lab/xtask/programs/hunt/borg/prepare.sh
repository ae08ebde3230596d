set -e
export BORG_BASE_DIR="$PROGRAM_TEMP/borg"
rmdir "$PROGRAM_FROM"; borg init -e none "$PROGRAM_FROM" 2> /dev/null
mkdir "$PROGRAM_TEMP/data"; for n in 1 2 3; do head -c 90000 /dev/urandom > "$PROGRAM_TEMP/data/$n"; done
