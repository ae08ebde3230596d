# An unfinished backup is taken back as the program asks for; then the backup passes its own check, and
# has each promised file.
test "$KEDGE_ACKED_COUNT" = 0 && exit 0
rdiff-backup --api-version 201 -v1 regress backup > regress 2>&1
rdiff-backup --api-version 201 -v1 verify backup > out 2>&1 || { cat regress out | tail -n 1; exit 1; }
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    test "$(tr -dc $n < backup/file$n | wc -c)" = 9000 || { echo "file $n was backed up and is not whole"; exit 1; }
    n=$((n + 1))
done
