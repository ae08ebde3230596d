# The new text is there if that was promised, or else the old one, perhaps as the backup.
have() { test "$(tr -dc "$2" < "$1" 2> /dev/null | wc -c)" = 9000; }
have notes n && exit 0
test "$KEDGE_ACKED_COUNT" = 0 || { echo "notes were saved and are not new: $(wc -c < notes 2>&1) bytes"; exit 1; }
have notes o || have notes~ o || { echo "neither notes nor its backup is whole"; exit 1; }
