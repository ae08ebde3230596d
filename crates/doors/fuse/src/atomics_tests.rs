use super::*;
use crate::abi::op;
use crate::options::FuseOptions;
use crate::server::Server;
use crate::transport::{Received, Request, RequestBuf};
use kedge_base::IoBuf;
use kedgefs::{FileSystem, Owner};
use std::sync::atomic::AtomicI32;
use zerocopy::FromBytes;

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
    let ((fs, ino), atomics) = (file(), Arc::new(Atomics::default()));
    let own = header(ino, own_tid());
    assert!(atomics.stage(&own, 0, b"before").is_none());
    assert!(matches!(atomics.take(&own), Err(EINVAL)));
    atomics.start(&fs, &own, 7).expect("started");
    assert!(atomics.is_used());
    let job = atomics.stage(&own, 4096, b"staged").expect("staged").expect("within the bound");
    assert!(job.is_some(), "the page must be dropped");
    for other in [header(ino, own.pid + 1), header(Ino(ino.0 + 1), own.pid), header(ino, 0)] {
        assert!(atomics.stage(&other, 0, b"other").is_none());
        assert!(atomics.take(&other).is_err());
    }
    let ended = atomics.take(&own).expect("its own").commit();
    assert_eq!(ended.wrong, [Span { from: 4096, len: 4096 }]);
    ended.result.expect("committed");
    assert_eq!(fs.getattr(ino).expect("the file").size, 4102);
    assert!(!atomics.is_used());
}

#[test]
fn what_a_thread_left_is_never_committed() {
    let ((fs, ino), atomics) = (file(), Arc::new(Atomics::default()));
    let left = std::thread::scope(|scope| {
        let begin = || {
            let its = header(ino, own_tid());
            atomics.start(&fs, &its, 7).expect("started");
            atomics.stage(&its, 0, b"torn").expect("staged").expect("within the bound");
            its.pid
        };
        scope.spawn(begin).join().expect("the thread")
    });
    // The scope may end before the ended thread has disappeared from /proc.
    while Task::open(left).is_ok() {
        std::thread::yield_now();
    }
    let same_number = header(ino, left);
    assert!(atomics.stage(&same_number, 0, b"later").is_none());
    assert!(atomics.take(&same_number).is_err());
    atomics.start(&fs, &header(ino, own_tid()), 7).expect("started");
    assert_eq!(atomics.stagings.lock().len(), 1, "a start discards those of ended threads");
    assert_eq!(fs.getattr(ino).expect("the file").size, 0);
}

/// An atomic write that its thread left pins an unlinked file until the next FORGET or STATFS.
#[test]
fn what_a_thread_left_holds_no_unlinked_file() {
    for opcode in [op::FORGET, op::STATFS] {
        let (fs, ino) = file();
        let (server, _jobs) = Server::new(
            Arc::new(fs.clone()),
            Arc::new(Wire::default()),
            FuseOptions::default(),
            serde_json::Value::Null,
            Box::new(|| ()),
        );
        let begin = || {
            let its = header(ino, own_tid());
            server.atomics.start(&fs, &its, 7).expect("started");
            its.pid
        };
        let left = std::thread::scope(|scope| scope.spawn(begin).join().expect("the thread"));
        while Task::open(left).is_ok() {
            std::thread::yield_now();
        }
        fs.unlink(Ino::ROOT, b"f").expect("unlinked");
        assert!(fs.getattr(ino).is_ok(), "the atomic write pins it");
        let body = abi::ForgetIn { nlookup: 0 };
        let header = InHeader { opcode, unique: 1, ..header(Ino::ROOT, 0) };
        let request = Request { header, body: body.as_bytes(), token: 0 };
        server.handle(&request, &mut IoBuf::zeroed(1));
        assert!(fs.getattr(ino).is_err(), "opcode {opcode}");
    }
}

#[test]
fn a_second_start_forgets_the_first_and_their_number_is_bounded() {
    let ((fs, _), atomics) = (file(), Arc::new(Atomics::default()));
    // Two users may have all, and no user more than half.
    let user = |n: usize| u32::from(n >= STAGINGS_OF_USER_MAX);
    let files: Vec<Ino> = (0..=STAGINGS_MAX)
        .map(|n| fs.create(Ino::ROOT, format!("{n}").as_bytes(), 0o644, Owner::default()).expect("new").ino)
        .collect();
    let last = header(files[STAGINGS_MAX], own_tid());
    for (n, ino) in files[..STAGINGS_MAX].iter().enumerate() {
        if n == STAGINGS_OF_USER_MAX {
            assert_eq!(atomics.start(&fs, &last, 0).map(drop).expect_err("half"), Errno(libc::EBUSY));
        }
        atomics.start(&fs, &header(*ino, own_tid()), user(n)).expect("started");
        atomics.stage(&header(*ino, own_tid()), 0, b"x").expect("staged").expect("within the bound");
    }
    assert_eq!(atomics.start(&fs, &last, 2).map(drop).expect_err("too many"), Errno(libc::EBUSY));
    atomics.start(&fs, &header(files[0], own_tid()), 0).expect("a staging is free");
    assert!(atomics.take(&header(files[0], own_tid())).expect("its own").write.is_empty());
    atomics.start(&fs, &last, 2).expect("a staging is free");
    atomics.clear();
    assert!(!atomics.is_used());
}

