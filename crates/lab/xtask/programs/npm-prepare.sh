# A package.
set -e
mkdir -p "$PROGRAM_TEMP/zoo-pkg" && cd "$PROGRAM_TEMP/zoo-pkg"
printf '{"name":"zoo-pkg","version":"1.0.0","main":"index.js"}' > package.json
{ printf 'module.exports = "'; head -c 9000 /dev/zero | tr '\0' n; printf '";\n'; } > index.js
npm pack --silent --pack-destination "$PROGRAM_TEMP" > /dev/null
printf '{"name":"zoo","version":"1.0.0"}' > "$PROGRAM_FROM/package.json"
