# Messages are delivered by the program $1, each promised when it has exited with 0, since the mail
# server removes its copy then.
set -e
cd "$KEDGE_DIR"
# procmail replaces HOME.
printf 'MAILDIR=%s\nDEFAULT=Mail/\n' "$PWD" > "$PROGRAM_TEMP/procmailrc"
for n in 1 2 3; do
    { printf 'From: a@example.org\nSubject: %s\n\n' $n; head -c 9000 /dev/zero | tr '\0' $n; echo; } > "$PROGRAM_TEMP/message"
    case $1 in
    procmail) procmail "$PROGRAM_TEMP/procmailrc" < "$PROGRAM_TEMP/message" ;;
    maildrop) HOME="$PWD" maildrop "$PROGRAM_TEMP/mailfilter" < "$PROGRAM_TEMP/message" ;;
    esac
    echo "ack $n"
done
