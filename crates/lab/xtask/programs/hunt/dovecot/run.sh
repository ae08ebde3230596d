# Mails are delivered, each promised when the program has exited with 0.
mkdir -m 777 -p "$PROGRAM_TEMP/home"; chmod a+x "$PROGRAM_TEMP"
cat > "$PROGRAM_TEMP/dovecot.conf" <<END
base_dir = $PROGRAM_TEMP/base
mail_location = maildir:$KEDGE_DIR/Maildir
log_path = $PROGRAM_TEMP/home/log
ssl = no
hostname = zoo.example.org
postmaster_address = a@zoo.example.org
END
chmod 644 "$PROGRAM_TEMP/dovecot.conf"
for n in 1 2 3; do
    { printf 'From: a@zoo.example.org\nMessage-ID: <%s@zoo>\nSubject: message %s\n\n' $n $n; head -c 9000 /dev/zero | tr '\0' $n | fold -w 75; echo; } > "$PROGRAM_TEMP/home/mail"
    chmod 644 "$PROGRAM_TEMP/home/mail"
    setpriv --reuid=nobody --regid=nogroup --clear-groups env HOME="$PROGRAM_TEMP/home" USER=nobody \
        /usr/lib/dovecot/dovecot-lda -c "$PROGRAM_TEMP/dovecot.conf" -e -p "$PROGRAM_TEMP/home/mail" > "$PROGRAM_TEMP/out" 2>&1 || { cat "$PROGRAM_TEMP/out" "$PROGRAM_TEMP/home/log"; exit 1; }
    echo "ack $n"
done
