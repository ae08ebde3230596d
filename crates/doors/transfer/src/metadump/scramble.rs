//! Replaces all text and data of users by meaningless bytes, so that the copy is as valid, or as
//! damaged, as the image.
//!
//! # Names
//! A name's hash is part of its key in the tree, so names cannot be replaced freely. For each
//! directory (and each inode's attributes) new names of the same lengths are chosen such that their
//! hashes are in the order of the old ones. Then each item stays in its node, and each node
//! boundary stays between the same items: only the hashes in the keys change. Keys without a name
//! (a boundary, an entry that the log deletes) get a hash between their neighbours'. All trees and
//! the whole log are read first, so that an entry gets the same new name wherever it occurs.
//!
//! Names are drawn at random: for each length many names are made and sorted by hash, and each
//! entry takes the first name whose hash is above its predecessor's. The number drawn makes success
//! likely; after [`DRAWS_MAX`] draws the copy is refused, and so is a directory of more than
//! [`NAMES_MAX`] names. Names of attributes keep their namespace, and only names in `user.` are
//! replaced: the others identify the kind of attribute.
//!
//! # Other contents
//! Values of attributes (except access control lists, which contain no names), file data in the log
//! and values that cannot be decoded become zeros; targets of links and the label become the letter
//! x. The log's secret is replaced, and log writes and nodes are sealed with the new secret, so
//! that a reader of the copy cannot forge log writes of the image. Only the header of a damaged
//! node and of a torn log write is kept, and none of the ring's other blocks.

use super::source::{LogWrite, Node, Slot, Source};
use anyhow::{Context, Result, bail};
use kedge_base::BLOCK_SIZE;
use kedge_format::acl::is_acl_name;
use kedge_format::counts::CountItem;
use kedge_format::item::{Dentry, ExtentItem, Orphan, SLOT_ORDINALS, XattrItem, name_slot};
use kedge_format::logwrite::{FRAME_SIZE, HEADER_SIZE, LogKey, LogSecret};
use kedge_format::node::{NODE_SIZE, NodeMut};
use kedge_format::record::{Edit, Record, RecordBuilder};
use kedge_format::sums::SumsItem;
use kedge_format::superblock::Superblock;
use kedge_format::{InodeCore, ItemKind, Key};
use std::collections::BTreeMap;
use std::io::Read;

/// The most names of a directory or of an inode's attributes.
const NAMES_MAX: usize = 200_000;
const DRAWS_MAX: u64 = 64;
/// The least number of names drawn for each length.
const POOL_MIN: usize = 64;
/// Bytes kept of a damaged node: the fields that identify it, and the checksum, which then no
/// longer matches.
const NODE_HEADER: usize = 64;
/// The bytes kept of an invalid superblock slot: magic, version and checksum.
const SLOT_HEADER: usize = 16;
const USER: &[u8] = b"user.";
/// The letters of new names that are long enough to be distinct with these letters alone.
const PLAIN: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";

/// The hashes in the keys of a directory, or of an inode's attributes, with their names.
type Points = BTreeMap<u64, Option<Vec<u8>>>;

/// The new hash and the new name, by old hash.
type Chosen = BTreeMap<u64, (u64, Option<Vec<u8>>)>;

pub struct Scramble {
    secret: LogSecret,
    hash_seed: [u8; 16],
    /// The chosen names by inode and item kind.
    new: BTreeMap<(u64, u8), Chosen>,
}

