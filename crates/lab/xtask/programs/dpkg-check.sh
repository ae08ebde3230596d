# Every package that the database lists as installed is complete, and every promised package is installed.
status=$(dpkg-query --admindir=var/lib/dpkg -W -f '${db:Status-Status}' zoo 2>/dev/null)
test "$KEDGE_ACKED_COUNT" = 0 || test "$status" = installed || { echo "promised, and is ${status:-unknown}"; exit 1; }
test "$status" = installed || exit 0
for name in one two; do
    test "$(tr -dc n < opt/zoo/$name | wc -c)" = 9000 || { echo "$name is installed and not whole"; exit 1; }
done
