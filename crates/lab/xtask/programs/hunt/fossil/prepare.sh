set -e
export HOME="$PROGRAM_TEMP" USER=zoo
fossil init "$PROGRAM_FROM/zoo.fossil" > /dev/null
