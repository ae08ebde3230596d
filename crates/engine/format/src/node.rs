//! Tree nodes: 16 KiB, slotted, identified by their address.
//!
//! ```text
//! 0        64                                heap_start                     16384
//! | header | slot 0 | slot 1 | … |   free    | values, in any order, with holes |
//!
//! ```
//! Header, slot and child: [`HEADER_LAYOUT`], [`SLOT_LAYOUT`], [`CHILD_LAYOUT`].
//!
//! Keys are stored in the slots, apart from the values, so that a search reads one dense array and
//! no values.
//!
//! A *leaf* (level 0) holds items: any value of up to [`VALUE_MAX`] bytes. An *inner* node of level
//! `n` holds children of level `n - 1`: the value is the child's address and generation, the key is
//! the lower bound of the child's keys. The key of an inner node's first entry equals the key of
//! its own entry in its parent ([`Key::MIN`] at the left edge).
//!
//! # A valid node
//! 1. is [`NODE_SIZE`] bytes and starts with the magic;
//! 2. matches its CRC32C, taken over the whole node with the CRC field as zero;
//! 3. has the uuid, address, generation and level that its parent (or the superblock) names. The
//!    generation is that in which the node was born. A different generation means that a write
//!    never reached the device, or went to the wrong place;
//! 4. has its slots end at or below `heap_start`, and `heap_start` inside the node; an inner node
//!    has an item;
//! 5. has every value inside `[heap_start, NODE_SIZE)`, no two overlapping, and the bytes between
//!    them add up to `garbage`; empty values lie at `NODE_SIZE`;
//! 6. has leaf values of at most [`VALUE_MAX`] bytes and inner values of exactly [`CHILD_SIZE`];
//! 7. has strictly ascending keys;
//! 8. as an inner node has no child younger than itself: changing a child changes its parent.
//!
//! [`NodeView::check`] tests all of them on any bytes. [`NodeView::trusted`] and [`NodeMut`] take
//! only nodes that passed the check or that this module built; on other bytes they may panic, but
//! have no undefined behaviour.
//!
//! # A genuine node
//! is a valid node whose `tag` is the SipHash-1-3 of the whole node, with the fields `tag` and
//! `crc` as zero, under the image's [`LogSecret`]. The engine writes no other nodes.
//! [`NodeView::is_genuine`] tests it.
//!
//! A reader that follows a parent's pointer need not test the tag: the parent names address and
//! generation, and the engine wrote a node there. A repair that searches unreferenced blocks for
//! nodes must test the tag, because such blocks may hold bytes of files. A user who knows this
//! format can read the uuid and compute a CRC, and so could put a valid leaf into a file. Such a
//! user can try the following:
//! - *Make up a leaf.* It needs a tag under 128 secret bits. A guess succeeds with probability
//!   2^-64 for each block.
//! - *Copy a genuine node.* Its blocks do not belong to a file while the node exists, and no file
//!   shows the previous contents of its blocks. A node also names its address, so a copy is valid
//!   nowhere else.
//! - *Keep the header of a genuine node that was freed, and replace the rest.* This is possible in
//!   blocks that a file then got and did not overwrite completely. A tag over the header and a CRC
//!   over the rest would not suffice: a CRC is linear, and four free bytes correct it. So the tag
//!   covers the whole node.
//! - *Make the engine tag chosen bytes.* With the same secret the engine hashes payloads of log
//!   writes, which begin with the length of a record. A node begins with the magic, which is not a
//!   possible length. And the engine does not reveal tags.
//!
//! The tag costs a reader that follows a parent's pointer nothing. It costs a checkpoint some ten
//! microseconds for each node. The rejected alternative is a keyed CRC: a CRC stays linear whatever
//! secret is mixed into it.

