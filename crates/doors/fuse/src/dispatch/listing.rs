//! Listings of directories, in the layout of the kernel's buffer.

use crate::abi;
use crate::args::Args;
use crate::errno::Answer;
use crate::ops::Ops;
use crate::server::Server;
use kedge_base::IoBuf;
use kedgefs::{DirEntry, Ino};
use zerocopy::{FromBytes, IntoBytes};

impl<O: Ops> Server<O> {
    pub(super) fn readdir(&self, node: Ino, args: &mut Args<'_>, out: &mut IoBuf) -> Answer<usize> {
        let asked: abi::ReadIn = args.take()?;
        let mut list = DirList::new(out, asked.size, false);
        self.ops.readdir_opened(asked.fh, node, asked.offset, &mut |entry| list.push(&entry))?;
        Ok(list.len)
    }

    /// Attributes are added after the walk: during the walk, the directory's locks may be held.
    pub(super) fn readdirplus(&self, node: Ino, args: &mut Args<'_>, out: &mut IoBuf) -> Answer<usize> {
        let asked: abi::ReadIn = args.take()?;
        let mut list = DirList::new(out, asked.size, true);
        self.ops.readdir_opened(asked.fh, node, asked.offset, &mut |entry| list.push(&entry))?;
        let len = list.len;
        let mut at = 0;
        while at < len {
            let bytes = &mut out.as_mut_bytes()[at..len];
            let (entry, rest) =
                abi::EntryOut::mut_from_prefix(bytes).expect("each record begins with an entry");
            let (dirent, rest) = abi::Dirent::ref_from_prefix(rest).expect("a directory entry follows");
            let name = &rest[..dirent.namelen as usize];
            // An entry that has been removed since gets no inode: the kernel lists the name, and
            // looks it up if necessary.
            if name != b"." && name != b".." && self.pin(Ino(dirent.ino)).is_ok() {
                match self.ops.getattr(Ino(dirent.ino)) {
                    Ok(attr) => *entry = self.entry(&attr),
                    Err(_) => self.unpin(dirent.ino, 1),
                }
            }
            at += abi::dirent_size(DirList::HEAD_PLUS, name.len());
        }
        Ok(len)
    }
}

/// Directory entries, one after another, in a buffer.
struct DirList<'a> {
    buf: &'a mut [u8],
    len: usize,
    plus: bool,
}

impl<'a> DirList<'a> {
    const HEAD: usize = size_of::<abi::Dirent>();
    const HEAD_PLUS: usize = size_of::<abi::EntryOut>() + Self::HEAD;

    fn new(out: &'a mut IoBuf, size: u32, plus: bool) -> DirList<'a> {
        let buf = out.as_mut_bytes();
        let size = buf.len().min(size as usize);
        DirList { buf: &mut buf[..size], len: 0, plus }
    }

    /// Appends an entry. Returns false and adds nothing if the entry does not fit.
    fn push(&mut self, entry: &DirEntry<'_>) -> bool {
        let head = if self.plus { Self::HEAD_PLUS } else { Self::HEAD };
        let size = abi::dirent_size(head, entry.name.len());
        let Some(record) = self.buf[self.len..].get_mut(..size) else { return false };
        record.fill(0);
        let dirent = abi::Dirent {
            ino: entry.ino.0,
            off: entry.cookie,
            namelen: entry.name.len() as u32,
            kind: entry.kind.dtype().into(),
        };
        record[head - Self::HEAD..head].copy_from_slice(dirent.as_bytes());
        record[head..head + entry.name.len()].copy_from_slice(entry.name);
        self.len += size;
        true
    }
}
