# Two versions of WiredTiger, as PyPI has them: the source is built, which takes minutes and needs swig;
# the older one needs libraries for compression, too.
set -e
build() { # the version, the program
    test -d "lib-$1/wiredtiger" || python3 -m pip install -q --disable-pip-version-check --target "lib-$1" "wiredtiger==$1" > get.log 2>&1 ||
        { rm -rf "lib-$1"; tail -5 get.log >&2; exit 1; }
    printf '#!/bin/sh\nPYTHONPATH="%s/lib-%s" exec python3 "%s/store.py" "$@"\n' "$PWD" "$1" "$PWD" > "$BIN/$2"
    chmod 755 "$BIN/$2"
}
build 11.3.1 wiredtiger-store
build 11.0.0 wiredtiger-old
