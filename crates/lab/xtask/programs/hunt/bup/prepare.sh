set -e
mkdir "$PROGRAM_TEMP/data"
BUP_DIR="$PROGRAM_FROM" bup init > /dev/null 2>&1
