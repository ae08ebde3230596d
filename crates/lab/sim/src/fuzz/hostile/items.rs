//! Absurd values in nodes of the tree, and additional items that contradict the tree.

use super::super::damage::{IMAGE, put};
use super::super::fields::{CORE, LIMIT_FIELDS, NODE_HEADER, TREE_FIELDS};
use super::{Liar, TREE, get, set};
use kedge_format::item::{ExtentItem, Xattr};
use kedge_format::limits::LimitEntry;
use kedge_format::node::{NODE_SIZE, NodeMut, NodeView};
use kedge_format::{BLOCKS_MAX, FileKind, InodeCore, Key, reseal};
use kedgefs::Ino;
use rand::Rng;
use rand::seq::IndexedRandom;

const NODE_HEADER_SIZE: usize = 64;
const NODE_SLOT_SIZE: usize = Key::SIZE + 4;

impl Liar {
    pub(super) fn node(&mut self) {
        let (addr, level) = self.one(&self.inside.nodes);
        let mut bytes = self.medium.bytes(addr.byte_offset(), NODE_SIZE);
        let items = NodeView::trusted(&bytes).items().min((NODE_SIZE - NODE_HEADER_SIZE) / NODE_SLOT_SIZE);
        let slot = NODE_HEADER_SIZE + self.rng.random_range(0..items.max(1)) * NODE_SLOT_SIZE;
        let (name, at, len) = match self.rng.random_range(0..3) {
            0 => self.one(&NODE_HEADER),
            1 => {
                self.one(&[("value offset", slot + Key::SIZE, 2), ("value length", slot + Key::SIZE + 2, 2)])
            }
            _ => self.one(&[
                ("key's inode", slot, 8),
                ("key's kind", slot + 8, 1),
                ("key's offset", slot + 9, 8),
            ]),
        };
        let n = self.number(get(&bytes, at, len));
        set(&mut bytes, at, len, n);
        reseal(&mut bytes, &self.base.geometry.log_secret);
        put(&self.medium, addr.byte_offset(), &bytes);
        self.lie(format!("node {addr} of level {level}: {name} {n}"));
    }

    /// Changes an item. All kinds of items, and child pointers, are equally likely.
    pub(super) fn item(&mut self) {
        let kind = match self.sb.checkpoint.trees {
            Some(_) if self.rng.random_bool(0.4) => TREE,
            _ => self.one(&[0, 1, 1, 1, 2, 3, 4, 5, 5, 6, 7]),
        };
        let mut places = Vec::new();
        for &(addr, level) in &self.inside.nodes {
            let bytes = self.medium.bytes(addr.byte_offset(), NODE_SIZE);
            let view = NodeView::trusted(&bytes);
            let of_table = self.inside.table.contains(&addr);
            if view.check_structure().is_err()
                || (kind == 0) != (level > 0)
                || of_table && kind != TREE && kind != 0
            {
                continue;
            }
            let wanted = view.iter().enumerate().filter(|(_, (key, _))| match kind {
                0 => true,
                TREE => of_table,
                _ => key.kind == kind,
            });
            places.extend(wanted.map(|(i, _)| (addr, i)));
        }
        let Some(&(addr, i)) = places.choose(&mut self.rng) else { return };
        let mut bytes = self.medium.bytes(addr.byte_offset(), NODE_SIZE);
        let (key, mut value) =
            (NodeView::trusted(&bytes).key(i), NodeView::trusted(&bytes).value(i).to_vec());
        let name = self.change_value(kind, &mut value);
        let mut node = NodeMut::trusted(&mut bytes);
        if !node.replace_value(i, &value) {
            return;
        }
        node.seal(&self.base.geometry.log_secret);
        put(&self.medium, addr.byte_offset(), &bytes);
        self.lie(format!("item {key}: {name}"));
    }

    fn change_value(&mut self, kind: u8, value: &mut Vec<u8>) -> String {
        if self.rng.random_bool(0.05) {
            let len = self.rng.random_range(0..value.len() + 2);
            value.resize(len, 0x2f);
            return format!("{len} bytes");
        }
        let fields: &[(&str, usize, usize)] = match kind {
            0 => &[("child's address", 0, 8), ("child's generation", 8, 8)],
            1 => &CORE,
            2 => &[("name length", 0, 1), ("name", 1, 1)],
            3 => &[("target", 0, 1)],
            4 => &[("inode", 0, 8), ("type", 8, 1), ("name", 9, 1)],
            5 => &[("start", 0, 8), ("blocks", 8, 4), ("flags", 12, 4)],
            7 => &[("checksum", 0, 4), ("second checksum", 4, 4)],
            9 => &[("byte", 0, 1)],
            TREE if value.len() == LimitEntry::SIZE => &LIMIT_FIELDS,
            TREE => &TREE_FIELDS,
            _ => &[("orphan", 0, 1)],
        };
        let (name, at, len) = self.one(fields);
        if at + len > value.len() {
            return "unchanged".into();
        }
        let was = get(value, at, len);
        let n = match (kind, name) {
            (0, "child's address") | (5, "start") | (TREE, "root") if self.rng.random_bool(0.7) => {
                self.block().0
            }
            (TREE, "parent") => self.rng.random_range(0..6),
            (4, "inode") if self.rng.random_bool(0.7) => self.ino(),
            (1, "mode") if self.rng.random_bool(0.7) => {
                self.one(&FileKind::ALL).mode_bits() as u64 | self.rng.random_range(0..0o10000)
            }
            _ => self.number(was),
        };
        set(value, at, len, n);
        format!("{name} {n}")
    }

