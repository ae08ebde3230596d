//! Calls that no client would make, to the procedures of the NFS server for a file system in
//! memory.
//!
//! An input is a list of calls: two bytes of length, then the procedure, the number of a handle and
//! the other arguments. If these begin with a byte from 0xf0 on, that byte stands for a second
//! handle. If the first byte of the input is odd, the calls are whole messages.

use crate::drive::{Target, outcome};
use kedge_base::ManualClock;
use kedge_device::MemDevice;
use kedge_fsck::{CheckOptions, check};
use kedge_nfs::{Procedures, Rights, Squash};
use kedgefs::{Attr, FileSystem, FormatOptions, Ino, MountOptions, Owner};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub const TARGET: Target = Target {
    name: "nfs",
    run,
    words: &[
        b"\0\0\0\x04file",
        b"\0\0\0\x03dir\0",
        b"\0\0\0\x03new\0",
        b"\0\0\0\x02..\0\0",
        b"\0\0\0\x01/\0\0\0",
        b"\0\0\0\0\0\0\0\x01\0\0\0\x02",
        b"\xf0\0\0\0\x03new\0",
        b"\xf2\0\0\0\x05inner\0\0\0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x7f\xff\xff\xff\xff\xff\xf0\0",
    ],
    len_max: 8000,
};

const IMAGE: u64 = 16 << 20;
const LOG: u64 = 1 << 20;
const CALLS_MAX: usize = 64;
const OWNER: Owner = Owner { uid: 1000, gid: 1000 };
const NAMES: [&[u8]; 3] = [b"file", b"dir", b"link"];
/// Bytes from this value on stand for a handle.
const HANDLE: u8 = 0xf0;

fn options() -> MountOptions {
    MountOptions { commit: Duration::from_secs(3600), cache_size: 4 << 20, ..MountOptions::default() }
}

fn open(device: Arc<MemDevice>) -> kedgefs::Result<FileSystem> {
    FileSystem::open(device, Arc::new(ManualClock::default()), options())
}

fn base() -> &'static MemDevice {
    static BASE: OnceLock<MemDevice> = OnceLock::new();
    BASE.get_or_init(|| {
        let device = Arc::new(MemDevice::new(IMAGE));
        let format =
            FormatOptions { log_size: Some(LOG), seed: Some(1), owner: OWNER, ..FormatOptions::default() };
        FileSystem::format(device.clone(), Arc::new(ManualClock::default()), &format)
            .expect("an image is made");
        let fs = open(device.clone()).expect("a fresh image opens");
        let file = fs.create(Ino::ROOT, b"file", 0o644, OWNER).expect("there is room").ino;
        fs.write(file, 3000, &[7; 20_000]).expect("there is room");
        let dir = fs.mkdir(Ino::ROOT, b"dir", 0o755, OWNER).expect("there is room").ino;
        fs.create(dir, b"inner", 0o600, OWNER).expect("there is room");
        fs.symlink(Ino::ROOT, b"link", b"dir/inner", OWNER).expect("there is room");
        fs.close().expect("it closes");
        device.fork()
    })
}

/// Returns the handles of the root and of its entries, as the server's LOOKUP does.
fn handles(procedures: &Procedures) -> Vec<Vec<u8>> {
    let mounted = procedures.answer(&call(100_005, 1, &opaque(b"/"))).expect("a call");
    let root = opaque(&mounted[32..68]);
    let mut handles = vec![root.clone()];
    for name in NAMES {
        let found = procedures.answer(&call(100_003, 3, &[root.clone(), opaque(name)].concat()));
        handles.push(opaque(&found.expect("a call")[32..68]));
    }
    handles
}

fn opaque(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u32).to_be_bytes().to_vec();
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// Returns a call of version 3 with the credential of [`OWNER`].
fn call(program: u32, procedure: u32, arguments: &[u8]) -> Vec<u8> {
    let words = [7, 0, 2, program, 3, procedure, 1, 20, 0, 0, OWNER.uid, OWNER.gid, 0, 0, 0];
    let mut message: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
    message.extend_from_slice(arguments);
    message
}

fn message(bytes: &[u8], handles: &[Vec<u8>]) -> Vec<u8> {
    let (procedure, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let (node, mut rest) = rest.split_first().unwrap_or((&0, &[]));
    let handle = |n: u8| handles[n as usize % handles.len()].clone();
    let mut arguments = handle(*node);
    // RENAME has its second handle after the first name, LINK directly after the first handle.
    let name_len = match procedure {
        14 => rest.first_chunk().map_or(0, |len| 4 + (u32::from_be_bytes(*len) as usize).next_multiple_of(4)),
        _ => 0,
    };
    if let Some((name, behind)) = rest.split_at_checked(name_len)
        && let Some((&n, behind)) = behind.split_first().filter(|(n, _)| **n >= HANDLE)
    {
        arguments.extend_from_slice(name);
        arguments.extend_from_slice(&handle(n - HANDLE));
        rest = behind;
    }
    arguments.extend_from_slice(rest);
    call(100_003, u32::from(*procedure), &arguments)
}

fn messages(input: &[u8], handles: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let Some((&how, mut rest)) = input.split_first() else { return Vec::new() };
    let mut messages = Vec::new();
    while let Some((len, behind)) = rest.split_first_chunk::<2>()
        && messages.len() < CALLS_MAX
    {
        let len = u16::from_le_bytes(*len) as usize % 4096;
        let (bytes, behind) = behind.split_at(len.min(behind.len()));
        rest = behind;
        messages.push(if how & 1 == 1 { bytes.to_vec() } else { message(bytes, handles) });
    }
    messages
}

fn run(input: &[u8]) -> u64 {
    let device = Arc::new(base().fork());
    let fs = open(device.clone()).expect("a good image opens");
    let rights = Rights { squash: Squash::Root, anonymous: OWNER, ports_below: None, tree: Ino::ROOT };
    let procedures = Procedures::new(fs.clone(), rights, 2049).expect("the image has a uuid");
    let handles = handles(&procedures);
    let mut seen = Vec::new();
    for message in messages(input, &handles) {
        let reply = procedures.answer(&message);
        if let Some(reply) = &reply {
            assert_eq!(reply[..4], message[..4], "the reply of this call");
            assert_eq!(reply.len() % 4, 0, "whole words");
        }
        if seen.len() < 16 {
            // Extracts a word: the procedure of a call, or the status of a reply.
            let word = |bytes: &[u8], at: usize| bytes.get(at..at + 4).map(<[u8]>::to_vec);
            seen.push((word(&message, 20), reply.map(|reply| word(&reply, 24))));
        }
    }
    drop(procedures);
    let root: kedgefs::Result<Attr> = fs.getattr(Ino::ROOT);
    assert!(root.is_ok(), "the root is there");
    fs.close().expect("a good device has room");
    let report = check(device, &CheckOptions::default());
    assert!(report.is_clean(), "{report}");
    outcome(seen)
}
