//! kedge-fsck.
