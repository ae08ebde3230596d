use super::*;
use crate::abi::InHeader;
use crate::opens::Opens;
use crate::transport::{Received, Request, RequestBuf};
use kedge_base::{HANG, ManualClock};
use kedge_device::MemDevice;
use kedgefs::{FileSystem, FormatOptions, MountOptions, Owner};
use parking_lot::Condvar;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use zerocopy::{FromBytes, FromZeros};

/// Records the replies as unique and error. Can be set to panic at a notification.
#[derive(Default)]
struct Wire {
    replies: Mutex<Vec<(u64, i32)>>,
    panics: AtomicBool,
    /// The inodes whose invalidation blocks.
    stuck: Mutex<Vec<u64>>,
    released: Condvar,
}

impl Wire {
    fn answer(&self, unique: u64) -> Option<i32> {
        self.replies.lock().iter().find(|(to, _)| *to == unique).map(|(_, error)| *error)
    }

    /// Waits for the reply to a request.
    fn await_answer(&self, unique: u64) -> i32 {
        for _ in 0..HANG.as_millis() / 2 {
            if let Some(error) = self.answer(unique) {
                return error;
            }
            kedge_base::pause(Duration::from_millis(2));
        }
        panic!("request {unique} is not answered");
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

    fn reply(&self, _token: u32, unique: u64, error: i32, _parts: &[&[u8]]) -> std::io::Result<()> {
        self.replies.lock().push((unique, error));
        Ok(())
    }

    fn notify(&self, _code: i32, body: &[u8]) -> std::io::Result<()> {
        assert!(!self.panics.load(SeqCst), "the wire panics");
        let (asked, _) = abi::InvalInodeOut::read_from_prefix(body).unwrap();
        let mut stuck = self.stuck.lock();
        while stuck.contains(&asked.ino) {
            self.released.wait(&mut stuck);
        }
        Ok(())
    }
}

/// A file system with a file.
fn file_system() -> (FileSystem, Ino) {
    let device = Arc::new(MemDevice::new(16 << 20));
    let clock = || Arc::new(ManualClock::default());
    let options = FormatOptions { log_size: Some(1 << 20), immutable: true, ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock(), &options).unwrap();
    let fs = FileSystem::open(device, clock(), MountOptions::default()).unwrap();
    let ino = fs.create(Ino::ROOT, b"file", 0o644, OWNER).unwrap().ino;
    fs.write(ino, 0, b"bytes").unwrap();
    (fs, ino)
}

const OWNER: Owner = Owner { uid: 0, gid: 0 };

fn job(wire: &Arc<Wire>, unique: u64, ino: Ino, then: Then) -> PageJob {
    let request = Request { header: InHeader { unique, ..InHeader::new_zeroed() }, body: &[], token: 0 };
    let reply = Reply::new(wire.clone(), Arc::default(), &request);
    PageJob::Request(SettledJob { reply, ino, from: 0, then })
}

/// While the file system is frozen, the pages of one file are not written, and chattr on it waits
/// for the thaw. Requests for other files do not wait.
#[test]
fn a_file_whose_pages_are_not_written_holds_up_no_other() {
    let (fs, ino) = file_system();
    let other = fs.create(Ino::ROOT, b"other", 0o644, OWNER).unwrap().ino;
    fs.write(other, 0, b"bytes").unwrap();
    fs.freeze().unwrap();
    let wire = Arc::new(Wire { stuck: Mutex::new(vec![ino.0]), ..Wire::default() });
    let (send, jobs) = std::sync::mpsc::channel();
    let server = {
        let (fs, wire) = (fs.clone(), wire.clone());
        spawn_named("pages", move || serve(Arc::new(fs), wire, jobs)).unwrap()
    };
    send.send(job(&wire, 1, ino, Then::Seek(SeekKind::Data))).unwrap();
    send.send(job(&wire, 2, other, Then::SetFlags(FileFlags::IMMUTABLE, Opens::default()))).unwrap();
    for unique in 3..10 {
        send.send(job(&wire, unique, other, Then::Seek(SeekKind::Data))).unwrap();
        assert_eq!(wire.await_answer(unique), 0);
    }
    assert_eq!((wire.answer(1), wire.answer(2)), (None, None));
    fs.thaw().unwrap();
    assert_eq!((wire.await_answer(2), wire.answer(1)), (0, None));
    assert_eq!(fs.getattr(other).unwrap().flags, FileFlags::IMMUTABLE);
    wire.stuck.lock().clear();
    wire.released.notify_all();
    assert_eq!(wire.await_answer(1), 0);
    drop(send);
    server.join().unwrap();
}

/// The lseek during the panic gets EIO. Later lseeks are served, so no caller waits for a thread
/// that has ended.
#[test]
fn a_panic_answers_its_caller_and_those_behind_it_and_shuts_the_file_system_down() {
    let (fs, ino) = file_system();
    let wire = Arc::new(Wire::default());
    let (send, jobs) = std::sync::mpsc::channel();
    let server = {
        let (fs, wire) = (fs.clone(), wire.clone());
        spawn_named("seeks", move || serve(Arc::new(fs), wire, jobs)).unwrap()
    };
    let ask = |unique| {
        send.send(job(&wire, unique, ino, Then::Seek(SeekKind::Data))).unwrap();
        wire.await_answer(unique)
    };
    assert_eq!(ask(1), 0);
    wire.panics.store(true, SeqCst);
    assert_eq!(ask(2), -libc::EIO);
    wire.panics.store(false, SeqCst);
    // A later lseek gets a reply too, with or without an error: reading may still work after a
    // shutdown.
    let _either = ask(3);
    assert!(fs.create(Ino::ROOT, b"other", 0o644, OWNER).is_err(), "the file system is shut down");
    drop(send);
    server.join().unwrap();
}
