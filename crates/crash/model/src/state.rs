//! A directory tree in memory, cheap to copy, to which [`Edit`]s are applied.
//!
//! An edit can be applied to any tree: the inodes that it names may be missing, because a crash
//! state is a choice of edits. [`crate::History`] decides which choices are legal. No function here
//! fails or reads from outside.

use crate::edit::{Edit, Meta};
use crate::page::{Digest, Name, PAGE, Page, ZEROS, digest_of};
use crate::recipe::Torn;
use crate::sparse::Sparse;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hasher;
use std::sync::{Arc, OnceLock};

pub const SECTOR: usize = 512;
/// Inode number of the root directory.
pub const ROOT: u64 = 1;
/// The deepest level to which a walk goes. No real tree is deeper, and a damaged recording must not
/// exhaust the stack.
const DEPTH_MAX: usize = 1024;

#[derive(Clone, Debug, Default)]
pub struct FileBody {
    pub size: u64,
    /// The pages by number. They may hold bytes past the size, if the edit of the size was lost;
    /// these are not visible.
    pages: Sparse<Page>,
}

impl FileBody {
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let len = buf.len().min(usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX));
        let mut at = 0;
        while at < len {
            let place = offset + at as u64;
            let skip = (place % PAGE as u64) as usize;
            let take = (PAGE - skip).min(len - at);
            match self.pages.get(place / PAGE as u64) {
                Some(page) => buf[at..at + take].copy_from_slice(&page.bytes()[skip..skip + take]),
                None => buf[at..at + take].fill(0),
            }
            at += take;
        }
        len
    }

    /// The pages that hold data, each with its bytes inside the file.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let size = self.size;
        self.pages
            .range(0)
            .map(|(n, page)| (n * PAGE as u64, page))
            .take_while(move |(at, _)| *at < size)
            .map(move |(at, page)| {
                let len = usize::try_from(size - at).unwrap_or(PAGE).min(PAGE);
                (at, &page.bytes()[..len])
            })
    }

    fn put(&mut self, page: u64, at: usize, bytes: &[u8]) {
        match self.pages.get_mut(page) {
            Some(slot) => Arc::make_mut(slot).put(at, bytes),
            None => {
                let mut fresh = Page::zeroed();
                fresh.put(at, bytes);
                self.pages.set(page, Arc::new(fresh));
            }
        }
    }

    fn truncate(&mut self, size: u64) {
        self.pages.cut(size.div_ceil(PAGE as u64));
        let tail = (size % PAGE as u64) as usize;
        if tail > 0 && self.pages.get(size / PAGE as u64).is_some() {
            self.put(size / PAGE as u64, tail, &[0; PAGE][tail..]);
        }
        self.size = size;
    }

    fn zero(&mut self, from: u64, to: u64) {
        let page = PAGE as u64;
        let (first, last) = (from.div_ceil(page), to / page);
        if first <= last {
            self.pages.remove_range(first, last);
        }
        for part in [(from, to.min(first.saturating_mul(page))), (from.max(last * page), to)] {
            if part.0 < part.1 && self.pages.get(part.0 / page).is_some() {
                let at = (part.0 % page) as usize;
                let len = ((part.1 - part.0) as usize).min(PAGE - at);
                self.put(part.0 / page, at, &[0; PAGE][..len]);
            }
        }
    }

    /// Moves the bytes from `from` on to `to`. Both are page-aligned, as fallocate(2) requires.
    fn shift(&mut self, from: u64, to: u64) {
        let (from_page, to_page) = (from / PAGE as u64, to / PAGE as u64);
        let moved: Vec<(u64, Arc<Page>)> = self.pages.range(from_page).map(|(n, p)| (n, p.clone())).collect();
        self.pages.cut(from_page.min(to_page));
        for (n, page) in moved {
            self.pages.set(n - from_page + to_page, page);
        }
    }

    fn digest(&self, h: &mut SipHasher13) {
        h.write_u64(self.size);
        for (n, page) in self.pages.range(0) {
            let at = n * PAGE as u64;
            if at >= self.size {
                break;
            }
            let digest = match self.size - at {
                left if left < PAGE as u64 => digest_of(&page.bytes()[..left as usize]),
                _ => page.digest(),
            };
            if digest != ZEROS {
                h.write_u64(at);
                h.write_u128(digest);
            }
        }
    }
}

