//! `kedge diff`, `kedge send` and `kedge receive` on a mounted image: the process that serves it
//! does the work.

use super::client::{Mounted, deliver, ended_during, read_answer_of};
use super::frames::FrameReader;
use super::requests::Row;
use super::{CHUNK, Hello, Request};
use crate::diff::Difference;
use crate::receive::Rest;
use crate::stream::Token;
use anyhow::{Context, Result, anyhow, bail};
use kedge_host::Usage;
use kedgefs::Ino;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

const RIGHTS: &str = "may compare, send and receive trees";

/// The result of a transfer to a mount.
pub struct Received {
    pub error: Option<anyhow::Error>,
    /// What is needed to resume the transfer, if it was interrupted after a mark.
    pub rest: Option<Rest>,
}

fn open(path: &Path, changes: bool) -> Result<Mounted> {
    let mounted = Mounted::open_for(path, RIGHTS, "", changes)?;
    mounted.ok_or_else(|| {
        let what = "neither IMAGE:/PATH nor a directory of a mounted image";
        Usage(format!("{}: {what}", path.display())).into()
    })
}

/// Opens the root of a tree.
fn root(path: &Path) -> Result<Mounted> {
    let mounted = open(path, false)?;
    let stat = rustix::fs::fstat(mounted.dir()).with_context(|| format!("read {}", path.display()))?;
    if Ino(stat.st_ino).local() != Ino::ROOT {
        bail!("{}: not the root of a tree: the root of a mount, forks and snapshots are", path.display());
    }
    Ok(mounted)
}

fn two_roots(a: &Path, b: &Path) -> Result<(Mounted, Mounted)> {
    let (first, second) = (root(a)?, root(b)?);
    if !first.is_beside(&second) {
        return Err(Usage(format!("{} and {} are in two mounts", a.display(), b.display())).into());
    }
    Ok((first, second))
}

fn ask(mut stream: &UnixStream, request: &Request) -> Result<()> {
    let line = serde_json::to_string(request)? + "\n";
    stream.write_all(line.as_bytes()).context("send the request")
}

/// Returns the differences between two trees of a mount.
pub fn diff(before: &Path, after: &Path) -> Result<Vec<Difference>> {
    let (first, second) = two_roots(before, after)?;
    // Writes back the kernel's dirty pages. The serving process writes back its own.
    rustix::fs::syncfs(first.dir())
        .with_context(|| format!("write what is cached of {}", before.display()))?;
    let compare = || -> Result<Vec<Difference>> {
        let stream = first.begin(Hello::Read, Some(&second))?;
        ask(&stream, &Request::Diff)?;
        let mut reader = BufReader::with_capacity(CHUNK, &stream);
        let mut found = Vec::new();
        for line in BufReader::new(FrameReader::new(&mut reader)).split(b'\n') {
            let line = line.map_err(|_| ended_during("comparison"))?;
            let row: Row = serde_json::from_slice(&line).context("read a difference")?;
            found.push(row.difference().context("a difference of a later version")?);
        }
        read_answer_of(&mut reader).map_err(|_| ended_during("comparison"))?.accept()?;
        Ok(found)
    };
    compare().with_context(|| format!("compare {} and {}", before.display(), after.display()))
}

/// Writes a snapshot as a stream.
pub fn send(
    snapshot: &Path,
    base: Option<&Path>,
    out: &mut impl Write,
    resume: Option<&Token>,
) -> Result<()> {
    let (tree, base) = match base {
        Some(base) => two_roots(snapshot, base).map(|(tree, base)| (tree, Some(base)))?,
        None => (root(snapshot)?, None),
    };
    let mut transfer = || -> Result<()> {
        let stream = tree.begin(Hello::Read, base.as_ref())?;
        ask(&stream, &Request::Send { resume: resume.map(Token::to_string) })?;
        let mut reader = BufReader::with_capacity(CHUNK, &stream);
        let mut frames = FrameReader::new(&mut reader);
        let mut buf = vec![0; CHUNK];
        loop {
            match frames.read(&mut buf).map_err(|_| ended_during("transfer"))? {
                0 => break,
                n => out.write_all(&buf[..n]).context("write the stream")?,
            }
        }
        read_answer_of(&mut reader).map_err(|_| ended_during("transfer"))?.accept()
    };
    transfer().with_context(|| format!("send {}", snapshot.display()))
}

/// Opens the directory that will contain a new tree, and returns it with the tree's name.
fn parent(target: &Path, changes: bool) -> Result<(Mounted, Vec<u8>)> {
    let name = target.file_name().with_context(|| format!("{} has no name", target.display()))?;
    let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mounted = Mounted::open_for(dir, RIGHTS, "", changes)?.ok_or_else(|| {
        let what = "neither IMAGE:/PATH nor a name in a directory of a mounted image";
        Usage(format!("{}: {what}", target.display()))
    })?;
    Ok((mounted, name.as_bytes().to_vec()))
}

/// Makes a snapshot from a stream.
pub fn receive(target: &Path, mut input: impl Read, resume: bool) -> Result<Received> {
    let (dir, name) = parent(target, true)?;
    let mut transfer = || {
        let stream = dir.begin(Hello::Write, None)?;
        ask(&stream, &Request::Receive { name: name.clone(), resume })?;
        deliver(&stream, "transfer", |out| {
            let mut buf = vec![0; CHUNK];
            loop {
                match input.read(&mut buf).context("read the stream")? {
                    0 => return Ok(()),
                    // Flushed at once, because the next bytes of the stream may come much later.
                    n => out.write_all(&buf[..n]).and_then(|()| out.flush())?,
                }
            }
        })
    };
    let mut answer = transfer().with_context(|| format!("receive {}", target.display()))?;
    let rest = answer.take_rest();
    let error = answer.error.map(|error| anyhow!(error).context(format!("receive {}", target.display())));
    Ok(Received { error, rest })
}

/// What `kedge send` needs to go on with an interrupted transfer; `None` if there is none.
pub fn rest(target: &Path) -> Result<Option<Rest>> {
    let (dir, name) = parent(target, false)?;
    let stream = dir.begin(Hello::Read, None)?;
    ask(&stream, &Request::Status { name })?;
    let mut answer = read_answer_of(&mut BufReader::new(&stream))?;
    let rest = answer.take_rest();
    answer.accept().with_context(|| target.display().to_string())?;
    Ok(rest)
}

/// Deletes the unfinished trees of an interrupted transfer.
pub fn forget_partial(target: &Path) -> Result<()> {
    let (dir, name) = parent(target, true)?;
    let stream = dir.begin(Hello::Write, None)?;
    ask(&stream, &Request::Forget { name })?;
    let answer = read_answer_of(&mut BufReader::new(&stream))?;
    answer.accept().with_context(|| target.display().to_string())
}
