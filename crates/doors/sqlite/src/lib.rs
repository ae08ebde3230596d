//! KedgeFS as an extension of SQLite: databases, journals, WAL and shared memory in an image, in
//! the process that uses them, without a mount.
//!
//! ```text
//! .load ./libkedgefs_sqlite
//! .open file:/data/disk.kedge:/app.db?vfs=kedgefs
//! ```
//!
//! | module | has |
//! |---|---|
//! | `name` | names of databases: `IMAGE:/PATH` |
//! | `volume` | the open images of this process |
//! | `file` | an open file, and what SQLite does with it |
//! | `locks`, `shared` | what connections to one file share: locks, and the memory of the WAL index |
//! | `vfs`, `methods` | the functions that SQLite calls |
//!
//! # Processes
//! An image is open in one process at a time, so all connections to its databases are in that
//! process, and locks and shared memory need only the memory of the process.
//!
//! # Panics
//! No panic leaves a function that SQLite calls: it becomes an error of SQLite. It shuts the file
//! system down, so that nothing that the panic left incomplete becomes durable.

mod error;
mod file;
mod locks;
mod methods;
mod name;
mod shared;
mod vfs;
mod volume;

pub use vfs::sqlite3_extension_init;
