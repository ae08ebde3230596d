//! A power failure at many moments of an import: the image opens and is clean, no file holds what
//! is not its own, and once the import is durable nothing is missing.

use super::*;
use ::tar::{EntryType, Header};
use kedge_device::sim::{Choice, SimDevice};
use kedge_device::{Device, MemDevice};
use kedge_fsck::{CheckOptions, StoreReplay};
use kedgefs::MountOptions;
use std::collections::BTreeMap;

const SIZE: u64 = 64 << 20;
const FILES: usize = 60;
/// Bytes of the archive between two moments.
const STEP: usize = 40 << 10;

fn name(number: usize) -> String {
    format!("dir{}/file{number}", number / 20)
}

/// Some are empty, some go into the log, some are written in place. No block is all zeros.
fn bytes(number: usize) -> Vec<u8> {
    let len = [0, 100, 5000, 40_000, 300_000][number % 5];
    (0..len).map(|i| (i % 251 + number) as u8 | 1).collect()
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

/// Delivers the archive, and keeps what a power failure would leave at each step.
struct Watched<'a> {
    archive: &'a [u8],
    at: usize,
    sim: &'a SimDevice,
    left: &'a mut Vec<MemDevice>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let rest = &self.archive[self.at..];
        let n = rest.len().min(buf.len()).min(STEP - self.at % STEP);
        if self.at.is_multiple_of(STEP) {
            let seed = self.at as u64;
            self.left.extend([Choice::None, Choice::Torn(seed), Choice::All].map(|c| self.sim.crash_as(c)));
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

fn import(fill: impl FnOnce(&FileSystem, Watched<'_>)) {
    let mem = Arc::new(MemDevice::new(SIZE));
    FileSystem::format(mem.clone(), Arc::new(SystemClock::default()), &FormatOptions::default())
        .expect("formatted");
    let sim = Arc::new(SimDevice::new(mem.fork()));
    sim.stop_recording();
    let fs = FileSystem::open(sim.clone(), Arc::new(SystemClock::default()), MountOptions::default())
        .expect("opened");
    let (archive, mut left) = (archive(), Vec::new());
    fill(&fs, Watched { archive: &archive, at: 0, sim: &sim, left: &mut left });
    fs.sync().expect("durable");
    left.push(sim.crash_as(Choice::None));
    let mut most = 0;
    for medium in &left {
        let found = files(medium);
        for (number, (path, bytes)) in (0..FILES).filter_map(|n| Some((n, found.get_key_value(&name(n))?))) {
            let whole = self::bytes(number);
            assert!(bytes.len() <= whole.len(), "{path}: longer than what was imported");
            let foreign = bytes.iter().zip(&whole).position(|(found, own)| *found != 0 && found != own);
            assert_eq!(foreign, None, "{path}: holds what is not its own");
        }
        most = most.max(found.len());
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
    import(|fs, archive| {
        let mut sink = Sink::new(fs, Ino::ROOT, None, false);
        fill_from_tar(archive, &mut sink).expect("filled");
        sink.finish().expect("finished");
    });
}

#[test]
fn a_mount_that_is_being_filled() {
    import(|fs, archive| {
        let mut sink = Sink::live(fs, Ino::ROOT, sink::Live { changed: &|_| {}, only: None });
        fill_from_tar(archive, &mut sink).expect("filled");
        sink.finish().expect("finished");
    });
}
