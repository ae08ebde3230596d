# An empty system, and a package that will be installed.
set -e
cd "$PROGRAM_FROM"
mkdir -p var/lib/dpkg/info var/lib/dpkg/updates var/lib/dpkg/triggers
touch var/lib/dpkg/status var/lib/dpkg/available
mkdir -p "$PROGRAM_TEMP/package/DEBIAN" "$PROGRAM_TEMP/package/opt/zoo"
printf 'Package: zoo\nVersion: 1\nArchitecture: all\nMaintainer: nobody <a@b>\nDescription: x\n' > "$PROGRAM_TEMP/package/DEBIAN/control"
for name in one two; do head -c 9000 /dev/zero | tr '\0' n > "$PROGRAM_TEMP/package/opt/zoo/$name"; done
dpkg-deb --root-owner-group -b "$PROGRAM_TEMP/package" "$PROGRAM_TEMP/zoo.deb" > /dev/null
