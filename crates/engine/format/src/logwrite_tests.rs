use super::*;
use proptest::prelude::*;

const KEY: LogKey = LogKey { uuid: uuid::Uuid::from_u128(7), secret: LogSecret(*b"sixteen of bytes") };

fn header(lsn: u64, payload: usize) -> WriteHeader {
    WriteHeader {
        epoch: Epoch(1),
        lsn: Lsn(lsn),
        blocks: (HEADER_SIZE + payload).div_ceil(BLOCK_SIZE) as u32,
        tail_lsn: Lsn(0),
        durable_lsn: Lsn(0),
        payload_bytes: payload as u32,
        records: 1,
    }
}

/// Returns a sealed log write with one record.
fn sealed(lsn: u64, record: &[u8]) -> Vec<u8> {
    let header = header(lsn, FRAME_SIZE + record.len());
    let mut write = vec![0; header.blocks as usize * BLOCK_SIZE];
    write[HEADER_SIZE..HEADER_SIZE + FRAME_SIZE].copy_from_slice(&(record.len() as u32).to_le_bytes());
    write[HEADER_SIZE + FRAME_SIZE..][..record.len()].copy_from_slice(record);
    header.seal(&KEY, &mut write);
    write
}

fn set_crc(write: &mut [u8]) {
    let crc = crc_without(write, CRC_AT);
    write[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Applies all checks of recovery to the bytes of a log write.
fn is_believed(key: &LogKey, write: &[u8]) -> bool {
    WriteHeader::peek(key, write).is_some_and(|header| header.is_whole(key, write))
}

#[test]
fn a_write_at_the_end_of_all_positions_is_none() {
    for (lsn, valid) in [(4096, true), (u64::MAX - 4095, false)] {
        assert_eq!(is_believed(&KEY, &sealed(lsn, b"abc")), valid, "{lsn}");
    }
}

#[test]
fn a_write_reads_back_and_every_flipped_bit_is_noticed() {
    let mut write = sealed(8192, &[7; 5000]);
    let header = header(8192, FRAME_SIZE + 5000);
    assert_eq!(WriteHeader::peek(&KEY, &write), Some(header));
    assert!(is_believed(&KEY, &write));
    assert_eq!(header.records(&write).map(|r| r.len()), Some(1));
    for bit in 0..write.len() * 8 {
        write[bit / 8] ^= 1 << (bit % 8);
        assert!(!is_believed(&KEY, &write), "bit {bit}");
        // An attacker without the key can correct the CRC only. A keyed hash covers everything
        // except the padding.
        if !(CRC_AT..CRC_AT + 4).contains(&(bit / 8)) && bit / 8 < HEADER_SIZE + FRAME_SIZE + 5000 {
            let mut forged = write.clone();
            set_crc(&mut forged);
            assert!(!is_believed(&KEY, &forged), "bit {bit}, with the checksum right");
        }
        write[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(is_believed(&KEY, &write));
}

#[test]
fn a_short_or_long_write_is_not_whole() {
    let mut write = sealed(0, b"abc");
    let header = WriteHeader::peek(&KEY, &write).unwrap();
    assert!(!header.is_whole(&KEY, &write[..HEADER_SIZE]) && !header.is_whole(&KEY, &[]));
    write.resize(2 * BLOCK_SIZE, 0);
    set_crc(&mut write);
    assert!(!header.is_whole(&KEY, &write));
}

/// Checks a tag against the key of another image, and against a key with only the secret wrong.
#[test]
fn the_tag_needs_the_secret() {
    let write = sealed(0, b"abc");
    for bit in 0..128 {
        let mut secret = KEY.secret;
        secret.0[bit / 8] ^= 1 << (bit % 8);
        let key = LogKey { secret, ..KEY };
        assert!(WriteHeader::peek(&key, &write).is_none(), "bit {bit}");
        let mut other = write.clone();
        WriteHeader::peek(&KEY, &write).unwrap().seal(&key, &mut other);
        assert!(!is_believed(&KEY, &other), "bit {bit}");
    }
}

/// Computes four bytes at `at` that give `write` the CRC32C `want`: the checksum is linear, so each
/// bit of the four bytes flips fixed bits of the checksum.
fn collide(write: &mut [u8], at: usize, want: u32) {
    write[at..at + 4].fill(0);
    let base = crc_without(write, CRC_AT);
    let mut rows: Vec<(u32, u32)> = (0..32)
        .map(|bit| {
            write[at + bit / 8] = 1 << (bit % 8);
            let change = crc_without(write, CRC_AT) ^ base;
            write[at..at + 4].fill(0);
            (change, 1 << bit)
        })
        .collect();
    // Gaussian elimination: afterwards only row `bit` has that bit in its change.
    let (mut need, mut bytes) = (base ^ want, 0);
    for bit in 0..32 {
        let pivot = (bit..32).find(|&i| rows[i].0 >> bit & 1 == 1).expect("a CRC has full rank");
        rows.swap(bit, pivot);
        let (change, flips) = rows[bit];
        for (i, row) in rows.iter_mut().enumerate() {
            if i != bit && row.0 >> bit & 1 == 1 {
                *row = (row.0 ^ change, row.1 ^ flips);
            }
        }
    }
    for (bit, (change, flips)) in rows.into_iter().enumerate() {
        assert_eq!(change, 1 << bit);
        if need >> bit & 1 == 1 {
            (need, bytes) = (need ^ change, bytes ^ flips);
        }
    }
    assert_eq!(need, 0);
    write[at..at + 4].copy_from_slice(&bytes.to_le_bytes());
}

/// The sector with the header is new. The other sectors hold what a user planted in the ring: a
/// record with the same checksum as the record that was written.
#[test]
fn planted_sectors_behind_a_genuine_header_are_no_records() {
    const SECTOR: usize = 512;
    let mut write = sealed(4096, &[7; 3000]);
    let header = WriteHeader::peek(&KEY, &write).unwrap();
    let crc = u32::from_le_bytes(write[CRC_AT..CRC_AT + 4].try_into().unwrap());
    write[SECTOR..2 * SECTOR].fill(b'x');
    collide(&mut write, 2 * SECTOR, crc);
    assert_eq!(crc_without(&write, CRC_AT), crc, "the checksum is correct");
    assert_eq!(WriteHeader::peek(&KEY, &write), Some(header), "the header is valid");
    assert!(!header.is_whole(&KEY, &write));
}

proptest! {
    /// For any header contents, resealing and decoding neither panic nor read beyond the write.
    #[test]
    fn any_header_can_be_resealed_and_read(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut write = sealed(0, b"abc");
        let len = bytes.len().min(write.len());
        write[8..8 + len.saturating_sub(8)].copy_from_slice(&bytes[..len.saturating_sub(8)]);
        prop_assert!(crate::reseal(&mut write, &KEY.secret));
        if let Some(header) = WriteHeader::peek(&KEY, &write) {
            prop_assert_eq!(header.is_whole(&KEY, &write), header.blocks == 1);
            let _ = header.records(&write);
        }
    }
}
