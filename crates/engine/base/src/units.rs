//! Newtypes for units, so that numbers of different units are not mixed.

use std::fmt;

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

unit!(
    /// Inode number. Never reused during the life of an image; 1 is the root directory, 0 is never
    /// an inode.
    Ino
);
unit!(
    /// Log sequence number: a byte position in the log that only grows. The byte stands at `lsn %
    /// ring size` of the ring.
    Lsn
);
unit!(
    /// Number of a 4 KiB block of the image.
    BlockNo
);
unit!(
    /// Checkpoint number. The tree nodes, bitmaps and superblock slot that a checkpoint writes
    /// carry it.
    Generation
);
unit!(
    /// Stamp that sets the log writes of one mount apart from those of another: every writable
    /// mount starts a new epoch.
    Epoch
);

impl Ino {
    pub const ROOT: Ino = Ino(1);
    /// Bits of an inode number that name the inode within its tree. The bits above name the tree.
    pub const LOCAL_BITS: u32 = 44;
    const LOCAL: u64 = (1 << Ino::LOCAL_BITS) - 1;

    /// The tree of the inode, in an image with several trees; 0 is the first.
    pub const fn tree(self) -> u32 {
        (self.0 >> Ino::LOCAL_BITS) as u32
    }

    /// The number within the tree.
    pub const fn local(self) -> Ino {
        Ino(self.0 & Ino::LOCAL)
    }

    /// The inode `self`, a number within a tree, of tree `tree`.
    pub const fn in_tree(self, tree: u32) -> Ino {
        Ino(self.0 & Ino::LOCAL | (tree as u64) << Ino::LOCAL_BITS)
    }
}

impl BlockNo {
    /// Byte offset of the block on the device.
    pub const fn byte_offset(self) -> u64 {
        // An address from an image may be any number. The device refuses offsets beyond its end.
        self.0.saturating_mul(crate::BLOCK_SIZE as u64) & !(crate::BLOCK_SIZE as u64 - 1)
    }
}

impl Generation {
    pub const fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}

/// A run of blocks on the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    pub start: BlockNo,
    pub blocks: u64,
}

impl Extent {
    pub const fn new(start: BlockNo, blocks: u64) -> Extent {
        Extent { start, blocks }
    }

    /// First block after the run.
    pub const fn end(self) -> BlockNo {
        BlockNo(self.start.0 + self.blocks)
    }
}

/// Hashes inode numbers and block numbers. They are dense and users cannot choose them, so one
/// multiplication spreads them well enough.
#[derive(Clone, Copy, Default, Debug)]
pub struct InoHasher(u64);

impl std::hash::Hasher for InoHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(*b as u64);
        }
    }

    fn write_u64(&mut self, n: u64) {
        let wide = (self.0 ^ n).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = wide ^ (wide >> 32);
    }
}

/// A map by inode number.
pub type InoMap<V> = std::collections::HashMap<Ino, V, std::hash::BuildHasherDefault<InoHasher>>;

/// Parses a number of bytes with an optional binary unit: `512`, `64K`, `16M`, `4G`, `1T`, also
/// `4GiB`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let bad = || format!("'{text}' is not a size (examples: 65536, 64K, 16M, 4G, 1T)");
    let number: u64 = number.parse().map_err(|_| bad())?;
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").unwrap_or(&unit) {
        "" if unit.is_empty() => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(bad()),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is more bytes than 64 bits hold"))
}
