# The packages of npm that the rows use. Of them only better-sqlite3 is built, which takes minutes.
set -e
test -d node_modules/classic-level -a -d node_modules/pouchdb || npm install --silent --no-audit --no-fund --ignore-scripts > get.log 2>&1 || { tail -5 get.log >&2; exit 1; }
test -f node_modules/better-sqlite3/build/Release/better_sqlite3.node || npm rebuild --silent better-sqlite3 > get.log 2>&1 || { tail -5 get.log >&2; exit 1; }
printf '#!/bin/sh\nexec node "%s/stores.js" "$@"\n' "$PWD" > "$BIN/node-more"
chmod 755 "$BIN/node-more"
