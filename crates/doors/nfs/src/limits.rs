//! Bounds on the resources that peers use.

use std::time::Duration;

/// Bounds on peers. Together they bound the memory: `connections` times `requests` times
/// `message_bytes` is 268 MiB.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at the same time. The server closes a further one at once.
    pub connections: usize,
    /// Requests of one connection that are read and not yet replied to.
    pub requests: usize,
    /// Bytes of one message.
    pub message_bytes: usize,
    /// Time limit for a message after its first byte has arrived, and for the peer to accept a
    /// reply.
    pub message_time: Duration,
    /// Time limit for silence between two messages. Clients reconnect by themselves.
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
