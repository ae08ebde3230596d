set -e
hg init "$PROGRAM_FROM"
