# pnpm, as npm has it.
set -e
test -d node_modules/pnpm || npm install --silent --no-audit --no-fund pnpm@12.4.2 > get.log 2>&1 || { tail -5 get.log >&2; exit 1; }
printf '#!/bin/sh\nexec node "%s/node_modules/pnpm/bin/pnpm.mjs" "$@"\n' "$PWD" > "$BIN/pnpm"
chmod 755 "$BIN/pnpm"
