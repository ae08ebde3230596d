//! The numbers of the NBD protocol, and the encoding of message headers. All numbers are
//! big-endian.

/// The first bytes that a server sends.
pub const NBD_MAGIC: [u8; 8] = *b"NBDMAGIC";
/// Follows [`NBD_MAGIC`] in the newstyle negotiation, and precedes each option of the client.
pub const OPTION_MAGIC: [u8; 8] = *b"IHAVEOPT";
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flag; the bits are the same in both directions.
pub const FIXED_NEWSTYLE: u16 = 1;
pub const NO_ZEROES: u16 = 2;

pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;

pub const REP_ACK: u32 = 1;
pub const REP_INFO: u32 = 3;
/// Bit in the type of a reply that refuses the option.
pub const REP_ERROR: u32 = 1 << 31;
pub const REP_ERR_UNSUP: u32 = REP_ERROR | 1;
pub const REP_ERR_POLICY: u32 = REP_ERROR | 2;
pub const REP_ERR_TLS_REQD: u32 = REP_ERROR | 5;
pub const REP_ERR_UNKNOWN: u32 = REP_ERROR | 6;
pub const REP_ERR_SHUTDOWN: u32 = REP_ERROR | 7;
pub const REP_ERR_BLOCK_SIZE_REQD: u32 = REP_ERROR | 8;

pub const INFO_EXPORT: u16 = 0;
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Transmission flags: the capabilities of an export.
pub const CAN_READ_ONLY: u16 = 1 << 1;
pub const CAN_FLUSH: u16 = 1 << 2;
pub const CAN_FUA: u16 = 1 << 3;
pub const CAN_TRIM: u16 = 1 << 5;
pub const CAN_WRITE_ZEROES: u16 = 1 << 6;
pub const CAN_MULTI_CONN: u16 = 1 << 8;

pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISC: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_TRIM: u16 = 4;
pub const CMD_WRITE_ZEROES: u16 = 6;

pub const FLAG_FUA: u16 = 1;

pub const CHUNK_DONE: u16 = 1;
pub const CHUNK_NONE: u16 = 0;
pub const CHUNK_DATA: u16 = 1;
pub const CHUNK_HOLE: u16 = 2;
/// Bit in the type of a chunk that reports an error. All such chunks begin with the same fields.
pub const CHUNK_ERROR: u16 = 1 << 15;

/// Maximum length in bytes of texts and export names in the protocol.
pub const TEXT_MAX: usize = 4096;
/// Maximum payload in bytes for a server that announces none.
pub const PAYLOAD_MAX: u32 = 32 << 20;

pub const REQUEST_BYTES: usize = 28;

pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> [u8; REQUEST_BYTES] {
    let mut head = [0; REQUEST_BYTES];
    head[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    head[4..6].copy_from_slice(&flags.to_be_bytes());
    head[6..8].copy_from_slice(&command.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..24].copy_from_slice(&offset.to_be_bytes());
    head[24..].copy_from_slice(&len.to_be_bytes());
    head
}

pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Returns the errno for an error number of the protocol. An unknown number, or a zero where an
/// error is required, becomes EIO. The protocol recommends EINVAL instead, but that would look like
/// an error of the client.
pub fn errno(number: u32) -> i32 {
    match number {
        1 => libc::EPERM,
        5 => libc::EIO,
        12 => libc::ENOMEM,
        22 => libc::EINVAL,
        28 => libc::ENOSPC,
        75 => libc::EOVERFLOW,
        95 => libc::EOPNOTSUPP,
        108 => libc::ESHUTDOWN,
        _ => libc::EIO,
    }
}

/// Returns a server's text for users: bounded in length, without control characters.
pub fn text(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(200)];
    String::from_utf8_lossy(shown).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
