# The stores that crates.io has, and the program that uses them.
set -e
cargo build --quiet --release --target-dir target > get.log 2>&1 || { tail -5 get.log >&2; exit 1; }
cp target/release/crash-stores-new "$BIN/"
