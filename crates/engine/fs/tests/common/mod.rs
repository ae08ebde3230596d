//! Code that the tests share.

pub mod failing;
pub mod images;
pub mod watched;
