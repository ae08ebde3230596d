//! What the tests share.

pub mod failing;
