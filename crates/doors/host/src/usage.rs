//! The error of a request that nobody could carry out as it is written.

/// A usage error: exit code 2 (fsck and scrub: 16), unlike a valid request that failed.
#[derive(Debug)]
pub struct Usage(pub String);

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}
