//! kedge-log.
