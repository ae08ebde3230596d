use super::*;

fn sample() -> Superblock {
    let geometry =
        Geometry::plan(64 << 20, 4 << 20, "label", uuid::Uuid::from_u128(7), [3; 16], Timespec::default())
            .unwrap();
    let checkpoint = CheckpointState {
        generation: Generation(4),
        root: geometry.data_start,
        root_generation: Generation(4),
        root_level: 0,
        checkpoint_lsn: Lsn(8192),
        tail_lsn: Lsn(4096),
        epoch: Epoch(2),
        next_ino: Ino(2),
        inodes: 1,
        free_blocks: 10,
        nodes: 1,
        clean: true,
        written_sec: 5,
    };
    Superblock { geometry, checkpoint }
}

#[test]
fn a_slot_reads_back_as_it_was_written() {
    let sb = sample();
    let mut block = vec![0; BLOCK_SIZE];
    sb.encode(&mut block);
    assert_eq!(Superblock::decode(&block, 0, 1 << 20).unwrap(), sb);
}

#[test]
fn every_flipped_bit_is_noticed() {
    let mut block = vec![0; BLOCK_SIZE];
    sample().encode(&mut block);
    for bit in 0..BLOCK_SIZE * 8 {
        block[bit / 8] ^= 1 << (bit % 8);
        assert!(Superblock::decode(&block, 0, 1 << 20).is_err(), "bit {bit}");
        block[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn a_slot_in_the_wrong_place_or_on_a_short_device_is_refused() {
    let mut block = vec![0; BLOCK_SIZE];
    sample().encode(&mut block);
    assert!(Superblock::decode(&block, 1, 1 << 20).is_err());
    let err = Superblock::decode(&block, 0, 100).unwrap_err();
    assert!(err.to_string().contains("truncated"), "{err}");
}

#[test]
fn plans_refuse_what_cannot_work_with_the_reason() {
    let plan = |image, log| Geometry::plan(image, log, "", uuid::Uuid::nil(), [0; 16], Timespec::default());
    assert!(plan(8 << 20, 1 << 20).unwrap_err().to_string().contains("16 MiB"));
    assert!(plan(64 << 20, 64 << 10).unwrap_err().to_string().contains("1 MiB"));
    assert!(plan(16 << 20, 1 << 20).is_ok());
}
