# What dpkg's row checks: a package that is listed as installed is whole, and it is listed if promised.
exec sh "$PROGRAMS/dpkg-check.sh"
