//! A power failure at many points of an import: the image opens and is clean, each name has its old
//! file or the complete file of the archive, and once the import is durable no file is missing.

use super::*;
use ::tar::{EntryType, Header};
use kedge_base::SystemClock;
use kedge_device::sim::{Choice, SimDevice};
use kedge_device::{Device, MemDevice};
use kedge_fsck::{CheckOptions, StoreReplay};
use kedgefs::{MountOptions, Owner, SetAttr};
use sink::{Changed, Live};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

const SIZE: u64 = 64 << 20;
const FILES: usize = 150;

/// Bytes of the archive between two crash points.
fn step() -> usize {
    let is_long = std::env::var_os("KEDGE_LONG").is_some_and(|v| v == "1");
    if is_long { 40 << 10 } else { 100 << 10 }
}

fn name(number: usize) -> String {
    format!("dir{}/file{number}", number / 20)
}

/// The contents of a file of the archive. Some files are empty, some go into the log, some are
/// written in place. No block is all zeros.
fn bytes(number: usize) -> Vec<u8> {
    let len = [0, 100, 5000, 20_000, 100_000][number % 5];
    (0..len).map(|i| (i % 251 + number) as u8 | 1).collect()
}

/// The contents of the earlier file of the same name: of another length, and with other bytes.
fn old_bytes(number: usize) -> Vec<u8> {
    let len = [30_000, 0, 300, 5000, 20_000][number % 5];
    (0..len).map(|i| (i % 241 + number) as u8 | 1).collect()
}

fn archive() -> Vec<u8> {
    let mut all = Vec::new();
    let mut add = |path: &str, kind: EntryType, data: &[u8]| {
        let mut header = Header::new_ustar();
        header.set_path(path).expect("a short path");
        header.set_entry_type(kind);
        header.set_mode(0o755);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1);
        header.set_size(data.len() as u64);
        header.set_cksum();
        all.extend_from_slice(header.as_bytes());
        all.extend_from_slice(data);
        all.resize(all.len().next_multiple_of(512), 0);
    };
    for number in 0..FILES {
        if number % 20 == 0 {
            add(&format!("dir{}/", number / 20), EntryType::Directory, b"");
        }
        add(&name(number), EntryType::Regular, &bytes(number));
    }
    all.resize(all.len() + 1024, 0);
    all
}

/// Keeps the image that a power failure would leave at each crash point. The log is forced before
/// each point, as another program's fsync could do. So all logged changes are durable, and changes
/// that are only in memory are lost.
struct Moments<'a> {
    fs: &'a FileSystem,
    sim: &'a SimDevice,
    others: Ino,
    left: RefCell<Vec<MemDevice>>,
}

impl<'a> Moments<'a> {
    fn new(fs: &'a FileSystem, sim: &'a SimDevice) -> Moments<'a> {
        let others = fs.create(Ino::ROOT, b"others", 0o644, Owner::default()).expect("made").ino;
        Moments { fs, sim, others, left: RefCell::default() }
    }

    fn take(&self) {
        let mut left = self.left.borrow_mut();
        let seed = left.len() as u64;
        let mode = Some(0o600 + seed as u32 % 2);
        self.fs.setattr(self.others, &SetAttr { mode, ..SetAttr::default() }).expect("changed");
        self.fs.fsync(self.others, false).expect("durable");
        left.extend([Choice::None, Choice::Torn(seed), Choice::All].map(|c| self.sim.crash_as(c)));
    }
}

/// A reader of the archive that takes a crash image every `step` bytes.
struct Watched<'a> {
    archive: &'a [u8],
    at: usize,
    step: usize,
    moments: &'a Moments<'a>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let rest = &self.archive[self.at..];
        let n = rest.len().min(buf.len()).min(self.step - self.at % self.step);
        if self.at.is_multiple_of(self.step) {
            self.moments.take();
        }
        buf[..n].copy_from_slice(&rest[..n]);
        self.at += n;
        Ok(n)
    }
}

