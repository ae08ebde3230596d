# The file is whole, and as it was promised or newer.
n=$KEDGE_ACKED_COUNT
test "$n" = 0 -a ! -e near/file && exit 0
while test $n -le 3; do
    test $n != 0 -a "$(tr -dc $n < near/file | wc -c)" = $((9000 + n)) && exit 0
    n=$((n + 1))
done
echo "version $KEDGE_ACKED_COUNT was in sync, and $(wc -c < near/file) bytes are there"
exit 1