impl Scramble {
    pub fn learn(source: &Source) -> Result<Scramble> {
        let mut random = [0; 24];
        let mut urandom = std::fs::File::open("/dev/urandom").context("open /dev/urandom")?;
        urandom.read_exact(&mut random).context("read /dev/urandom")?;
        let secret = LogSecret(random[..16].try_into().expect("sixteen bytes"));
        let seed = u64::from_le_bytes(random[16..].try_into().expect("eight bytes"));
        let superblock = source.superblocks().first().copied().cloned();
        let hash_seed = superblock.map_or([0; 16], |sb: Superblock| sb.geometry.hash_seed);
        let mut points: BTreeMap<(u64, u8), Points> = BTreeMap::new();
        let mut add = |key: Key, value: Option<&[u8]>| add_point(&mut points, &hash_seed, key, value);
        source.each_node(&mut |node| {
            let Some(view) = node.view else { return Ok(()) };
            let is_leaf = view.level() == 0;
            (0..view.items()).try_for_each(|i| add(view.key(i), is_leaf.then(|| view.value(i))))
        })?;
        source.each_log_write(&mut |write| {
            let records = write.records();
            records.iter().flat_map(|record| &record.edits).try_for_each(|edit| match edit {
                Edit::Put { key, value } => add(*key, Some(value)),
                Edit::Delete { key } => add(*key, None),
                _ => Ok(()),
            })
        })?;
        let mut new = BTreeMap::new();
        for ((ino, kind), points) in points {
            if points.len() > NAMES_MAX {
                bail!("inode {ino} has {} names, more than {NAMES_MAX}", points.len());
            }
            let drawn = (0..DRAWS_MAX).find_map(|number| {
                let draw = Draw::new(kind, mix(seed ^ mix(ino ^ (number << 48))), number >= DRAWS_MAX / 2);
                choose(&points, &hash_seed, &draw)
            });
            let drawn = drawn.with_context(|| format!("no names found for the entries of inode {ino}"))?;
            new.insert((ino, kind), drawn);
        }
        Ok(Scramble { secret, hash_seed, new })
    }

    fn key(&self, key: Key) -> Key {
        let new = self.new.get(&(key.ino, key.kind)).and_then(|new| new.get(&(key.offset / SLOT_ORDINALS)));
        let offset = |hash: u64| hash.saturating_mul(SLOT_ORDINALS) | (key.offset % SLOT_ORDINALS);
        new.map_or(key, |(hash, _)| Key { offset: offset(*hash), ..key })
    }

    /// The new name of an entry, of the same length. An entry in a slot that does not match its
    /// name's hash gets a name that does not match either.
    fn name(&self, key: Key, name: &[u8]) -> Vec<u8> {
        let hash = key.offset / SLOT_ORDINALS;
        let placed = name_slot(&self.hash_seed, name) / SLOT_ORDINALS == hash;
        let new = self.new.get(&(key.ino, key.kind)).and_then(|new| new.get(&hash));
        match new {
            Some((_, Some(new))) if placed => new.clone(),
            _ if is_kept(key.kind, name) => name.to_vec(),
            _ => Draw::new(key.kind, mix(hash), false).word(name, 0),
        }
    }

    /// The new value of an item, of the same length.
    fn value(&self, key: Key, value: &[u8]) -> Vec<u8> {
        let nothing = || vec![0; value.len()];
        let kept = |is_valid: bool| if is_valid { value.to_vec() } else { nothing() };
        match ItemKind::from_u8(key.kind) {
            Some(ItemKind::Inode) => kept(InodeCore::decode(value).is_ok()),
            Some(ItemKind::Extent) => kept(ExtentItem::decode(value).is_ok()),
            // A checksum would confirm a guess of the block, and determine up to four unknown
            // bytes.
            Some(ItemKind::Sums) => match SumsItem::decode(value) {
                Ok(item) => SumsItem(item.0.map(|sum| sum.min(1))).encode(),
                Err(_) => nothing(),
            },
            Some(ItemKind::Count) => kept(CountItem::decode(key.offset, value).is_ok()),
            Some(ItemKind::Orphan) => kept(Orphan::decode(value).is_ok()),
            Some(ItemKind::Symlink) => {
                value.iter().map(|&b| if matches!(b, 0 | b'/') { b } else { b'x' }).collect()
            }
            Some(ItemKind::Dentry) => match Dentry::decode(value) {
                Ok(dentry) => Dentry { name: &self.name(key, dentry.name), ..dentry }.encode(),
                Err(_) => nothing(),
            },
            Some(ItemKind::Xattr) => match XattrItem::decode(value) {
                Ok(item) if item.is_acl() && item.name().is_some_and(is_acl_name) => value.to_vec(),
                Ok(item) => {
                    let name = item.name().map(|name| self.name(key, name));
                    item.blank(name.as_deref().unwrap_or_default())
                }
                Err(_) => nothing(),
            },
            Some(ItemKind::Inline) | None => nothing(),
        }
    }

