# A crate in a local registry, and a project that depends on it.
set -e
cd "$PROGRAM_TEMP"
mkdir -p crate/src local/index/zo/o- project/src project/.cargo "$PROGRAM_FROM/cargo"
printf '[package]\nname = "zoo-crate"\nversion = "1.0.0"\nedition = "2021"\n\n[workspace]\n' > crate/Cargo.toml
{ printf '//'; head -c 9000 /dev/zero | tr '\0' n; echo; } > crate/src/lib.rs
(cd crate; CARGO_TARGET_DIR="$PROGRAM_TEMP/target" cargo package -q --offline --no-verify --allow-dirty 2> /dev/null)
cp target/package/zoo-crate-1.0.0.crate local/
sum=$(sha256sum local/zoo-crate-1.0.0.crate | cut -d' ' -f1)
echo "{\"name\":\"zoo-crate\",\"vers\":\"1.0.0\",\"deps\":[],\"cksum\":\"$sum\",\"features\":{},\"yanked\":false}" > local/index/zo/o-/zoo-crate
printf '[package]\nname = "project"\nversion = "1.0.0"\nedition = "2021"\n[dependencies]\nzoo-crate = "1"\n[workspace]\n' > project/Cargo.toml
echo > project/src/lib.rs
printf '[source.crates-io]\nreplace-with = "local"\n[source.local]\nlocal-registry = "%s/local"\n' "$PROGRAM_TEMP" > project/.cargo/config.toml
