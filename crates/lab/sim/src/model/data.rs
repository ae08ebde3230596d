//! The bytes of the model's files: writes, sizes, allocation, clones, and the results of reads.

use super::Model;
use super::effect::{Answer, DataChange, Effect, No, Persist, persist};
use super::inode::Id;
use crate::content::CHUNK;
use crate::ops::{Falloc, Op, Outcome, Target, errno};
use kedge_format::item::FILE_SIZE_MAX;
use kedgefs::FileKind;

impl Model {
    pub(super) fn run_data(&mut self, op: &Op) -> Answer {
        match op {
            Op::Write { on, offset, len, fill } => {
                let id = self.data_target(on)?;
                if *len == 0 {
                    return Ok((Outcome::Done, Effect::default()));
                }
                self.write(id, *offset, || fill.bytes(*offset, *len as usize), *len as u64)
            }
            Op::WriteText { on, offset, text } => {
                let id = self.data_target(on)?;
                self.write(id, *offset, || text.clone().into_bytes(), text.len() as u64)
            }
            Op::Append { on, text } => {
                let id = self.data_target(on)?;
                self.write(id, self.get(id).content.size(), || text.clone().into_bytes(), text.len() as u64)
            }
            Op::Truncate { on, size } => self.truncate(on, *size),
            Op::Fallocate { on, how, offset, len } => self.fallocate(on, *how, *offset, *len),
            Op::Clone { source, from, on, to, len } => self.clone_range(source, *from, on, *to, *len),
            Op::CloneFile { source, on } => self.clone_file(source, on),
            Op::Fsync { on } => {
                let id = self.target(on)?;
                Ok(persist(Persist::Inode { id, datasync: false }))
            }
            Op::Fdatasync { on } => {
                let id = self.target(on)?;
                Ok(persist(Persist::Inode { id, datasync: true }))
            }
            Op::Sync | Op::Freeze => Ok(persist(Persist::All)),
            Op::Read { on, offset, len } => {
                let id = self.data_target(on)?;
                self.edit(id).atime = None;
                Ok((Outcome::Bytes(self.get(id).content.read(*offset, *len as usize)), Effect::default()))
            }
            Op::Readdir { path } => {
                let id = self.resolve(path)?;
                if !self.get(id).is_dir() {
                    return Err(errno::ENOTDIR.into());
                }
                self.edit(id).atime = None;
                let dir = self.get(id);
                let names = dir.entries.iter().map(|(name, id)| (name.clone(), self.get(*id).kind));
                Ok((Outcome::Names(names.collect()), Effect::default()))
            }
            Op::Readlink { path } => {
                let id = self.resolve(path)?;
                if self.get(id).kind != FileKind::Symlink {
                    return Err(errno::EINVAL.into());
                }
                self.edit(id).atime = None;
                Ok((Outcome::Bytes(self.get(id).target.clone().into_bytes()), Effect::default()))
            }
            _ => unreachable!("sorted by run()"),
        }
    }

