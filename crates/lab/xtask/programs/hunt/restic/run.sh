set -e
export RESTIC_PASSWORD=zoo
cd "$PROGRAM_TEMP/data"
for n in 1 2; do
    restic -q --no-cache -r "$KEDGE_DIR" backup $n
    echo "ack $n"
done