use crate::item::VALUE_MAX;
use crate::logwrite::LogSecret;
use crate::{Key, crc_without};
use kedge_base::{BlockNo, CorruptKind, Error, Generation, Result};
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;
use std::hash::Hasher;
use std::mem::offset_of;
use std::ops::Range;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a tree node in blocks.
pub const NODE_BLOCKS: u64 = 4;
/// Length of a tree node in bytes.
pub const NODE_SIZE: usize = NODE_BLOCKS as usize * kedge_base::BLOCK_SIZE;
/// Highest level of a node, and therefore of the root.
pub const LEVEL_MAX: u8 = 16;
/// Length in bytes of the value of an entry in an inner node.
pub const CHILD_SIZE: usize = 16;
/// Bytes of a node that are available for slots and values.
pub const NODE_PAYLOAD: usize = NODE_SIZE - HEADER;

const MAGIC: [u8; 8] = *b"KEDGENOD";

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    crc: U32,
    level: u8,
    reserved: u8,
    items: U16,
    uuid: [u8; 16],
    addr: U64,
    generation: U64,
    heap_start: U16,
    garbage: U16,
    reserved2: [u8; 4],
    tag: U64,
}

/// Layout of a slot. The code reads slots in place and never makes this structure.
#[allow(dead_code)]
#[repr(C)]
struct RawSlot {
    key: [u8; Key::SIZE],
    offset: [u8; 2],
    length: [u8; 2],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawChild {
    addr: U64,
    generation: U64,
}

const HEADER: usize = size_of::<Header>();
const SLOT: usize = size_of::<RawSlot>();
const VALUE_AT: usize = offset_of!(RawSlot, offset);
const LENGTH_AT: usize = offset_of!(RawSlot, length);
const CRC_AT: usize = offset_of!(Header, crc);
const LEVEL_AT: usize = offset_of!(Header, level);
const ITEMS_AT: usize = offset_of!(Header, items);
const ADDR_AT: usize = offset_of!(Header, addr);
const GENERATION_AT: usize = offset_of!(Header, generation);
const HEAP_AT: usize = offset_of!(Header, heap_start);
const GARBAGE_AT: usize = offset_of!(Header, garbage);
const TAG_AT: usize = offset_of!(Header, tag);

crate::layout::layout!(HEADER_LAYOUT: Header, 64, {
    magic: 0, 8, "`KEDGENOD`";
    crc: 8, 4, "CRC32C of the node";
    level: 12, 1, "0: a leaf";
    reserved: 13, 1, "zero";
    items: 14, 2, "count";
    uuid: 16, 16;
    addr: 32, 8, "block at which the node lies";
    generation: 40, 8, "in which it was born";
    heap_start: 48, 2, "where the values begin";
    garbage: 50, 2, "bytes of the heap that belong to no value";
    reserved2: 52, 4, "zero";
    tag: 56, 8, "SipHash-1-3 of the node with `crc` and `tag` as zero, under `log_secret`";
});
crate::layout::layout!(SLOT_LAYOUT: RawSlot, 21, {
    key: 0, 17, "big-endian";
    offset: 17, 2, "of the value in the node";
    length: 19, 2, "of the value";
});
crate::layout::layout!(CHILD_LAYOUT: RawChild, CHILD_SIZE, {
    addr: 0, 8, "block of the child";
    generation: 8, 8, "in which the child was born";
});
const _: () = assert!(NODE_SIZE <= u16::MAX as usize, "heap offsets are 16 bits");
// A full leaf that is split around an item of the largest size must become two halves that both
// fit: see the tree's split.
const _: () = assert!(3 * item_cost(VALUE_MAX) <= NODE_PAYLOAD);

/// Returns the bytes of a node that an item with a value of `len` bytes occupies.
pub const fn item_cost(len: usize) -> usize {
    SLOT + len
}

/// Address of a child node and the generation in which the child was born.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Child {
    pub addr: BlockNo,
    pub generation: Generation,
}

impl Child {
    pub fn encode(&self) -> [u8; CHILD_SIZE] {
        zerocopy::transmute!(RawChild { addr: self.addr.0.into(), generation: self.generation.0.into() })
    }

    fn decode(bytes: &[u8; CHILD_SIZE]) -> Child {
        let raw: &RawChild = zerocopy::transmute_ref!(bytes);
        Child { addr: BlockNo(raw.addr.get()), generation: Generation(raw.generation.get()) }
    }
}

