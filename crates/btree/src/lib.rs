//! kedge-btree.