    pub fn node(&self, node: &Node<'_>) -> Vec<u8> {
        let mut bytes = vec![0; NODE_SIZE];
        let Some(view) = node.view else {
            bytes[..NODE_HEADER].copy_from_slice(&node.bytes[..NODE_HEADER]);
            // A checksum that matches the remaining bytes would make the node valid.
            bytes[8..12].copy_from_slice(&[0xff; 4]);
            return bytes;
        };
        let uuid = uuid::Uuid::from_slice(&node.bytes[16..32]).expect("sixteen bytes");
        let mut new = NodeMut::init(&mut bytes, &uuid, view.addr(), view.generation(), view.level());
        for (key, value) in view.iter() {
            let value = if view.level() == 0 { self.value(key, value) } else { value.to_vec() };
            new.append(&self.key(key), &value);
        }
        new.seal(&self.secret);
        bytes
    }

    pub fn slot(&self, slot: &Slot) -> Vec<u8> {
        self.superblock(slot, Superblock::encode)
    }

    pub fn copy(&self, copy: &Slot) -> Vec<u8> {
        self.superblock(copy, Superblock::encode_copy)
    }

    fn superblock(&self, slot: &Slot, encode: fn(&Superblock, &mut [u8])) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_SIZE];
        match &slot.superblock {
            Some(superblock) => {
                let mut new = superblock.clone();
                new.geometry.log_secret = self.secret;
                new.geometry.label = "x".repeat(new.geometry.label.len());
                encode(&new, &mut bytes);
            }
            None => bytes[..SLOT_HEADER].copy_from_slice(&slot.bytes[..SLOT_HEADER]),
        }
        bytes
    }

    pub fn log_write(&self, write: &LogWrite<'_>) -> Result<Vec<u8>> {
        let key = LogKey { secret: self.secret, ..write.superblock.geometry.log_key() };
        let mut bytes = vec![0; write.bytes.len()];
        let records = if write.whole { write.header.records(write.bytes) } else { None };
        for (lsn, record) in records.into_iter().flatten() {
            let at = (lsn.0 - write.header.lsn.0) as usize;
            bytes[at..at + FRAME_SIZE].copy_from_slice(&(record.len() as u32).to_le_bytes());
            // A record that cannot be decoded becomes zeros, which cannot be decoded either.
            let Ok(record) = Record::decode(lsn, record) else { continue };
            let new = self.record(&record);
            let at = at + FRAME_SIZE;
            let place = bytes.get_mut(at..at + new.len()).context("a record outgrew its log write")?;
            place.copy_from_slice(&new);
        }
        write.header.seal(&key, &mut bytes);
        if !write.whole {
            // Keep the log write torn: the hash of the body is that of zeros, so one byte is set.
            bytes[HEADER_SIZE..].iter_mut().take(1).for_each(|b| *b = 1);
        }
        Ok(bytes)
    }

    fn record(&self, record: &Record<'_>) -> Vec<u8> {
        let mut new = RecordBuilder::new(record.op);
        for edit in &record.edits {
            match *edit {
                Edit::Inode(patch) => new.inode(patch.ino, patch.mask, &patch.core),
                Edit::Put { key, value } => new.put(self.key(key), &self.value(key, value)),
                Edit::Delete { key } => new.delete(self.key(key)),
                Edit::Alloc(extent) => new.alloc(extent),
                Edit::Free(extent) => new.free(extent),
                Edit::Data { ino, offset, bytes } => new.data(ino, offset, &vec![0; bytes.len()]),
                Edit::Zero { ino, offset, len } => new.zero(ino, offset, len),
                Edit::Drop { ino, offset, len } => new.drop_data(ino, offset, len),
            }
        }
        new.finish()
    }
}

/// Records the hash in a key and the name of its item.
fn add_point(
    points: &mut BTreeMap<(u64, u8), Points>,
    hash_seed: &[u8; 16],
    key: Key,
    value: Option<&[u8]>,
) -> Result<()> {
    let name = match (ItemKind::from_u8(key.kind), value) {
        (Some(ItemKind::Dentry), Some(value)) => Dentry::decode(value).map(|d| d.name).ok(),
        (Some(ItemKind::Xattr), Some(value)) => XattrItem::decode(value).ok().and_then(|item| item.name()),
        (Some(ItemKind::Dentry | ItemKind::Xattr), None) => None,
        _ => return Ok(()),
    };
    let hash = key.offset / SLOT_ORDINALS;
    let name = name.filter(|name| name_slot(hash_seed, name) / SLOT_ORDINALS == hash);
    let known = points.entry((key.ino, key.kind)).or_default().entry(hash).or_default();
    match (&known, name) {
        (None, Some(name)) => *known = Some(name.to_vec()),
        (Some(known), Some(name)) if known != name => {
            bail!("two names of inode {} have one hash", key.ino)
        }
        _ => {}
    }
    Ok(())
}

