//! The numbers in structures, for crafted images: name, offset and length in bytes of each.

/// The fields of an entry of the table of trees that describes a tree.
pub(super) const TREE_FIELDS: [(&str, usize, usize); 17] = [
    ("kind", 0, 1),
    ("flags", 1, 1),
    ("root level", 2, 1),
    ("name length", 3, 1),
    ("births below", 4, 4),
    ("root", 8, 8),
    ("root generation", 16, 8),
    ("nodes", 24, 8),
    ("next inode", 32, 8),
    ("inodes", 40, 8),
    ("orphans", 48, 8),
    ("nodes below", 56, 8),
    ("directory", 64, 8),
    ("point", 80, 4),
    ("freed below", 84, 8),
    ("spare", 101, 1),
    ("name", 104, 1),
];

/// Numbers in a superblock's block that `Superblock` does not hold.
pub(super) const FIXED: [(&str, usize, usize); 5] = [
    ("version", 8, 4),
    ("feature_incompat", 128, 8),
    ("block_size", 136, 4),
    ("node_blocks", 140, 4),
    ("group_blocks", 152, 8),
];

/// The numbers of a node header.
pub(super) const NODE_HEADER: [(&str, usize, usize); 6] = [
    ("level", 12, 1),
    ("items", 14, 2),
    ("addr", 32, 8),
    ("generation", 40, 8),
    ("heap_start", 48, 2),
    ("garbage", 50, 2),
];

/// The numbers of an inode core.
pub(super) const CORE: [(&str, usize, usize); 20] = [
    ("mode", 0, 4),
    ("flags", 4, 4),
    ("uid", 8, 4),
    ("gid", 12, 4),
    ("nlink", 16, 4),
    ("limit", 20, 4),
    ("size", 24, 8),
    ("blocks", 32, 8),
    ("rdev", 40, 8),
    ("parent", 48, 8),
    ("change", 56, 8),
    ("atime", 64, 8),
    ("mtime", 72, 8),
    ("ctime", 80, 8),
    ("btime", 88, 8),
    ("atime_nsec", 96, 4),
    ("mtime_nsec", 100, 4),
    ("ctime_nsec", 104, 4),
    ("btime_nsec", 108, 4),
    ("size", 24, 8),
];

/// The numbers of a log header.
pub(super) const LOG_HEADER: [(&str, usize, usize); 7] = [
    ("blocks", 12, 4),
    ("epoch", 32, 8),
    ("lsn", 40, 8),
    ("tail_lsn", 48, 8),
    ("durable_lsn", 56, 8),
    ("payload_bytes", 64, 4),
    ("records", 68, 4),
];

/// The fields of an entry of the table of trees that describes a limit.
pub(super) const LIMIT_FIELDS: [(&str, usize, usize); 7] = [
    ("directory", 0, 8),
    ("parent", 8, 4),
    ("spare", 12, 4),
    ("most blocks", 16, 8),
    ("most inodes", 24, 8),
    ("blocks", 32, 8),
    ("inodes", 40, 8),
];
