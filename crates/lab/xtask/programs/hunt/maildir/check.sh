# Each promised message is in the maildir, whole.
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    cat Mail/new/* 2> /dev/null | tr -dc $n | wc -c | { read have; test "$have" -ge 9000; } ||
        { echo "message $n was promised and is not there"; exit 1; }
    n=$((n + 1))
done
