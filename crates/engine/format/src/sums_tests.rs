use super::*;

#[test]
fn an_item_is_as_long_as_its_last_checksum() {
    let mut item = SumsItem::default();
    assert!(item.encode().is_empty());
    item.set(SUMS_BLOCKS + 2, 7);
    let bytes = item.encode();
    assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0]);
    assert_eq!(SumsItem::decode(&bytes).unwrap(), item);
    assert_eq!((item.get(2), item.get(3)), (7, 0));
    item.set(SUMS_BLOCKS - 1, u32::MAX);
    assert_eq!(item.encode().len(), SumsItem::SIZE_MAX);
    assert_eq!(SumsItem::decode(&item.encode()).unwrap(), item);
}

#[test]
fn what_is_no_item_is_refused() {
    for bytes in [&[][..], &[1, 2, 3], &[0; 4], &[1, 0, 0, 0, 0, 0, 0, 0], &[1; SumsItem::SIZE_MAX + 4]] {
        assert!(SumsItem::decode(bytes).is_err(), "{bytes:?}");
    }
}

#[test]
fn ranges_count_the_items_that_they_touch() {
    assert_eq!(SumsItem::count(3, 3), 0);
    assert_eq!(SumsItem::count(0, 1), 1);
    assert_eq!(SumsItem::count(15, 17), 2);
    assert_eq!(SumsItem::count(16, 48), 2);
    assert_eq!(SumsItem::first(31), 16);
}

#[test]
fn a_checksum_is_never_zero() {
    // The last four bytes are chosen so that the CRC32C of the block is 0.
    let zeros = sum_of(&[0; BLOCK_SIZE]);
    assert_ne!(zeros, 0);
    let mut block = [0; BLOCK_SIZE];
    let register = !crc32c::crc32c(&block[..BLOCK_SIZE - 4]);
    block[BLOCK_SIZE - 4..].copy_from_slice(&(register ^ residue_of_zero()).to_le_bytes());
    assert_eq!(crc32c::crc32c(&block), 0);
    assert_eq!(sum_of(&block), 1);
}

/// Returns the CRC register that four more zero bytes turn into `!0`.
fn residue_of_zero() -> u32 {
    let mut register = u32::MAX;
    for _ in 0..32 {
        let odd = register & 0x8000_0000 != 0;
        register = (register ^ if odd { 0x82f6_3b78 } else { 0 }) << 1 | u32::from(odd);
    }
    register
}
