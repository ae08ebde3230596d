//! Builds images with only the format's encoders, valid or with a chosen fault.
//!
//! Items are packed into a tree of any shape, ownership is recorded block by block, and hooks may
//! change a node, an index entry or a superblock before it is sealed.

use kedge_base::{BLOCK_SIZE, BlockNo, Epoch, Extent, Generation, Ino, IoBuf, Lsn, Timespec};
use kedge_device::{Device, MemDevice};
use kedge_format::alloc::{GROUP_BLOCKS, GroupEntry, INDEX_ENTRIES, bitmap_crc, encode_index_block};
use kedge_format::item::{Dentry, ExtentItem, Orphan, Xattr, name_slot};
use kedge_format::node::{Child, NODE_BLOCKS, NODE_SIZE, NodeMut, item_cost};
use kedge_format::superblock::{CheckpointState, Geometry, INCOMPAT_COPIES, Superblock};
use kedge_format::{FileKind, InodeCore, ItemKind, Key};
use std::collections::BTreeMap;

pub const GENERATION: Generation = Generation(6);

/// Changes a node. Arguments: its level, its position in the level, its content.
type NodeHook = Box<dyn Fn(u8, usize, &mut NodeMut)>;
/// Changes the index entry of a group.
type EntryHook = Box<dyn Fn(u64, &mut GroupEntry)>;
type SuperblockHook = Box<dyn Fn(&mut Superblock)>;

/// The description of an image. Every field may be changed before [`Image::build`].
pub struct Image {
    pub geometry: Geometry,
    pub items: BTreeMap<Key, Vec<u8>>,
    pub items_per_node: usize,
    pub next_data: u64,
    /// `extra_marks` are marked in the bitmaps although no item has them; `missing_marks` belong to
    /// items but are not marked.
    pub extra_marks: Vec<Extent>,
    pub missing_marks: Vec<Extent>,
    pub node: Option<NodeHook>,
    pub entry: Option<EntryHook>,
    pub superblock: Option<SuperblockHook>,
    /// Changes the slot of the previous checkpoint.
    pub old_superblock: Option<SuperblockHook>,
}

/// A built image and the addresses of its structures.
pub struct Built {
    pub device: MemDevice,
    pub superblock: Superblock,
    /// Nodes by level, leaves first.
    pub nodes: Vec<Vec<BlockNo>>,
    pub index: BlockNo,
    pub bitmaps: Vec<BlockNo>,
}

impl Image {
    /// An image without items and without copies of the superblock. Tree nodes lie at the start of
    /// the data area, file data from `data_at` on.
    pub fn empty(image_bytes: u64, data_at: u64) -> Image {
        let seed = [9; 16];
        let uuid = uuid::Uuid::from_u128(0x6b65646765);
        let mut geometry =
            Geometry::plan(image_bytes, 4 << 20, "test", uuid, seed, Timespec::default()).unwrap();
        geometry.feature_incompat &= !INCOMPAT_COPIES;
        let next_data = geometry.data_start.0 + data_at;
        Image {
            geometry,
            items: BTreeMap::new(),
            items_per_node: 16,
            next_data,
            extra_marks: Vec::new(),
            missing_marks: Vec::new(),
            node: None,
            entry: None,
            superblock: None,
            old_superblock: None,
        }
    }