/// A key in the form that compares fastest: the first sixteen bytes as one number, and the last
/// byte.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Packed(u128, u8);

impl Packed {
    fn of_key(key: &Key) -> Packed {
        let high = (key.ino as u128) << 64 | (key.kind as u128) << 56 | (key.offset >> 8) as u128;
        Packed(high, key.offset as u8)
    }

    #[inline(always)]
    fn of_slot(slot: &[u8; SLOT]) -> Packed {
        let (high, rest) = slot.split_first_chunk::<16>().expect("a slot is longer");
        Packed(u128::from_be_bytes(*high), rest[0])
    }

    fn key(self) -> Key {
        Key {
            ino: (self.0 >> 64) as u64,
            kind: (self.0 >> 56) as u8,
            offset: (self.0 as u64) << 8 | self.1 as u64,
        }
    }
}

fn slot_span(slot: &[u8; SLOT]) -> Range<usize> {
    let offset = u16::from_le_bytes([slot[VALUE_AT], slot[VALUE_AT + 1]]) as usize;
    let len = u16::from_le_bytes([slot[LENGTH_AT], slot[LENGTH_AT + 1]]) as usize;
    offset..offset + len
}

/// Read access to a node.
#[derive(Clone, Copy)]
pub struct NodeView<'a> {
    bytes: &'a [u8; NODE_SIZE],
}

impl<'a> NodeView<'a> {
    /// Wraps bytes that are known to be a valid node. Panics if the length is wrong.
    #[inline]
    pub fn trusted(bytes: &'a [u8]) -> NodeView<'a> {
        NodeView { bytes: bytes.try_into().expect("a node has NODE_SIZE bytes") }
    }

    /// Validates arbitrary bytes by the rules in the module's head.
    pub fn check(
        bytes: &'a [u8],
        uuid: &uuid::Uuid,
        addr: BlockNo,
        generation: Generation,
        level: u8,
    ) -> Result<NodeView<'a>> {
        let bad = |what: String| Error::corrupt(CorruptKind::Node, addr, what);
        let Ok(sized) = <&[u8; NODE_SIZE]>::try_from(bytes) else {
            return Err(bad(format!("{} bytes instead of {NODE_SIZE}", bytes.len())));
        };
        let header = Header::ref_from_prefix(bytes).map_err(|_| bad("short node".into()))?.0;
        if header.magic != MAGIC {
            return Err(bad("no tree node magic".into()));
        }
        if crc_without(bytes, CRC_AT) != header.crc.get() {
            return Err(bad("checksum mismatch".into()));
        }
        if header.uuid != *uuid.as_bytes() {
            return Err(bad("belongs to another image".into()));
        }
        if header.addr.get() != addr.0 {
            return Err(bad(format!("says it lies at block {}", header.addr)));
        }
        if header.generation.get() != generation.0 {
            return Err(bad(format!("is of generation {} instead of {generation}", header.generation)));
        }
        if header.level != level || level > LEVEL_MAX {
            return Err(bad(format!("is of level {} instead of {level}", header.level)));
        }
        let view = NodeView { bytes: sized };
        view.check_structure().map_err(bad)?;
        Ok(view)
    }

