# The installed package works.
test "$KEDGE_ACKED_COUNT" = 0 && exit 0
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=lib python3 -c 'import zoo_pkg; assert zoo_pkg.TEXT == "n" * 9000' 2>&1 | tail -n 1 > "$KEDGE_ACKED_FILE.out"
test ! -s "$KEDGE_ACKED_FILE.out" || { cat "$KEDGE_ACKED_FILE.out"; exit 1; }