    /// An image of two groups with at least one item of each kind, in a tree of three levels.
    pub fn sample() -> Image {
        use FileKind::*;
        let mut image = Image::empty(130 << 20, 4096);
        image.directory(1, 1);
        image.directory(2, 1);
        image.directory(3, 2);
        image.name(1, "dir", 2, Directory);
        image.name(2, "sub", 3, Directory);
        image.file(10, 2, &[(0, 3), (8, 2)]);
        image.name(1, "file", 10, Regular);
        image.name(2, "link", 10, Regular);
        image.xattr(10, "user.one", b"1");
        image.xattr(10, "user.two", b"");
        image.symlink(11, b"../file");
        image.name(1, "sym", 11, Symlink);
        image.inode(12, InodeCore { mode: Fifo.mode_bits() | 0o600, nlink: 1, ..InodeCore::default() });
        image.name(2, "pipe", 12, Fifo);
        image.file(13, 1, &[(100, 1)]);
        image.name(3, "cut", 13, Regular);
        image.put(Key::orphan(Ino(13)), Orphan::Truncate.encode());
        image.file(14, 0, &[(0, 7)]);
        image.put(Key::orphan(Ino(14)), Orphan::Unlinked.encode());
        image.directory(15, 2);
        image.core(15, |c| c.nlink = 0);
        image.put(Key::orphan(Ino(15)), Orphan::Unlinked.encode());
        for i in 0..200 {
            image.file(100 + i, 1, &[(0, 1)]);
            image.name(3, &format!("many{i}"), 100 + i, Regular);
        }
        image
    }

    pub fn put(&mut self, key: Key, value: impl AsRef<[u8]>) {
        self.items.insert(key, value.as_ref().to_vec());
    }

    pub fn inode(&mut self, ino: u64, core: InodeCore) {
        self.put(Key::inode(Ino(ino)), core.encode());
    }

    /// Changes the core of an existing inode.
    pub fn core(&mut self, ino: u64, change: impl FnOnce(&mut InodeCore)) {
        let mut core = InodeCore::decode(&self.items[&Key::inode(Ino(ino))]).unwrap();
        change(&mut core);
        self.inode(ino, core);
    }

    pub fn directory(&mut self, ino: u64, parent: u64) {
        let mode = FileKind::Directory.mode_bits() | 0o755;
        self.inode(ino, InodeCore { mode, nlink: 2, parent: Ino(parent), ..InodeCore::default() });
    }

    /// A regular file with extents of (file block, blocks), the last one unwritten.
    pub fn file(&mut self, ino: u64, nlink: u32, extents: &[(u64, u32)]) {
        let mode = FileKind::Regular.mode_bits() | 0o644;
        let blocks = extents.iter().map(|e| e.1 as u64).sum();
        self.inode(ino, InodeCore { mode, nlink, blocks, size: 5, ..InodeCore::default() });
        for (i, &(first, blocks)) in extents.iter().enumerate() {
            let start = BlockNo(self.next_data);
            self.next_data += blocks as u64;
            let item = ExtentItem {
                start,
                blocks,
                unwritten: i > 0 && i + 1 == extents.len(),
                birth: 0,
                counted: false,
            };
            self.extent(ino, first, item);
        }
    }

    pub fn extent(&mut self, ino: u64, first: u64, item: ExtentItem) {
        self.put(Key::new(Ino(ino), ItemKind::Extent, first), item.encode());
    }

    pub fn symlink(&mut self, ino: u64, target: &[u8]) {
        let mode = FileKind::Symlink.mode_bits() | 0o777;
        self.inode(ino, InodeCore { mode, nlink: 1, size: target.len() as u64, ..InodeCore::default() });
        self.put(Key::new(Ino(ino), ItemKind::Symlink, 0), target);
    }

    pub fn xattr_key(&self, ino: u64, name: &str) -> Key {
        Key::new(Ino(ino), ItemKind::Xattr, name_slot(&self.geometry.hash_seed, name.as_bytes()))
    }

    pub fn xattr(&mut self, ino: u64, name: &str, value: &[u8]) {
        let key = self.xattr_key(ino, name);
        for (item, offset) in (Xattr { name: name.as_bytes(), value }).items().iter().zip(key.offset..) {
            self.put(Key { offset, ..key }, item);
        }
    }

    /// The key of an entry at the first ordinal of its name's hash.
    pub fn name_key(&self, dir: u64, name: &str) -> Key {
        Key::new(Ino(dir), ItemKind::Dentry, name_slot(&self.geometry.hash_seed, name.as_bytes()))
    }

