# The store opens and has each promised key.
exec crash-stores check sled
