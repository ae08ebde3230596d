# An empty system, and a package that will be installed.
set -e
sh "$PROGRAMS/dpkg-prepare.sh"
mkdir -p "$PROGRAM_FROM/var/lib/apt/lists/partial" "$PROGRAM_TEMP/cache/archives/partial" "$PROGRAM_TEMP/log"
