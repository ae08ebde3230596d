//! The kernel's caches of a mount (pages, sizes, names, listings, attributes) when bytes or names
//! change without the kernel, or earlier than it expects. `tests/mount/coherence.rs` tests all of
//! this at random; these are the cases that once failed.

use crate::common::io::{Aio, Mapping};
use crate::common::{Place, needs_fuse};
use kedge_base::{BLOCK_SIZE, IoBuf};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tar::{EntryType, Header};

const CACHES: [&str; 2] = ["", " -o writeback_cache"];

fn mounted(options: &str) -> Place {
    Place::after(&format!("mount{options} --create 64M disk.kedge mnt"))
}

fn direct(path: &Path) -> File {
    let flags = OFlags::DIRECT.bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path).unwrap()
}

/// Reads blocks of a file from the device, by direct IO.
fn read_direct(path: &Path, blocks: usize) -> Vec<u8> {
    let mut buf = IoBuf::zeroed(blocks);
    direct(path).read_exact_at(buf.as_mut_bytes(), 0).unwrap();
    buf.as_bytes().to_vec()
}

/// Threads that read a file and its size through the kernel's caches, each with its own open file,
/// until this is dropped.
struct Readers {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Readers {
    fn of(path: &Path) -> Readers {
        let (stop, passes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let read = |path: std::path::PathBuf| {
            let (stop, passes) = (stop.clone(), passes.clone());
            move || {
                while !stop.load(SeqCst) {
                    let file = File::open(&path).unwrap();
                    let mut buf = vec![0; file.metadata().unwrap().len() as usize];
                    file.read_at(&mut buf, 0).unwrap();
                    passes.fetch_add(1, SeqCst);
                }
            }
        };
        let start = |_| kedge_base::spawn_named("reader", read(path.to_owned())).unwrap();
        let threads = (0..2).map(start).collect();
        crate::common::until("they read", || passes.load(SeqCst) > 2);
        Readers { stop, threads }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        let panicked = self.threads.drain(..).filter_map(|thread| thread.join().err()).count();
        assert!(panicked == 0 || std::thread::panicking());
    }
}

/// The kernel drops no page when an asynchronous direct write completes. A page that a reader
/// cached meanwhile would stay stale, and one byte stored into it would write the whole stale page
/// over durable bytes.
#[test]
fn what_asynchronous_direct_io_has_written_is_what_is_read() {
    const BLOCKS: usize = 64;
    const PIECE: usize = 16;
    needs_fuse!();
    for options in CACHES {
        let place = mounted(options);
        let path = place.path("mnt/file");
        fs::write(&path, vec![0; BLOCKS * BLOCK_SIZE]).unwrap();
        let (file, mut aio) = (direct(&path), Aio::new(BLOCKS / PIECE).unwrap());
        let readers = Readers::of(&path);
        for round in 1..=100u8 {
            let bytes = vec![round; PIECE * BLOCK_SIZE];
            for piece in 0..BLOCKS / PIECE {
                let at = (piece * PIECE * BLOCK_SIZE) as u64;
                aio.write(&file, at, IoBuf::from_bytes(&bytes)).unwrap();
            }
            aio.wait().unwrap();
            let old = fs::read(&path).unwrap().iter().filter(|byte| **byte != round).count();
            assert_eq!(old, 0, "{options}, round {round}: old bytes after the write has completed");
        }
        drop(readers);
        // Store one byte into a page. If the page is stale, this writes its old bytes back.
        file.sync_all().unwrap();
        let buffered = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let mapping = Mapping::new(&buffered, 0, BLOCKS * BLOCK_SIZE).unwrap();
        mapping.write(7, b"!");
        mapping.sync().unwrap();
        let mut wanted = vec![100; BLOCKS * BLOCK_SIZE];
        wanted[7] = b'!';
        assert!(read_direct(&path, BLOCKS) == wanted, "{options}: durable bytes were overwritten");
        drop((mapping, buffered, file));
        place.unmount_and_check("disk.kedge");
    }
}

/// Lists a directory twice: the second listing comes from the kernel's cache of the first.
fn names(dir: &Path) -> Vec<String> {
    let list = || {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    };
    let names = list();
    assert_eq!(list(), names, "listed again");
    names
}

/// The kernel may have cached a directory's listing but none of the names that a copy adds.
#[test]
fn a_directory_that_was_listed_shows_what_was_copied_into_it() {
    needs_fuse!();
    for options in CACHES {
        let place = mounted(options);
        let dir = place.path("mnt/dir");
        fs::create_dir_all(dir.join("old")).unwrap();
        fs::create_dir_all(place.path("source/sub/deep")).unwrap();
        fs::write(place.path("source/new"), "text").unwrap();
        let mut tar = place.command("tar");
        tar.args(["-cf", "all.tar", "-C", "source", "new", "sub"]);
        assert!(tar.status().unwrap().success());
        assert_eq!(names(&dir), ["old"]);
        let before = fs::metadata(&dir).unwrap();
        assert_eq!(before.nlink(), 3);
        place.run("tar -x -f all.tar mnt/dir").ok();
        assert_eq!(names(&dir), ["new", "old", "sub"], "{options}");
        let after = fs::metadata(&dir).unwrap();
        assert_eq!(after.nlink(), 4, "{options}");
        assert_ne!((after.ctime(), after.ctime_nsec()), (before.ctime(), before.ctime_nsec()), "{options}");
        // Add one name to a directory that is listed already.
        assert_eq!(names(&dir.join("sub")), ["deep"]);
        place.run("cp source/new mnt/dir/sub/second").ok();
        assert_eq!(names(&dir.join("sub")), ["deep", "second"], "{options}");
        fs::remove_dir_all(&dir).unwrap();
        place.unmount_and_check("disk.kedge");
    }
}

fn tar_header(path: &str, size: u64) -> Vec<u8> {
    let mut header = Header::new_ustar();
    header.set_path(path).unwrap();
    header.set_entry_type(EntryType::Regular);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// With a writeback cache the kernel keeps the size of a file that it has looked up. A file looked
/// up during its copy would keep its partial size, and an append would overwrite the rest.
#[test]
fn a_file_that_is_watched_while_it_is_copied_is_whole() {
    const SIZE: usize = 8 << 20;
    needs_fuse!();
    for options in CACHES {
        let place = mounted(options);
        let path = place.path("mnt/file");
        // Copy a new file, and then over the existing file.
        for round in 0..2u8 {
            let bytes: Vec<u8> = (0..SIZE).map(|i| (i / 1000) as u8 ^ round).collect();
            let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
            command.args(["tar", "-x"]).arg(place.path("mnt")).stdin(Stdio::piped());
            let mut client = command.spawn().unwrap();
            let mut input = client.stdin.take().unwrap();
            input.write_all(&tar_header("file", SIZE as u64)).unwrap();
            for part in bytes.chunks(SIZE / 4) {
                input.write_all(part).unwrap();
                for _ in 0..20 {
                    for name in names(&place.path("mnt")) {
                        let file = File::open(place.path("mnt").join(name)).unwrap();
                        let size = file.metadata().unwrap().len();
                        assert_eq!(size, SIZE as u64, "{options}: a part of a file has a name");
                        file.read_at(&mut [0; 100], size / 2).unwrap();
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            input.write_all(&[0; 1024]).unwrap();
            drop(input);
            assert!(client.wait().unwrap().success());
            let wanted = [&bytes[..], b"appended"].concat();
            let mut file = OpenOptions::new().append(true).open(&path).unwrap();
            file.write_all(b"appended").unwrap();
            drop(file);
            assert!(fs::read(&path).unwrap() == wanted, "{options}, round {round}");
            place.remount("disk.kedge", options);
            assert!(fs::read(&path).unwrap() == wanted, "{options}, round {round}: on the device");
            fs::write(&path, vec![1; SIZE]).unwrap();
        }
        place.unmount_and_check("disk.kedge");
    }
}
