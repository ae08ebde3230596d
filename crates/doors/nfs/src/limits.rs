//! What a peer may use of this process.

use std::time::Duration;

/// Bounds on peers. Together they bound the memory: `connections` times `requests` times
/// `message_bytes` is 268 MiB.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at the same time. A further one is closed at once.
    pub connections: usize,
    /// Requests of one connection that are read and not yet answered.
    pub requests: usize,
    /// Bytes of a message.
    pub message_bytes: usize,
    /// How long the rest of a message may take once it has begun, and a reply until the peer has
    /// taken it.
    pub message_time: Duration,
    /// How long a connection may be silent between messages. Clients connect again by themselves.
    pub idle_time: Duration,
    /// Threads that execute requests.
    pub workers: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 64,
            requests: 16,
            message_bytes: (256 << 10) + (12 << 10),
            message_time: Duration::from_secs(30),
            idle_time: Duration::from_secs(600),
            workers: 32,
        }
    }
}
