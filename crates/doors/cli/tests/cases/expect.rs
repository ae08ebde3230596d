//! Checks the expectations of a case through a mount.

use crate::operate::Hands;
use kedge_sim::cases::Case;
use rustix::fs::SeekFrom;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};

type Wanted = BTreeMap<String, Value>;

/// Checks all expectations of a case for its crash number `crash`.
pub fn all(case: &Case, crash: usize, hands: &mut Hands) -> Result<(), String> {
    for wanted in &case.expect_after_crash {
        let at = wanted.get("crash").and_then(Value::as_u64).map_or(case.crashes(), |n| n as usize);
        if at == crash {
            one(wanted, hands).map_err(|e| format!("{wanted:?}: {e}"))?;
        }
    }
    Ok(())
}

fn one(wanted: &Wanted, hands: &mut Hands) -> Result<(), String> {
    if let Some(Value::Array(op)) = wanted.get("can") {
        return hands.operate(op);
    }
    if wanted.contains_key("one_of") {
        let alternatives: Vec<Vec<Wanted>> = of(wanted, "one_of")?;
        let mut reasons = Vec::new();
        for alternative in &alternatives {
            match alternative.iter().try_for_each(|wanted| one(wanted, hands)) {
                Ok(()) => return Ok(()),
                Err(e) => reasons.push(e),
            }
        }
        return Err(format!("none of them: {reasons:?}"));
    }
    type Check = fn(&Wanted, &Hands) -> Result<(), String>;
    let known: [(&str, Check); 12] = [
        ("exists", exists),
        ("absent", |w, h| match stat(h, &text(w, "absent")?) {
            Ok(_) => Err("is there".to_owned()),
            Err(_) => Ok(()),
        }),
        ("ls", ls),
        ("nlink", |w, h| same(stat(h, &text(w, "nlink")?)?.nlink(), of(w, "n")?)),
        ("size", |w, h| same(stat(h, &text(w, "size")?)?.len(), of(w, "n")?)),
        ("data", data),
        ("xattrs", xattrs),
        ("mode", |w, h| same(format!("{:o}", stat(h, &text(w, "mode")?)?.mode() & 0o7777), text(w, "oct")?)),
        ("readlink", |w, h| {
            let target = fs::read_link(h.path(&text(w, "readlink")?)).map_err(|e| e.to_string())?;
            same(target.to_string_lossy().into_owned(), text(w, "target")?)
        }),
        ("same_inode", same_inode),
        ("allocated", allocated),
        ("newer", newer),
    ];
    let check = known.iter().find(|(key, _)| wanted.contains_key(*key)).ok_or("unknown expectation")?;
    check.1(wanted, hands)
}

fn of<T: DeserializeOwned>(wanted: &Wanted, key: &str) -> Result<T, String> {
    let value = wanted.get(key).ok_or_else(|| format!("{key} is missing"))?;
    serde_json::from_value(value.clone()).map_err(|e| format!("{key}: {e}"))
}

fn text(wanted: &Wanted, key: &str) -> Result<String, String> {
    of(wanted, key)
}

fn same<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("found {found:?}, expected {expected:?}")) }
}

fn stat(hands: &Hands, path: &str) -> Result<Metadata, String> {
    fs::symlink_metadata(hands.path(path)).map_err(|e| format!("{path}: {e}"))
}

fn exists(wanted: &Wanted, hands: &Hands) -> Result<(), String> {
    let found = stat(hands, &text(wanted, "exists")?)?.file_type();
    let Ok(kind) = text(wanted, "type") else { return Ok(()) };
    let is = match kind.as_str() {
        "file" => found.is_file(),
        "dir" => found.is_dir(),
        "symlink" => found.is_symlink(),
        "fifo" => found.is_fifo(),
        "chr" => found.is_char_device(),
        other => return Err(format!("unknown type {other}")),
    };
    if is { Ok(()) } else { Err(format!("is no {kind} but {found:?}")) }
}

