use super::*;
use kedge_format::logwrite::{LogSecret, WRITE_BLOCKS_MAX};
use proptest::prelude::*;

const KEY: LogKey = LogKey { uuid: uuid::Uuid::from_u128(7), secret: LogSecret(*b"sixteen of bytes") };
const MAX: usize = WRITE_BLOCKS_MAX as usize * BLOCK_SIZE;

proptest! {
    /// Records of any lengths are framed so that the header and the frames give them back at the
    /// positions that their appends returned.
    #[test]
    fn records_come_back_at_their_positions(
        lens in prop::collection::vec(1..90_000usize, 1..40),
        block in 0..1_000u64,
    ) {
        let base = Lsn(block * BLOCK_SIZE as u64);
        let mut batch = Batch::new(base, IoBuf::default());
        prop_assert_eq!((batch.head(), batch.end()), (base, base), "an empty batch takes no space");
        let mut pushed: Vec<(Lsn, Vec<u8>)> = Vec::new();
        for (number, len) in lens.into_iter().enumerate() {
            if !batch.fits(len, MAX) {
                break;
            }
            let record = vec![number as u8; len];
            let before = batch.head();
            let at = batch.push(&record, MAX);
            let gap = if number == 0 { HEADER_SIZE } else { 0 };
            prop_assert_eq!(at, Lsn(before.0 + gap as u64), "records leave no gap");
            prop_assert_eq!(batch.head(), Lsn(at.0 + (FRAME_SIZE + len) as u64));
            let padding = batch.end().0 - batch.head().0;
            prop_assert!(padding < BLOCK_SIZE as u64 && batch.end().0.is_multiple_of(BLOCK_SIZE as u64));
            pushed.push((at, record));
        }
        let end = batch.end();
        let mut write = batch.into_write(Epoch(3), Lsn(0), Lsn(0));
        write.seal(&KEY);
        let bytes = write.buf.as_bytes();
        prop_assert!(bytes.len() <= MAX);
        let header = WriteHeader::peek(&KEY, &bytes[..BLOCK_SIZE]).expect("a header");
        prop_assert_eq!(header, write.header);
        prop_assert_eq!(header.end_lsn(), end);
        prop_assert!(header.is_whole(&KEY, bytes));
        let found = header.records(bytes).expect("frames that divide the payload");
        let pushed: Vec<(Lsn, &[u8])> = pushed.iter().map(|(at, record)| (*at, &record[..])).collect();
        prop_assert_eq!(found, pushed);
    }
}
