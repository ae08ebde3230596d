# Each promised key can sign.
export GNUPGHOME="$PWD"
chmod 700 .
n=1 code=0
while test $n -le "$KEDGE_ACKED_COUNT"; do
    echo x | gpg -q --batch --pinentry-mode loopback --passphrase '' -u "zoo$n@example.org" --sign > "$PROGRAM_TEMP/signed$$" 2> "$PROGRAM_TEMP/said$$" ||
        { echo "key $n was made and cannot sign: $(tail -1 "$PROGRAM_TEMP/said$$")"; code=1; break; }
    n=$((n + 1))
done
gpgconf --kill all
exit $code
