//! Runs the parsers of this crate as targets of the driver in `crates/lab/hostile`.
//!
//! `KEDGE_FUZZ_SECONDS` sets the processor time in seconds, `KEDGE_SEED` the seed.

use super::unpack;
use kedge_base::ManualClock;
use kedge_device::MemDevice;
use kedge_fsck::{CheckOptions, check};
use kedge_host::options::{MountWords, asks_nothing, parse_cache_size};
use kedge_hostile::corpus;
use kedge_hostile::drive::{Target, outcome, test, words_of};
use kedgefs::{FileSystem, FormatOptions, Ino, MountOptions, Switches};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const BLOCK: usize = 512;
const IMAGE: u64 = 16 << 20;
const LOG: u64 = 1 << 20;

fn base() -> &'static MemDevice {
    static BASE: OnceLock<MemDevice> = OnceLock::new();
    BASE.get_or_init(|| {
        let device = Arc::new(MemDevice::new(IMAGE));
        let format = FormatOptions { log_size: Some(LOG), seed: Some(1), ..FormatOptions::default() };
        FileSystem::format(device.clone(), Arc::new(ManualClock::default()), &format)
            .expect("an image is made");
        device.fork()
    })
}

/// Fills an image from the archive. The image is consistent afterwards, whatever the archive
/// contains.
fn fill(archive: &[u8]) -> u64 {
    let device = Arc::new(base().fork());
    let options =
        MountOptions { commit: Duration::from_secs(3600), cache_size: 4 << 20, ..MountOptions::default() };
    let fs = FileSystem::open(device.clone(), Arc::new(ManualClock::default()), options).expect("it opens");
    let filled = unpack(&fs, Ino::ROOT, archive).map_err(|e| words_of(&format!("{e:#}")));
    let mut names = 0u32;
    fs.readdir(Ino::ROOT, 0, &mut |entry| {
        assert!(!entry.name.contains(&b'/') && !entry.name.contains(&0), "a name of the archive");
        names += 1;
        true
    })
    .expect("the root can be read");
    fs.close().expect("the image can be closed");
    let report = check(device, &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
    outcome((filled, names.min(8)))
}

/// Corrects the checksum of each block that looks like a header.
fn sealed(input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for block in bytes.chunks_exact_mut(BLOCK).filter(|block| block[257..].starts_with(b"ustar")) {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }
    bytes
}

fn tar(input: &[u8]) -> u64 {
    // Run both forms, so that not every input is refused for its checksum alone.
    let _ = super::tar::estimate(input);
    let sealed = sealed(input);
    let _ = super::tar::estimate(&sealed[..]);
    fill(&sealed)
}

fn header(kind: u8, name: &[u8], size: usize) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[..name.len()].copy_from_slice(name);
    block[100..108].copy_from_slice(b"0000644\0");
    block[108..116].copy_from_slice(b"0000000\0");
    block[116..124].copy_from_slice(b"0000000\0");
    block[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
    block[136..148].copy_from_slice(b"00000000001\0");
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    sealed(&block)
}

/// Uses the input as the records of an extension header, before a file with some data.
fn pax(input: &[u8]) -> u64 {
    let mut archive = header(b'x', b"x", input.len());
    archive.extend(input);
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    archive.extend(header(b'0', b"file", BLOCK));
    let data = b"1\n4096\n3\n";
    archive.extend(data);
    archive.resize(archive.len() + 4 * BLOCK - data.len(), 0);
    fill(&archive)
}

fn options(input: &[u8]) -> u64 {
    let text = String::from_utf8_lossy(input);
    let words = MountWords::parse([&*text]);
    let switches = text.parse::<Switches>();
    let first = text.split(',').next().unwrap_or_default();
    let _ = parse_cache_size(first);
    let _ = asks_nothing(first);
    if let Ok(words) = &words {
        // A later word overrides an earlier one, so the list twice must parse as the list once.
        let twice = MountWords::parse([&*text, &*text]);
        assert_eq!(twice.as_ref().ok(), Some(words), "{text:?}");
    }
    let words = words.map_err(|e| words_of(&e.to_string()));
    outcome((format!("{words:?}").len(), words.is_ok(), words.err(), switches.is_ok()))
}

const TAR: Target = Target {
    name: "tar",
    run: tar,
    words: &[
        b"ustar\x0000",
        b"ustar  \0",
        b"../",
        b"/",
        b"77777777777",
        b"\x80\0\0\0\0\0\0\0\0\0\0\x01",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
    len_max: 24 << 10,
};

const PAX: Target = Target {
    name: "pax",
    run: pax,
    words: &[
        b"11 size=99\n",
        b"29 size=18446744073709551615\n",
        b"29 size=18446744073709551104\n",
        b"12 path=../\n",
        b"22 GNU.sparse.major=1\n",
        b"41 GNU.sparse.realsize=9223372036854775807\n",
        b"30 mtime=9223372036854775807\n",
        b"15 mtime=-1.5\n",
        b"18446744073709551616 ",
        b"SCHILY.xattr.",
    ],
    len_max: 4096,
};

const OPTIONS: Target = Target {
    name: "options",
    run: options,
    words: &[
        b"commit=",
        b"cache_size=",
        b"async_checkpoint=",
        b"rbd_timeout=",
        b"workers=",
        b"placement=",
        b"18446744073709551616",
        b"99999999T",
        b"-1",
        b"1e9",
        b"0.5",
        b",",
        b"=",
        b"no",
        b"remount,",
    ],
    len_max: 4096,
};

#[test]
fn archives_of_others_do_no_harm() {
    test(&TAR, &corpus("tar"));
}

#[test]
fn extension_records_do_no_harm() {
    test(&PAX, &corpus("pax"));
}

#[test]
fn words_of_options_do_no_harm() {
    test(&OPTIONS, &corpus("options"));
}
