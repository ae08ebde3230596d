use super::*;

const FILE: Ino = Ino(7);

fn barred(opens: &Opens) -> Option<i32> {
    opens.bar(FILE).err().map(|e| e.0)
}

#[test]
fn no_flag_is_set_while_an_open_can_store() {
    let opens = Opens::default();
    assert_eq!(opens.store(FILE).unwrap().handle(), STORES);
    assert_eq!(opens.store(FILE).unwrap().handle(), STORES);
    assert_eq!(barred(&opens), Some(libc::ETXTBSY));
    opens.release(FILE);
    assert_eq!(barred(&opens), Some(libc::ETXTBSY));
    opens.release(FILE);
    assert_eq!(barred(&opens), None);
    // A failed open is no longer counted.
    drop(opens.store(FILE).unwrap());
    assert_eq!(barred(&opens), None);
    assert!(opens.0.lock().is_empty());
}

#[test]
fn no_open_stores_while_a_flag_is_set() {
    let opens = Opens::default();
    let bar = opens.bar(FILE).unwrap();
    assert_eq!(opens.store(FILE).err(), Some(Errno(libc::EPERM)));
    assert_eq!(barred(&opens), Some(libc::ETXTBSY), "one at a time");
    assert!(opens.store(Ino(8)).is_ok(), "another file");
    drop(bar);
    assert!(opens.store(FILE).is_ok());
}
