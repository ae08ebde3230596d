use super::*;
use crate::tip::Tip;
use kedge_format::logwrite::{FRAME_SIZE, LogSecret, WRITE_BLOCKS_MAX};
use proptest::prelude::*;

const KEY: LogKey = LogKey { uuid: uuid::Uuid::from_u128(7), secret: LogSecret(*b"sixteen of bytes") };
const MAX: usize = WRITE_BLOCKS_MAX as usize * BLOCK_SIZE;

proptest! {
    /// Records of any lengths are framed so that decoding the write returns them at the LSNs that
    /// their appends returned.
    #[test]
    fn records_come_back_at_their_positions(
        lens in prop::collection::vec(1..90_000usize, 1..40),
        block in 0..1_000u64,
    ) {
        let base = Lsn(block * BLOCK_SIZE as u64);
        let (tip, stage) = (Tip::new(base, MAX as u64), Stage::new());
        prop_assert_eq!((tip.head(), tip.end(), tip.close()), (base, base, None), "an empty batch takes no space");
        let mut pushed: Vec<(Lsn, Vec<u8>)> = Vec::new();
        for (number, len) in lens.into_iter().enumerate() {
            let record = vec![number as u8; len];
            let (head, end) = (tip.head(), tip.end());
            let Some(placed) = tip.place(len) else { break };
            let gap = if number == 0 { HEADER_SIZE } else { 0 };
            prop_assert_eq!(placed.start, Lsn(head.0 + gap as u64), "records leave no gap");
            prop_assert_eq!(placed.end, Lsn(placed.start.0 + (FRAME_SIZE + len) as u64));
            prop_assert_eq!((placed.base, placed.end), (base, tip.head()));
            prop_assert_eq!((placed.padded_end(), placed.grown), (tip.end(), tip.end().0 - end.0));
            stage.lane().add(&placed, &record, true);
            pushed.push((placed.start, record));
        }
        let end = tip.end();
        let (base, head) = tip.close().expect("records");
        prop_assert_eq!((tip.head(), tip.base()), (end, end), "the next batch starts after the padding");
        let batch = Batch { base, head, wanted: Wanted::NOT };
        // The buffer still has the contents of an earlier batch.
        let old = IoBuf::from_bytes(&[0xaa; 3 * BLOCK_SIZE]);
        let mut write = batch.into_write(old, Epoch(3), Lsn(0), Lsn(0));
        write.fill(&stage, &KEY);
        let bytes = write.buf.as_bytes();
        prop_assert!(bytes.len() <= MAX);
        let header = WriteHeader::peek(&KEY, &bytes[..BLOCK_SIZE]).expect("a header");
        prop_assert_eq!(header, write.header);
        prop_assert_eq!((header.end_lsn(), header.records as usize), (end, pushed.len()));
        prop_assert!(header.is_whole(&KEY, bytes));
        prop_assert!(bytes[(head.0 - base.0) as usize..].iter().all(|byte| *byte == 0), "the padding is zero");
        let found = header.records(bytes).expect("frames that divide the payload");
        let pushed: Vec<(Lsn, &[u8])> = pushed.iter().map(|(at, record)| (*at, &record[..])).collect();
        prop_assert_eq!(found, pushed);
    }
}