#[derive(Clone, Debug)]
pub enum Body {
    File(FileBody),
    Dir(BTreeMap<Name, u64>),
    Symlink(Arc<[u8]>),
    /// A pipe, socket or device.
    Special,
}

#[derive(Debug)]
pub struct Node {
    pub meta: Meta,
    pub xattrs: BTreeMap<Name, Arc<[u8]>>,
    pub body: Body,
    /// The digest of the node without its children, once it has been computed.
    digest: OnceLock<Digest>,
}

impl Clone for Node {
    /// Copies the node without its digest, because a copy is made in order to be changed.
    fn clone(&self) -> Node {
        Node {
            meta: self.meta,
            xattrs: self.xattrs.clone(),
            body: self.body.clone(),
            digest: OnceLock::new(),
        }
    }
}

impl Node {
    pub fn new(meta: Meta, target: Option<&Arc<[u8]>>) -> Node {
        let body = match (meta.kind(), target) {
            (Meta::DIR, _) => Body::Dir(BTreeMap::new()),
            (Meta::LINK, target) => Body::Symlink(target.cloned().unwrap_or_default()),
            (Meta::FILE, _) => Body::File(FileBody::default()),
            _ => Body::Special,
        };
        Node { meta, xattrs: BTreeMap::new(), body, digest: OnceLock::new() }
    }

    fn digest(&self) -> Digest {
        *self.digest.get_or_init(|| {
            let mut h = SipHasher13::new();
            h.write_u32(self.meta.mode);
            h.write_u32(self.meta.uid);
            h.write_u32(self.meta.gid);
            for (name, value) in &self.xattrs {
                h.write_usize(name.len());
                h.write(name);
                h.write_usize(value.len());
                h.write(value);
            }
            match &self.body {
                Body::File(file) => file.digest(&mut h),
                Body::Symlink(target) => h.write(target),
                Body::Dir(_) | Body::Special => {}
            }
            h.finish128().as_u128()
        })
    }
}

/// A function that is called with a path, an inode number and the node.
pub type Visit<'v, 'a> = &'v mut dyn FnMut(&[u8], u64, &'a Arc<Node>);

/// A whole tree. Clones share all nodes that neither has changed.
#[derive(Clone, Debug)]
pub struct State {
    nodes: Sparse<Node>,
}

impl Default for State {
    fn default() -> State {
        let mut nodes = Sparse::default();
        nodes.set(ROOT, Arc::new(Node::new(Meta { mode: Meta::DIR | 0o755, uid: 0, gid: 0 }, None)));
        State { nodes }
    }
}

impl State {
    pub fn node(&self, ino: u64) -> Option<&Arc<Node>> {
        self.nodes.get(ino)
    }

