use super::*;

fn own_pid() -> Pid {
    rustix::process::getpid()
}

#[test]
fn a_keeper_of_another_version_gets_no_sentinel() {
    let area = Area::make().unwrap();
    assert!(!start(&area).unwrap());
    assert!(watch(&area, own_pid()).unwrap().is_none());
    expect(&area);
    assert!(start(&area).unwrap());
    let head: Head = area.read(0);
    let sentinel = Pid::from_raw(head.sentinel as i32).unwrap();
    assert!(threads(own_pid()).unwrap().contains(&sentinel));
    assert!(watch(&area, own_pid()).unwrap().is_some());
    // The next server may be of a version without a sentinel.
    expect(&area);
    let head: Head = area.read(0);
    assert_eq!(head.sentinel, 0);
}

/// The keeper does not trust the thread id, which a server has written.
#[test]
fn a_thread_of_another_process_is_not_taken_for_the_sentinel() {
    let area = Area::make().unwrap();
    for wrong in [1, u64::MAX, u64::from(u32::MAX), 1 << 30] {
        area.store(at!(sentinel), wrong);
        assert!(watch(&area, own_pid()).ok().flatten().is_none(), "{wrong}");
    }
}
