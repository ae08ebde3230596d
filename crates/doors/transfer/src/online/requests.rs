//! Serves requests about trees, in the serving process: see [`super::Request`].

use super::frames::FrameWriter;
use super::{Answer, CHUNK, PATIENCE, REQUEST_MAX, Request};
use crate::diff::{self, Difference, What};
use crate::import::sink::Changed;
use crate::{receive, send, trees};
use anyhow::{Context, Result, bail, ensure};
use kedgefs::{FileSystem, Ino};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;

/// The context in which a request is served.
pub(super) struct Work<'a> {
    pub(super) fs: &'a FileSystem,
    pub(super) stream: &'a UnixStream,
    /// Fails when the mount ends.
    pub(super) go_on: &'a dyn Fn() -> Result<()>,
    /// Notifies the kernel of a change.
    pub(super) changed: &'a dyn Fn(Changed<'_>),
}

/// A difference in the form in which it is sent.
#[derive(Serialize, Deserialize, Debug)]
pub(super) struct Row {
    what: What,
    /// The bits of the mode with the file type.
    kind: u32,
    path: Vec<u8>,
    from: Option<Vec<u8>>,
    /// Indices into [`diff::PARTS`].
    parts: Vec<usize>,
    data: Vec<(u64, u64)>,
    xattrs: Vec<Vec<u8>>,
}

impl Row {
    fn of(found: Difference) -> Row {
        let Difference { path, what, kind, from, parts, data, xattrs } = found;
        let place = |part| diff::PARTS.iter().position(|known| *known == part);
        let parts = parts.into_iter().filter_map(place).collect();
        Row { what, kind: kind.mode_bits(), path, from, parts, data, xattrs }
    }

    /// Converts a received row. `None` if it has values of a later version.
    pub(super) fn difference(self) -> Option<Difference> {
        let Row { what, kind, path, from, parts, data, xattrs } = self;
        let kind = kedgefs::FileKind::from_mode(kind)?;
        let parts = parts.into_iter().map(|part| diff::PARTS.get(part).copied()).collect::<Option<_>>()?;
        Some(Difference { path, what, kind, from, parts, data, xattrs })
    }
}

impl Work<'_> {
    /// Reads the request. The returned reader has the bytes that follow it.
    fn request(&self) -> Result<(Request, BufReader<&UnixStream>)> {
        self.stream.set_read_timeout(Some(PATIENCE))?;
        let mut reader = BufReader::with_capacity(CHUNK, self.stream);
        let mut line = Vec::new();
        reader.by_ref().take(REQUEST_MAX).read_until(b'\n', &mut line).context("read the request")?;
        self.stream.set_read_timeout(None)?;
        Ok((serde_json::from_slice(&line).context("read the request")?, reader))
    }

    /// Serves a request that changes nothing, on the directories that the client has sent.
    pub(super) fn read(&self, dirs: &[Ino]) -> Result<Answer> {
        let first = *dirs.first().context("no directory was sent")?;
        match self.request()?.0 {
            Request::Diff => {
                let [before, after] = dirs else { bail!("two trees are compared, not {}", dirs.len()) };
                self.framed(|out| self.diff(*before, *after, out))
            }
            Request::Send { resume } => self.framed(|out| {
                for root in dirs {
                    trees::check_root(self.fs, *root)?;
                }
                let resume = resume.map(|token| token.parse()).transpose().map_err(anyhow::Error::msg)?;
                let options = send::Options { resume, ..send::Options::default() };
                send::send(self.fs, first, dirs.get(1).copied(), out, &options)
            }),
            Request::Status { name } => Ok(self.state(first, &name)?),
            Request::Receive { .. } | Request::Forget { .. } => bail!("it changes trees"),
        }
    }

    /// Serves a request that makes or deletes a tree in `dir`. `begin` refuses a tree that another
    /// client is receiving.
    pub(super) fn write<G>(&self, dir: Ino, begin: impl FnOnce(&[u8]) -> Result<G>) -> Result<Answer> {
        let (request, reader) = self.request()?;
        match request {
            Request::Receive { name, resume } => {
                check_name(&name)?;
                let _only = begin(&name)?;
                let done = receive::receive(self.fs, dir, Some(&name), reader, resume, self.changed);
                let Err(e) = done else { return Ok(Answer::default()) };
                // An error of this lookup must not hide the first error.
                let state = self.state(dir, &name).unwrap_or_default();
                Ok(Answer { error: Some(format!("{e:#}")), ..state })
            }
            Request::Forget { name } => {
                check_name(&name)?;
                let _only = begin(&name)?;
                receive::forget(self.fs, dir, &name, self.changed)?;
                Ok(Answer::default())
            }
            Request::Diff | Request::Send { .. } | Request::Status { .. } => bail!("it changes nothing"),
        }
    }

    fn state(&self, dir: Ino, name: &[u8]) -> Result<Answer> {
        let Some(partial) = receive::partial(self.fs, dir, name)? else { return Ok(Answer::default()) };
        let receive::Rest { token, base } = partial.rest(self.fs);
        Ok(Answer { token: Some(token), base, error: None })
    }

    /// Sends what `work` writes in frames. The end mark follows even after an error, so that the
    /// client reads the reply.
    fn framed(&self, work: impl FnOnce(&mut FrameWriter<&UnixStream>) -> Result<()>) -> Result<Answer> {
        let mut out = FrameWriter::new(self.stream);
        let worked = work(&mut out);
        let ended = out.end();
        worked?;
        ended.context("send the end")?;
        Ok(Answer::default())
    }

    fn diff(&self, before: Ino, after: Ino, out: &mut impl Write) -> Result<()> {
        trees::check_root(self.fs, before)?;
        trees::check_root(self.fs, after)?;
        for found in diff::between(self.fs, before, after, self.go_on)?.found {
            let row = serde_json::to_string(&Row::of(found))?;
            writeln!(out, "{row}")?;
        }
        Ok(())
    }
}

/// Refuses a name that no file can have.
fn check_name(name: &[u8]) -> Result<()> {
    let plain =
        !name.is_empty() && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0);
    ensure!(plain, "a tree cannot have the name {:?}", String::from_utf8_lossy(name));
    Ok(())
}
