//! Tree nodes: 16 KiB, slotted.

/// Blocks of a tree node.
pub const NODE_BLOCKS: u64 = 4;
/// Bytes of a tree node.
pub const NODE_SIZE: usize = NODE_BLOCKS as usize * kedge_base::BLOCK_SIZE;
