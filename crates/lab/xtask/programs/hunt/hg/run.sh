set -e
cd "$KEDGE_DIR"
for n in 1 2 3; do
    head -c 9000 /dev/zero | tr '\0' $n > file$n
    hg add -q file$n; hg commit -q -u zoo -m $n
    echo "ack $n"
done
