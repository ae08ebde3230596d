//! Makes each kind of fault on an otherwise good image. The check must report that fault, and no
//! consequences of it.

use crate::test_image::{Built, Image, write};
use crate::{CheckOptions, FindingKind, Report, check_checkpoint};
use FindingKind::*;
use kedge_base::{BLOCK_SIZE, BlockNo, Extent, Generation, Ino, Lsn};
use kedge_format::alloc::GROUP_BLOCKS;
use kedge_format::counts::CountItem;
use kedge_format::item::{Dentry, ExtentItem, FILE_SIZE_MAX, Orphan, Xattr};
use kedge_format::node::Child;
use kedge_format::superblock::{
    INCOMPAT_CLONES, INCOMPAT_INLINE, INCOMPAT_LARGE_XATTRS, INCOMPAT_SUMS, Losses,
};
use kedge_format::{FileKind, ItemKind, Key};
use std::collections::BTreeSet;

/// Kinds covered by the tests of replay, of unreadable devices, of forked images, of copies of the
/// superblock, and of checksums.
pub const ELSEWHERE: [FindingKind; 8] =
    [IoError, ReplayFailed, TreesBad, TreesShare, LimitBad, LimitWrong, SuperblockCopyBad, DataBad];

pub struct Case {
    pub name: &'static str,
    /// All kinds that the check must report.
    pub expect: &'static [FindingKind],
    pub prepare: fn(&mut Image),
    pub damage: fn(&Built),
}

fn none(_: &Built) {}
fn good(_: &mut Image) {}

const fn items(name: &'static str, expect: &'static [FindingKind], prepare: fn(&mut Image)) -> Case {
    Case { name, expect, prepare, damage: none }
}

const fn blocks(name: &'static str, expect: &'static [FindingKind], damage: fn(&Built)) -> Case {
    Case { name, expect, prepare: good, damage }
}

pub fn run(built: &Built) -> Report {
    check_checkpoint(&built.device, &CheckOptions::default(), &mut |_| {})
}

fn flip(built: &Built, block: BlockNo) {
    built.device.corrupt(block.byte_offset() + 2000, |bytes| bytes[0] ^= 4);
}

fn key(ino: u64, kind: ItemKind, offset: u64) -> Key {
    Key::new(Ino(ino), kind, offset)
}

fn edit_extent(image: &mut Image, ino: u64, first: u64, change: impl FnOnce(&mut ExtentItem)) {
    let mut item = ExtentItem::decode(&image.items[&key(ino, ItemKind::Extent, first)]).unwrap();
    change(&mut item);
    image.extent(ino, first, item);
}

fn superblock_cases() -> Vec<Case> {
    vec![
        blocks("blank device", &[NotAnImage], |b| {
            write(&b.device, BlockNo(0), &[0; BLOCK_SIZE]);
            write(&b.device, BlockNo(16), &[0; BLOCK_SIZE]);
        }),
        blocks("both slots damaged", &[SuperblockSlotBad, SuperblockMissing], |b| {
            flip(b, BlockNo(0));
            flip(b, BlockNo(16));
        }),
        blocks("the older slot damaged", &[SuperblockSlotBad], |b| flip(b, BlockNo(16))),
        items("incompatible feature", &[Unsupported], |i| {
            i.geometry.feature_incompat = 1 << 40;
        }),
        items("read-only feature", &[Unsupported], |i| {
            i.geometry.feature_ro_compat = 1 << 40;
        }),
        items("slots disagree", &[SuperblockSlotsDiffer], |i| {
            i.old_superblock = Some(Box::new(|sb| sb.geometry.label = "other".into()));
        }),
        items("clean with a log", &[SuperblockCleanWithLog], |i| {
            i.superblock = Some(Box::new(|sb| sb.checkpoint.tail_lsn = Lsn(4096)));
        }),
        items("inode count", &[SuperblockInodes], |i| {
            i.superblock = Some(Box::new(|sb| sb.checkpoint.inodes += 1));
        }),
        items("free count", &[SuperblockFreeBlocks], |i| {
            i.superblock = Some(Box::new(|sb| sb.checkpoint.free_blocks -= 1));
        }),
        items("node count", &[SuperblockNodes], |i| {
            i.superblock = Some(Box::new(|sb| sb.checkpoint.nodes -= 1));
        }),
        items("data lost", &[DataLost], |i| {
            i.superblock = Some(Box::new(|sb| sb.checkpoint.losses = Some(Losses { files: 1, since: 9 })));
        }),
        items("next inode that no image can reach", &[SuperblockCounter], |i| {
            i.superblock = Some(Box::new(|sb| sb.checkpoint.next_ino = Ino((1 << 61) + 1)));
        }),
        items("next inode in use", &[SuperblockNextIno], |i| {
            i.superblock = Some(Box::new(|sb| sb.checkpoint.next_ino = Ino(299)));
        }),
    ]
}

