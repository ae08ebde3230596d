# The store opens and has each promised key.
exec leveldb-old check zoo
