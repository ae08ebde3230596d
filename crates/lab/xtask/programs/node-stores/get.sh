# The packages of npm that the rows use, whole: nothing of them is built.
set -e
test -d node_modules/@seald-io/nedb -a -d node_modules/write-file-atomic || npm install --silent --no-audit --no-fund --ignore-scripts > /dev/null
printf '#!/bin/sh\nexec node "%s/stores.js" "$@"\n' "$PWD" > "$BIN/node-stores"
chmod 755 "$BIN/node-stores"