/// Names that stay: they identify the kind of an attribute, or are damaged.
fn is_kept(kind: u8, name: &[u8]) -> bool {
    let is_attribute = kind == ItemKind::Xattr as u8;
    matches!(name, b"." | b"..")
        || name.contains(&0)
        || is_attribute && (!name.starts_with(USER) || name.len() == USER.len())
}

/// Chooses new names whose hashes are in the order of the old hashes; `None` if this draw has no
/// such names.
fn choose(points: &Points, hash_seed: &[u8; 16], draw: &Draw) -> Option<Chosen> {
    let mut lengths: BTreeMap<usize, usize> = BTreeMap::new();
    for name in points.values().flatten().filter(|name| !is_kept(draw.kind, name)) {
        *lengths.entry(name.len()).or_default() += 1;
    }
    // Pools in proportion to the square root of the counts need the fewest names in total.
    let roots: f64 = lengths.values().map(|&n| (n as f64).sqrt()).sum();
    let size = |n: usize| ((n as f64).sqrt() * roots * 2.0).ceil() as usize;
    let pools: BTreeMap<usize, Vec<(u64, u64)>> =
        lengths.iter().map(|(&length, &n)| (length, draw.pool(length, size(n), hash_seed))).collect();
    let mut least = 0;
    let mut new = BTreeMap::new();
    for (&hash, name) in points {
        let (chosen, word) = match name {
            None => (least, None),
            Some(name) if is_kept(draw.kind, name) => ((hash >= least).then_some(hash)?, Some(name.clone())),
            Some(name) => {
                let pool = &pools[&name.len()];
                let (chosen, number) = *pool.get(pool.partition_point(|(drawn, _)| *drawn < least))?;
                (chosen, Some(draw.word(name, number)))
            }
        };
        least = chosen + 1;
        new.insert(hash, (chosen, word));
    }
    Some(new)
}

/// A series of random names.
struct Draw {
    kind: u8,
    seed: u64,
    /// The letters of names so short that every possible name may be needed.
    letters: Vec<u8>,
}

impl Draw {
    /// `wide`: short names may contain bytes that are not printable.
    fn new(kind: u8, seed: u64, wide: bool) -> Draw {
        let range = if wide { 1..=255 } else { b'!'..=b'~' };
        Draw { kind, seed, letters: range.filter(|b| !matches!(b, b'/' | b'.')).collect() }
    }

    /// The number of leading bytes of a name that stay.
    fn kept(&self) -> usize {
        if self.kind == ItemKind::Xattr as u8 { USER.len() } else { 0 }
    }

    /// At least `size` names of a length as (hash, number), sorted by hash.
    fn pool(&self, length: usize, size: usize, hash_seed: &[u8; 16]) -> Vec<(u64, u64)> {
        // Any name will do, because only its length and namespace matter.
        let like = [&USER[..self.kept()], &vec![b'x'; length - self.kept()]].concat();
        let all = self.letters.len();
        // Use all possible names of one byte.
        let size = size.max(if length == self.kept() + 1 { all } else { POOL_MIN });
        let hash = |number| name_slot(hash_seed, &self.word(&like, number)) / SLOT_ORDINALS;
        let mut pool: Vec<(u64, u64)> = (0..size as u64).map(|number| (hash(number), number)).collect();
        pool.sort_unstable();
        pool.dedup_by_key(|(hash, _)| *hash);
        pool
    }

    /// The name with this number, of the length and namespace of `like`.
    fn word(&self, like: &[u8], number: u64) -> Vec<u8> {
        let kept = if like.starts_with(USER) { self.kept() } else { 0 };
        let mut out = like[..kept].to_vec();
        let letters = self.letters.len() as u64;
        let letter = |n: u64| self.letters[(n % letters) as usize];
        let place = self.seed.wrapping_add(number);
        match like.len() - kept {
            1 => out.push(letter(place)),
            2 => out.extend([letter(place), letter(place / letters)]),
            _ => {
                let mut state = mix(self.seed) ^ number;
                while out.len() < like.len() {
                    state = mix(state);
                    out.push(PLAIN[(state % PLAIN.len() as u64) as usize]);
                }
            }
        }
        out
    }
}

/// One step of SplitMix64.
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
#[path = "scramble_tests.rs"]
mod tests;
