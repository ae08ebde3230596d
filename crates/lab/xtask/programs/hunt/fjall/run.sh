# fjall puts keys, each promised when persist(SyncAll) has returned.
exec crash-stores run fjall sync 6