fn tree_cases() -> Vec<Case> {
    vec![
        blocks("leaf damaged", &[NodeBad], |b| flip(b, b.nodes[0][3])),
        blocks("leaf overwritten by another leaf", &[NodeBad], |b| {
            let other = b.device.bytes(b.nodes[0][4].byte_offset(), 4 * BLOCK_SIZE);
            write(&b.device, b.nodes[0][3], &other);
        }),
        blocks("inner node damaged", &[NodeBad], |b| flip(b, b.nodes[1][1])),
        blocks("root damaged", &[NodeBad], |b| flip(b, b.nodes[2][0])),
        items("root of another generation", &[NodeBad], |i| {
            i.superblock = Some(Box::new(|sb| sb.checkpoint.root_generation = Generation(5)));
        }),
        items("child outside the image", &[NodeMisplaced], |i| with_child(i, |_| BlockNo(1 << 40))),
        items("child in the log", &[NodeMisplaced], |i| with_child(i, |_| BlockNo(400))),
        items("child off its boundary", &[NodeMisplaced], |i| with_child(i, |addr| BlockNo(addr.0 + 1))),
        items("child named twice", &[NodeShared], |i| with_child(i, |addr| BlockNo(addr.0 - 4))),
        items("leaf with a key of its neighbour", &[KeyOrder], |i| {
            i.node = Some(Box::new(|level, place, node| {
                if (level, place) == (0, 4) {
                    let last = node.view().items() - 1;
                    node.set_key(last, &Key { ino: 999, kind: 1, offset: 0 });
                }
            }));
        }),
        items("inner node with keys of its neighbour", &[KeyOrder], |i| {
            i.node = Some(Box::new(|level, place, node| {
                if (level, place) == (1, 1) {
                    let last = node.view().items() - 1;
                    node.set_key(last, &Key { ino: 998, kind: 1, offset: 0 });
                }
            }));
        }),
        items("item of unknown kind", &[ItemUnknown], |i| {
            i.put(Key { ino: 100, kind: 77, offset: 0 }, b"?");
        }),
        items("orphan under an inode", &[ItemMisplaced], |i| {
            i.put(key(100, ItemKind::Orphan, 0), Orphan::Unlinked.encode());
        }),
        items("extent under inode 0", &[ItemMisplaced], |i| i.put(key(0, ItemKind::Extent, 0), [0; 16])),
        items("target with an offset", &[ItemMisplaced], |i| i.put(key(11, ItemKind::Symlink, 1), b"x")),
        items("attribute of no inode", &[ItemWithoutInode], |i| i.xattr(50, "user.x", b"")),
    ]
}

/// Changes the address of the sixth leaf in its parent.
fn with_child(image: &mut Image, place: fn(BlockNo) -> BlockNo) {
    image.node = Some(Box::new(move |level, at, node| {
        if (level, at) == (1, 0) {
            let child = node.view().child(5);
            let moved = Child { addr: place(child.addr), ..child };
            node.value_mut(5).copy_from_slice(&moved.encode());
        }
    }));
}

