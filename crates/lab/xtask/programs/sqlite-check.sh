# The database is sound, and has every promised row. Before the first promise it may have no table.
set -- "$(sqlite3 t.db 'pragma integrity_check; select count(*) from t;' 2>&1 | tr '\n' ' ')"
case "$1" in
"ok "[0-9]*) rows=${1#ok } ;;
*"no such table"*" ok "*|*"no such table"*) rows=-1 ;;
*) echo "$1"; exit 1 ;;
esac
promised=$((KEDGE_ACKED_COUNT - 1))
test "$rows" -ge "$promised" || { echo "$rows rows, $promised promised"; exit 1; }
