//! Why a descent goes to a leaf. Descents that hold paths latch more of it for some purposes.

/// The purpose of a descent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    #[cfg(feature = "historic")]
    Lookup,
    /// Changes the value of an item.
    Update,
    Insert,
    Delete,
}
