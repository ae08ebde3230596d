# Keys are made, each promised when gpg has exited with 0.
export GNUPGHOME="$KEDGE_DIR"
for n in 1 2; do
    gpg -q --batch --pinentry-mode loopback --passphrase '' --quick-generate-key "zoo$n@example.org" ed25519 sign 2> "$PROGRAM_TEMP/log" ||
        { cat "$PROGRAM_TEMP/log"; exit 1; }
    echo "ack $n"
done
gpgconf --kill all
