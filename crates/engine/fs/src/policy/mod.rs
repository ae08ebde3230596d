//! What a user of the file system chooses: the options, those that can be switched while it is
//! open, and the policies that a program may provide. The rest of the crate depends on this;
//! nothing here depends on the rest.

pub(crate) mod dirty_set;
pub(crate) mod options;
pub(crate) mod order;
pub(crate) mod shared_budget;
pub(crate) mod switches;
