//! Splits calls into edits, and records which edits each one needs.
//!
//! This takes one pass over the recording. For each inode it keeps the newest edit of each of the
//! inode's parts. So an edit needs a few others directly and the rest through these.

use crate::edit::{Edit, Meta, Slice};
use crate::model::{Model, Order};
use crate::page::{Name, PAGE, Page};
use crate::spans::Spans;
use crate::state::{ROOT, SECTOR};
use crate::trace::{Call, Event, Space};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

const SECTORS: usize = PAGE / SECTOR;

/// An edit in a recording.
#[derive(Clone, Debug)]
pub struct Micro {
    /// The number of the call to which the edit belongs.
    pub event: u32,
    pub edit: Edit,
    /// The edits that every state with this edit contains.
    pub needs: SmallVec<[u32; 4]>,
    /// The previous edit in the file system's log. It is separate from `needs`, because fsync may
    /// bypass the log.
    pub after: Option<u32>,
}

/// What is known of an inode at the present position in the recording.
#[derive(Debug, Default)]
struct Known {
    is_dir: bool,
    size: u64,
    inode: Option<u32>,
    /// The last truncate, hole or shift.
    barrier: Option<u32>,
    /// For each page whose block a truncate, hole or shift removed or moved, the last one.
    cuts: Spans<u32>,
    /// Bytes that were zeroed in memory only, in blocks that the file kept. The next write of their
    /// page writes these zeros too.
    blank: Spans<()>,
    grown: Option<u32>,
    /// The last shift, which needs all edits before it.
    shifted: Option<u32>,
    attr: Option<u32>,
    xattrs: HashMap<Name, u32>,
    /// For each page, the newest edit of each sector. Where pages are never torn, the entries of a
    /// page are all the same.
    pages: BTreeMap<u64, [Option<u32>; SECTORS]>,
    /// For each page past the old end of the file, the data edit that allocated its block.
    took_block: HashMap<u64, u32>,
    /// Edits of bytes and sizes that no rename has waited for yet.
    unflushed: Vec<u32>,
    /// Edits of the inode itself that nothing has made persistent yet.
    own: Vec<u32>,
    /// Edits of the inode's names that nothing has made persistent yet.
    names: Vec<u32>,
    /// Edits of a directory's entries that nothing has made persistent yet.
    entries: Vec<u32>,
    /// In a directory, the newest edit of each name.
    newest: BTreeMap<Name, u32>,
}

pub struct Splitter {
    model: Model,
    pub micros: Vec<Micro>,
    known: HashMap<u64, Known>,
    logged: Option<u32>,
    dir_moves: Option<u32>,
    /// Edits of bytes and sizes that a failed persistence call marked clean: no later call writes
    /// them.
    pub given_up: HashSet<u32>,
    event: u32,
}

type Needs = SmallVec<[u32; 4]>;

impl Splitter {
    pub fn new(model: Model) -> Splitter {
        let root = Known { is_dir: true, ..Known::default() };
        Splitter {
            model,
            micros: Vec::new(),
            known: HashMap::from([(ROOT, root)]),
            logged: None,
            dir_moves: None,
            given_up: HashSet::new(),
            event: 0,
        }
    }

    /// Forgets all edits: their effect is permanent.
    pub fn settle(&mut self) -> Vec<Micro> {
        for known in self.known.values_mut() {
            *known = Known { is_dir: known.is_dir, size: known.size, ..Known::default() };
        }
        self.logged = None;
        self.dir_moves = None;
        self.given_up.clear();
        std::mem::take(&mut self.micros)
    }

