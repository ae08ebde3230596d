# The store opens and has each promised key.
exec wiredtiger-store check