fn ls(wanted: &Wanted, hands: &Hands) -> Result<(), String> {
    let path = text(wanted, "ls")?;
    let mut names = Vec::new();
    for entry in fs::read_dir(hands.path(&path)).map_err(|e| format!("{path}: {e}"))? {
        names.push(entry.map_err(|e| e.to_string())?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    same(names, of(wanted, "names")?)
}

fn data(wanted: &Wanted, hands: &Hands) -> Result<(), String> {
    let path = text(wanted, "data")?;
    let mut expected = Vec::new();
    if wanted.contains_key("text") {
        expected = text(wanted, "text")?.into_bytes();
    } else {
        for (offset, len, byte) in of::<Vec<(usize, usize, u8)>>(wanted, "segs")? {
            expected.resize(expected.len().max(offset + len), 0);
            expected[offset..offset + len].fill(byte);
        }
    }
    let found = fs::read(hands.path(&path)).map_err(|e| format!("{path}: {e}"))?;
    same(found.len(), expected.len())?;
    match found.iter().zip(&expected).position(|(found, expected)| found != expected) {
        Some(at) => Err(format!("byte {at} is {:#x}, expected {:#x}", found[at], expected[at])),
        None => Ok(()),
    }
}

fn xattrs(wanted: &Wanted, hands: &Hands) -> Result<(), String> {
    let path = hands.path(&text(wanted, "xattrs")?);
    let mut list = vec![0; 64 << 10];
    let len = rustix::fs::listxattr(&path, &mut list[..]).map_err(|e| e.to_string())?;
    let mut found = BTreeMap::new();
    let names = list[..len].split(|byte| *byte == 0).map(String::from_utf8_lossy);
    for name in names.filter(|name| name.starts_with("user.")) {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::getxattr(&path, &*name, &mut value[..]).map_err(|e| e.to_string())?;
        found.insert(name.into_owned(), String::from_utf8_lossy(&value[..len]).into_owned());
    }
    same(found, of(wanted, "map")?)
}

fn same_inode(wanted: &Wanted, hands: &Hands) -> Result<(), String> {
    let paths: Vec<String> = of(wanted, "same_inode")?;
    let inos: Result<Vec<u64>, String> = paths.iter().map(|p| Ok(stat(hands, p)?.ino())).collect();
    let inos = inos?;
    if inos.iter().all(|ino| *ino == inos[0]) { Ok(()) } else { Err(format!("inodes {inos:?}")) }
}

/// Checks that the allocated blocks are those of `ranges` and that `holes` have no data.
fn allocated(wanted: &Wanted, hands: &Hands) -> Result<(), String> {
    let path = text(wanted, "allocated")?;
    let ranges: Vec<(u64, u64)> = of(wanted, "ranges")?;
    let holes: Vec<(u64, u64)> = of(wanted, "holes")?;
    same(stat(hands, &path)?.blocks() * 512, ranges.iter().map(|(_, len)| len).sum())?;
    let file = File::open(hands.path(&path)).map_err(|e| e.to_string())?;
    for (from, len) in holes {
        match rustix::fs::seek(&file, SeekFrom::Data(from)) {
            Ok(at) if at < from + len => return Err(format!("data at {at} in the hole of {len} at {from}")),
            Ok(_) | Err(rustix::io::Errno::NXIO) => {}
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(())
}

fn newer(wanted: &Wanted, hands: &Hands) -> Result<(), String> {
    let (newer, than) = (stat(hands, &text(wanted, "newer")?)?, stat(hands, &text(wanted, "than")?)?);
    let later = |a: (i64, i64), b: (i64, i64)| a > b;
    same(
        (
            later((newer.mtime(), newer.mtime_nsec()), (than.mtime(), than.mtime_nsec())),
            later((newer.ctime(), newer.ctime_nsec()), (than.ctime(), than.ctime_nsec())),
        ),
        (true, true),
    )
}
