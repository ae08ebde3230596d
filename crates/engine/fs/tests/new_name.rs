//! With `new_name=sync` a new name is durable before the directories are unlocked.

use crate::common::watched::{Watch, Watched};
use kedge_base::spawn_named;
use kedge_device::{Device, MemDevice};
use kedgefs::*;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

type Work = Box<dyn FnOnce() + Send>;

/// A device that runs some work before its next durable write.
struct Before {
    inner: MemDevice,
    work: Mutex<Option<Work>>,
}

impl Watch for Before {
    fn device(&self) -> &dyn Device {
        &self.inner
    }

    fn before_write(&self, fua: bool) {
        let work = if fua { self.work.lock().take() } else { None };
        if let Some(work) = work {
            work();
        }
    }
}

/// During the log write of the new name another thread tries to create a file in one of the
/// directories. The creation cannot begin before the write ends, however long the test waits.
#[test]
fn the_directories_stay_locked_until_the_name_is_durable() {
    let device = Arc::new(Watched(Before { inner: MemDevice::new(64 << 20), work: Mutex::new(None) }));
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::default());
    FileSystem::format(device.clone(), clock.clone(), &FormatOptions::default()).unwrap();
    let options = MountOptions { new_name: NewName::Sync, ..MountOptions::default() };
    let fs = FileSystem::open(device.clone(), clock, options).unwrap();
    let dir = |name: &[u8]| fs.mkdir(Ino::ROOT, name, 0o755, Owner::default()).unwrap().ino;
    let (a, b) = (dir(b"a"), dir(b"b"));
    let f = fs.create(a, b"f", 0o644, Owner::default()).unwrap().ino;
    let rename: &dyn Fn() = &|| fs.rename(a, b"f", b, b"f", RenameMode::Replace).unwrap();
    let link: &dyn Fn() = &|| assert_eq!(fs.link(f, b, b"f2").unwrap().nlink, 2);
    for (what, operation, dirs) in [("rename", rename, vec![a, b]), ("link", link, vec![b])] {
        for dir in dirs {
            // Moves the file back that was renamed.
            if fs.lookup(b, b"f").is_ok() && what == "rename" {
                fs.rename(b, b"f", a, b"f", RenameMode::Replace).unwrap();
            }
            fs.fsync(f, false).unwrap();
            let (done, is_done) = channel();
            let other = fs.clone();
            *device.work.lock() = Some(Box::new({
                let done = done.clone();
                move || {
                    let (created, is_created) = channel();
                    let name = format!("{what} in {dir}");
                    let create = move || {
                        let made = other.create(dir, name.as_bytes(), 0o644, Owner::default());
                        // The receiver may not exist any more.
                        let _ = created.send(made.map(drop));
                    };
                    let creator = spawn_named("creator", create).unwrap();
                    let early = is_created.recv_timeout(Duration::from_millis(200));
                    done.send((early, creator, is_created)).unwrap();
                }
            }));
            operation();
            let (early, creator, _late) = is_done.try_recv().expect("the operation wrote the log");
            assert!(matches!(early, Err(RecvTimeoutError::Timeout)), "{what} let a creation into {dir}");
            creator.join().unwrap();
            fs.lookup(dir, format!("{what} in {dir}").as_bytes()).unwrap();
        }
    }
}