    fn write(&mut self, id: Id, offset: u64, bytes: impl FnOnce() -> Vec<u8>, len: u64) -> Answer {
        let Some(end) = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX) else {
            return Err(errno::EFBIG.into());
        };
        if len == 0 {
            return Ok((Outcome::Done, Effect::default()));
        }
        let inode = self.edit(id);
        let grew = end > inode.content.size();
        inode.content.write(offset, &bytes());
        (inode.mtime, inode.ctime) = (None, None);
        let data = Some(DataChange { id, from: offset, to: end, sets_size: false, grew });
        Ok((Outcome::Done, Effect { data, ..Effect::default() }))
    }

    fn truncate(&mut self, on: &Target, size: u64) -> Answer {
        let id = self.target(on)?;
        match self.get(id).kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(errno::EISDIR.into()),
            _ => return Err(errno::EINVAL.into()),
        }
        if size > FILE_SIZE_MAX {
            return Err(errno::EFBIG.into());
        }
        let inode = self.edit(id);
        let old = inode.content.size();
        inode.content.set_size(size);
        (inode.mtime, inode.ctime) = (None, None);
        let to = if size < old { u64::MAX } else { size };
        let data = Some(DataChange { id, from: size, to, sets_size: size != old, grew: false });
        Ok((
            Outcome::Done,
            Effect { ordered: true, datasync: size != old, touched: vec![id], data, persist: None },
        ))
    }

    fn fallocate(&mut self, on: &Target, how: Falloc, offset: u64, len: u64) -> Answer {
        let id = self.target(on)?;
        if len == 0 {
            return Err(No::Errno(vec![errno::EINVAL, errno::EISDIR]));
        }
        self.data_target(on)?;
        let Some(end) = offset.checked_add(len).filter(|end| *end <= FILE_SIZE_MAX) else {
            return Err(errno::EFBIG.into());
        };
        let inode = self.edit(id);
        let before = inode.content.clone();
        if matches!(how, Falloc::Collapse | Falloc::Insert) {
            return self.shift(id, how, offset, len);
        }
        if how.zeroes() {
            inode.content.zero(offset, end);
        }
        let old = inode.content.size();
        if how.grows() {
            inode.content.set_size(old.max(end));
        }
        (inode.mtime, inode.ctime) = (None, None);
        let (from, to) = if how.zeroes() { (offset, end) } else { (0, 0) };
        let sets_size = how.grows() && end > old;
        let data = Some(DataChange { id, from, to, sets_size, grew: false });
        // If no byte changed, an fsync has nothing to make durable, and bytes that exist only in
        // memory may be dropped.
        let touched = if inode.content == before { Vec::new() } else { vec![id] };
        Ok((Outcome::Done, Effect { ordered: true, datasync: sets_size, touched, data, persist: None }))
    }

    /// Clones a range of whole blocks, or one up to the ends of both files.
    fn clone_range(&mut self, source: &Target, from: u64, on: &Target, to: u64, len: u64) -> Answer {
        let (_, _) = (self.target(source)?, self.target(on)?);
        let (source, id) = (self.data_target(source)?, self.data_target(on)?);
        if self.tree_of(source) != self.tree_of(id) {
            return Err(No::Unspecified);
        }
        let (size, old) = (self.get(source).content.size(), self.get(id).content.size());
        let len = if len == 0 { size.saturating_sub(from) } else { len };
        if !from.is_multiple_of(CHUNK) || !to.is_multiple_of(CHUNK) {
            return Err(errno::EINVAL.into());
        }
        let (Some(from_end), Some(to_end)) = (from.checked_add(len), to.checked_add(len)) else {
            return Err(errno::EFBIG.into());
        };
        if to_end > FILE_SIZE_MAX {
            return Err(errno::EFBIG.into());
        }
        let ends = from_end == size && to_end >= old;
        let whole = |at: u64| at.next_multiple_of(CHUNK);
        let overlap = source == id && from < whole(to_end) && to < whole(from_end);
        if from_end > size || !len.is_multiple_of(CHUNK) && !ends || overlap {
            return Err(errno::EINVAL.into());
        }
        if len == 0 {
            return Ok((Outcome::Done, Effect::default()));
        }
        // Reads chunk by chunk, since the file may be a hole of terabytes.
        let content = self.get(source).content.clone();
        let inode = self.edit(id);
        inode.content.set_size(old.max(to_end));
        inode.content.zero(to, to_end);
        let chunks = content.chunk_numbers().map(|number| number * CHUNK);
        for base in chunks.filter(|base| (from..from_end).contains(base)) {
            let bytes = content.read(base, CHUNK.min(from_end - base) as usize);
            inode.content.write(base - from + to, &bytes);
        }
        (inode.mtime, inode.ctime) = (None, None);
        let data = Some(DataChange { id, from: to, to: to_end, sets_size: to_end > old, grew: false });
        Ok((Outcome::Done, Effect { ordered: true, datasync: true, touched: vec![id], data, persist: None }))
    }

    /// Clones a whole file, as one change of bytes and size.
    fn clone_file(&mut self, source: &Target, on: &Target) -> Answer {
        let (_, _) = (self.target(source)?, self.target(on)?);
        let (source, id) = (self.data_target(source)?, self.data_target(on)?);
        if self.tree_of(source) != self.tree_of(id) {
            return Err(No::Unspecified);
        }
        if source == id {
            return Ok((Outcome::Done, Effect::default()));
        }
        let content = self.get(source).content.clone();
        let inode = self.edit(id);
        let sets_size = content.size() != inode.content.size();
        inode.content = content;
        (inode.mtime, inode.ctime) = (None, None);
        let data = Some(DataChange { id, from: 0, to: u64::MAX, sets_size, grew: false });
        Ok((Outcome::Done, Effect { ordered: true, datasync: true, touched: vec![id], data, persist: None }))
    }

    /// Collapse and insert range, for whole blocks inside the file.
    fn shift(&mut self, id: Id, how: Falloc, offset: u64, len: u64) -> Answer {
        let content = &self.get(id).content;
        let size = content.size();
        if !offset.is_multiple_of(CHUNK) || !len.is_multiple_of(CHUNK) {
            return Err(errno::EINVAL.into());
        }
        let collapse = how == Falloc::Collapse;
        let (from, to, new_size) = match collapse {
            true if offset + len >= size => return Err(errno::EINVAL.into()),
            false if offset >= size => return Err(errno::EINVAL.into()),
            true => (offset + len, offset, size - len),
            false => (offset, offset + len, size + len),
        };
        if new_size > FILE_SIZE_MAX {
            return Err(errno::EFBIG.into());
        }
        let content = content.shifted(from, to, new_size);
        let inode = self.edit(id);
        inode.content = content;
        (inode.mtime, inode.ctime) = (None, None);
        let data = Some(DataChange { id, from: offset, to: u64::MAX, sets_size: true, grew: false });
        Ok((Outcome::Done, Effect { ordered: true, datasync: true, touched: vec![id], data, persist: None }))
    }
}
