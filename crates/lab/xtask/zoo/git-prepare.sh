# An empty repository, which no crash loses.
git init -q "$ZOO_FROM"
