//! The moments of a request at which tests let a server die.

/// A moment of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Never,
    /// Nothing was done.
    Received,
    /// The entry is written, the change not made.
    Begun,
    /// The record is in the log and noted, and cannot be durable.
    Marked,
    /// The change is made, without an outcome.
    Made,
    /// The outcome is noted, and the reply not sent.
    Finished,
    /// The reply is sent, or another thread sends it.
    Served,
    /// The next server has looked at its entry, and made the change again where that was needed.
    Redone,
}