/// The kernel passes the ioctl on for any descriptor.
#[test]
fn who_may_not_write_gets_no_atomic_write() {
    let (fs, ino) = file();
    let own = rustix::process::geteuid().as_raw();
    let wire = Arc::new(Wire::default());
    let options = FuseOptions::default();
    let (server, _jobs) =
        Server::new(Arc::new(fs.clone()), wire.clone(), options, serde_json::Value::Null, Box::new(|| ()));
    let start = |uid| {
        let asked = abi::IoctlIn { cmd: abi::ioctl::F2FS_START_ATOMIC_WRITE, ..abi::IoctlIn::new_zeroed() };
        let header = InHeader { opcode: op::IOCTL, unique: 2, uid, ..header(ino, own_tid()) };
        let request = Request { header, body: asked.as_bytes(), token: 0 };
        server.handle(&request, &mut IoBuf::zeroed(1));
        wire.1.load(Ordering::Relaxed)
    };
    // The thread has other ids than the request.
    assert_eq!(start(own + 1), -libc::EACCES);
    assert!(!server.atomics.is_used());
    let owned = kedgefs::SetAttr { uid: Some(own), ..kedgefs::SetAttr::default() };
    fs.setattr(ino, &owned).expect("another owner");
    assert_eq!(start(own), 0);
}

#[test]
fn a_caller_that_cannot_be_recognised_gets_no_atomic_write() {
    let ((fs, ino), atomics) = (file(), Arc::new(Atomics::default()));
    assert_eq!(Atomics::features(&fs, &header(ino, own_tid())).flags, FEATURE_ATOMIC_WRITE);
    assert_eq!(Atomics::features(&fs, &header(ino, 0)).flags, 0);
    assert_eq!(Atomics::features(&fs, &header(Ino::ROOT, own_tid())).flags, 0);
    assert_eq!(
        atomics.start(&fs, &header(ino, 0), 7).map(drop).expect_err("no thread"),
        Errno(libc::EOPNOTSUPP)
    );
    let dir = atomics.start(&fs, &header(Ino::ROOT, own_tid()), 7).map(drop).expect_err("a directory");
    assert_eq!(dir, Errno(libc::EISDIR));
}

/// Records notifications, and the error of the last reply, without sending them.
#[derive(Default)]
struct Wire(Mutex<Vec<(u64, i64, i64)>>, AtomicI32);

impl Wire {
    fn notified(&self) -> Vec<(u64, i64, i64)> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Transport for Wire {
    fn name(&self) -> &'static str {
        "test"
    }

    fn workers(&self) -> usize {
        1
    }

    fn receive<'a>(&'a self, _worker: usize, _buf: &'a mut RequestBuf) -> std::io::Result<Received<'a>> {
        Ok(Received::Ended)
    }

    fn wait(&self, _worker: usize) -> std::io::Result<()> {
        Ok(())
    }

    fn reply(&self, _token: u32, _unique: u64, error: i32, _parts: &[&[u8]]) -> std::io::Result<()> {
        self.1.store(error, Ordering::Relaxed);
        Ok(())
    }

    fn notify(&self, code: i32, body: &[u8]) -> std::io::Result<()> {
        assert_eq!(code, abi::NOTIFY_INVAL_INODE);
        let asked = abi::InvalInodeOut::read_from_bytes(body).expect("a whole notification");
        self.0.lock().push((asked.ino, asked.off, asked.len));
        Ok(())
    }
}

/// Returns the notifications that the reply sends, and whether the reply must wait for them.
fn replied(ended: Ended) -> (Vec<(u64, i64, i64)>, bool) {
    let (wire, waits) = (Arc::new(Wire::default()), ended.has_pages());
    let request = Request { header: InHeader::new_zeroed(), body: &[], token: 0 };
    ended.reply(&*wire, Reply::new(wire.clone(), Arc::default(), &request));
    (wire.notified(), waits)
}

#[test]
fn a_commit_has_pages_dropped_only_if_the_kernel_may_have_them() {
    let ((fs, ino), atomics, wire) = (file(), Arc::new(Atomics::default()), Wire::default());
    let own = header(ino, own_tid());
    let stage = |page: i64| {
        let staged = atomics.stage(&own, page as u64 * PAGE, &[1; BLOCK_SIZE]).expect("of its thread");
        staged.expect("within the bound")
    };
    let attributes = (ino.0, -1, 0);
    let page = |n: i64, count: i64| (ino.0, n * PAGE as i64, count * PAGE as i64);

    // Without a READ, and after all jobs, commit and abort have no page to invalidate.
    for end in [Taken::commit as fn(Taken) -> Ended, Taken::forget] {
        atomics.start(&fs, &own, 7).expect("started");
        let job = stage(3).expect("a job");
        assert!(stage(1).is_none() && stage(4).is_none(), "the queued job includes these pages");
        job.drop_written(&wire);
        assert_eq!(wire.notified(), [page(1, 1), page(3, 2)]);
        assert_eq!(replied(end(atomics.take(&own).expect("its own"))), (vec![attributes], false));
    }

    // A READ or another WRITE arrives before the commit or during it.
    for is_late in [false, true] {
        atomics.start(&fs, &own, 7).expect("started");
        stage(1).expect("a job").drop_written(&wire);
        atomics.note_other(Ino(ino.0 + 1));
        if !is_late {
            atomics.note_other(ino);
        }
        let taken = atomics.take(&own).expect("its own");
        if is_late {
            atomics.note_other(ino);
        }
        assert_eq!(replied(taken.commit()), (vec![page(1, 1), attributes], true));
    }

    // The job has not begun, or not ended, at the commit.
    for has_begun in [false, true] {
        atomics.start(&fs, &own, 7).expect("started");
        let job = stage(2).expect("a job");
        if has_begun {
            job.pages.lock().dropping += 1;
            job.pages.lock().written.clear();
        }
        let taken = atomics.take(&own).expect("its own");
        assert_eq!(replied(taken.commit()), (vec![page(2, 1), attributes], true));
    }
    assert!(!atomics.is_used());
}
