//! Keys of the tree: (inode, kind, offset), compared in this order.

use kedge_base::Ino;

/// The kind of an item. The numbers are on disk, and their order is the order of an inode's items
/// in the tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
#[repr(u8)]
pub enum ItemKind {
    /// Offset 0; value: [`crate::InodeCore`].
    Inode = 1,
    /// Offset: name hash and ordinal ([`crate::item::name_slot`]); value:
    /// [`crate::item::XattrItem`].
    Xattr = 2,
    /// Offset 0; value: the bytes of the symlink's target.
    Symlink = 3,
    /// Offset: name hash and ordinal, which is also the directory cookie; value:
    /// [`crate::item::Dentry`].
    Dentry = 4,
    /// Offset: first file block; value: [`crate::item::ExtentItem`].
    Extent = 5,
    /// Under inode 0. Offset: the orphan's inode number; value: [`crate::item::Orphan`].
    Orphan = 6,
    /// Offset: first file block; value: [`crate::sums::SumsItem`].
    Sums = 7,
    /// Under inode 0. Offset: first block of a run; value: [`crate::counts::CountItem`].
    Count = 8,
    /// Offset 0; value: the bytes of the first file block ([`crate::inline`]).
    Inline = 9,
}

impl ItemKind {
    /// Describes the key's offset and the item's value, for [`ItemKind::table`].
    pub const fn contents(self) -> (&'static str, &'static str) {
        match self {
            ItemKind::Inode => ("0", "inode core"),
            ItemKind::Xattr => (
                "name slot",
                "name length 1 · name · value (up to 4096 bytes); or, for a larger value, 0 · name length 1 · name · \
                 value length 4, and in each of the next slots 0 · 0 · index 1 · the next 4096 bytes or the rest",
            ),
            ItemKind::Symlink => ("0", "target"),
            ItemKind::Dentry => ("name slot, also the directory cookie", "head, name"),
            ItemKind::Extent => ("first file block", "extent"),
            ItemKind::Orphan => {
                ("the orphan's inode number, under inode 0", "1: has no name; 2: a truncate is not finished")
            }
            ItemKind::Sums => (
                "first of 16 file blocks, a multiple of 16",
                "a checksum of 4 bytes for each, without zeros at the end",
            ),
            ItemKind::Count => ("first block of a run, under inode 0", "count"),
            ItemKind::Inline => {
                ("0", "the first bytes of a file, up to 2048; zeros follow up to the end of the block")
            }
        }
    }

    /// Returns the kinds as a Markdown table (`cargo xtask docs`).
    pub fn table() -> String {
        let mut out = String::from("| kind | item | offset | value |\n|---|---|---|---|\n");
        for kind in ItemKind::ALL {
            let (offset, value) = kind.contents();
            out += &format!("| {} | {kind:?} | {offset} | {value} |\n", kind as u8);
        }
        out
    }

    pub const ALL: [ItemKind; 9] = [
        ItemKind::Inode,
        ItemKind::Xattr,
        ItemKind::Symlink,
        ItemKind::Dentry,
        ItemKind::Extent,
        ItemKind::Orphan,
        ItemKind::Sums,
        ItemKind::Count,
        ItemKind::Inline,
    ];

    pub fn from_u8(n: u8) -> Option<ItemKind> {
        ItemKind::ALL.into_iter().find(|k| *k as u8 == n)
    }
}

/// Key of an item. Keys compare by their fields in this order. `kind` is the raw number, so that
/// any bytes decode to a key; the decoder of the item checks whether the kind is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Key {
    pub ino: u64,
    pub kind: u8,
    pub offset: u64,
}

/// Layout of an encoded key. All three numbers are big-endian.
#[allow(dead_code)]
#[repr(C)]
struct RawKey {
    ino: [u8; 8],
    kind: u8,
    offset: [u8; 8],
}

crate::layout::layout!(LAYOUT: RawKey, Key::SIZE, {
    ino: 0, 8, "inode number, big-endian";
    kind: 8, 1, "of the item";
    offset: 9, 8, "big-endian";
});

impl Key {
    pub const MIN: Key = Key { ino: 0, kind: 0, offset: 0 };
    pub const MAX: Key = Key { ino: u64::MAX, kind: u8::MAX, offset: u64::MAX };
    /// Bytes of an encoded key.
    pub const SIZE: usize = 17;

    pub const fn new(ino: Ino, kind: ItemKind, offset: u64) -> Key {
        Key { ino: ino.0, kind: kind as u8, offset }
    }

    pub const fn inode(ino: Ino) -> Key {
        Key::new(ino, ItemKind::Inode, 0)
    }

    pub const fn orphan(ino: Ino) -> Key {
        Key::new(Ino(0), ItemKind::Orphan, ino.0)
    }

    /// Encodes the key big-endian, so that `memcmp` of encoded keys gives the order of keys.
    pub fn encode(&self) -> [u8; Key::SIZE] {
        let mut out = [0; Key::SIZE];
        out[..8].copy_from_slice(&self.ino.to_be_bytes());
        out[8] = self.kind;
        out[9..].copy_from_slice(&self.offset.to_be_bytes());
        out
    }

    pub fn decode(bytes: &[u8; Key::SIZE]) -> Key {
        let be = |r: std::ops::Range<usize>| u64::from_be_bytes(bytes[r].try_into().expect("eight bytes"));
        Key { ino: be(0..8), kind: bytes[8], offset: be(9..17) }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match ItemKind::from_u8(self.kind) {
            Some(kind) => write!(f, "({} {kind:?} {})", self.ino, self.offset),
            None => write!(f, "({} kind {} {})", self.ino, self.kind, self.offset),
        }
    }
}
