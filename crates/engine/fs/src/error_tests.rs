use super::*;
use std::io;

/// On Linux std maps most of these numbers itself, and a program may see both mappings.
#[test]
#[cfg(target_os = "linux")]
fn kinds_are_those_that_std_gives_the_same_number() {
    let known: Vec<i32> = (1..134).filter(|&errno| kind_of(errno) != ErrorKind::Other).collect();
    assert_eq!(known.len(), 19);
    for errno in known.into_iter().filter(|&errno| errno != 117) {
        assert_eq!(kind_of(errno), io::Error::from_raw_os_error(errno).kind(), "errno {errno}");
    }
}

#[test]
fn the_error_is_inside() {
    let e = io::Error::from(Error::Invalid("file type"));
    assert_eq!((e.kind(), e.to_string()), (ErrorKind::InvalidInput, "invalid argument: file type".into()));
    let inside = e.get_ref().and_then(|e| e.downcast_ref::<Error>());
    assert_eq!(inside.map(Error::errno), Some(22));
    let full = io::Error::from(Error::from(kedge_base::Error::NoSpace));
    assert_eq!(full.kind(), ErrorKind::StorageFull);
}