fn inode_cases() -> Vec<Case> {
    vec![
        items("core too short", &[InodeBad], |i| i.put(Key::inode(Ino(12)), [0; 9])),
        items("mode of no type", &[InodeBad], |i| i.core(12, |c| c.mode = 0o644)),
        items("mode with more bits", &[InodeBad], |i| i.core(12, |c| c.mode |= 1 << 20)),
        items("flags of no meaning", &[InodeBad], |i| i.core(10, |c| c.flags = 0x8)),
        items("flags without the feature", &[InodeBad], |i| {
            i.geometry.feature_ro_compat = 0;
            i.core(10, |c| c.flags = 0x10);
        }),
        items("an immutable symlink", &[InodeBad], |i| i.core(11, |c| c.flags = 0x10)),
        items("file of impossible size", &[InodeBad], |i| i.core(10, |c| c.size = FILE_SIZE_MAX + 1)),
        items("file with a parent", &[InodeBad], |i| i.core(10, |c| c.parent = Ino(1))),
        items("no root", &[RootBad], |i| i.remove(Key::inode(Ino(1)))).and(&[ItemWithoutInode]),
        items("root with another parent", &[RootBad], |i| i.core(1, |c| c.parent = Ino(2))),
        items("root named", &[RootBad], |i| i.name(3, "up", 1, FileKind::Directory)),
        items("file without a name", &[InodeUnnamed], |i| i.file(50, 1, &[(0, 1)])),
        items("unlinked file without an orphan item", &[InodeUnnamed], |i| i.file(50, 0, &[])),
        items("directory without a name", &[InodeUnnamed], |i| i.directory(50, 2)),
        items("too many links", &[NlinkWrong], |i| i.core(10, |c| c.nlink = 3)),
        items("too few links", &[NlinkWrong], |i| i.core(10, |c| c.nlink = 0)),
        items("directory with too few links", &[NlinkWrong], |i| i.core(2, |c| c.nlink = 2)),
        items("root with too many links", &[NlinkWrong], |i| i.core(1, |c| c.nlink = 9)),
        items("orphan with a link", &[NlinkWrong], |i| i.core(14, |c| c.nlink = 1)),
        items("block count", &[BlocksWrong], |i| i.core(10, |c| c.blocks += 1)),
        items("orphan item of no kind", &[OrphanBad], |i| i.put(Key::orphan(Ino(14)), [7])),
        items("orphan item of inode 0", &[OrphanBad], |i| {
            i.put(Key::orphan(Ino(0)), Orphan::Unlinked.encode());
        }),
        items("orphan item of no inode", &[OrphanDangling], |i| {
            i.put(Key::orphan(Ino(50)), Orphan::Unlinked.encode());
        }),
        items("orphan with a name", &[OrphanWrong], |i| {
            i.put(Key::orphan(Ino(10)), Orphan::Unlinked.encode());
        }),
        items("truncate of a symlink", &[OrphanWrong], |i| {
            i.put(Key::orphan(Ino(11)), Orphan::Truncate.encode());
        }),
        items("target missing", &[SymlinkMissing], |i| i.remove(key(11, ItemKind::Symlink, 0))),
        items("target of another length", &[SymlinkBad], |i| {
            i.put(key(11, ItemKind::Symlink, 0), b"longer than before");
        }),
        items("empty target", &[SymlinkBad], |i| i.put(key(11, ItemKind::Symlink, 0), b"")),
        items("target on a file", &[SymlinkOnOther], |i| i.put(key(10, ItemKind::Symlink, 0), b"five!")),
        items("attribute without bytes", &[XattrBad], |i| i.put(key(10, ItemKind::Xattr, 700), b"")),
        items("attribute name with NUL", &[XattrBad], |i| i.xattr(10, "user.\0", b"")),
        items("access control list that is none", &[XattrBad], |i| {
            i.xattr(12, "system.posix_acl_access", &[2, 0, 0, 0, 1, 0, 6, 0]);
        }),
        items("attribute in another slot", &[XattrSlot], |i| {
            i.put(key(10, ItemKind::Xattr, 700), Xattr { name: b"user.three", value: b"" }.encode());
        }),
        items("attribute twice", &[XattrDuplicate], |i| {
            i.xattr(12, "user.twice", b"1");
            let (first, value) = i.items.range(key(12, ItemKind::Xattr, 0)..).next().unwrap();
            let (next, value) = (Key { offset: first.offset + 1, ..*first }, value.clone());
            i.put(next, value);
        }),
    ]
}

/// Adds an attribute whose value has four parts, then calls `damage` with the keys of the attribute
/// and its parts.
fn large(image: &mut Image, damage: impl FnOnce(&mut Image, [Key; 5])) {
    image.xattr(10, "user.large", &[7; 15_000]);
    let head = image.xattr_key(10, "user.large");
    damage(image, std::array::from_fn(|n| Key { offset: head.offset + n as u64, ..head }));
}

