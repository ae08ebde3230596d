# Messages are delivered, each promised when the program has exited with 0, since the mail server
# removes its copy then.
set -e
cd "$KEDGE_DIR"
# procmail replaces HOME.
printf 'MAILDIR=%s\nDEFAULT=Mail/\n' "$PWD" > "$PROGRAM_TEMP/procmailrc"
for n in 1 2 3; do
    { printf 'From: a@example.org\nSubject: %s\n\n' $n; head -c 9000 /dev/zero | tr '\0' $n; echo; } > "$PROGRAM_TEMP/message"
    procmail "$PROGRAM_TEMP/procmailrc" < "$PROGRAM_TEMP/message"
    echo "ack $n"
done