    /// Adds an entry and changes nothing else.
    pub fn entry(&mut self, dir: u64, name: &str, ino: u64, kind: FileKind) {
        let key = self.name_key(dir, name);
        assert!(!self.items.contains_key(&key), "names of the sample do not collide");
        self.put(key, Dentry { ino: Ino(ino), kind, name: name.as_bytes() }.encode());
    }

    /// Adds an entry and counts it in its directory.
    pub fn name(&mut self, dir: u64, name: &str, ino: u64, kind: FileKind) {
        self.entry(dir, name, ino, kind);
        self.core(dir, |c| {
            c.size += 1;
            c.nlink += (kind == FileKind::Directory) as u32;
        });
    }

    pub fn remove(&mut self, key: Key) {
        self.items.remove(&key).expect("the sample has this item");
    }

    pub fn build(mut self) -> Built {
        let items = std::mem::take(&mut self.items);
        self.build_from(items.into_iter())
    }

    /// Builds the image from items in key order.
    pub fn build_from(self, items: impl Iterator<Item = (Key, Vec<u8>)>) -> Built {
        let total = self.geometry.total_blocks as usize;
        let mut packer = Packer {
            device: MemDevice::new(total as u64 * BLOCK_SIZE as u64),
            image: &self,
            owned: vec![false; total],
            next_node: self.geometry.data_start.0,
            nodes: Vec::new(),
            inodes: 0,
            highest: 0,
        };
        packer.mark(Extent::new(BlockNo(0), self.geometry.data_start.0), true);
        let root = packer.tree(items);
        let Packer { device, mut owned, nodes, inodes, highest, .. } = packer;
        for extent in &self.extra_marks {
            owned[extent.start.0 as usize..extent.end().0 as usize].fill(true);
        }
        for extent in &self.missing_marks {
            owned[extent.start.0 as usize..extent.end().0 as usize].fill(false);
        }
        let (index, bitmaps) = self.write_space(&device, &owned);
        let mut superblock = Superblock {
            geometry: self.geometry.clone(),
            checkpoint: CheckpointState {
                generation: GENERATION,
                root: root.addr,
                root_generation: root.generation,
                root_level: nodes.len() as u8 - 1,
                checkpoint_lsn: Lsn(8192),
                tail_lsn: Lsn(8192),
                epoch: Epoch(3),
                next_ino: Ino(highest + 1),
                inodes,
                free_blocks: owned.iter().filter(|o| !**o).count() as u64,
                nodes: nodes.iter().map(|level| level.len() as u64).sum(),
                clean: true,
                written_sec: 0,
                losses: None,
                trees: None,
            },
        };
        let mut old = superblock.clone();
        old.checkpoint.generation = Generation(GENERATION.0 - 1);
        old.checkpoint.root_generation = Generation(1);
        for (sb, hook) in [(&mut superblock, &self.superblock), (&mut old, &self.old_superblock)] {
            if let Some(hook) = hook {
                hook(sb);
            }
            write_superblock(&device, sb);
        }
        Built { device, superblock, nodes, index, bitmaps }
    }

    /// Writes the bitmaps, alternately to the first and the second copy, and the index.
    fn write_space(&self, device: &MemDevice, owned: &[bool]) -> (BlockNo, Vec<BlockNo>) {
        let g = &self.geometry;
        let mut entries = Vec::new();
        let mut bitmaps = Vec::new();
        for group in 0..g.groups() {
            let mut bitmap = vec![0xffu8; BLOCK_SIZE];
            let from = group * GROUP_BLOCKS;
            for (bit, owned) in owned[from as usize..].iter().take(GROUP_BLOCKS as usize).enumerate() {
                if !owned {
                    bitmap[bit / 8] &= !(1 << (bit % 8));
                }
            }
            let copy = (group % 2) as u8;
            let block = BlockNo(g.bitmap_start[copy as usize].0 + group);
            let free = bitmap.iter().map(|b| b.count_zeros()).sum();
            let mut entry = GroupEntry { bitmap_crc: bitmap_crc(group, &bitmap), free_blocks: free, copy };
            if let Some(hook) = &self.entry {
                hook(group, &mut entry);
            }
            write(device, block, &bitmap);
            entries.push(entry);
            bitmaps.push(block);
        }
        let index = g.index_start[Superblock::slot_of(GENERATION)];
        for (i, entries) in entries.chunks(INDEX_ENTRIES).enumerate() {
            let mut block = vec![0; BLOCK_SIZE];
            encode_index_block(&g.uuid, GENERATION, (i * INDEX_ENTRIES) as u64, entries, &mut block);
            write(device, BlockNo(index.0 + i as u64), &block);
        }
        (index, bitmaps)
    }
}

