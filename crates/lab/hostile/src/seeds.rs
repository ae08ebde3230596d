//! The seeds of the corpora: small valid inputs.

use kedge_base::BLOCK_SIZE;
use kedge_crash::disk::ROOT_INO;
use kedge_crash::trace::Space;
use kedge_crash::{Call, Disk, Event, Trace, kcr};
use kedge_fuse::abi::{self, fattr, op};
use zerocopy::{FromZeros, IntoBytes};

/// An input with its name.
type Seed = (&'static str, Vec<u8>);
type Seeds = Vec<Seed>;

/// The seeds of a target of this crate.
pub fn of(name: &str) -> Seeds {
    match name {
        "kcr" => recordings(),
        "nbd" => servers(),
        "uri" => uris(),
        "fuse" => requests(),
        _ => Vec::new(),
    }
}

fn recording(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    kcr::write(trace, &mut bytes).expect("a vector takes all");
    bytes
}

fn saved() -> Trace {
    let disk = Disk::new();
    let work = || -> std::io::Result<()> {
        disk.create("f")?.write_at(0, b"old")?;
        disk.sync("f")?;
        disk.sync("")?;
        disk.settle();
        disk.create("f.new")?.append(b"new")?;
        disk.rename("f.new", "f")?;
        disk.sync("")?;
        disk.tell("saved");
        disk.create_dir("d")?;
        disk.hard_link("f", "d/g")?;
        disk.remove("f")
    };
    work().expect("a disk in memory");
    disk.trace()
}

fn recordings() -> Seeds {
    let event = |call| Event { time: 1, pid: 2, tid: 2, errno: 0, call, stack: vec!["main <x>".into()] };
    let root = ROOT_INO;
    let make = |dir, name: &[u8], ino, mode, target: Option<&[u8]>| Call::Create {
        dir,
        name: name.to_vec(),
        ino,
        mode,
        uid: 1,
        gid: 1,
        target: target.map(<[u8]>::to_vec),
    };
    let every = vec![
        Call::Process { pid: 2, name: "sh".into(), command: "sh -c x".into() },
        make(root, b"d", 2, 0o040_755, None),
        Call::Baseline,
        make(2, b"f", 3, 0o104_644, None),
        make(root, b"l", 4, 0o120_777, Some(b"../out")),
        make(root, b"p", 5, 0o010_644, None),
        Call::Tmpfile { ino: 6, mode: 0o100_600, uid: 0, gid: 0 },
        Call::Link { ino: 6, dir: 2, name: b"t".to_vec() },
        Call::Write { ino: 3, offset: 4000, data: vec![5; 200], mapped: false },
        Call::Write { ino: 3, offset: 0, data: vec![6; 40], mapped: true },
        Call::Truncate { ino: 3, size: 9000 },
        Call::Allocate { ino: 3, how: Space::Insert, offset: 0, len: 4096 },
        Call::Allocate { ino: 3, how: Space::Collapse, offset: 4096, len: 4096 },
        Call::Allocate { ino: 3, how: Space::Punch, offset: 100, len: 5000 },
        Call::Allocate { ino: 3, how: Space::Zero { keep_size: true }, offset: 1, len: 2 },
        Call::Allocate { ino: 3, how: Space::Allocate { keep_size: false }, offset: 0, len: 20_000 },
        Call::Attr { ino: 3, mode: Some(0o6755), uid: Some(0), gid: None },
        Call::Xattr { ino: 3, name: b"user.a".to_vec(), value: Some(b"v".to_vec()) },
        Call::Xattr { ino: 3, name: b"user.a".to_vec(), value: None },
        Call::Fsync { ino: 3, datasync: true, since: 18 },
        Call::Rename {
            dir: 2,
            name: b"f".to_vec(),
            new_dir: root,
            new_name: b"l".to_vec(),
            ino: 3,
            victim: Some(4),
            exchange: true,
        },
        Call::Sync { since: 20 },
        Call::Mark { text: "done".into() },
        Call::Remove { dir: 2, name: b"t".to_vec(), ino: 6, is_dir: false },
        Call::End { code: 0 },
    ];
    let every = Trace { events: every.into_iter().map(event).collect() };
    vec![
        ("saved", recording(&saved())),
        ("every-call", recording(&every)),
        ("empty", recording(&Trace::default())),
    ]
}

/// The server's behaviour, and its messages.
fn server(how: u8, messages: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = vec![how];
    for message in messages {
        bytes.push(u8::try_from(message.len()).unwrap_or(255));
        bytes.extend(message);
    }
    bytes
}

fn servers() -> Seeds {
    let reply = |option: u32, kind: u32, data: &[u8]| {
        let mut bytes = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
        bytes.extend([option.to_be_bytes(), kind.to_be_bytes(), (data.len() as u32).to_be_bytes()].concat());
        bytes.extend(data);
        bytes
    };
    let export = [&[0, 0], &(1u64 << 20).to_be_bytes()[..], &[1, 0x6d]].concat();
    let sizes = [&[0, 3], &1u32.to_be_bytes()[..], &4096u32.to_be_bytes(), &65536u32.to_be_bytes()].concat();
    let hello = b"NBDMAGICIHAVEOPT\0\x03".to_vec();
    let whole = [hello, reply(8, 1, &[]), reply(7, 3, &export), reply(7, 3, &sizes), reply(7, 1, &[])];
    let simple = |error: u32, cookie: u64, data: usize| {
        let head = [&0x6744_6698u32.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes()].concat();
        [head, vec![9; data]].concat()
    };
    let chunk = |flags: u16, kind: u16, cookie: u64, content: &[u8]| {
        let head = [&0x668e_33efu32.to_be_bytes()[..], &flags.to_be_bytes(), &kind.to_be_bytes()].concat();
        [&head[..], &cookie.to_be_bytes(), &(content.len() as u32).to_be_bytes(), content].concat()
    };
    let hole = |offset: u64, len: u32| [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
    // The client reads two blocks, from the second on.
    let b = BLOCK_SIZE as u64;
    let structured: Vec<Vec<u8>> = vec![
        [chunk(0, 2, 0, &hole(b, 4096)), chunk(1, 2, 0, &hole(2 * b, 4096))].concat(),
        chunk(1, 2, 1, &hole(0, 8192)),
        chunk(1, 0x8001, 2, &[0, 0, 0, 5, 0, 3, b'b', b'a', b'd']),
        simple(0, 3, 0),
        chunk(1, 0, 4, &[]),
    ];
    let overflow = |offset: u64, len: u32| server(3, &[chunk(1, 2, 0, &hole(offset, len))]);
    vec![
        ("by-the-rules", server(3, &structured)),
        ("simple", server(1, &[simple(0, 0, 8192), simple(5, 1, 0), simple(0, 3, 0)])),
        ("several-connections", server(7, &structured)),
        ("negotiates", server(0, &whole)),
        (
            "refuses",
            server(0, &[whole[0].clone(), reply(8, 1 << 31 | 1, &[]), reply(7, 1 << 31 | 6, b"none")]),
        ),
        ("silent", server(0, &[])),
        ("end-overflows", overflow(u64::MAX, 4096)),
        ("length-overflows", overflow(b + 1, u32::MAX)),
    ]
}

fn uris() -> Seeds {
    [
        ("path", "/var/lib/images/a.img"),
        ("nbd", "nbd://host:10809/export?connections=4&timeout=60"),
        ("nbd6", "nbd://[fe80::1%25eth0]:1/a%2Fb"),
        ("unix", "nbd+unix:///name?socket=/run/nbd.sock&connections=1"),
        ("rbd", "rbd:pool/image@snap?id=user&conf=/etc/ceph/ceph.conf&timeout=5"),
        ("tls", "nbds://host/"),
        ("scheme", "http://host/x"),
    ]
    .into_iter()
    .map(|(name, uri)| (name, uri.as_bytes().to_vec()))
    .collect()
}

/// The form of the requests, and requests made of an opcode, a node and a body.
fn list(how: u8, requests: &[(u32, u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = vec![how];
    for (opcode, node, body) in requests {
        bytes.extend((2 + body.len() as u16).to_le_bytes());
        bytes.extend([*opcode as u8, *node]);
        bytes.extend(body);
    }
    bytes
}

fn with(value: &[u8], text: &[u8]) -> Vec<u8> {
    [value, text].concat()
}

fn requests() -> Seeds {
    let init = abi::InitIn { major: 7, minor: 40, max_readahead: 1 << 17, flags: u32::MAX };
    let extended = with(init.as_bytes(), abi::InitInExt::new_zeroed().as_bytes());
    vec![
        ("mount", list(0, &[(op::INIT, 0, extended), (op::STATFS, 1, vec![]), (op::DESTROY, 0, vec![])])),
        reads(),
        changes(),
        attributes(),
        space(),
        ("whole-messages", {
            let header =
                abi::InHeader { len: 45, opcode: op::LOOKUP, nodeid: 1, ..abi::InHeader::new_zeroed() };
            let message = with(header.as_bytes(), b"file\0");
            [&[1][..], &(message.len() as u16).to_le_bytes(), &message].concat()
        }),
    ]
}

fn reads() -> Seed {
    let read = |size| abi::ReadIn { size, ..abi::ReadIn::new_zeroed() }.as_bytes().to_vec();
    (
        "read",
        list(
            4,
            &[
                (op::LOOKUP, 1, b"file\0".to_vec()),
                (op::GETATTR, 2, vec![0; 16]),
                (op::STATX, 2, vec![0; 24]),
                (op::OPEN, 2, vec![0; 8]),
                (op::READ, 2, read(4096)),
                (op::READDIR, 1, read(4096)),
                (op::READDIRPLUS, 1, read(4096)),
                (op::READLINK, 5, vec![]),
                (op::LSEEK, 2, vec![0; 24]),
                (op::FORGET, 2, 1u64.to_le_bytes().to_vec()),
                (
                    op::BATCH_FORGET,
                    0,
                    with(&[1, 0, 0, 0, 0, 0, 0, 0], &[2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]),
                ),
            ],
        ),
    )
}

fn changes() -> Seed {
    let write = |offset, data: &[u8]| {
        let head = abi::WriteIn { offset, size: data.len() as u32, ..abi::WriteIn::new_zeroed() };
        with(head.as_bytes(), data)
    };
    let set = abi::SetattrIn {
        valid: fattr::MODE | fattr::SIZE | fattr::MTIME_NOW,
        size: 5000,
        mode: 0o4711,
        ..abi::SetattrIn::new_zeroed()
    };
    let mknod = abi::MknodIn { mode: 0o100_644, ..abi::MknodIn::new_zeroed() };
    let mkdir = abi::MkdirIn { mode: 0o755, umask: 0o22 };
    let rename = abi::RenameIn { newdir: 3 };
    let rename2 = abi::Rename2In { newdir: 1, flags: 2, padding: 0 };
    (
        "change",
        list(
            2,
            &[
                (op::MKNOD, 1, with(mknod.as_bytes(), b"new\0")),
                (op::MKDIR, 1, with(mkdir.as_bytes(), b"more\0")),
                (op::SYMLINK, 1, b"sym\0../out\0".to_vec()),
                (op::LINK, 3, with(&2u64.to_le_bytes(), b"second\0")),
                (op::WRITE, 2, write(100, b"bytes")),
                (op::SETATTR, 2, set.as_bytes().to_vec()),
                (op::RENAME, 1, with(rename.as_bytes(), b"new\0moved\0")),
                (op::RENAME2, 1, with(rename2.as_bytes(), b"file\0link\0")),
                (op::UNLINK, 1, b"pipe\0".to_vec()),
                (op::RMDIR, 1, b"more\0".to_vec()),
                (op::TMPFILE, 1, vec![0; 16]),
                (op::FSYNC, 2, vec![0; 16]),
                (op::SYNCFS, 1, vec![0; 8]),
            ],
        ),
    )
}

fn attributes() -> Seed {
    let get = abi::GetxattrIn { size: 4096, padding: 0 };
    let setxattr = abi::SetxattrIn { size: 3, flags: 0 };
    (
        "attributes",
        list(
            0,
            &[
                (op::SETXATTR, 2, with(setxattr.as_bytes(), b"user.b\0abc")),
                (op::GETXATTR, 2, with(get.as_bytes(), b"user.a\0")),
                (op::LISTXATTR, 2, get.as_bytes().to_vec()),
                (op::REMOVEXATTR, 2, b"user.a\0".to_vec()),
                (op::GETXATTR, 1, with(get.as_bytes(), b"system.kedgefs.info\0")),
            ],
        ),
    )
}

fn space() -> Seed {
    let allocate =
        |mode| abi::FallocateIn { offset: 4096, length: 8192, mode, ..abi::FallocateIn::new_zeroed() };
    let ioctl = |cmd| abi::IoctlIn { cmd, in_size: 24, out_size: 24, ..abi::IoctlIn::new_zeroed() };
    let trim = with(ioctl(0xc018_5879).as_bytes(), &[&[0; 8][..], &[0xff; 8], &[0; 8]].concat());
    (
        "space",
        list(
            0,
            &[
                (op::FALLOCATE, 2, allocate(0).as_bytes().to_vec()),
                (op::FALLOCATE, 2, allocate(3).as_bytes().to_vec()),
                (op::FALLOCATE, 2, allocate(0x10).as_bytes().to_vec()),
                (op::FALLOCATE, 2, allocate(8).as_bytes().to_vec()),
                (op::FALLOCATE, 2, allocate(0x20).as_bytes().to_vec()),
                (op::IOCTL, 1, trim),
                (op::IOCTL, 2, ioctl(0x8008_6601).as_bytes().to_vec()),
                (op::IOCTL, 2, with(ioctl(0x4008_6602).as_bytes(), &[0x40, 0, 0, 0])),
            ],
        ),
    )
}
