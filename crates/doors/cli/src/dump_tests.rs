use super::*;
use kedge_base::{Epoch, Extent, Generation, Ino, Timespec};
use kedge_format::logwrite::FRAME_SIZE;
use kedge_format::record::{RecordBuilder, RecordOp};
use kedge_format::superblock::{CheckpointState, Geometry};
use std::os::unix::fs::FileExt;

const SIZE: u64 = 16 << 20;
const TAIL: Lsn = Lsn((1 << 20) - 4096);

fn superblock() -> Superblock {
    let geometry =
        Geometry::plan(SIZE, 1 << 20, "", uuid::Uuid::from_u128(1), [1; 16], Timespec::default()).unwrap();
    let checkpoint = CheckpointState {
        generation: Generation(2),
        root: geometry.data_start,
        root_generation: Generation(2),
        root_level: 0,
        checkpoint_lsn: TAIL,
        tail_lsn: TAIL,
        epoch: Epoch(3),
        next_ino: Ino(9),
        inodes: 1,
        free_blocks: 1,
        nodes: 1,
        clean: false,
        written_sec: 0,
        losses: None,
        trees: None,
    };
    Superblock { geometry, checkpoint }
}

fn log_write(sb: &Superblock, lsn: Lsn, epoch: Epoch, blocks: u32, record: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; blocks as usize * BLOCK_SIZE];
    bytes[HEADER_SIZE..HEADER_SIZE + FRAME_SIZE].copy_from_slice(&(record.len() as u32).to_le_bytes());
    bytes[HEADER_SIZE + FRAME_SIZE..][..record.len()].copy_from_slice(record);
    let payload_bytes = (FRAME_SIZE + record.len()) as u32;
    let header =
        WriteHeader { epoch, lsn, blocks, tail_lsn: TAIL, durable_lsn: TAIL, payload_bytes, records: 1 };
    header.seal(&sb.geometry.log_key(), &mut bytes);
    bytes
}

fn dump(writes: &[(Lsn, Vec<u8>)]) -> String {
    let sb = superblock();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(SIZE).unwrap();
    let mut block = vec![0; BLOCK_SIZE];
    sb.encode(&mut block);
    file.as_file().write_all_at(&block, 0).unwrap();
    for (lsn, bytes) in writes {
        for (i, block) in bytes.chunks(BLOCK_SIZE).enumerate() {
            let place = (lsn.0 / BLOCK_SIZE as u64 + i as u64) % sb.geometry.log_blocks;
            file.as_file()
                .write_all_at(block, (sb.geometry.log_start.0 + place) * BLOCK_SIZE as u64)
                .unwrap();
        }
    }
    let mut out = Vec::new();
    dump_log(&Image::open(file.path()).unwrap(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn record() -> Vec<u8> {
    let mut b = RecordBuilder::new(RecordOp::WriteBack);
    b.alloc(Extent::new(kedge_base::BlockNo(900), 2));
    b.drop_data(Ino(7), 0, 8192);
    b.delete(Key::orphan(Ino(7)));
    b.finish()
}

#[test]
fn the_log_is_shown_up_to_its_end_and_across_the_rings_end() {
    let sb = superblock();
    let first = log_write(&sb, TAIL, Epoch(3), 2, &record());
    let second_lsn = Lsn(TAIL.0 + 8192);
    let stale = log_write(&sb, second_lsn, Epoch(2), 1, &record());
    let text = dump(&[(TAIL, first), (second_lsn, stale)]);
    for expected in
        ["WriteBack", "alloc 900+2", "drop inode 7 0+8192", "delete (0 Orphan 7)", "of another epoch"]
    {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    assert!(text.contains(&format!("ends at LSN {second_lsn}")), "{text}");
}

#[test]
fn a_torn_write_ends_the_log() {
    let mut torn = log_write(&superblock(), TAIL, Epoch(3), 1, &record());
    torn[HEADER_SIZE + 9] ^= 1;
    let text = dump(&[(TAIL, torn)]);
    assert!(text.contains("checksum mismatch") && !text.contains("WriteBack"), "{text}");
    assert!(dump(&[]).contains("no log write of this image starts there"));
}
