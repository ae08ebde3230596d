# The document is whole, and has the new text if that was promised.
unzip -tqq doc.odt > out 2>&1 || { echo "the document is damaged: $(tail -1 out)"; exit 1; }
unzip -p doc.odt content.xml | grep -q "a new text" || test "$KEDGE_ACKED_COUNT" = 0 || { echo "the new text was saved and is not there"; exit 1; }
