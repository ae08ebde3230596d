use super::*;
use kedge_base::{Epoch, Generation, Ino, Lsn, Timespec};
use kedge_format::superblock::{CheckpointState, Geometry};

const SIZE: u64 = 16 << 20;

fn file_with(patches: &[(u64, &[u8])]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(SIZE).unwrap();
    for (offset, bytes) in patches {
        file.as_file().write_all_at(bytes, *offset).unwrap();
    }
    file
}

fn slot(generation: u64, clean: bool) -> Vec<u8> {
    let geometry =
        Geometry::plan(SIZE, 1 << 20, "l", uuid::Uuid::from_u128(9), [1; 16], Timespec::default()).unwrap();
    let checkpoint = CheckpointState {
        generation: Generation(generation),
        root: geometry.data_start,
        root_generation: Generation(0),
        root_level: 0,
        checkpoint_lsn: Lsn(4096),
        tail_lsn: Lsn(4096),
        epoch: Epoch(1),
        next_ino: Ino(2),
        inodes: 1,
        free_blocks: 1,
        nodes: 1,
        clean,
        written_sec: 0,
        losses: None,
        trees: None,
    };
    let mut block = vec![0; BLOCK_SIZE];
    Superblock { geometry, checkpoint }.encode(&mut block);
    block
}

#[test]
fn signatures_are_recognised() {
    let content =
        |patches: &[(u64, &[u8])]| Image::open(file_with(patches).path()).unwrap().content().unwrap();
    assert_eq!(content(&[]), Content::Blank);
    assert_eq!(content(&[(65600, b"_BHRfS_M")]), Content::Other("a btrfs file system"));
    let open =
        |patch| format!("{:#}", Image::open(file_with(&[patch]).path()).unwrap().superblock().unwrap_err());
    assert!(open((0, b"XFSB".as_slice())).ends_with(" holds an XFS file system, no KedgeFS image"));
    assert!(open((65536, b"KEDGEFS\0".as_slice())).contains("no valid superblock"));
    assert_eq!(content(&[(0, &slot(2, true))]), Content::KedgeFs);
    assert_eq!(content(&[(65536, &slot(3, true))]), Content::KedgeFs, "the second slot alone");
}

#[test]
fn a_short_file_is_blank_and_has_no_superblock() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let image = Image::open(file.path()).unwrap();
    assert_eq!(image.content().unwrap(), Content::Blank);
    let e = format!("{:#}", image.superblock().unwrap_err());
    assert!(e.contains("no valid superblock") && e.contains(&*file.path().to_string_lossy()), "{e}");
}

#[test]
fn the_newer_valid_slot_is_taken() {
    let (old, new) = (slot(2, true), slot(3, false));
    let generation = |patches: &[(u64, &[u8])]| {
        Image::open(file_with(patches).path()).unwrap().superblock().map(|sb| sb.checkpoint.generation.0)
    };
    assert_eq!(generation(&[(0, &old), (65536, &new)]).unwrap(), 3);
    assert_eq!(generation(&[(0, &old)]).unwrap(), 2);
    assert_eq!(generation(&[(65536, &new)]).unwrap(), 3);
    let mut torn = new.clone();
    torn[300] ^= 1;
    assert_eq!(generation(&[(0, &old), (65536, &torn)]).unwrap(), 2);
    let e = format!("{:#}", generation(&[(65536, &torn)]).unwrap_err());
    assert!(
        e.contains("checksum mismatch") && e.contains("block 16"),
        "the damaged slot is the one named: {e}"
    );
}
