# What cargo then builds from is whole; it unpacks again what it knows to be incomplete.
dir=$PWD project="$PROGRAM_TEMP/check$$"
cp -r "$PROGRAM_TEMP/project" "$project"
(cd "$project"; CARGO_HOME="$dir/cargo" cargo fetch -q --offline > "$project/said" 2>&1) || { tail -2 "$project/said"; exit 1; }
rm -rf "$project"
have=$(cat cargo/registry/src/*/zoo-crate-1.0.0/src/lib.rs | tr -dc n | wc -c)
test "$have" = 9000 || { echo "the crate counts as unpacked, and its source has $have of 9000 bytes"; exit 1; }
