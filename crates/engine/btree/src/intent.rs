//! The purpose of a descent to a leaf. A descent that holds a path latches more nodes for some
//! purposes than for others.

/// The purpose of a descent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    #[cfg(feature = "historic")]
    Lookup,
    /// Changes the value of an existing item.
    Update,
    Insert,
    Delete,
}
