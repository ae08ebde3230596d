set -e
rmdir "$PROGRAM_FROM"; svnadmin create "$PROGRAM_FROM"