/// Packs items into nodes.
struct Packer<'a> {
    device: MemDevice,
    image: &'a Image,
    owned: Vec<bool>,
    next_node: u64,
    nodes: Vec<Vec<BlockNo>>,
    inodes: u64,
    highest: u64,
}

impl Packer<'_> {
    fn mark(&mut self, extent: Extent, owned: bool) {
        let total = self.owned.len() as u64;
        for block in extent.start.0.min(total)..extent.end().0.min(total) {
            self.owned[block as usize] = owned;
        }
    }

    fn tree(&mut self, items: impl Iterator<Item = (Key, Vec<u8>)>) -> Child {
        let mut level = self.level(0, items);
        for height in 1.. {
            if level.len() == 1 {
                break;
            }
            let children = level.into_iter().map(|(key, child)| (key, child.encode().to_vec()));
            level = self.level(height, children);
        }
        level[0].1
    }

    fn level(&mut self, level: u8, items: impl Iterator<Item = (Key, Vec<u8>)>) -> Vec<(Key, Child)> {
        let mut out: Vec<(Key, Child)> = Vec::new();
        let mut bytes = vec![0; NODE_SIZE];
        let mut open = false;
        self.nodes.push(Vec::new());
        for (key, value) in items {
            if level == 0 {
                self.note(&key, &value);
            }
            let mut node = NodeMut::trusted(&mut bytes);
            let full = open
                && (node.view().items() == self.image.items_per_node
                    || node.view().free_space() < item_cost(value.len()));
            if full {
                self.close(level, &mut bytes);
            }
            if full || !open {
                let child = Child { addr: BlockNo(self.next_node), generation: GENERATION };
                self.next_node += NODE_BLOCKS;
                NodeMut::init(&mut bytes, &self.image.geometry.uuid, child.addr, child.generation, level);
                out.push((if out.is_empty() { Key::MIN } else { key }, child));
                open = true;
            }
            node = NodeMut::trusted(&mut bytes);
            // The first key of an inner node is the lower bound that its parent records.
            let key = if level > 0 && node.view().items() == 0 { out.last().unwrap().0 } else { key };
            node.append(&key, &value);
        }
        self.close(level, &mut bytes);
        out
    }

    fn close(&mut self, level: u8, bytes: &mut [u8]) {
        let mut node = NodeMut::trusted(bytes);
        if let Some(hook) = &self.image.node {
            hook(level, self.nodes[level as usize].len(), &mut node);
        }
        node.seal(&self.image.geometry.log_secret);
        let addr = node.view().addr();
        write(&self.device, addr, bytes);
        self.mark(Extent::new(addr, NODE_BLOCKS), true);
        self.nodes[level as usize].push(addr);
    }

    fn note(&mut self, key: &Key, value: &[u8]) {
        if key.kind == ItemKind::Inode as u8 && key.ino != 0 {
            self.inodes += 1;
            self.highest = key.ino;
        }
        if key.kind == ItemKind::Extent as u8
            && let Ok(item) = ExtentItem::decode(value)
        {
            self.mark(item.extent(), true);
        }
    }
}

pub fn write(device: &MemDevice, at: BlockNo, bytes: &[u8]) {
    device.write(at.byte_offset(), &IoBuf::from_bytes(bytes), false).unwrap();
}

pub fn write_superblock(device: &MemDevice, sb: &Superblock) {
    let mut block = vec![0; BLOCK_SIZE];
    sb.encode(&mut block);
    write(device, sb.block(), &block);
}
