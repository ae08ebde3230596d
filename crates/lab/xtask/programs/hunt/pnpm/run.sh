# Installs a package, promised when pnpm has exited with 0.
cd "$KEDGE_DIR"
CI=1 HOME="$PROGRAM_TEMP" XDG_CACHE_HOME="$PROGRAM_TEMP/cache" pnpm add --offline --store-dir "$PROGRAM_TEMP/store" "$PROGRAM_TEMP/zoo-pkg-1.0.0.tgz" > "$PROGRAM_TEMP/out" 2>&1 || { tail -3 "$PROGRAM_TEMP/out"; exit 1; }
echo "ack installed"