    /// Checks rules 4 to 8 in the module's head.
    pub fn check_structure(&self) -> Result<(), String> {
        let (items, heap) = (self.items(), self.heap_start());
        if heap > NODE_SIZE || HEADER + items * SLOT > heap {
            return Err(format!("{items} slots and a heap from {heap} do not fit"));
        }
        if items == 0 && self.level() > 0 {
            return Err("inner node without children".into());
        }
        let mut spans: SmallVec<[(usize, usize); 256]> = SmallVec::with_capacity(items);
        let mut before = None;
        for (i, slot) in self.slots().iter().enumerate() {
            let span = slot_span(slot);
            if span.start < heap || span.end > NODE_SIZE || (span.is_empty() && span.start != NODE_SIZE) {
                return Err(format!("value {i} lies at {span:?}, outside the heap from {heap}"));
            }
            let fits = if self.level() == 0 { span.len() <= VALUE_MAX } else { span.len() == CHILD_SIZE };
            if !fits {
                return Err(format!("value {i} has impossible length {}", span.len()));
            }
            spans.push((span.start, span.end));
            let key = Packed::of_slot(slot);
            if before.is_some_and(|b| b >= key) {
                return Err(format!("key {i} does not ascend"));
            }
            before = Some(key);
            if self.level() > 0 && !crate::item::fits(self.child(i).addr.0, NODE_BLOCKS) {
                return Err(format!("child {i} lies at block {}", self.child(i).addr));
            }
            if self.level() > 0 && self.child(i).generation > self.generation() {
                return Err(format!("child {i} is younger than its parent"));
            }
        }
        spans.sort_unstable();
        let (mut at, mut holes) = (heap, 0);
        for (start, end) in spans {
            if start < at {
                return Err(format!("values overlap at {start}"));
            }
            holes += start - at;
            at = end;
        }
        if holes + (NODE_SIZE - at) != self.garbage() {
            return Err(format!("{} bytes of garbage claimed", self.garbage()));
        }
        Ok(())
    }

    /// Returns whether the tag is correct, that is, whether the engine wrote this node for this
    /// image. See "A genuine node" in the module's head.
    pub fn is_genuine(&self, secret: &LogSecret) -> bool {
        self.u64_at(TAG_AT) == tag(self.bytes, secret)
    }

    #[inline(always)]
    fn u16_at(&self, at: usize) -> usize {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]]) as usize
    }

    #[inline(always)]
    fn u64_at(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    #[inline]
    pub fn level(&self) -> u8 {
        self.bytes[LEVEL_AT]
    }

    /// Returns the number of items or children.
    #[inline]
    pub fn items(&self) -> usize {
        self.u16_at(ITEMS_AT)
    }

    pub fn addr(&self) -> BlockNo {
        BlockNo(self.u64_at(ADDR_AT))
    }

    /// Returns the generation in which the node was born.
    pub fn generation(&self) -> Generation {
        Generation(self.u64_at(GENERATION_AT))
    }

    fn heap_start(&self) -> usize {
        self.u16_at(HEAP_AT)
    }

    /// Returns the bytes of the heap that belong to no value.
    fn garbage(&self) -> usize {
        self.u16_at(GARBAGE_AT)
    }

    fn slots_end(&self) -> usize {
        HEADER + self.items() * SLOT
    }

    /// Returns the bytes that are free for slots and values, once the node is compacted.
    pub fn free_space(&self) -> usize {
        self.heap_start() - self.slots_end() + self.garbage()
    }

    /// Returns the bytes that the items occupy: the sum of their [`item_cost`].
    pub fn used(&self) -> usize {
        NODE_PAYLOAD - self.free_space()
    }

    /// Returns the ranges of the node that hold data: everything except the gap between slots and
    /// heap.
    pub fn occupied(&self) -> [Range<usize>; 2] {
        [0..self.slots_end(), self.heap_start()..NODE_SIZE]
    }

    #[inline(always)]
    fn slots(&self) -> &'a [[u8; SLOT]] {
        &self.bytes[HEADER..].as_chunks::<SLOT>().0[..self.items()]
    }

    pub fn key(&self, i: usize) -> Key {
        Packed::of_slot(&self.slots()[i]).key()
    }

    pub fn first_key(&self) -> Option<Key> {
        self.slots().first().map(|s| Packed::of_slot(s).key())
    }

    pub fn last_key(&self) -> Option<Key> {
        self.slots().last().map(|s| Packed::of_slot(s).key())
    }

    #[inline]
    pub fn value(&self, i: usize) -> &'a [u8] {
        &self.bytes[slot_span(&self.slots()[i])]
    }

    /// Returns child `i` of an inner node.
    #[inline]
    pub fn child(&self, i: usize) -> Child {
        Child::decode(self.value(i).try_into().expect("inner values are children"))
    }

    /// Returns `Ok(i)` with the key's index, or `Err(i)` with the index at which it would be
    /// inserted.
    #[inline]
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        let want = Packed::of_key(key);
        let slots = self.slots();
        let at = lower_bound(slots, want);
        match slots.get(at) {
            Some(slot) if Packed::of_slot(slot) == want => Ok(at),
            _ => Err(at),
        }
    }

    /// Does what [`NodeView::search`] does, starting from a guess (interpolation search). Keys
    /// between `low` and `high` are often evenly spread, and in a node outside of the processor's
    /// caches each probe is a cache miss. The result is correct for any bounds.
    #[inline]
    pub fn search_between(&self, key: &Key, low: &Key, high: Option<&Key>) -> Result<usize, usize> {
        let slots = self.slots();
        let want = Packed::of_key(key);
        let guess = high.and_then(|high| guess(want, low, high, slots.len()));
        let at = match guess {
            Some(guess) => lower_bound_near(slots, want, guess),
            None => lower_bound(slots, want),
        };
        match slots.get(at) {
            Some(slot) if Packed::of_slot(slot) == want => Ok(at),
            _ => Err(at),
        }
    }

    /// Returns the index of the child whose key range contains the key: the last child whose lower
    /// bound is not above the key.
    #[inline]
    pub fn child_index(&self, key: &Key) -> usize {
        match self.search(key) {
            Ok(i) => i,
            Err(i) => i.saturating_sub(1),
        }
    }

    /// Iterates over the items in key order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Key, &'a [u8])> + use<'a> {
        let bytes = self.bytes;
        self.slots().iter().map(move |s| (Packed::of_slot(s).key(), &bytes[slot_span(s)]))
    }
}