    /// The numbers of the edits that an fsync of `ino` persists by itself, not counting what they
    /// need. They are removed from the lists; the caller marks them persistent. With `ranges`,
    /// bytes in other pages, and the sizes that writes to other pages set, are not included.
    pub fn take_synced(
        &mut self,
        ino: u64,
        datasync: bool,
        since: u64,
        ranges: Option<&[(u64, u64)]>,
    ) -> Vec<u32> {
        let mut taken = Vec::new();
        let mut todo = vec![(ino, true)];
        let mut seen = HashSet::new();
        while let Some((ino, first)) = todo.pop() {
            if !seen.insert(ino) {
                continue;
            }
            let keeps_names = self.model.fsync_keeps_names;
            let micros = &self.micros;
            let Some(known) = self.known.get_mut(&ino) else { continue };
            let covered = |n: &u32| u64::from(micros[*n as usize].event) < since;
            let birth = known.inode.map(|n| micros[n as usize].event);
            if first {
                let wanted = |n: &u32| {
                    let edit = &micros[*n as usize].edit;
                    covered(n) && !(datasync && is_soft(edit)) && is_inside(edit, ranges)
                };
                taken.extend(known.own.extract_if(.., |n| wanted(n)));
                if known.is_dir {
                    taken.extend(known.entries.extract_if(.., |n| covered(n)));
                }
            }
            if keeps_names {
                let wanted = |n: &u32| covered(n) && (!datasync || Some(micros[*n as usize].event) == birth);
                let names: Vec<u32> = known.names.extract_if(.., |n| wanted(n)).collect();
                let above = names.iter().flat_map(|n| micros[*n as usize].edit.dirs()).flatten();
                todo.extend(above.map(|dir| (dir, false)));
                taken.extend(names);
            }
        }
        taken
    }

    /// Handles a failed persistence call on the inode, or on the whole file system for `None`.
    /// Linux marks the pages clean after a failure, so that the next call neither writes them nor
    /// fails. With `ranges`, only the pages in these.
    pub fn give_up(&mut self, ino: Option<u64>, since: u64, ranges: Option<&[(u64, u64)]>) {
        let micros = &self.micros;
        let is_lost = |n: &u32| {
            let Micro { event, edit, .. } = &micros[*n as usize];
            u64::from(*event) < since
                && matches!(edit, Edit::Data { .. } | Edit::Grow { .. })
                && is_inside(edit, ranges)
        };
        for (_, known) in self.known.iter_mut().filter(|(n, _)| ino.is_none_or(|ino| ino == **n)) {
            self.given_up.extend(known.own.extract_if(.., |n| is_lost(n)));
            known.unflushed.retain(|n| !is_lost(n));
        }
    }

    pub fn add(&mut self, number: u32, event: &Event) {
        if !event.ok() {
            return;
        }
        self.event = number;
        match &event.call {
            Call::Create { dir, name, ino, mode, uid, gid, target } => {
                let target = target.as_ref().map(|t| Arc::from(&t[..]));
                self.make(*ino, Meta { mode: *mode, uid: *uid, gid: *gid }, target);
                self.add_name(*dir, name, *ino);
            }
            Call::Tmpfile { ino, mode, uid, gid } => {
                self.make(*ino, Meta { mode: *mode, uid: *uid, gid: *gid }, None);
            }
            Call::Link { ino, dir, name } => self.add_name(*dir, name, *ino),
            Call::Remove { dir, name, ino, is_dir } => self.remove(*dir, name, *ino, *is_dir),
            Call::Rename { dir, name, new_dir, new_name, ino, victim, exchange } => {
                self.rename((*dir, name), (*new_dir, new_name), *ino, *victim, *exchange);
            }
            Call::Write { ino, offset, data, .. } => self.write(*ino, *offset, data),
            Call::Truncate { ino, size } => self.truncate(*ino, *size),
            Call::Allocate { ino, how, offset, len } => self.allocate(*ino, *how, *offset, *len),
            Call::Attr { ino, mode, uid, gid } => {
                let needs = self.needs(*ino, |k| [k.attr, k.inode]);
                let edit = Edit::Attr { ino: *ino, mode: *mode, uid: *uid, gid: *gid };
                let n = self.push(edit, needs);
                self.of(*ino).attr = Some(n);
            }
            Call::Xattr { ino, name, value } => {
                let name: Name = Arc::from(&name[..]);
                let needs = self.needs(*ino, |k| [k.xattrs.get(&name).copied(), k.inode]);
                let value = value.as_ref().map(|v| Arc::from(&v[..]));
                let n = self.push(Edit::Xattr { ino: *ino, name: name.clone(), value }, needs);
                self.of(*ino).xattrs.insert(name, n);
            }
            Call::Process { .. }
            | Call::Fsync { .. }
            | Call::Msync { .. }
            | Call::SyncRange { .. }
            | Call::Sync { .. }
            | Call::Mark { .. }
            | Call::Baseline
            | Call::End { .. }
            | Call::Device { .. } => {}
        }
    }

