//! Newtypes for units, so that the compiler rejects a mix of numbers with different units.

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
    /// Inode number. An image never reuses one. 1 is the root directory; 0 is never an inode.
    Ino
);
unit!(
    /// Log sequence number: a byte position in the log, which only grows. The byte is stored at
    /// offset `lsn % ring size` of the log's ring.
    Lsn
);
unit!(
    /// Number of a block of 4 KiB in the image.
    BlockNo
);
unit!(
    /// Checkpoint number. A checkpoint stores it in the tree nodes, bitmaps and the superblock slot
    /// that it writes.
    Generation
);
unit!(
    /// Number that distinguishes the log writes of one mount from those of another. Every writable
    /// mount starts a new epoch.
    Epoch
);

impl Ino {
    pub const ROOT: Ino = Ino(1);
    /// Number of low bits of an inode number that identify the inode within its tree. The higher
    /// bits are the number of the tree.
    pub const LOCAL_BITS: u32 = 44;
    const LOCAL: u64 = (1 << Ino::LOCAL_BITS) - 1;

    /// Returns the number of the tree to which the inode belongs. 0 is the first tree.
    pub const fn tree(self) -> u32 {
        (self.0 >> Ino::LOCAL_BITS) as u32
    }

    /// Returns the inode's number within its tree.
    pub const fn local(self) -> Ino {
        Ino(self.0 & Ino::LOCAL)
    }

    /// Returns the inode number for tree `tree`; `self` is a number within a tree.
    pub const fn in_tree(self, tree: u32) -> Ino {
        Ino(self.0 & Ino::LOCAL | (tree as u64) << Ino::LOCAL_BITS)
    }
}

impl BlockNo {
    /// Returns the byte offset of the block on the device.
    pub const fn byte_offset(self) -> u64 {
        // A block number read from an image may be any value. The device refuses offsets beyond its
        // end.
        self.0.saturating_mul(crate::BLOCK_SIZE as u64) & !(crate::BLOCK_SIZE as u64 - 1)
    }
}

impl Generation {
    pub const fn next(self) -> Generation {
        Generation(self.0 + 1)
    }
}

/// A contiguous run of blocks on the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    pub start: BlockNo,
    pub blocks: u64,
}

impl Extent {
    pub const fn new(start: BlockNo, blocks: u64) -> Extent {
        Extent { start, blocks }
    }

    /// Returns the first block after the run.
    pub const fn end(self) -> BlockNo {
        BlockNo(self.start.0 + self.blocks)
    }
}

/// Hashes inode numbers and block numbers. These numbers are dense and users cannot choose them, so
/// one multiplication spreads them well enough.
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

/// A hash map with inode numbers as keys.
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