fn large_xattr_cases() -> Vec<Case> {
    vec![
        items("first part missing", &[XattrPart], |i| large(i, |i, keys| i.remove(keys[1]))),
        items("last part missing", &[XattrPart], |i| large(i, |i, keys| i.remove(keys[4]))),
        items("last part missing before an extent", &[XattrPart], |i| {
            i.xattr(13, "user.large", &[7; 5000]);
            let key = i.xattr_key(13, "user.large");
            i.remove(Key { offset: key.offset + 2, ..key });
        }),
        items("last part missing before another inode", &[XattrPart], |i| {
            i.xattr(12, "user.large", &[7; 5000]);
            let key = i.xattr_key(12, "user.large");
            i.remove(Key { offset: key.offset + 2, ..key });
        }),
        items("part in the middle missing", &[XattrPart], |i| large(i, |i, keys| i.remove(keys[2]))),
        items("parts without their attribute", &[XattrPart], |i| large(i, |i, keys| i.remove(keys[0]))),
        items("a part more", &[XattrPart], |i| {
            large(i, |i, keys| {
                let more = i.items[&keys[4]].clone();
                i.put(Key { offset: keys[4].offset + 1, ..keys[4] }, more);
            });
        }),
        items("parts in another order", &[XattrPart], |i| {
            large(i, |i, keys| {
                let (a, b) = (i.items[&keys[1]].clone(), i.items[&keys[2]].clone());
                i.put(keys[1], b);
                i.put(keys[2], a);
            });
        }),
        items("part of another length", &[XattrPart], |i| {
            large(i, |i, keys| i.put(keys[4], [&[0, 0, 3][..], &[7; 100]].concat()));
        }),
        items("another attribute between parts", &[XattrPart, XattrSlot], |i| {
            large(i, |i, keys| i.put(keys[2], Xattr { name: b"user.between", value: b"" }.encode()));
        }),
        items("value of an impossible length", &[XattrBad, XattrPart], |i| {
            large(i, |i, keys| i.put(keys[0], b"\0\x0auser.large\0\0\x02\0"));
        }),
        items("large value of an image that has none", &[XattrBad], |i| {
            i.geometry.feature_incompat &= !INCOMPAT_LARGE_XATTRS;
            large(i, |_, _| {});
        }),
        items("large access control list", &[XattrBad], |i| {
            i.xattr(12, "system.posix_acl_access", &[2; 5000]);
        }),
        items("unfinished deletion of a file that has a name", &[XattrPart], |i| {
            i.put(key(12, ItemKind::Xattr, 700), [0, 0, 1, 7]);
        }),
    ]
}

/// A crash can leave this state between two records of a deletion.
#[test]
fn a_deletion_may_have_removed_the_first_parts_of_a_value() {
    let mut image = Image::sample();
    image.xattr(14, "user.large", &[7; 15_000]);
    let head = image.xattr_key(14, "user.large");
    for gone in 0..5 {
        image.remove(Key { offset: head.offset + gone, ..head });
        let report = run(&Image { items: image.items.clone(), ..Image::sample() }.build());
        assert!(report.is_clean(), "{gone}: {report}");
    }
}

fn directory_cases() -> Vec<Case> {
    vec![
        items("entry too short", &[DentryBad], |i| i.put(i.name_key(2, "pipe"), [1, 2, 3])),
        items("entry named dot-dot", &[DentryBad], |i| i.name(3, "..", 100, FileKind::Regular))
            .and(&[NlinkWrong]),
        items("entry in another slot", &[DentrySlot], |i| {
            let old = i.name_key(2, "pipe");
            let value = i.items[&old].clone();
            i.remove(old);
            i.put(Key { offset: old.offset ^ 1 << 20, ..old }, value);
        }),
        items("entry twice", &[DentryDuplicate], |i| {
            let old = i.name_key(2, "pipe");
            let value = i.items[&old].clone();
            i.put(Key { offset: old.offset + 255, ..old }, value);
            i.core(2, |c| c.size += 1);
            i.core(12, |c| c.nlink += 1);
        }),
        items("entries under a file", &[DentryOnFile], |i| {
            i.entry(10, "a", 13, FileKind::Regular);
            i.entry(10, "b", 13, FileKind::Regular);
            i.core(13, |c| c.nlink += 2);
        }),
        items("entry of no inode", &[DentryDangling], |i| i.name(3, "gone", 50, FileKind::Regular)),
        items("entry of an inode beyond the last", &[DentryDangling], |i| {
            i.name(3, "gone", 5000, FileKind::Regular);
        }),
        items("entry of another type", &[DentryType], |i| {
            let name = i.name_key(2, "pipe");
            i.put(name, Dentry { ino: Ino(12), kind: FileKind::Socket, name: b"pipe" }.encode());
        }),
        items("directory size", &[DirSize], |i| i.core(3, |c| c.size -= 1)),
        items("directory with two names", &[DirManyNames], |i| i.name(1, "again", 3, FileKind::Directory)),
        items("directory with another parent", &[DirParent], |i| i.core(3, |c| c.parent = Ino(1))),
        items("directories in a circle", &[DirCycle], |i| {
            for (dir, parent) in [(50, 52), (51, 50), (52, 51)] {
                i.directory(dir, parent);
            }
            for (dir, parent) in [(50, 52), (51, 50), (52, 51)] {
                i.name(parent, "round", dir, FileKind::Directory);
            }
        }),
        items("directory in itself", &[DirCycle], |i| {
            i.directory(50, 50);
            i.name(50, "self", 50, FileKind::Directory);
        }),
        items("unlinked directory with entries", &[DirUnlinkedNotEmpty], |i| {
            i.name(15, "kept", 10, FileKind::Regular);
            i.core(10, |c| c.nlink += 1);
        }),
    ]
}