    fn of(&mut self, ino: u64) -> &mut Known {
        self.known.entry(ino).or_default()
    }

    fn needs<const N: usize>(&mut self, ino: u64, of: impl FnOnce(&Known) -> [Option<u32>; N]) -> Needs {
        of(self.of(ino)).into_iter().flatten().collect()
    }

    fn push(&mut self, edit: Edit, mut needs: Needs) -> u32 {
        let n = self.micros.len() as u32;
        let in_log = !matches!(edit, Edit::Data { .. } | Edit::Grow { .. });
        let after = match self.model.order {
            Order::Free => None,
            Order::Total => n.checked_sub(1),
            Order::Log | Order::Transaction if edit.is_data() => None,
            Order::Log | Order::Transaction => self.logged,
        };
        if in_log {
            self.logged = Some(n);
        }
        needs.sort_unstable();
        needs.dedup();
        if let Some(own) = edit.own() {
            self.of(own).own.push(n);
        }
        for ino in edit.named().into_iter().flatten() {
            self.of(ino).names.push(n);
        }
        let [dir, second] = edit.dirs();
        for dir in [dir, second.filter(|d| Some(*d) != dir)].into_iter().flatten() {
            self.of(dir).entries.push(n);
        }
        self.micros.push(Micro { event: self.event, edit, needs, after });
        n
    }

    fn make(&mut self, ino: u64, meta: Meta, target: Option<Arc<[u8]>>) {
        let n = self.push(Edit::Inode { ino, meta, target }, Needs::new());
        let known = self.of(ino);
        known.inode = Some(n);
        known.is_dir = meta.kind() == Meta::DIR;
    }

    /// The edits that an edit of a name needs: the previous edit of that name, and the directory.
    fn name_needs(&mut self, dir: u64, name: &Name) -> Needs {
        self.needs(dir, |d| [d.newest.get(name).copied(), d.inode])
    }

    fn set_newest(&mut self, dir: u64, name: Name, n: u32) {
        self.of(dir).newest.insert(name, n);
    }

    fn add_name(&mut self, dir: u64, name: &[u8], ino: u64) {
        let name: Name = Arc::from(name);
        let mut needs = self.name_needs(dir, &name);
        needs.extend(self.needs(ino, |k| [k.inode]));
        let n = self.push(Edit::Add { dir, name: name.clone(), ino }, needs);
        self.set_newest(dir, name, n);
    }

    fn remove(&mut self, dir: u64, name: &[u8], ino: u64, is_dir: bool) {
        let name: Name = Arc::from(name);
        let mut needs = self.name_needs(dir, &name);
        if is_dir {
            needs.extend(self.of(ino).newest.values().copied());
        }
        let n = self.push(Edit::Remove { dir, name: name.clone(), ino }, needs);
        self.set_newest(dir, name, n);
    }

