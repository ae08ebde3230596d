use super::*;
use kedge_device::MemDevice;
use proptest::prelude::*;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The first block of the ring.
const START: u64 = 7;

proptest! {
    #[test]
    fn a_position_has_one_place_and_the_same_in_each_lap(
        blocks in 1..64u64,
        lsn in 0..kedge_format::logwrite::LSN_MAX,
        laps in 0..4u64,
    ) {
        let ring = Ring::new(BlockNo(START), blocks);
        let at = ring.offset(Lsn(lsn));
        prop_assert!((START * BLOCK..(START + blocks) * BLOCK).contains(&at), "inside the ring");
        prop_assert_eq!(ring.offset(Lsn(lsn + laps * ring.bytes())), at);
        prop_assert_eq!(at + ring.until_end(Lsn(lsn)), (START + blocks) * BLOCK);
        prop_assert_eq!(ring.block(Lsn(lsn)), BlockNo(at / BLOCK));
    }

    /// Also covers writes that cross the end of the ring. A write changes no other blocks.
    #[test]
    fn a_write_is_found_block_by_block_at_its_positions(
        blocks in 1..16u64,
        first in 0..64u64,
        len in 1..16u64,
    ) {
        let (ring, len) = (Ring::new(BlockNo(START), blocks), len.min(blocks));
        let device = MemDevice::new((START + blocks + 1) * BLOCK);
        let mut buf = IoBuf::zeroed(len as usize);
        for (number, block) in buf.as_mut_bytes().chunks_exact_mut(BLOCK_SIZE).enumerate() {
            block.fill(number as u8 + 1);
        }
        ring.write(&device, Lsn(first * BLOCK), &buf, true).unwrap();
        let read = |at: u64| {
            let mut block = IoBuf::zeroed(1);
            device.read(at, &mut block).unwrap();
            block.as_bytes().iter().all(|byte| *byte == block.as_bytes()[0]).then_some(block.as_bytes()[0])
        };
        for number in 0..blocks {
            let expected = if number < len { number as u8 + 1 } else { 0 };
            prop_assert_eq!(read(ring.offset(Lsn((first + number) * BLOCK))), Some(expected));
        }
        for outside in (0..START).chain([START + blocks]) {
            prop_assert_eq!(read(outside * BLOCK), Some(0), "block {}", outside);
        }
    }
}
