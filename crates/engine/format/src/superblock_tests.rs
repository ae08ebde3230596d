use super::*;
use proptest::prelude::*;

const SECRET: LogSecret = LogSecret(*b"0123456789abcdef");

fn sample() -> Superblock {
    let geometry = Geometry {
        log_secret: SECRET,
        ..Geometry::plan(64 << 20, 4 << 20, "label", uuid::Uuid::from_u128(7), [3; 16], Timespec::default())
            .unwrap()
    };
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
        trees: None,
        losses: Some(Losses { files: 3, since: -4 }),
    };
    Superblock { geometry, checkpoint }
}

#[test]
fn a_slot_reads_back_as_it_was_written() {
    let sb = sample();
    let mut block = vec![0; BLOCK_SIZE];
    sb.encode(&mut block);
    assert_eq!(Superblock::decode(&block, 0, 1 << 20).unwrap(), sb);
    let mut none = sb.clone();
    none.checkpoint.losses = None;
    none.encode(&mut block);
    assert_eq!(Superblock::decode(&block, 0, 1 << 20).unwrap(), none);
}

/// Each invalid byte becomes a character of three bytes, so only 21 of them fit into the field.
#[test]
fn a_label_that_is_not_utf_8_fits_into_its_field_again() {
    let at = std::mem::offset_of!(Raw, label);
    let mixed = [b"name".as_slice(), &[0xe2; 60]].concat();
    for (field, kept, replaced) in
        [(vec![0xff], "", 1), (vec![0xff; 21], "", 21), (vec![0xff; 64], "", 21), (mixed, "name", 20)]
    {
        let mut block = vec![0; BLOCK_SIZE];
        sample().encode(&mut block);
        block[at..at + LABEL_MAX].fill(0);
        block[at..at + field.len()].copy_from_slice(&field);
        let crc = crc_without(&block, CRC_AT);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        let read = Superblock::decode(&block, 0, 1 << 20).unwrap();
        assert_eq!(read.geometry.label, format!("{kept}{}", "\u{fffd}".repeat(replaced)));
        read.encode(&mut block);
        assert_eq!(Superblock::decode(&block, 0, 1 << 20).unwrap(), read);
    }
}

#[test]
fn version_1_is_refused_by_its_number() {
    let mut block = vec![0; BLOCK_SIZE];
    sample().encode(&mut block);
    block[8..12].copy_from_slice(&1u32.to_le_bytes());
    let crc = crc_without(&block, CRC_AT);
    block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    let error = Superblock::decode(&block, 0, 1 << 20).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("format version 1; "), "{error}");
}

#[test]
fn counters_that_leave_no_room_are_told_from_impossible_ones() {
    type Set = fn(&mut CheckpointState, u64);
    let fields: [(&str, Set); 4] = [
        ("generation", |c, n| c.generation = Generation(n)),
        ("epoch", |c, n| c.epoch = Epoch(n)),
        ("inode number", |c, n| c.next_ino = Ino(n)),
        ("LSN", |c, n| (c.checkpoint_lsn, c.tail_lsn) = (Lsn(n), Lsn(n))),
    ];
    // Sizes are multiples of two blocks, so that the generation keeps its slot.
    let step = 2 * BLOCK_SIZE as u64;
    for (name, set) in fields {
        let with = |n| {
            let mut sb = sample();
            set(&mut sb.checkpoint, n);
            let mut block = vec![0; BLOCK_SIZE];
            sb.encode(&mut block);
            Superblock::decode(&block, 0, 1 << 20).map(|sb| sb.check_room())
        };
        assert!(matches!(with(OPEN_MAX), Ok(Ok(()))), "{name}");
        for n in [OPEN_MAX + step, COUNTER_MAX] {
            let error = with(n).unwrap().unwrap_err().to_string();
            assert!(error.contains(&format!("{name} {n} leaves no room")), "{error}");
        }
        for n in [COUNTER_MAX + step, u64::MAX - step + 1] {
            assert!(with(n).is_err(), "{name} {n}");
        }
    }
}

/// `kedge dump` prints a superblock with `Debug`.
#[test]
fn the_text_of_a_superblock_does_not_hold_the_logs_secret() {
    let sb = sample();
    let text = format!("{sb:?} {sb:#?} {:?}", sb.geometry.log_key());
    assert!(text.contains("LogSecret(..)"), "{text}");
    // The secret must not appear as bytes, as a number in either byte order, or as text.
    let bytes = SECRET.0;
    assert!(!text.contains("48, 49, 50") && !text.contains("0123456789abcdef"), "{text}");
    for number in [u128::from_le_bytes(bytes), u128::from_be_bytes(bytes)] {
        assert!(!text.contains(&number.to_string()) && !text.contains(&format!("{number:x}")), "{text}");
    }
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

/// A sparse image costs its author nothing, but fsck would need memory for each group of its size.
#[test]
fn an_image_beyond_the_largest_is_refused() {
    let max = IMAGE_MAX / BLOCK_SIZE as u64;
    let of_size = |blocks: u64, data_start: Option<u64>| {
        let bytes = blocks.min(max) * BLOCK_SIZE as u64;
        let mut sb = sample();
        sb.geometry =
            Geometry::plan(bytes, 4 << 20, "", uuid::Uuid::nil(), [0; 16], Timespec::default()).unwrap();
        sb.geometry.total_blocks = blocks;
        if let Some(start) = data_start {
            sb.geometry.data_start = BlockNo(start);
        }
        sb.checkpoint.root = sb.geometry.data_start;
        let mut block = vec![0; BLOCK_SIZE];
        sb.encode(&mut block);
        Superblock::decode(&block, 0, u64::MAX)
    };
    of_size(max, None).unwrap();
    for blocks in [max + 1, max * 2, 1 << 51, u64::MAX / BLOCK_SIZE as u64] {
        assert!(of_size(blocks, None).is_err(), "{blocks} blocks");
    }
    assert!(of_size(max, Some(max / 2)).is_err(), "all in front of the data area is the format's");
}

/// docs/FORMAT.md and kedge-mkfs(8) document the limits: a 32nd, from 32 MiB to 1 GiB, at most a
/// quarter.
#[test]
fn the_default_log_is_within_its_limits() {
    const MIB: u64 = 1 << 20;
    for (image, log) in
        [(64 * MIB, 16 * MIB), (128 * MIB, 32 * MIB), (2048 * MIB, 64 * MIB), (MIB * MIB, 1024 * MIB)]
    {
        assert_eq!(Geometry::default_log_bytes(image), log, "{image}");
    }
}

proptest! {
    /// For any contents with a correct checksum: the slot is decoded or refused, and a decoded slot
    /// is encoded to an equal slot.
    #[test]
    fn any_bytes_are_a_slot_or_refused(
        edits in proptest::collection::vec((8..600usize, any::<u8>()), 0..40),
        device_blocks in 0..1u64 << 40,
    ) {
        let mut block = vec![0; BLOCK_SIZE];
        sample().encode(&mut block);
        for (at, byte) in edits {
            block[at] = byte;
        }
        let crc = crc_without(&block, CRC_AT);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        for slot in 0..2 {
            if let Ok(sb) = Superblock::decode(&block, slot, device_blocks) {
                let mut again = vec![0; BLOCK_SIZE];
                sb.encode(&mut again);
                prop_assert_eq!(Superblock::decode(&again, slot, device_blocks).unwrap(), sb);
            }
        }
    }
}