    fn rename(
        &mut self,
        old: (u64, &[u8]),
        new: (u64, &[u8]),
        ino: u64,
        victim: Option<u64>,
        exchange: bool,
    ) {
        let (name, new_name): (Name, Name) = (Arc::from(old.1), Arc::from(new.1));
        let moves_dir = self.of(ino).is_dir;
        if self.model.rename_may_link && old.0 != new.0 && !exchange && !moves_dir {
            return self.rename_as_link(old, new, ino);
        }
        let mut needs = self.name_needs(old.0, &name);
        needs.extend(self.name_needs(new.0, &new_name));
        needs.extend(self.needs(ino, |k| [k.inode]));
        if moves_dir {
            needs.extend(self.dir_moves);
        }
        if let Some(victim) = victim {
            if self.of(victim).is_dir && !exchange {
                needs.extend(self.of(victim).newest.values().copied());
            }
            if self.model.rename_needs_data && !exchange {
                let unflushed = std::mem::take(&mut self.of(ino).unflushed);
                needs.extend(unflushed);
            }
        }
        let edit = Edit::Rename {
            dir: old.0,
            name: name.clone(),
            new_dir: new.0,
            new_name: new_name.clone(),
            ino,
            victim,
            exchange,
        };
        let n = self.push(edit, needs);
        if moves_dir {
            self.dir_moves = Some(n);
        }
        self.set_newest(old.0, name, n);
        self.set_newest(new.0, new_name, n);
    }

    /// Adds the new name and removes the old one as two edits, each persisted by the fsync of its
    /// own directory.
    fn rename_as_link(&mut self, old: (u64, &[u8]), new: (u64, &[u8]), ino: u64) {
        self.add_name(new.0, new.1, ino);
        let name: Name = Arc::from(old.1);
        let mut needs = self.name_needs(old.0, &name);
        needs.extend(self.needs(new.0, |dir| [dir.newest.get(new.1).copied()]));
        let n = self.push(Edit::Remove { dir: old.0, name: name.clone(), ino }, needs);
        self.set_newest(old.0, name, n);
    }

    fn write(&mut self, ino: u64, offset: u64, data: &[u8]) {
        let Some(end) = offset.checked_add(data.len() as u64) else { return };
        let of: Arc<[u8]> = Arc::from(data);
        let mut at = offset;
        while at < end {
            let (page, skip) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let take = (PAGE - skip).min((end - at) as usize);
            let from = (at - offset) as u32;
            let bytes = Slice { of: of.clone(), range: from..from + take as u32 };
            let whole = (take == PAGE).then(|| Arc::new(Page::full(bytes.as_slice())));
            self.write_blank(ino, page, at..at + take as u64);
            let n = self.bytes(ino, page, skip, bytes, whole);
            self.of(ino).unflushed.push(n);
            at += take as u64;
            if at > self.of(ino).size {
                self.grow(ino, at);
            }
        }
    }

    /// Adds an edit of bytes inside one page. It needs only the earlier edits of the same sectors,
    /// since the rest of a page may be torn.
    fn bytes(&mut self, ino: u64, page: u64, at: usize, bytes: Slice, whole: Option<Arc<Page>>) -> u32 {
        let end = at + bytes.as_slice().len();
        let sectors = match self.model.torn_pages {
            true => at / SECTOR..end.div_ceil(SECTOR),
            false => 0..SECTORS,
        };
        let overwrites = self.model.overwrites();
        let mut needs = self.needs(ino, |k| {
            let cut = if overwrites { k.cuts.at(page) } else { k.barrier };
            [cut.or(k.inode)]
        });
        if let Some(newest) = self.of(ino).pages.get(&page) {
            needs.extend(newest[sectors.clone()].iter().copied().flatten());
        }
        let n = self.push(Edit::Data { ino, page, at: at as u16, bytes, whole }, needs);
        let known = self.of(ino);
        known.pages.entry(page).or_default()[sectors].fill(Some(n));
        if page * PAGE as u64 >= known.size {
            known.took_block.entry(page).or_insert(n);
        }
        n
    }

