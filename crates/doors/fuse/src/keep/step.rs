//! The steps of a request at which tests can kill a server.

/// A step of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Never,
    /// The request was received; nothing was done yet.
    Received,
    /// The entry is written; the change is not made yet.
    Begun,
    /// The record is in the log and its mark is noted; the record cannot be durable yet.
    Marked,
    /// The change is made; the outcome is not noted yet.
    Made,
    /// The outcome is noted; the reply is not sent yet.
    Finished,
    /// The reply is sent, or another thread will send it.
    Served,
    /// The next server has examined the entry, and redone the change if necessary.
    Redone,
}