/// Returns the index of the first slot whose key is not below `want`.
#[inline(always)]
fn lower_bound(slots: &[[u8; SLOT]], want: Packed) -> usize {
    let (mut low, mut high) = (0, slots.len());
    while low < high {
        let mid = usize::midpoint(low, high);
        // A branch on purpose: the processor predicts it and prefetches. A conditional move would
        // serialize the cache misses.
        if Packed::of_slot(&slots[mid]) < want {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    low
}

/// Estimates the index of `want`, assuming that the `items` keys are spread evenly from `low` to
/// `high`. Returns `None` if a guess does not pay.
#[inline(always)]
fn guess(want: Packed, low: &Key, high: &Key, items: usize) -> Option<usize> {
    let (low, high) = (Packed::of_key(low).0, Packed::of_key(high).0);
    if items < 8 || high <= low {
        return None;
    }
    let (span, offset) = (high - low, want.0.saturating_sub(low));
    let shift = 64u32.saturating_sub(span.leading_zeros());
    let part = (offset >> shift) as u64 as f64 / (span >> shift) as u64 as f64;
    Some(((part * items as f64) as usize).min(items - 1))
}

/// Does what [`lower_bound`] does, searching from slot index `guess` in strides that double.
#[inline(always)]
fn lower_bound_near(slots: &[[u8; SLOT]], want: Packed, guess: usize) -> usize {
    // The number of slots on one cache line.
    let mut stride = 3;
    let (mut low, mut high) = (0, slots.len());
    if Packed::of_slot(&slots[guess]) < want {
        low = guess + 1;
        while low + stride < high {
            if Packed::of_slot(&slots[low + stride]) >= want {
                high = low + stride;
                break;
            }
            low += stride + 1;
            stride *= 2;
        }
    } else {
        high = guess;
        while stride < high {
            if Packed::of_slot(&slots[high - stride]) < want {
                low = high - stride + 1;
                break;
            }
            high -= stride;
            stride *= 2;
        }
    }
    low + lower_bound(&slots[low..high], want)
}

/// Computes the tag that a genuine node must have.
fn tag(bytes: &[u8; NODE_SIZE], secret: &LogSecret) -> u64 {
    let mut header: [u8; HEADER] = bytes[..HEADER].try_into().expect("a node is longer");
    header[CRC_AT..CRC_AT + 4].fill(0);
    header[TAG_AT..TAG_AT + 8].fill(0);
    let mut hasher = SipHasher13::new_with_key(&secret.0);
    hasher.write(&header);
    hasher.write(&bytes[HEADER..]);
    hasher.finish()
}

/// Write access to a node. Tag and CRC are stale until [`NodeMut::seal`].
pub struct NodeMut<'a> {
    bytes: &'a mut [u8; NODE_SIZE],
}

impl<'a> NodeMut<'a> {
    /// Wraps bytes that are known to be a valid node, except that the CRC may be stale. Panics if
    /// the length is wrong.
    #[inline]
    pub fn trusted(bytes: &'a mut [u8]) -> NodeMut<'a> {
        NodeMut { bytes: bytes.try_into().expect("a node has NODE_SIZE bytes") }
    }

    /// Initialises any bytes as an empty node.
    pub fn init(
        bytes: &'a mut [u8],
        uuid: &uuid::Uuid,
        addr: BlockNo,
        generation: Generation,
        level: u8,
    ) -> NodeMut<'a> {
        let node = NodeMut::trusted(bytes);
        node.bytes.fill(0);
        let header = Header {
            magic: MAGIC,
            crc: 0.into(),
            level,
            reserved: 0,
            items: 0.into(),
            uuid: *uuid.as_bytes(),
            addr: addr.0.into(),
            generation: generation.0.into(),
            heap_start: (NODE_SIZE as u16).into(),
            garbage: 0.into(),
            reserved2: [0; 4],
            tag: 0.into(),
        };
        node.bytes[..HEADER].copy_from_slice(header.as_bytes());
        node
    }

    #[inline]
    pub fn view(&self) -> NodeView<'_> {
        NodeView { bytes: self.bytes }
    }

    fn set_u16(&mut self, at: usize, value: usize) {
        self.bytes[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
    }

    /// Gives a copied node its own address and generation.
    pub fn set_identity(&mut self, addr: BlockNo, generation: Generation) {
        self.bytes[ADDR_AT..ADDR_AT + 8].copy_from_slice(&addr.0.to_le_bytes());
        self.bytes[GENERATION_AT..GENERATION_AT + 8].copy_from_slice(&generation.0.to_le_bytes());
    }

    /// Sets the level of the root pointer, which the tree keeps in memory in the form of a node.
    /// Nodes on the device never change their level.
    pub fn set_level(&mut self, level: u8) {
        self.bytes[LEVEL_AT] = level;
    }

    fn slot_at(i: usize) -> usize {
        HEADER + i * SLOT
    }

    fn set_span(&mut self, i: usize, offset: usize, len: usize) {
        let at = NodeMut::slot_at(i) + Key::SIZE;
        self.set_u16(at, offset);
        self.set_u16(at + 2, len);
    }

    /// Replaces the key of item `i`. The caller preserves the order of keys.
    pub fn set_key(&mut self, i: usize, key: &Key) {
        assert!(i < self.view().items());
        let at = NodeMut::slot_at(i);
        self.bytes[at..at + Key::SIZE].copy_from_slice(&key.encode());
    }

    /// Copies a value into the free gap, which must be large enough, and returns its offset.
    fn place(&mut self, value: &[u8]) -> usize {
        if value.is_empty() {
            return NODE_SIZE;
        }
        let end = self.view().heap_start();
        let start = end - value.len();
        self.bytes[start..end].copy_from_slice(value);
        self.set_u16(HEAP_AT, start);
        start
    }

    fn make_contiguous(&mut self, need: usize) {
        let view = self.view();
        if view.heap_start() - view.slots_end() < need {
            self.compact();
        }
    }

    /// Inserts an item before item `i`. The caller preserves the order of keys. If there is not
    /// enough room, returns false and changes nothing.
    pub fn insert_at(&mut self, i: usize, key: &Key, value: &[u8]) -> bool {
        let items = self.view().items();
        assert!(i <= items);
        if self.view().free_space() < item_cost(value.len()) {
            return false;
        }
        self.make_contiguous(item_cost(value.len()));
        let offset = self.place(value);
        let (from, end) = (NodeMut::slot_at(i), NodeMut::slot_at(items));
        self.bytes.copy_within(from..end, from + SLOT);
        self.set_u16(ITEMS_AT, items + 1);
        self.set_key(i, key);
        self.set_span(i, offset, value.len());
        true
    }

    /// Adds an item after the last one. The caller preserves the order of keys and ensures that
    /// there is room.
    pub fn append(&mut self, key: &Key, value: &[u8]) {
        assert!(self.insert_at(self.view().items(), key, value), "appended items fit");
    }

    /// Appends a range of another node's items.
    pub fn append_range(&mut self, from: NodeView<'_>, range: Range<usize>) {
        for i in range {
            self.append(&from.key(i), from.value(i));
        }
    }

    /// Marks the heap bytes of a value as unused.
    fn release(&mut self, span: Range<usize>) {
        if span.start == self.view().heap_start() && !span.is_empty() {
            self.set_u16(HEAP_AT, span.end);
        } else {
            let garbage = self.view().garbage() + span.len();
            self.set_u16(GARBAGE_AT, garbage);
        }
    }

    pub fn remove_at(&mut self, i: usize) {
        let items = self.view().items();
        let span = slot_span(&self.view().slots()[i]);
        self.release(span);
        let (from, end) = (NodeMut::slot_at(i + 1), NodeMut::slot_at(items));
        self.bytes.copy_within(from..end, from - SLOT);
        self.set_u16(ITEMS_AT, items - 1);
        if items == 1 {
            self.clear_heap();
        }
    }

    fn clear_heap(&mut self) {
        self.set_u16(HEAP_AT, NODE_SIZE);
        self.set_u16(GARBAGE_AT, 0);
    }

    /// Keeps the first `items` items and removes the others.
    pub fn truncate(&mut self, items: usize) {
        assert!(items <= self.view().items());
        for i in items..self.view().items() {
            let span = slot_span(&self.view().slots()[i]);
            self.release(span);
        }
        self.set_u16(ITEMS_AT, items);
        if items == 0 {
            self.clear_heap();
        }
    }

    /// Replaces the value of item `i`. If there is not enough room, returns false and changes
    /// nothing.
    pub fn replace_value(&mut self, i: usize, value: &[u8]) -> bool {
        let span = slot_span(&self.view().slots()[i]);
        if value.len() == span.len() {
            self.bytes[span].copy_from_slice(value);
            return true;
        }
        if self.view().free_space() + span.len() < value.len() {
            return false;
        }
        self.release(span);
        // The value is emptied first, so that a compaction does not move the old bytes.
        self.set_span(i, NODE_SIZE, 0);
        self.make_contiguous(value.len());
        let offset = self.place(value);
        self.set_span(i, offset, value.len());
        true
    }

    /// Returns mutable access to the value of item `i`.
    pub fn value_mut(&mut self, i: usize) -> &mut [u8] {
        let span = slot_span(&self.view().slots()[i]);
        &mut self.bytes[span]
    }

    /// Moves the values together, so that the heap has no holes.
    pub fn compact(&mut self) {
        let mut heap = [0; NODE_SIZE];
        let mut at = NODE_SIZE;
        for i in 0..self.view().items() {
            let span = slot_span(&self.view().slots()[i]);
            let len = span.len();
            at -= len;
            heap[at..at + len].copy_from_slice(&self.bytes[span]);
            self.set_span(i, if len == 0 { NODE_SIZE } else { at }, len);
        }
        self.bytes[at..].copy_from_slice(&heap[at..]);
        self.set_u16(HEAP_AT, at);
        self.set_u16(GARBAGE_AT, 0);
    }

    /// Fills in tag and CRC.
    pub fn seal(&mut self, secret: &LogSecret) {
        let tag = tag(self.bytes, secret);
        self.bytes[TAG_AT..TAG_AT + 8].copy_from_slice(&tag.to_le_bytes());
        let crc = crc_without(self.bytes, CRC_AT);
        self.bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
