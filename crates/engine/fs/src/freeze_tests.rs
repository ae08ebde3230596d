use super::*;
use crate::durability::flushers::Flushed;
use crate::{FileSystem, Owner};
use kedge_base::Ino;

/// The turn of a flusher has left the gate before its panic is handled, so a freeze may have
/// completed.
#[test]
fn a_panic_of_a_flusher_ends_a_freeze() {
    let fs = FileSystem::in_memory(32 << 20).unwrap();
    fs.freeze().unwrap();
    fs.fs.syncer().panicked("for the test");
    assert_eq!(fs.fs.engine().gate().phase(), Phase::Open);
    assert_eq!(fs.create(Ino::ROOT, b"a", 0o644, Owner::default()).unwrap_err().errno(), 5);
}
