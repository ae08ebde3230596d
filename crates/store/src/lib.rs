//! kedge-store.
