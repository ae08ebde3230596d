# Installs a package. $1: an option of dpkg.
set -e
export DPKG_FRONTEND_LOCKED=1
dpkg $1 --root="$KEDGE_DIR" --force-not-root --force-depends --log=/dev/null -i "$PROGRAM_TEMP/zoo.deb" > /dev/null
echo "ack installed"
