# The installed package works.
test "$KEDGE_ACKED_COUNT" = 0 && exit 0
node -e 'const t = require("./node_modules/zoo-pkg"); if (t.length !== 9000) { console.log(t.length + " bytes"); process.exit(1) }' > "$KEDGE_ACKED_FILE.out" 2>&1 || { grep -m 1 . "$KEDGE_ACKED_FILE.out"; exit 1; }
