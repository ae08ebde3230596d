//! kedgefs(5): the mount options. The same table is in docs/OPERATIONS.md, which a test compares.

use super::Block::{self, Code, Text};
use super::{FORMATS, MANUAL, Page, VERSION, inlines, section, see_also};
use anyhow::Result;
use clap_mangen::roff::{Roff, bold, roman};

/// A mount option, or options that exclude one another.
pub struct Row {
    pub words: &'static str,
    /// Whether `kedge remount` and `mount -o remount` can change the option.
    pub live: bool,
    pub means: &'static str,
    /// The default; empty if the option is off by default.
    pub default: &'static str,
}

const fn row(words: &'static str, live: bool, means: &'static str, default: &'static str) -> Row {
    Row { words, live, means, default }
}

const FIXED: bool = false;
const LIVE: bool = true;

pub const TABLE: &[Row] = &[
    row("`ro`, `rw`", LIVE, "read-only or not; what was mounted `ro` stays so", "`rw`"),
    row(
        "`commit=SECONDS`",
        LIVE,
        "work that no fsync covered is made durable at least this often, 1 to 300",
        "5; 1 on a plain `fuse` mount",
    ),
    row(
        "`cache_size=SIZE`",
        FIXED,
        "memory for tree nodes and file pages; less while memory is short, down to 64M",
        "a 16th of the memory, 64M to 1G; in `kedge daemon` 256M",
    ),
    row(
        "`async_checkpoint[=PERCENT]`",
        LIVE,
        "checkpoint in the background when less of the log than this is free, 1 to 99",
        "50",
    ),
    row("`noasync_checkpoint`", LIVE, "the operation that finds the log full checkpoints itself", ""),
    row(
        "`new_name=lazy|sync`",
        LIVE,
        "`sync`: link and rename of what was fsynced since the last checkpoint force the log, as \
         Btrfs once did, to compare with",
        "`lazy`",
    ),
    row(
        "`fdatasync=seq|fields|relog`",
        LIVE,
        "`relog`: write puts new time stamps into the log, and fdatasync forces the log for them, as \
         XFS once did; `fields`: as XFS does now, they force nothing; both to compare with",
        "`seq`",
    ),
    row("`plug`, `noplug`", LIVE, "whether one pass of writeback merges the IO of many files", "`plug`"),
    row("`writeback_order=oldest|location`", LIVE, "which dirty files are written first", "`oldest`"),
    row(
        "`dirty_tracking=per_sb|shared`",
        FIXED,
        "`shared`: one lock for the lists of cached inodes of all mounts of the process, and a sync \
         that walks the whole list of its mount, as Linux once had, to compare with",
        "`per_sb`",
    ),
    row(
        "`tree_lock=optimistic|rwlock|blocking|pingpong`",
        FIXED,
        "the latches of the metadata tree: descents that validate instead of latching, reader-writer \
         latches, or, to compare with, those of old btrfs: `pingpong` spins, blocks and spins again, \
         `blocking` does not go back to spinning",
        "`optimistic`",
    ),
    row(
        "`placement=auto|on|off`",
        FIXED,
        "whether one more thread may serve requests on the processor of the program that sends them, \
         while that is measured to be faster (`auto`), always or never; `kedge stats` shows what was \
         decided",
        "`placement=auto`",
    ),
    row(
        "`transport=dev|io_uring`",
        FIXED,
        "how requests reach the server: through `/dev/fuse`, or through a ring of io_uring for each \
         processor, which several programs at a time use faster; needs Linux 6.14 with \
         `enable_uring` of its module `fuse` on, and excludes `keeper` and `placement`",
        "`transport=dev`",
    ),
    row(
        "`workers=N`",
        FIXED,
        "threads that serve requests, 2 to 64",
        "2 to 4, by the number of CPUs; while all wait for a device or a lock more, one for each 8 MiB of `cache_size`, up to 64",
    ),
    row(
        "`offset=BYTES`, `sizelimit=BYTES`",
        FIXED,
        "the image is the part of the file or block device that begins at `offset` and has at most \
         `sizelimit` bytes, both multiples of 4096; as `file:PATH?offset=BYTES&sizelimit=BYTES` for \
         any command",
        "the whole file",
    ),
    row(
        "`key-file=FILE`",
        FIXED,
        "the file that holds the key of an encrypted image",
        "asks for a passphrase",
    ),
    row(
        "`rbd_timeout=SECONDS`, `nbd_timeout=SECONDS`",
        FIXED,
        "how long a Ceph cluster or an NBD server may leave a request unanswered, 1 to 3600: programs \
         wait so long, then the file system shuts down. Other images refuse it; it overrides \
         `timeout=` in the URI",
        "30",
    ),
    row(
        "`nowriteback_cache`, `writeback_cache`",
        FIXED,
        "whether the kernel passes each write on, or gathers writes in its page cache first",
        "`nowriteback_cache`",
    ),
    row(
        "`reflink`, `noreflink`",
        FIXED,
        "whether copy_file_range(2), and so cp(1), shares whole blocks instead of copying them. \
         Older versions refuse an image that has shared blocks",
        "`reflink`",
    ),
    row(
        "`tree=PATH`",
        FIXED,
        "the mount shows the fork or snapshot at this path of the image, alone: a snapshot read-only. \
         Not for an image that is mounted otherwise, except read-only beside read-only mounts; there \
         mount --bind shows a tree in a second place",
        "all trees",
    ),
    row(
        "`nokeeper`, `keeper`",
        FIXED,
        "whether another server takes the place of one that dies, so that programs notice nothing. \
         Needs Linux 6.9",
        "`nokeeper`",
    ),
    row(
        "`volatile`",
        FIXED,
        "fsync and sync return at once and make nothing durable, for builds and other scratch data: a \
         crash costs as much as without any fsync, at most the last `commit=` seconds, and the image \
         stays consistent. A failed write is still reported. Unmounting makes all durable",
        "",
    ),
    row(
        "`fuseblk`, `fuse`",
        FIXED,
        "whether the mount goes through a block device (a loop device for a file), or is a plain \
         one, which is weaker",
        "root: `fuseblk` where the kernel lets it, else `fuse` with a warning; others: `fuse`",
    ),
    row(
        "`allow_other`",
        FIXED,
        "users other than the mounting one may use it; a mount by root is always for all users",
        "",
    ),
    row("`default_permissions`", FIXED, "accepted; the kernel checks permissions in any case", ""),
    row(
        "`nodev`, `nosuid`, `noexec` and their opposites",
        LIVE,
        "as mount(8) says",
        "off; on for a mount without privilege",
    ),
    row(
        "`noatime`, `relatime`",
        LIVE,
        "whether reading moves access times, and then as Linux does by default: if they are not \
         newer than the last change, or a day old. What the kernel answers from its cache \
         (contents, names of a directory, targets of links) KedgeFS does not see, and it moves \
         nothing",
        "`relatime`",
    ),
    row(
        "`discard`, `nodiscard`",
        LIVE,
        "whether space that files give up goes back to the device, or to the host of an image file, \
         in the background. `kedge trim` and fstrim(8) do it on request",
        "`nodiscard`",
    ),
    row(
        "`errors=remount-ro`",
        FIXED,
        "accepted, as it is what happens: after a failed log write or flush changes fail (with EIO) \
         and reads go on. Other values are refused. The mount table goes on showing `rw`: a serving \
         process that changed its own mount could wait for itself. `kedge info` and `kedge stats` have \
         the state",
        "",
    ),
    row(
        "`defaults`, `nofail`, `_netdev`, `x-…`, `user_xattr`, `acl`, `lazytime`",
        FIXED,
        "accepted, without effect",
        "",
    ),
];

