//! The structs of FUSE over io_uring (`linux/fuse.h`).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Limit for the bytes of an operation's header.
pub(super) const OP_MAX: usize = 128;
pub(super) const HEADERS: usize = size_of::<UringHeaders>();
pub(super) const PAYLOAD_SIZE_AT: usize =
    std::mem::offset_of!(UringHeaders, entry) + std::mem::offset_of!(UringEntry, payload_sz);

/// Passes an entry with its memory to the kernel, which completes the command when it has a
/// request.
pub(super) const REGISTER: u32 = 1;
/// Commits a reply, and passes the entry to the kernel again for another request.
pub(super) const COMMIT_AND_FETCH: u32 = 2;

/// `struct fuse_uring_ent_in_out`.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct UringEntry {
    pub flags: u64,
    pub commit_id: u64,
    pub payload_sz: u32,
    pub padding: u32,
    pub reserved: u64,
}

/// `struct fuse_uring_req_header`.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct UringHeaders {
    /// An `InHeader` in a request, an `OutHeader` in a reply.
    pub in_out: [u8; 128],
    pub op_in: [u8; OP_MAX],
    pub entry: UringEntry,
}

/// `struct fuse_uring_cmd_req`, in the command area of a submission.
#[derive(Clone, Copy, Debug, Default, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct UringCommand {
    pub flags: u64,
    pub commit_id: u64,
    pub queue: u16,
    pub padding: [u8; 6],
}

const _: () = assert!(HEADERS == 288 && size_of::<UringCommand>() == 24);
