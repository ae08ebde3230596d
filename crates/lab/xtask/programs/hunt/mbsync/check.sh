# No message that is in the mailbox is torn, and all are there if that was promised.
for n in 1 2 3; do
    have=$(cat near/new/* near/cur/* 2> /dev/null | tr -dc $n | wc -c)
    test "$have" -ge 9000 -o "$KEDGE_ACKED_COUNT" = 0 || { echo "message $n was copied and is not there"; exit 1; }
done
for file in near/new/* near/cur/*; do
    test ! -e "$file" -o "$(wc -c < "$file" 2> /dev/null || echo 0)" -ge 9000 || { echo "$file is torn: $(wc -c < "$file") bytes"; exit 1; }
done
