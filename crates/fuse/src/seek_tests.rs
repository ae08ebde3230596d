use super::*;
use crate::abi::InHeader;
use crate::transport::{Received, Request, RequestBuf};
use kedge_base::{ManualClock, spawn_named};
use kedge_device::MemDevice;
use kedgefs::{FileSystem, FormatOptions, MountOptions, Owner};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use zerocopy::FromZeros;

/// Keeps the replies: unique and error. Panics when it is told to notify.
#[derive(Default)]
struct Wire {
    replies: Mutex<Vec<(u64, i32)>>,
    panics: AtomicBool,
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

    fn notify(&self, _code: i32, _body: &[u8]) -> std::io::Result<()> {
        assert!(!self.panics.load(SeqCst), "the wire panics");
        Ok(())
    }
}

/// The lseek that met the panic gets EIO, and so do later ones: no caller waits for a thread that
/// is gone.
#[test]
fn a_panic_answers_its_caller_and_those_behind_it_and_shuts_the_file_system_down() {
    let device = Arc::new(MemDevice::new(16 << 20));
    let clock = || Arc::new(ManualClock::default());
    let options = FormatOptions { log_size: Some(1 << 20), ..FormatOptions::default() };
    FileSystem::format(device.clone(), clock(), &options).unwrap();
    let fs = FileSystem::open(device, clock(), MountOptions::default()).unwrap();
    let owner = Owner { uid: 0, gid: 0 };
    let ino = fs.create(Ino::ROOT, b"file", 0o644, owner).unwrap().ino;
    fs.write(ino, 0, b"bytes").unwrap();

    let wire = Arc::new(Wire::default());
    let (send, jobs) = std::sync::mpsc::channel();
    let server = {
        let (fs, wire) = (fs.clone(), wire.clone());
        spawn_named("seeks", move || serve(Arc::new(fs), wire, jobs)).unwrap()
    };
    let ask = |unique| {
        let request = Request { header: InHeader { unique, ..InHeader::new_zeroed() }, body: &[], token: 0 };
        send.send(SeekJob {
            reply: Reply::new(wire.clone(), Arc::default(), &request),
            ino,
            offset: 0,
            kind: SeekKind::Data,
        })
        .unwrap();
        for _ in 0..5000 {
            if let Some((_, error)) = wire.replies.lock().iter().find(|(to, _)| *to == unique) {
                return *error;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("request {unique} is not answered");
    };
    assert_eq!(ask(1), 0);
    wire.panics.store(true, SeqCst);
    assert_eq!(ask(2), -libc::EIO);
    wire.panics.store(false, SeqCst);
    // It is still answered: an operation that only reads works after a shutdown.
    let _either = ask(3);
    assert!(fs.create(Ino::ROOT, b"other", 0o644, owner).is_err(), "the file system is shut down");
    drop(send);
    server.join().unwrap();
}
