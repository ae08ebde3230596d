//! KedgeFS as a Python module: `kedgefs._kedgefs`, the part of the package `kedgefs` that is Rust.
//! What needs no engine (buffers of files, `walk`, fsspec) is Python, in `python/src/kedgefs`.
//!
//! | part | does |
//! |---|---|
//! | `volume` | the class `Volume`: an open image, and everything that takes a path |
//! | `handle` | the class `Handle`: an open file |
//! | `names`, `attributes`, `data`, `limits`, `trees` | what the methods of `Volume` do, without Python |
//! | `open` | what is open, and what a child of the process may do with it |
//! | `call` | the boundary: the interpreter's lock, panics, errors |
//! | `path`, `stat`, `buffer` | arguments and results as Python has them |
//!
//! # The interpreter's lock
//! Each call of the engine may wait for the device, so each releases the interpreter's lock (module
//! `call`). A thread that holds a lock of this crate must not take the interpreter's lock again,
//! since the thread that has it may wait for this crate's. So locks are taken and released while
//! the interpreter's lock is not held, or held without a call in between.
//!
//! # Bytes
//! While the interpreter's lock is released, other threads may change every buffer but `bytes`.
//! So the engine gets a copy of a buffer, or the memory of a new `bytes` which no other thread
//! knows yet. The alternative is to pass the buffer's memory on; a program with two threads could
//! then make a data race in this library, and this crate would need unsafe code.
#![deny(unsafe_code)]

mod attributes;
mod buffer;
mod call;
mod data;
mod handle;
mod limits;
mod names;
mod open;
mod path;
mod stat;
mod trees;
mod volume;

#[pyo3::pymodule]
mod _kedgefs {
    #[pymodule_export]
    use crate::handle::Handle;
    #[pymodule_export]
    use crate::volume::{Opening, Volume, memory, mkfs, open};

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "the name of a module's version in Python")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
