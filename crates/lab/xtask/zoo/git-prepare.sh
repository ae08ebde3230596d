# An empty repository, which no crash takes.
git init -q "$ZOO_FROM"
