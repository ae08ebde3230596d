//! kedge-bench.
