//! kedge-fuse.