const DESCRIPTION: &[Block] = &[
    Text(
        "KedgeFS is a crash-consistent journaling file system that runs as an ordinary process. It \
         stores a tree of files in one image file or on one block device. After a killed process, a \
         kernel panic or a power cut the image mounts without repair, and everything that `fsync`(2) \
         had confirmed is there.",
    ),
    Text(
        "An unknown mount option is refused, not ignored. `noacl`, `sync`, `dirsync`, `strictatime` and \
         quotas are refused with the reason.",
    ),
];

const FSTAB: &[Block] = &[
    Text(
        "`kedge install-helpers` makes the links by which `mount`(8), `mkfs`(8) and `fsck`(8) know \
         the type kedgefs. Then a line of `fstab`(5) is",
    ),
    Code("/srv/disk.kedge  /mnt/data  kedgefs  nofail,commit=1  0  2"),
    Text("and with systemd a mount unit mnt-data.mount has"),
    Code("[Mount]\nWhat=/srv/disk.kedge\nWhere=/mnt/data\nType=kedgefs"),
];

/// Renders the page.
pub fn page() -> Result<Page> {
    let mut roff = Roff::new();
    roff.control("TH", ["kedgefs", FORMATS, "", VERSION, MANUAL]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("kedgefs - a crash-consistent journaling file system, and its mount options")]);
    section(&mut roff, "DESCRIPTION", DESCRIPTION);
    roff.control("SH", ["MOUNT OPTIONS"]);
    roff.text(inlines("`kedge remount` changes those that are marked with a star while mounted."));
    for row in TABLE {
        roff.control("TP", []);
        let star = if row.live { " *" } else { "" };
        roff.text([bold(row.words.replace('`', "")), roman(star)]);
        let default = match row.default {
            "" => String::new(),
            default => format!(" (default: {default})"),
        };
        roff.text(inlines(&format!("{}{default}", row.means)));
    }
    section(&mut roff, "FSTAB AND SYSTEMD", FSTAB);
    see_also(&mut roff, "kedgefs");
    let mut text = Vec::new();
    roff.to_writer(&mut text)?;
    Ok(Page { file: format!("kedgefs.{FORMATS}"), roff: text })
}