/// Marks the first extent of inode 10 as counted, and adds a count item for its blocks.
fn count(i: &mut Image, count: u32, birth: u32) {
    edit_extent(i, 10, 0, |e| e.counted = true);
    let theirs = ExtentItem::decode(&i.items[&key(10, ItemKind::Extent, 0)]).unwrap();
    let item = CountItem { blocks: theirs.blocks, count, birth };
    i.put(key(0, ItemKind::Count, theirs.start.0), item.encode());
}

/// Sets the image's limit for file bytes in the tree.
fn with_inline(i: &mut Image, max: u64) {
    i.geometry.feature_incompat |= INCOMPAT_INLINE;
    i.geometry.inline_max = max;
}

/// Adds a file of `size` bytes with `len` of them in the tree, in an image that allows 64.
fn small_file(i: &mut Image, len: usize, size: u64) {
    with_inline(i, 64);
    i.file(50, 1, &[]);
    i.name(3, "small", 50, FileKind::Regular);
    i.core(50, |c| c.size = size);
    i.put(key(50, ItemKind::Inline, 0), vec![7; len]);
}

/// Damaged images in which files share blocks, and which are not repaired.
fn shared_cases() -> Vec<Case> {
    vec![
        items("a count that is wrong", &[CountWrong], |i| {
            i.geometry.feature_incompat |= INCOMPAT_CLONES;
            count(i, 2, 0);
        }),
        items("a count of impossible birth", &[CountBad, CountWrong], |i| {
            i.geometry.feature_incompat |= INCOMPAT_CLONES;
            count(i, 1, 9);
        }),
    ]
}

