#!/bin/sh
# Builds the C library and installs it: install.sh PREFIX, such as /usr/local or ~/.local.
# DESTDIR, if set, is the root of a package: files go below it, and name PREFIX.
# KEDGEFS_PROFILE names a profile of cargo other than `release`, for tests.
set -eu

if [ $# -ne 1 ]; then
  echo "usage: $0 PREFIX" >&2
  exit 2
fi
case $1 in
  /*) prefix=$1 ;;
  *) echo "$0: $1 is not an absolute path" >&2; exit 2 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
abi=$(sed -n 's/^#define KEDGEFS_ABI //p' "$here/include/kedgefs.h")
profile=${KEDGEFS_PROFILE:-release}
case $profile in
  dev) folder=debug ;;
  *) folder=$profile ;;
esac
built=${CARGO_TARGET_DIR:-$root/target}/$folder
to=${DESTDIR:-}$prefix

(cd "$root" && cargo build --profile "$profile" -p kedgefs-capi)

mkdir -p "$to/include" "$to/lib/pkgconfig"
# A library that a program uses at this moment keeps its own file.
rm -f "$to/lib/libkedgefs.so.$version"
install -m 644 "$here/include/kedgefs.h" "$to/include/kedgefs.h"
install -m 644 "$built/libkedgefs_c.so" "$to/lib/libkedgefs.so.$version"
install -m 644 "$built/libkedgefs_c.a" "$to/lib/libkedgefs.a"
ln -sf "libkedgefs.so.$version" "$to/lib/libkedgefs.so.$abi"
ln -sf "libkedgefs.so.$abi" "$to/lib/libkedgefs.so"
sed -e "s|@PREFIX@|$prefix|" -e "s|@VERSION@|$version|" "$here/kedgefs.pc.in" > "$to/lib/pkgconfig/kedgefs.pc"
chmod 644 "$to/lib/pkgconfig/kedgefs.pc"
echo "kedgefs $version is in $prefix"
