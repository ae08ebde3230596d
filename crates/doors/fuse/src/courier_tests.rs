use super::{Courier, may_wait};
use crate::abi::{self, InvalEntryOut, InvalInodeOut};
use rustix::fd::OwnedFd;
use std::fs::File;
use zerocopy::IntoBytes;

#[test]
fn only_what_the_kernel_may_wait_for_is_passed_on() {
    let pages = InvalInodeOut { ino: 2, off: 0, len: 0 };
    let attributes = InvalInodeOut { off: -1, ..pages };
    let name = InvalEntryOut { parent: 1, namelen: 1, flags: abi::INVAL_EXPIRE_ONLY };
    assert!(may_wait(abi::NOTIFY_INVAL_INODE, pages.as_bytes()));
    assert!(may_wait(abi::NOTIFY_INVAL_ENTRY, name.as_bytes()));
    assert!(!may_wait(abi::NOTIFY_INVAL_INODE, attributes.as_bytes()));
    assert!(!may_wait(abi::NOTIFY_RESEND, &[]));
}

/// The test program ends at once if it is started as a courier.
#[test]
fn where_no_courier_works_the_server_sends() {
    let connection: OwnedFd = File::open("/dev/null").unwrap().into();
    let courier = Courier::new("no-test-has-this-name", false);
    let pages = InvalInodeOut { ino: 2, off: 0, len: 0 };
    for _ in 0..2 {
        assert!(courier.notify(&connection, abi::NOTIFY_INVAL_INODE, pages.as_bytes()).is_none());
    }
}
