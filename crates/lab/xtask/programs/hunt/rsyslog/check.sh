# Each promised message is in the log, and whole.
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    test "$(grep -a "message $n " zoo.log 2> /dev/null | sed 's/.*message //' | tr -dc $n | wc -c)" = 801 || { echo "message $n was logged and is not whole"; exit 1; }
    n=$((n + 1))
done