    /// Adds the zeros that were only in memory in this page, since a write of the page writes them
    /// too. Those inside `written` are overwritten in memory before.
    fn write_blank(&mut self, ino: u64, page: u64, written: Range<u64>) {
        let known = self.of(ino);
        if known.blank.is_empty() {
            return;
        }
        let all = pages_bytes(page..page + 1);
        let is_left = |zeros: &Range<u64>| zeros.start < written.start || zeros.end > written.end;
        let blank: Vec<Range<u64>> = known.blank.within(all.clone()).filter(is_left).collect();
        known.blank.clear(all);
        for zeros in blank {
            let (at, len) = ((zeros.start % PAGE as u64) as usize, (zeros.end - zeros.start) as usize);
            self.bytes(ino, page, at, Slice { of: Arc::from(vec![0; len]), range: 0..len as u32 }, None);
        }
    }

    /// Adds the edit that extends the file to `size`, because of a write that ends there.
    fn grow(&mut self, ino: u64, size: u64) {
        let mut needs = self.needs(ino, |k| [k.barrier.or(k.inode)]);
        let (model, last) = (self.model, size.saturating_sub(1));
        let page = last / PAGE as u64;
        let known = self.of(ino);
        match model.size_needs_data {
            true if model.size_in_old_block_needs_data => {
                // The size before this one, if it is in the same page, needs the older bytes of the
                // page. Without it the file's size is the same, so to need it forbids no state.
                let before = known.grown.filter(|_| known.size.saturating_sub(1) / PAGE as u64 == page);
                let sectors = ..=(last % PAGE as u64) as usize / SECTOR;
                let newest = known.pages.get(&page).into_iter().flat_map(|newest| &newest[sectors]);
                for n in newest.copied().flatten().filter(|n| before.is_none_or(|before| *n > before)) {
                    if !needs.contains(&n) {
                        needs.push(n);
                    }
                }
                needs.extend(before);
            }
            true => needs.extend(known.took_block.get(&page).copied()),
            false => {}
        }
        if model.size_in_order {
            needs.extend(known.grown);
        }
        let n = self.push(Edit::Grow { ino, size }, needs);
        let known = self.of(ino);
        known.size = size;
        known.grown = Some(n);
        known.unflushed.push(n);
    }

    /// Records that a truncate, hole or shift removed or moved the blocks of these pages.
    fn cut(&mut self, ino: u64, n: u32, gone: Range<u64>) {
        let known = self.of(ino);
        known.barrier = Some(n);
        known.blank.clear(pages_bytes(gone.clone()));
        if !gone.is_empty() {
            let old: Vec<u64> = known.pages.range(gone.clone()).map(|(page, _)| *page).collect();
            for page in old {
                known.pages.remove(&page);
            }
        }
        known.cuts.set(gone, n);
    }

    /// Records the size that a truncate or shift set.
    fn resize(&mut self, ino: u64, size: u64) {
        let known = self.of(ino);
        known.grown = None;
        known.took_block.retain(|page, _| page * (PAGE as u64) < size);
        known.size = size;
    }

    fn truncate(&mut self, ino: u64, size: u64) {
        let (old, first) = (self.of(ino).size, size.div_ceil(PAGE as u64));
        self.zero_part(ino, size..old.min(pages_bytes(0..first).end));
        let mut needs = self.needs(ino, |k| [k.barrier.or(k.inode)]);
        if self.model.size_in_order || self.model.growth_needs_size && size >= old {
            needs.extend(self.of(ino).grown);
        }
        let n = self.push(Edit::Truncate { ino, size }, needs);
        // A larger size removes no block.
        self.cut(ino, n, first..if size < old { u64::MAX } else { first });
        self.resize(ino, size);
    }

    /// Zeroes a part of a page whose block the file keeps, as a truncate does past the new end, and
    /// a hole at its edges. These zeros are written like data, and may reach the disk before the
    /// edit of the truncate or hole.
    fn zero_part(&mut self, ino: u64, bytes: Range<u64>) {
        if bytes.is_empty() || !self.model.overwrites() {
            return;
        }
        self.of(ino).blank.set(bytes.clone(), ());
        if self.model.cut_zeroes_first {
            self.write_blank(ino, bytes.start / PAGE as u64, 0..0);
        }
    }

