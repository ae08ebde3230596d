//! kedge-alloc.
