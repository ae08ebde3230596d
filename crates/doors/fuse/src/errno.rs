//! The result of a request: a value, or an error number for the caller.

/// A positive error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<kedgefs::Error> for Errno {
    fn from(error: kedgefs::Error) -> Errno {
        Errno(error.errno())
    }
}

impl From<Errno> for i32 {
    fn from(errno: Errno) -> i32 {
        errno.0
    }
}

pub type Answer<T> = Result<T, Errno>;

pub(crate) const EINVAL: Errno = Errno(libc::EINVAL);
