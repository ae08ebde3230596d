//! kedgefs.
