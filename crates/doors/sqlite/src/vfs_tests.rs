#![allow(clippy::unwrap_used)]

use super::*;
use kedgefs::FileSystem;
use std::ffi::CString;
use std::mem::MaybeUninit;

/// SQLITE_OPEN_SUPER_JOURNAL; the bindings have an older name.
const SUPER_JOURNAL: c_int = 0x4000;

/// The name of a super-journal has no parameters. A call of SQLite that reads them would fail here,
/// since no SQLite has loaded the extension.
#[test]
fn the_name_of_a_super_journal_is_not_searched_for_parameters() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("disk.kedge");
    FileSystem::create_image(&image, 32 << 20).unwrap().close().unwrap();
    let name = CString::new(format!("{}:/app.db-mj0123456", image.display())).unwrap();
    let flags = SUPER_JOURNAL
        | sqlite::SQLITE_OPEN_READWRITE
        | sqlite::SQLITE_OPEN_CREATE
        | sqlite::SQLITE_OPEN_EXCLUSIVE;
    let mut handle = MaybeUninit::<Handle>::uninit();
    let at = handle.as_mut_ptr().cast::<sqlite::sqlite3_file>();
    // SAFETY: the name ends with NUL, there is memory for a handle, and a null pointer means that
    // the flags are not wanted.
    let code = unsafe { open(ptr::null_mut(), name.as_ptr(), at, flags, ptr::null_mut()) };
    assert_eq!(code, SQLITE_OK, "{}", last());
    // SAFETY: the open has filled the handle, which is not used after the close.
    let closed = unsafe { (*(*at).pMethods).xClose.map(|close| close(at)) };
    assert_eq!(closed, Some(SQLITE_OK));
    let fs = FileSystem::open_image(&image).unwrap();
    assert!(fs.root().metadata("/app.db-mj0123456").is_ok());
    fs.close().unwrap();
}
