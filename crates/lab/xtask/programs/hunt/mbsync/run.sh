# Two mailboxes are made equal, promised when mbsync has exited with 0.
cat > "$PROGRAM_TEMP/mbsyncrc" <<EOF
FSync yes

MaildirStore far
Inbox $PROGRAM_TEMP/far

MaildirStore near
Inbox $KEDGE_DIR/near

Channel zoo
Far :far:
Near :near:
Sync Pull
SyncState $KEDGE_DIR/state
EOF
mbsync -q -c "$PROGRAM_TEMP/mbsyncrc" zoo && echo "ack equal"