fn space_cases() -> Vec<Case> {
    vec![
        items("extent too short", &[ExtentBad], |i| i.put(key(10, ItemKind::Extent, 0), [1; 15])),
        items("data without checksums", &[SumsMissing], |i| i.geometry.feature_incompat |= INCOMPAT_SUMS),
        items("checksums in the middle", &[SumsBad, SumsMissing], |i| {
            i.geometry.feature_incompat |= INCOMPAT_SUMS;
            i.put(key(10, ItemKind::Sums, 3), [1; 4]);
        }),
        items("checksums that end with none", &[SumsBad, SumsMissing], |i| {
            i.geometry.feature_incompat |= INCOMPAT_SUMS;
            i.put(key(10, ItemKind::Sums, 0), [0; 8]);
        }),
        items("checksums in an image without", &[SumsBad], |i| i.put(key(10, ItemKind::Sums, 0), [1; 4])),
        items("a count in an image without", &[CountBad, ExtentBad], |i| count(i, 1, 0)),
        items("data in the tree of an image without", &[InlineBad], |i| {
            i.file(50, 1, &[]);
            i.name(3, "small", 50, FileKind::Regular);
            i.put(key(50, ItemKind::Inline, 0), [7; 5]);
        }),
        items("data in the tree beside an extent", &[InlineOverlap], |i| {
            with_inline(i, 64);
            i.put(key(10, ItemKind::Inline, 0), [7; 5]);
        }),
        items("data in the tree that is too long", &[InlineBad], |i| small_file(i, 65, 5000)),
        items("data in the tree beyond the end", &[InlineBad], |i| small_file(i, 9, 8)),
        items("data in the tree of an empty file", &[InlineBad], |i| small_file(i, 9, 0)),
        items("no data in the tree", &[InlineBad], |i| small_file(i, 0, 5)),
        items("data in the tree of a symlink", &[InlineBad], |i| {
            with_inline(i, 64);
            i.put(key(11, ItemKind::Inline, 0), [7; 1]);
        }),
        items("data in the tree with an offset", &[ItemMisplaced], |i| {
            with_inline(i, 64);
            i.put(key(12, ItemKind::Inline, 1), [7; 1]);
        }),
        items("extent of no blocks", &[ExtentBad], |i| i.put(key(10, ItemKind::Extent, 0), [0; 16])),
        items("extent of a symlink", &[ExtentOnOther], |i| {
            i.file(11, 1, &[(0, 2)]);
            i.symlink(11, b"../file");
            i.core(11, |c| c.blocks = 2);
        }),
        items("extent beyond the largest size", &[ExtentBeyondLimit], |i| {
            i.remove(key(100, ItemKind::Extent, 0));
            i.file(100, 1, &[((1 << 43) - 1, 1)]);
        }),
        items("extents overlap in the file", &[ExtentOverlap], |i| i.file(10, 2, &[(0, 9), (8, 2)])),
        items("extent in the log", &[ExtentMisplaced], |i| {
            edit_extent(i, 13, 100, |e| e.start = BlockNo(100));
        }),
        items("extent beyond the end", &[ExtentMisplaced], |i| {
            let end = i.geometry.total_blocks;
            edit_extent(i, 13, 100, |e| e.start = BlockNo(end));
        }),
        items("extent across groups", &[ExtentCrossesGroup], |i| {
            edit_extent(i, 10, 8, |e| e.start = BlockNo(GROUP_BLOCKS - 1));
        }),
        items("block of two files", &[BlockShared], |i| {
            let theirs = ExtentItem::decode(&i.items[&key(10, ItemKind::Extent, 0)]).unwrap().start;
            edit_extent(i, 13, 100, |e| e.start = BlockNo(theirs.0 + 1));
        }),
        items("block of a file and a node", &[BlockShared], |i| {
            let node = i.geometry.data_start;
            edit_extent(i, 13, 100, |e| e.start = node);
        }),
        blocks("index damaged", &[IndexBad], |b| flip(b, b.index)),
        blocks("bitmap damaged", &[BitmapBad], |b| flip(b, b.bitmaps[1])),
        items("free count of a group", &[GroupFreeBlocks, SuperblockFreeBlocks], |i| {
            i.entry = Some(Box::new(|group, e| e.free_blocks -= (group == 1) as u32));
        }),
        items("leak", &[BlocksLeaked], |i| i.extra_marks.push(Extent::new(BlockNo(GROUP_BLOCKS - 70), 200))),
        items("file block marked free", &[BlocksUnmarked], |i| {
            let theirs = ExtentItem::decode(&i.items[&key(10, ItemKind::Extent, 0)]).unwrap();
            i.missing_marks.push(theirs.extent());
        }),
        items("log block marked free", &[BlocksUnmarked], |i| {
            i.missing_marks.push(Extent::new(BlockNo(100), 1));
        }),
    ]
}

impl Case {
    /// Adds kinds that the same damage unavoidably causes.
    fn and(mut self, more: &'static [FindingKind]) -> Case {
        self.expect = Box::leak([self.expect, more].concat().into_boxed_slice());
        self
    }
}

pub fn all_cases() -> Vec<Case> {
    [superblock_cases(), tree_cases(), inode_cases(), large_xattr_cases(), directory_cases(), space_cases()]
        .into_iter()
        .flatten()
        .collect()
}

#[test]
fn each_fault_is_found_and_nothing_else() {
    let mut failed = Vec::new();
    for case in all_cases().into_iter().chain(shared_cases()) {
        let mut image = Image::sample();
        (case.prepare)(&mut image);
        let built = image.build();
        (case.damage)(&built);
        let report = run(&built);
        let found: BTreeSet<&str> = report.counts.keys().copied().collect();
        let expected: BTreeSet<&str> = case.expect.iter().map(|k| k.name()).collect();
        if found != expected {
            failed.push(format!("{}: expected {expected:?}\n{report}\n", case.name));
        }
    }
    assert!(failed.is_empty(), "{} cases:\n{}", failed.len(), failed.join("\n"));
}

#[test]
fn every_kind_has_a_case() {
    let covered: BTreeSet<FindingKind> =
        all_cases().iter().chain(&shared_cases()).flat_map(|c| c.expect).copied().chain(ELSEWHERE).collect();
    let missing: Vec<_> = FindingKind::ALL.iter().filter(|k| !covered.contains(k)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