    fn allocate(&mut self, ino: u64, how: Space, offset: u64, len: u64) {
        let Some(end) = offset.checked_add(len) else { return };
        let size = self.of(ino).size;
        match how {
            Space::Allocate { keep_size } | Space::Zero { keep_size } => {
                if matches!(how, Space::Zero { .. }) {
                    self.zero(ino, offset..end, self.model.zeroes_in_place);
                }
                if !keep_size && end > size {
                    self.truncate(ino, end);
                }
            }
            Space::Punch => self.zero(ino, offset..end, false),
            Space::Collapse | Space::Insert => {
                let (from, to, size) = match how {
                    Space::Collapse => (end, offset, size.saturating_sub(len)),
                    _ => (offset, end, size.saturating_add(len)),
                };
                // The shift needs all edits before it. The older ones are needed through the
                // previous shift: otherwise many shifts would cost quadratic space.
                let known = self.of(ino);
                let since = known.shifted;
                let newer = known.own.iter().copied().filter(|n| since.is_none_or(|since| *n > since));
                let needs = newer.chain(since).collect();
                let n = self.push(Edit::Shift { ino, from, to, size }, needs);
                self.of(ino).shifted = Some(n);
                self.cut(ino, n, from.min(to) / PAGE as u64..u64::MAX);
                self.resize(ino, size);
                // The shift needs all bytes before it, so it no longer matters which pages
                // allocated blocks.
                self.of(ino).took_block.clear();
            }
        }
    }

    /// Makes a range read as zeros: a hole, or with `in_place` blocks that the file keeps.
    fn zero(&mut self, ino: u64, bytes: Range<u64>, in_place: bool) {
        let Range { start: from, end: to } = bytes;
        if self.model.is_disk {
            // A discard is no barrier: later writes do not need it. It needs no earlier writes,
            // since it overwrites them.
            let needs = self.needs(ino, |k| [k.inode]);
            self.push(Edit::Zero { ino, from, to }, needs);
            return;
        }
        let (first, last) = (from.div_ceil(PAGE as u64), to / PAGE as u64);
        let whole = pages_bytes(first..last);
        let size = self.of(ino).size;
        if first > last {
            self.zero_part(ino, from..to.min(size));
        } else {
            self.zero_part(ino, from..whole.start.min(size));
            self.zero_part(ino, whole.end..to.min(size));
        }
        let needs = self.needs(ino, |k| [k.barrier.or(k.inode)]);
        let n = self.push(Edit::Zero { ino, from, to }, needs);
        self.cut(ino, n, first..if in_place { first } else { last });
        if in_place && self.model.overwrites() {
            self.of(ino).blank.set(whole.start..whole.end.min(size), ());
        }
    }
}

/// The bytes of these pages.
fn pages_bytes(pages: Range<u64>) -> Range<u64> {
    pages.start.saturating_mul(PAGE as u64)..pages.end.saturating_mul(PAGE as u64)
}

/// Whether a persistence call on these ranges writes the edit. A size that a write set moves on the
/// disk when its last page is written, so it belongs to that page (observed on ext4 and XFS, Linux
/// 6.18). All other edits belong to the whole file, so every call writes them.
fn is_inside(edit: &Edit, ranges: Option<&[(u64, u64)]>) -> bool {
    let page = match edit {
        Edit::Data { page, .. } => *page,
        Edit::Grow { size, .. } => size.saturating_sub(1) / PAGE as u64,
        _ => return true,
    };
    let of_page = |(from, to): &(u64, u64)| (from / PAGE as u64..to.div_ceil(PAGE as u64)).contains(&page);
    ranges.is_none_or(|ranges| ranges.iter().any(of_page))
}

/// Whether fdatasync may leave the edit out.
fn is_soft(edit: &Edit) -> bool {
    matches!(edit, Edit::Attr { .. } | Edit::Xattr { .. })
}
