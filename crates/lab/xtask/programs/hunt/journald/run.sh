# A journal daemon in a mount namespace of its own, whose sockets no other daemon has. Messages are logged,
# each promised when journalctl --sync has returned.
if test -z "$AT"; then
    AT=1 exec unshare --mount sh "$PROGRAMS/hunt/journald/run.sh"
fi
mount -t tmpfs none /run && mkdir -p /run/systemd/journal "$KEDGE_DIR/journal" || exit 1
mount -t tmpfs none /var/log && mkdir -p /var/log/journal && mount --bind "$KEDGE_DIR/journal" /var/log/journal || exit 1
mkdir -p /run/systemd/journald.conf.d
printf '[Journal]\nStorage=persistent\nSeal=no\nReadKMsg=no\nAudit=no\nCompress=no\nSystemMaxFileSize=512K\nRuntimeMaxFileSize=512K\nSystemMaxUse=8M\n' > /run/systemd/journald.conf.d/zoo.conf
/lib/systemd/systemd-journald > "$PROGRAM_TEMP/out" 2>&1 &
server=$!
until test -S /run/systemd/journal/stdout; do sleep 0.1; kill -0 $server || { cat "$PROGRAM_TEMP/out"; exit 1; }; done
journalctl --flush > "$PROGRAM_TEMP/flush" 2>&1
for n in 1 2 3; do
    echo "message $n $(head -c 2000 /dev/zero | tr '\0' $n)" | systemd-cat -t zoo || exit 1
    # The daemon has read the message, and has it in its journal.
    until journalctl -q -t zoo -o cat 2> "$PROGRAM_TEMP/err" | grep -q "^message $n "; do sleep 0.05; done
    journalctl --sync || exit 1
    echo "ack $n"
done
kill -9 $server; exit 0
