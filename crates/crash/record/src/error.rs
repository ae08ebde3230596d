//! Why a recording cannot be made.

use kedge_crash::kcr::KcrError;
use kedge_fuse::MountError;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("the image in memory: {0}")]
    Image(#[from] kedgefs::Error),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("{what}: {error}")]
    Io { what: String, error: io::Error },
    #[error("the recording {}: {error}", path.display())]
    Recording { path: PathBuf, error: KcrError },
    #[error("{} cannot be started: {error}", command.display())]
    Start { command: PathBuf, error: io::Error },
    #[error("no block device can be had: {0}")]
    NoDevice(String),
    #[error("backtraces can be had on x86-64 only")]
    NoBacktrace,
    #[error("stores through mappings can be collected with Linux {}.{} or newer; this is {release}", needed.0, needed.1)]
    NoMappings { needed: (u32, u32), release: String },
    #[error("{} could not be copied into the mount: {output}", from.display())]
    Fill { from: PathBuf, output: String },
}

pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> RecordError {
    move |error| RecordError::Io { what: what.into(), error }
}