    /// Inserts an item in the leaf in which a lookup would search for it.
    pub(super) fn new_item(&mut self) {
        let (key, value) = self.made_item();
        let mut at = self.sb.checkpoint.root;
        for _ in 0..4 {
            let mut bytes = match at.byte_offset().checked_add(NODE_SIZE as u64) {
                Some(end) if end <= IMAGE => self.medium.bytes(at.byte_offset(), NODE_SIZE),
                _ => return,
            };
            let view = NodeView::trusted(&bytes);
            if view.check_structure().is_err() {
                return;
            }
            if view.level() > 0 {
                at = view.child(view.child_index(&key)).addr;
                continue;
            }
            let place = view.search(&key);
            let mut node = NodeMut::trusted(&mut bytes);
            let done = match place {
                Ok(i) => node.replace_value(i, &value),
                Err(i) => node.insert_at(i, &key, &value),
            };
            if done {
                node.seal(&self.base.geometry.log_secret);
                put(&self.medium, at.byte_offset(), &bytes);
                self.lie(format!("new item {key}: {value:02x?}"));
            }
            return;
        }
    }

    pub(super) fn made_item(&mut self) -> (Key, Vec<u8>) {
        let ino = self.ino();
        match self.rng.random_range(0..10) {
            0 => (Key { ino, kind: 1, offset: 0 }, self.core().encode().to_vec()),
            1 => {
                let n = self.number(0);
                let blocks = self.number(1) as u32;
                let mut value =
                    ExtentItem { start: self.block(), blocks, unwritten: false, birth: 0, counted: false };
                value.counted = self.rng.random_bool(0.3);
                let mut value = value.encode();
                value[12] = self.rng.random_range(0..2);
                (Key { ino, kind: 5, offset: n }, value.to_vec())
            }
            2 | 3 => {
                let name = [b'a' + self.rng.random_range(0..26u8)];
                let kind = self.one(&FileKind::ALL).dtype();
                // A directory inside itself or a descendant: a walk along names never ends.
                let circle = self.rng.random_bool(0.4);
                let (ino, target, kind) = match circle {
                    true => (self.dir(), self.dir(), FileKind::Directory.dtype()),
                    false => (ino, self.ino(), kind),
                };
                let mut value = target.to_le_bytes().to_vec();
                value.push(kind);
                value.extend_from_slice(&name);
                let slot = kedge_format::item::name_slot(&self.sb.geometry.hash_seed, &name);
                let offset = slot + if self.rng.random_bool(0.2) { self.rng.random_range(0..256) } else { 0 };
                (Key { ino, kind: 4, offset }, value)
            }
            4 => (Key { ino: 0, kind: 6, offset: ino }, vec![self.one(&[1, 2])]),
            8 => {
                let (blocks, count) = (self.number(1) as u32, self.number(2) as u32);
                let birth = self.rng.random_range(0..2);
                let item = kedge_format::counts::CountItem { blocks, count, birth };
                (Key { ino: 0, kind: 8, offset: self.block().0 }, item.encode().to_vec())
            }
            5 => {
                let name = b"user.x";
                let mut value = vec![name.len() as u8];
                value.extend_from_slice(name);
                let filler = self.rng.random_range(0..2000);
                value.resize(value.len() + filler, 7);
                let slot = kedge_format::item::name_slot(&self.sb.geometry.hash_seed, name);
                (Key { ino, kind: 2, offset: slot }, value)
            }
            6 => {
                let name = b"user.more";
                let slot = kedge_format::item::name_slot(&self.sb.geometry.hash_seed, name);
                let len = self.one(&[4097, 8192, 9000, 65536]);
                let items = Xattr { name, value: &vec![7; len] }.items();
                let nth = self.rng.random_range(0..items.len());
                // Only one item of the value: an attribute without its parts, or a part without its
                // attribute.
                (Key { ino, kind: 2, offset: slot + nth as u64 }, items[nth].clone())
            }
            9 => {
                let offset = u64::from(self.rng.random_bool(0.1));
                (Key { ino, kind: 9, offset }, vec![0x62; self.one(&[0, 1, 93, 2048, 2049, 4096])])
            }
            _ => (self.key(), vec![0x61; self.rng.random_range(0..300)]),
        }
    }

    pub(super) fn core(&mut self) -> InodeCore {
        let kind = self.one(&FileKind::ALL);
        InodeCore {
            mode: kind.mode_bits() | 0o644,
            nlink: self.one(&[0, 1, 2, 3, u32::MAX]),
            size: self.number(4096),
            blocks: self.one(&[0, 1, 7, BLOCKS_MAX]),
            parent: Ino(self.ino()),
            ..InodeCore::default()
        }
    }
}
