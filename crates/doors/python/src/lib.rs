//! KedgeFS as a Python module: `kedgefs._kedgefs`, the part of the package `kedgefs` that is Rust.
//! What needs no engine (buffers of files, `walk`, fsspec) is Python, in `python/src/kedgefs`.
//!
//! | part | does |
//! |---|---|
//! | `volume` | the class `Volume`: an open image, and everything that takes a path |
//! | `handle` | the class `Handle`: an open file |
//! | `names`, `attributes`, `data`, `limits`, `trees` | what the methods of `Volume` do, without Python |
//! | `open` | the open images and files, and the refusal of child processes |
//! | `call` | the boundary: the interpreter's lock, panics, errors |
//! | `path`, `stat`, `buffer` | conversion of arguments and results from and to Python |
//!
//! # The interpreter's lock
//! Each call of the engine may wait for the device, so each releases the interpreter's lock (module
//! `call`). A thread that holds a lock of this crate must not take the interpreter's lock again,
//! since the thread that holds that one may wait for the lock of this crate. So locks are taken and
//! released while the interpreter's lock is not held, or held without a call in between.
//!
//! # Bytes
//! While the interpreter's lock is released, other threads may change any buffer except `bytes`. So
//! the engine gets a copy of the buffer, or the memory of a new `bytes` that no other thread can
//! access yet. The alternative is to pass the buffer's own memory. A program with two threads could
//! then cause a data race in this library, and this crate would need unsafe code.
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
