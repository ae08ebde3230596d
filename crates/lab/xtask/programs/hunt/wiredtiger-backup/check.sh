# It has its keys, which were there before.
exec wiredtiger-old check-backup