/// The files of a crashed image, which must be clean.
fn files(medium: &MemDevice) -> BTreeMap<String, Vec<u8>> {
    let device: Arc<dyn Device> = Arc::new(medium.fork());
    let options = CheckOptions { replay: Some(Arc::new(StoreReplay)), ..CheckOptions::default() };
    let report = kedge_fsck::check(device.clone(), &options);
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let fs = FileSystem::open(device, Arc::new(SystemClock::default()), options).expect("opens");
    let mut found = BTreeMap::new();
    for number in 0..FILES {
        let path = name(number);
        let (dir, file) = path.split_once('/').expect("two parts");
        let look = |dir, name: &str| fs.lookup(dir, name.as_bytes()).ok();
        let Some(attr) = look(Ino::ROOT, dir).and_then(|dir| look(dir.ino, file)) else { continue };
        let mut bytes = vec![0; attr.size as usize];
        assert_eq!(fs.read(attr.ino, 0, &mut bytes).expect("read"), bytes.len());
        found.insert(path, bytes);
    }
    found
}

/// Makes files of the same names and makes them durable.
fn make_old(fs: &FileSystem) {
    let owner = Owner::default();
    for number in 0..FILES {
        let path = name(number);
        let (dir, file) = path.split_once('/').expect("two parts");
        let dir = match fs.lookup(Ino::ROOT, dir.as_bytes()) {
            Ok(attr) => attr.ino,
            Err(_) => fs.mkdir(Ino::ROOT, dir.as_bytes(), 0o755, owner).expect("made").ino,
        };
        let ino = fs.create(dir, file.as_bytes(), 0o644, owner).expect("made").ino;
        assert_eq!(fs.write(ino, 0, &old_bytes(number)).expect("written"), old_bytes(number).len());
    }
    fs.sync().expect("durable");
}

/// Imports over files of the same names (`over`) or into an empty image.
fn import(over: bool, fill: impl FnOnce(&FileSystem, Watched<'_>)) {
    let mem = Arc::new(MemDevice::new(SIZE));
    FileSystem::format(mem.clone(), Arc::new(SystemClock::default()), &FormatOptions::default())
        .expect("formatted");
    let sim = Arc::new(SimDevice::new(mem.fork()));
    sim.stop_recording();
    let fs = FileSystem::open(sim.clone(), Arc::new(SystemClock::default()), MountOptions::default())
        .expect("opened");
    if over {
        make_old(&fs);
    }
    let (archive, moments) = (archive(), Moments::new(&fs, &sim));
    fill(&fs, Watched { archive: &archive, at: 0, step: step(), moments: &moments });
    fs.sync().expect("durable");
    let mut left = moments.left.take();
    left.push(sim.crash_as(Choice::None));
    let mut most = 0;
    for (moment, medium) in left.iter().enumerate() {
        let found = files(medium);
        let mut new = 0;
        for number in 0..FILES {
            let path = name(number);
            match found.get(&path) {
                Some(found) if *found == bytes(number) => new += 1,
                Some(found) if over && *found == old_bytes(number) => {}
                None if !over => {}
                None => panic!("moment {moment}: {path} is missing"),
                Some(found) => panic!("moment {moment}: {path} is neither: {} bytes", found.len()),
            }
        }
        most = most.max(new);
    }
    assert!(left.len() > 60, "{} moments", left.len());
    let durable = files(left.last().expect("the end"));
    assert_eq!(most, FILES);
    for number in 0..FILES {
        assert!(durable.get(&name(number)) == Some(&bytes(number)), "{}: was durable", name(number));
    }
}

#[test]
fn an_image_that_is_being_filled() {
    import(false, |fs, archive| {
        let mut sink = Sink::new(fs, Ino::ROOT, None, false);
        fill_from_tar(archive, &mut sink).expect("filled");
        sink.finish().expect("finished");
    });
}

fn into_mount(fs: &FileSystem, archive: Watched<'_>) {
    let (moments, told) = (archive.moments, Cell::new(0));
    let changed = |_: Changed<'_>| {
        told.set(told.get() + 1);
        if told.get() % 10 == 0 {
            moments.take();
        }
    };
    let mut sink =
        Sink::live(fs, Ino::ROOT, Live { changed: &changed, only: None, nosuid: false, nodev: false });
    fill_from_tar(archive, &mut sink).expect("filled");
    sink.finish().expect("finished");
}

#[test]
fn a_mount_that_is_being_filled() {
    import(false, into_mount);
}

#[test]
fn an_image_whose_files_are_being_replaced() {
    import(true, |fs, archive| unpack(fs, Ino::ROOT, archive).expect("unpacked"));
}

#[test]
fn a_mount_whose_files_are_being_replaced() {
    import(true, into_mount);
}
