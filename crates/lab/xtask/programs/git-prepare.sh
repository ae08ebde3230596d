# An empty repository, which no crash loses.
git init -q "$PROGRAM_FROM"
