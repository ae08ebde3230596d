//! What a user of the file system chooses: options, the switches among them, and the policies that
//! a program may provide. The rest of the crate follows them; nothing here depends on it.

pub(crate) mod dirty_set;
pub(crate) mod options;
pub(crate) mod order;
pub(crate) mod shared_budget;
pub(crate) mod switches;
