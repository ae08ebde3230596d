use super::*;
use kedgefs::{FileSystem, Owner};

fn header(ino: Ino, pid: u32) -> InHeader {
    InHeader { nodeid: ino.0, pid, ..InHeader::new_zeroed() }
}

fn file() -> (FileSystem, Ino) {
    let fs = FileSystem::in_memory(16 << 20).expect("an image in memory");
    let ino = fs.create(Ino::ROOT, b"f", 0o644, Owner::default()).expect("a new file").ino;
    (fs, ino)
}

fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

#[test]
fn writes_of_the_thread_that_started_are_staged_and_others_are_not() {
    let ((fs, ino), atomics) = (file(), Atomics::default());
    let own = header(ino, own_tid());
    assert!(atomics.stage(&own, 0, b"before").is_none());
    assert!(matches!(atomics.take(&own), Err(EINVAL)));
    atomics.start(&fs, &own).expect("started");
    assert!(atomics.is_used());
    let span = atomics.stage(&own, 4096, b"staged").expect("staged").expect("within the bound");
    assert_eq!(span, Span { from: 4096, len: 6 });
    for other in [header(ino, own.pid + 1), header(Ino(ino.0 + 1), own.pid), header(ino, 0)] {
        assert!(atomics.stage(&other, 0, b"other").is_none());
        assert!(atomics.take(&other).is_err());
    }
    let write = atomics.take(&own).expect("its own");
    assert_eq!(write.ranges().collect::<Vec<_>>(), [(4096, 4096)]);
    write.commit().expect("committed");
    assert_eq!(fs.getattr(ino).expect("the file").size, 4102);
    assert!(!atomics.is_used());
}

#[test]
fn what_a_thread_left_is_never_committed() {
    let ((fs, ino), atomics) = (file(), Atomics::default());
    let left = std::thread::scope(|scope| {
        let begin = || {
            let its = header(ino, own_tid());
            atomics.start(&fs, &its).expect("started");
            atomics.stage(&its, 0, b"torn").expect("staged").expect("within the bound");
            its.pid
        };
        scope.spawn(begin).join().expect("the thread")
    });
    // The scope may end a moment before the thread leaves /proc.
    while Task::open(left).is_ok() {
        std::thread::yield_now();
    }
    let same_number = header(ino, left);
    assert!(atomics.stage(&same_number, 0, b"later").is_none());
    assert!(atomics.take(&same_number).is_err());
    atomics.start(&fs, &header(ino, own_tid())).expect("started");
    assert_eq!(atomics.stagings.lock().len(), 1, "the start forgets what was left");
    assert_eq!(fs.getattr(ino).expect("the file").size, 0);
}

#[test]
fn a_second_start_forgets_the_first_and_their_number_is_bounded() {
    let ((fs, _), atomics) = (file(), Atomics::default());
    let files: Vec<Ino> = (0..=STAGINGS_MAX)
        .map(|n| fs.create(Ino::ROOT, format!("{n}").as_bytes(), 0o644, Owner::default()).expect("new").ino)
        .collect();
    for ino in &files[..STAGINGS_MAX] {
        atomics.start(&fs, &header(*ino, own_tid())).expect("started");
        atomics.stage(&header(*ino, own_tid()), 0, b"x").expect("staged").expect("within the bound");
    }
    let last = header(files[STAGINGS_MAX], own_tid());
    assert_eq!(atomics.start(&fs, &last).map(drop).expect_err("too many"), Errno(libc::EBUSY));
    atomics.start(&fs, &header(files[0], own_tid())).expect("its place is free");
    assert!(atomics.take(&header(files[0], own_tid())).expect("its own").is_empty());
    atomics.start(&fs, &last).expect("a place is free");
    atomics.clear();
    assert!(!atomics.is_used());
}

#[test]
fn a_caller_that_cannot_be_recognised_gets_no_atomic_write() {
    let ((fs, ino), atomics) = (file(), Atomics::default());
    assert_eq!(Atomics::features(&fs, &header(ino, own_tid())).flags, FEATURE_ATOMIC_WRITE);
    assert_eq!(Atomics::features(&fs, &header(ino, 0)).flags, 0);
    assert_eq!(Atomics::features(&fs, &header(Ino::ROOT, own_tid())).flags, 0);
    assert_eq!(
        atomics.start(&fs, &header(ino, 0)).map(drop).expect_err("no thread"),
        Errno(libc::EOPNOTSUPP)
    );
    let dir = atomics.start(&fs, &header(Ino::ROOT, own_tid())).map(drop).expect_err("a directory");
    assert_eq!(dir, Errno(libc::EISDIR));
}