    /// All inodes, including those without a name.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (u64, &Arc<Node>)> {
        self.nodes.range(0)
    }

    /// Copies an inode from another tree, or removes it if it does not exist there.
    pub(crate) fn take(&mut self, ino: u64, from: &State) {
        match from.node(ino) {
            Some(node) => self.nodes.set(ino, node.clone()),
            None => self.nodes.remove(ino),
        }
    }

    fn change(&mut self, ino: u64, change: impl FnOnce(&mut Node)) {
        if let Some(slot) = self.nodes.get_mut(ino) {
            let node = Arc::make_mut(slot);
            // If the node was not shared, `make_mut` did not clone it, and the digest must be reset
            // here.
            node.digest = OnceLock::new();
            change(node);
        }
    }

    fn change_file(&mut self, ino: u64, change: impl FnOnce(&mut FileBody)) {
        self.change(ino, |node| {
            if let Body::File(file) = &mut node.body {
                change(file);
            }
        });
    }

    fn change_dir(&mut self, ino: u64, change: impl FnOnce(&mut BTreeMap<Name, u64>)) {
        self.change(ino, |node| {
            if let Body::Dir(entries) = &mut node.body {
                change(entries);
            }
        });
    }

    fn entry(&self, dir: u64, name: &[u8]) -> Option<u64> {
        match &self.node(dir)?.body {
            Body::Dir(entries) => entries.get(name).copied(),
            _ => None,
        }
    }

    pub fn apply(&mut self, edit: &Edit) {
        match edit {
            Edit::Inode { ino, meta, target } => {
                self.nodes.set(*ino, Arc::new(Node::new(*meta, target.as_ref())));
            }
            Edit::Add { dir, name, ino } => self.change_dir(*dir, |d| {
                d.insert(name.clone(), *ino);
            }),
            Edit::Remove { dir, name, .. } => self.change_dir(*dir, |d| {
                d.remove(name);
            }),
            Edit::Rename { dir, name, new_dir, new_name, exchange, .. } => {
                self.rename((*dir, name), (*new_dir, new_name), *exchange);
            }
            Edit::Data { ino, page, at, bytes, whole } => self.change_file(*ino, |file| match whole {
                Some(whole) => file.pages.set(*page, whole.clone()),
                None => file.put(*page, *at as usize, bytes.as_slice()),
            }),
            Edit::Grow { ino, size } => self.change_file(*ino, |file| file.size = file.size.max(*size)),
            Edit::Truncate { ino, size } => self.change_file(*ino, |file| file.truncate(*size)),
            Edit::Zero { ino, from, to } => self.change_file(*ino, |file| file.zero(*from, *to)),
            Edit::Shift { ino, from, to, size } => self.change_file(*ino, |file| {
                file.shift(*from, *to);
                file.size = *size;
            }),
            Edit::Attr { ino, mode, uid, gid } => self.change(*ino, |node| {
                let meta = &mut node.meta;
                meta.mode = mode.map_or(meta.mode, |m| meta.kind() | (m & !Meta::KINDS));
                meta.uid = uid.unwrap_or(meta.uid);
                meta.gid = gid.unwrap_or(meta.gid);
            }),
            Edit::Xattr { ino, name, value } => self.change(*ino, |node| match value {
                Some(value) => {
                    node.xattrs.insert(name.clone(), value.clone());
                }
                None => {
                    node.xattrs.remove(name);
                }
            }),
        }
    }

    /// Applies only the sectors `from..to` of a data edit's page.
    pub fn apply_torn(&mut self, edit: &Edit, sectors: std::ops::Range<usize>) {
        let Edit::Data { ino, page, at, bytes, .. } = edit else { return };
        let (start, bytes) = (*at as usize, bytes.as_slice());
        let from = (sectors.start * SECTOR).max(start);
        let to = (sectors.end * SECTOR).min(start + bytes.len());
        if from < to {
            self.change_file(*ino, |file| file.put(*page, from, &bytes[from - start..to - start]));
        }
    }

    /// Applies the sectors of a data edit that are written in a torn page.
    pub fn apply_part(&mut self, edit: &Edit, torn: &Torn) {
        if !torn.is_garbage {
            return self.apply_torn(edit, torn.sectors.clone());
        }
        self.apply_torn(edit, 0..torn.sectors.start);
        let Edit::Data { ino, page, at, bytes, .. } = edit else { return };
        let (from, to) = (usize::from(*at), usize::from(*at) + bytes.as_slice().len());
        for sector in torn.sectors.clone() {
            let range = (sector * SECTOR).max(from)..((sector + 1) * SECTOR).min(to);
            if !range.is_empty() {
                let mut garbage = [0; SECTOR];
                SmallRng::seed_from_u64(page * (PAGE / SECTOR) as u64 + sector as u64).fill(&mut garbage[..]);
                self.change_file(*ino, |file| file.put(*page, range.start, &garbage[..range.len()]));
            }
        }
    }

    fn rename(&mut self, old: (u64, &Name), new: (u64, &Name), exchange: bool) {
        let Some(ino) = self.entry(old.0, old.1) else { return };
        let displaced = self.entry(new.0, new.1);
        self.change_dir(old.0, |d| {
            match displaced.filter(|_| exchange) {
                Some(other) => d.insert(old.1.clone(), other),
                None => d.remove(old.1),
            };
        });
        self.change_dir(new.0, |d| {
            d.insert(new.1.clone(), ino);
        });
    }

    /// A tree with the given trees as directories of its root.
    pub(crate) fn join<'a>(trees: impl Iterator<Item = (&'a str, &'a State)>) -> State {
        let mut joined = State::default();
        let mut next = ROOT + 1;
        for (name, tree) in trees {
            let numbers: HashMap<u64, u64> = tree.nodes().map(|(ino, _)| ino).zip(next..).collect();
            next += numbers.len() as u64;
            for (ino, node) in tree.nodes() {
                let node = match &node.body {
                    Body::Dir(entries) => {
                        let entries = entries.iter();
                        let known =
                            entries.filter_map(|(name, ino)| Some((name.clone(), *numbers.get(ino)?)));
                        Arc::new(Node { body: Body::Dir(known.collect()), ..Node::clone(node) })
                    }
                    _ => node.clone(),
                };
                joined.nodes.set(numbers[&ino], node);
            }
            if let Some(root) = numbers.get(&ROOT) {
                joined.change_dir(ROOT, |entries| {
                    entries.insert(name.as_bytes().into(), *root);
                });
            }
        }
        joined
    }

    /// The tree below a directory of the root. This is the inverse of `State::join` for one tree.
    pub fn below(&self, name: &str) -> Option<State> {
        let (ino, dir) = self.find(name.as_bytes())?;
        let mut tree = State::default();
        tree.nodes.set(ROOT, dir.clone());
        self.walk_below(ino, &mut Vec::new(), &mut HashSet::new(), 0, &mut |path, ino, node| {
            if !path.is_empty() {
                tree.nodes.set(ino, node.clone());
            }
        });
        Some(tree)
    }

    /// The largest inode number.
    pub fn ino_max(&self) -> u64 {
        self.nodes.range(0).last().map_or(ROOT, |(ino, _)| ino)
    }

    /// Visits every reachable name, parents first, with its path from the root (the root's path is
    /// empty). A directory is visited under one name only: no file system gives it two names, and
    /// in a forged recording each level could double the number of paths.
    pub fn walk<'a>(&'a self, visit: Visit<'_, 'a>) {
        self.walk_below(ROOT, &mut Vec::new(), &mut HashSet::new(), 0, visit);
    }

    fn walk_below<'a>(
        &'a self,
        ino: u64,
        path: &mut Vec<u8>,
        dirs: &mut HashSet<u64>,
        depth: usize,
        visit: Visit<'_, 'a>,
    ) {
        let Some(node) = self.node(ino).filter(|_| depth < DEPTH_MAX) else { return };
        if matches!(node.body, Body::Dir(_)) && !dirs.insert(ino) {
            return;
        }
        visit(path, ino, node);
        if let Body::Dir(entries) = &node.body {
            let len = path.len();
            for (name, child) in entries {
                if len > 0 {
                    path.push(b'/');
                }
                path.extend_from_slice(name);
                self.walk_below(*child, path, dirs, depth + 1, visit);
                path.truncate(len);
            }
        }
    }

    /// The digest of everything that a program can see. That includes which names share an inode,
    /// but not the inode numbers.
    pub fn digest(&self) -> Digest {
        let mut h = SipHasher13::new();
        let mut seen = HashMap::new();
        self.walk(&mut |path, ino, node| {
            h.write_usize(path.len());
            h.write(path);
            let order = seen.len();
            let first = *seen.entry(ino).or_insert(order);
            h.write_usize(first);
            if first == order {
                h.write_u128(node.digest());
            }
        });
        h.finish128().as_u128()
    }

    /// The inode at a path below the root. Symlinks are not followed.
    pub fn find(&self, path: &[u8]) -> Option<(u64, &Arc<Node>)> {
        let mut ino = ROOT;
        for name in path.split(|b| *b == b'/').filter(|n| !n.is_empty() && *n != b".") {
            ino = self.entry(ino, name)?;
        }
        Some((ino, self.node(ino)?))
    }

    /// The whole contents of the file at a path. `None` if there is no file, or if its contents do
    /// not fit in memory (a sparse file may be huge).
    pub fn content(&self, path: &[u8]) -> Option<Vec<u8>> {
        match &self.find(path)?.1.body {
            Body::File(file) => {
                let size = usize::try_from(file.size).ok()?;
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(size).ok()?;
                bytes.resize(size, 0);
                file.read(0, &mut bytes);
                Some(bytes)
            }
            _ => None,
        }
    }

    /// A digest of the content of the file at a path, without copying it.
    pub fn content_digest(&self, path: &[u8]) -> Option<Digest> {
        match &self.find(path)?.1.body {
            Body::File(file) => {
                let mut h = SipHasher13::new();
                file.digest(&mut h);
                Some(h.finish128().as_u128())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
