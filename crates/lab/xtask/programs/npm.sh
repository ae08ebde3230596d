# Installs a package. It is promised when npm has returned.
set -e
cd "$KEDGE_DIR"
npm install --offline --no-audit --no-fund --silent --cache "$PROGRAM_TEMP/cache" "$PROGRAM_TEMP/zoo-pkg-1.0.0.tgz"
echo "ack installed"
