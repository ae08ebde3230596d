set -e
mkdir -p "$PROGRAM_TEMP/home"
convert() { HOME="$PROGRAM_TEMP/home" timeout 100 soffice --headless --convert-to odt --outdir "$1" "$PROGRAM_TEMP/doc.txt" > /dev/null 2>&1; }
echo "an old text" > "$PROGRAM_TEMP/doc.txt"; convert "$PROGRAM_FROM"
test -s "$PROGRAM_FROM/doc.odt"
echo "a new text" > "$PROGRAM_TEMP/doc.txt"
