//! The configuration file of LazyFS, and the faults in it.

use super::super::cluster::file::{line_of, parse};
use super::super::usage;
use anyhow::{Context, Result};
use kedge_crash_record::{Clear, Fault, Named, Op, Parts, Timing, TornOp, TornSeq};
use serde::Deserialize;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The default size of a page in bytes.
const PAGE: u64 = 4096;
/// The default name of the pipe for commands.
const FIFO_DEFAULT: &str = "faults.fifo";

pub struct Config {
    pub fifo: PathBuf,
    pub completed: Option<PathBuf>,
    /// The limit of the cache in bytes, if the file sets one.
    pub cache: Option<u64>,
    pub log_all: bool,
    pub logfile: Option<PathBuf>,
    pub faults: Vec<Fault>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Written {
    faults: WrittenFaults,
    cache: WrittenCache,
    filesystem: WrittenFileSystem,
    injection: Vec<Spanned<Injection>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct WrittenFaults {
    fifo_path: Option<String>,
    fifo_path_completed: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct WrittenCache {
    apply_eviction: bool,
    simple: Option<Simple>,
    manual: Option<Manual>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Simple {
    custom_size: Spanned<String>,
    #[expect(dead_code, reason = "the size of a page changes nothing that a program sees")]
    blocks_per_page: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Manual {
    #[expect(dead_code, reason = "the size of a block changes nothing that a program sees")]
    io_block_size: Option<u64>,
    page_size: Option<u64>,
    no_pages: Spanned<u64>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct WrittenFileSystem {
    log_all_operations: bool,
    logfile: String,
}

/// A fault: a table of the file, or a command with the same words.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Injection {
    #[serde(rename = "type")]
    pub kind: String,
    pub file: Option<String>,
    pub from: Option<String>,
    pub to: Option<String>,
    pub op: Option<String>,
    pub timing: Option<String>,
    pub occurrence: Option<u64>,
    pub persist: Option<Vec<u64>>,
    pub parts: Option<u64>,
    pub parts_bytes: Option<Vec<u64>>,
    pub crash: Option<bool>,
}

/// The root directory and the mount point. Paths in configurations are below either.
pub struct Dirs {
    pub root: PathBuf,
    pub mount: PathBuf,
}

impl Dirs {
    /// Converts a path that a fault names to a path below the mount. The given path may be below
    /// the root directory, as LazyFS requires, below the mount, or relative to either.
    fn inside(&self, key: &str, path: &str) -> Result<Vec<u8>, String> {
        let named = Path::new(path);
        let inside = match named.is_absolute() {
            false => Some(named),
            true => [&self.root, &self.mount].into_iter().find_map(|dir| named.strip_prefix(dir).ok()),
        };
        match inside.map(|path| path.as_os_str().as_bytes().to_vec()) {
            Some(path) if !path.is_empty() => Ok(path),
            _ => Err(format!(
                "{key} {path:?} is no file below {} or {}",
                self.root.display(),
                self.mount.display()
            )),
        }
    }
}

pub fn read(path: &Path, dirs: &Dirs) -> Result<Config> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let written: Written = parse(path, &text)?;
    let at = |start: usize, why: &str| {
        usage(&format!("{}: line {}: {why}", path.display(), line_of(&text, start)))
    };
    let cache = match (&written.cache.simple, &written.cache.manual) {
        (Some(simple), _) => {
            let (size, start) = (simple.custom_size.get_ref(), simple.custom_size.span().start);
            Some(cache_size(size).map_err(|why| at(start, &why))?)
        }
        (None, Some(manual)) => {
            let (pages, start) = (*manual.no_pages.get_ref(), manual.no_pages.span().start);
            let bytes = pages.checked_mul(manual.page_size.unwrap_or(PAGE)).filter(|bytes| *bytes > 0);
            Some(bytes.ok_or_else(|| at(start, "no_pages and page_size give no size of a cache"))?)
        }
        (None, None) => None,
    };
    let faults = written
        .injection
        .into_iter()
        .map(|injection| {
            let start = injection.span().start;
            injection.into_inner().fault(dirs).map_err(|why| at(start, &format!("[[injection]]: {why}")))
        })
        .collect::<Result<Vec<Fault>>>()?;
    let full = |path: String| std::path::absolute(path).context("find the working directory");
    let given = |path: Option<String>| path.filter(|path| !path.is_empty()).map(full).transpose();
    Ok(Config {
        fifo: given(written.faults.fifo_path)?.map_or_else(|| full(FIFO_DEFAULT.to_owned()), Ok)?,
        completed: given(written.faults.fifo_path_completed)?,
        cache,
        log_all: written.filesystem.log_all_operations,
        logfile: given(Some(written.filesystem.logfile))?,
        faults,
    })
}

/// A size as LazyFS writes it: `0.5GB`, `512mb`, `64K`.
fn cache_size(text: &str) -> Result<u64, String> {
    let bad = || format!("custom_size {text:?} is no size; sizes are written as 0.5GB, 512MB or 64KB");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| bad())?;
    let shift = match text[end..].to_ascii_lowercase().as_str() {
        "gb" | "g" => 30,
        "mb" | "m" => 20,
        "kb" | "k" => 10,
        _ => return Err(bad()),
    };
    let bytes = number * f64::from(1u32 << shift);
    if bytes >= 1.0 && bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(bad()) }
}

impl Injection {
    /// Checks the fault. An error names the key.
    pub fn fault(mut self, dirs: &Dirs) -> Result<Fault, String> {
        let kind = std::mem::take(&mut self.kind);
        let fault = match kind.as_str() {
            "clear-cache" | "clear" => Fault::Clear(self.clear(dirs)?),
            "torn-op" => Fault::TornOp(self.torn_op(dirs)?),
            "torn-seq" => Fault::TornSeq(self.torn_seq(dirs)?),
            "" => return Err("type is missing".into()),
            other => return Err(format!("there is no type {other:?}: clear-cache, torn-op, torn-seq")),
        };
        match self.left() {
            Some(key) => Err(format!("{key} does not belong to type {kind:?}")),
            None => Ok(fault),
        }
    }

    fn clear(&mut self, dirs: &Dirs) -> Result<Clear, String> {
        let op = operation(&required("op", self.op.take())?)?;
        let path = |key, path: Option<String>| path.map(|path| dirs.inside(key, &path)).transpose();
        let from = match self.from.take() {
            // For a symlink `from` is its target, which may be any path.
            Some(target) if op == Op::Symlink => Some(target.into_bytes()),
            from => path("from", from)?,
        };
        let to = path("to", self.to.take())?;
        match (op.has_two_paths(), &from, &to) {
            (true, Some(_), Some(_)) | (false, Some(_), None) => {}
            (true, ..) => return Err(format!("op {:?} needs from and to", op.name())),
            (false, ..) => return Err(format!("op {:?} needs from, and has no to", op.name())),
        }
        Ok(Clear {
            op,
            timing: timing(&required("timing", self.timing.take())?)?,
            from: from.map(Named::Path),
            to: to.map(Named::Path),
            occurrence: Some(counted("occurrence", required("occurrence", self.occurrence.take())?)?),
            crash: required("crash", self.crash.take())?,
        })
    }

    fn torn_op(&mut self, dirs: &Dirs) -> Result<TornOp, String> {
        self.only_writes()?;
        let parts = match (self.parts.take(), self.parts_bytes.take()) {
            (Some(count), None) => Parts::Equal(counted("parts", count)?),
            (None, Some(sizes)) if !sizes.is_empty() && !sizes.contains(&0) => Parts::Bytes(sizes),
            (None, Some(_)) => return Err("parts_bytes needs sizes larger than 0".into()),
            _ => return Err("one of parts and parts_bytes is needed, and not both".into()),
        };
        let persist = self.persisted()?;
        if let Some(part) = persist.iter().find(|part| **part > parts.count()) {
            return Err(format!("persist: there is no part {part} of {}", parts.count()));
        }
        let file = dirs.inside("file", &required("file", self.file.take())?)?;
        let occurrence = counted("occurrence", required("occurrence", self.occurrence.take())?)?;
        Ok(TornOp { file, occurrence, parts, persist })
    }

    fn torn_seq(&mut self, dirs: &Dirs) -> Result<TornSeq, String> {
        self.only_writes()?;
        let file = dirs.inside("file", &required("file", self.file.take())?)?;
        let occurrence = counted("occurrence", required("occurrence", self.occurrence.take())?)?;
        Ok(TornSeq { file, occurrence, persist: self.persisted()? })
    }

    /// Takes `op`, which may be missing. The only permitted value is a write.
    fn only_writes(&mut self) -> Result<(), String> {
        match self.op.take().as_deref() {
            None | Some("write") => Ok(()),
            Some(op) => Err(format!("op {op:?}: only a write can be torn")),
        }
    }

    fn persisted(&mut self) -> Result<Vec<u64>, String> {
        let persist = required("persist", self.persist.take())?;
        match persist.is_empty() || persist.contains(&0) {
            true => Err("persist needs numbers, counted from 1".into()),
            false => Ok(persist),
        }
    }

    /// The name of a key that is set, but that this kind of fault does not use.
    fn left(&self) -> Option<&'static str> {
        let keys = [
            ("file", self.file.is_some()),
            ("from", self.from.is_some()),
            ("to", self.to.is_some()),
            ("op", self.op.is_some()),
            ("timing", self.timing.is_some()),
            ("occurrence", self.occurrence.is_some()),
            ("persist", self.persist.is_some()),
            ("parts", self.parts.is_some()),
            ("parts_bytes", self.parts_bytes.is_some()),
            ("crash", self.crash.is_some()),
        ];
        keys.into_iter().find(|(_, is_left)| *is_left).map(|(key, _)| key)
    }
}

fn required<T>(key: &str, value: Option<T>) -> Result<T, String> {
    value.ok_or_else(|| format!("{key} is missing"))
}

fn counted(key: &str, number: u64) -> Result<u64, String> {
    if number == 0 { Err(format!("{key} is counted from 1")) } else { Ok(number) }
}

pub fn operation(name: &str) -> Result<Op, String> {
    Op::by_name(name).ok_or_else(|| match name {
        "access" => format!("op {name:?}: this mount does not see it, the kernel does it alone"),
        _ => format!("there is no op {name:?}: {}", Op::ALL.map(Op::name).join(", ")),
    })
}

pub fn timing(name: &str) -> Result<Timing, String> {
    match name {
        "before" => Ok(Timing::Before),
        "after" => Ok(Timing::After),
        _ => Err(format!("timing {name:?} is neither before nor after")),
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
