# Each promised mail is in the mailbox, and no mail is torn.
n=1
while test $n -le "$KEDGE_ACKED_COUNT"; do
    have=$(cat Maildir/new/* Maildir/cur/* 2> /dev/null | grep -x "$n*" | tr -d '\n' | wc -c)
    test "$have" = 9000 || { echo "mail $n was delivered and is not whole: $have bytes"; exit 1; }
    n=$((n + 1))
done
