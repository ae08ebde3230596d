use super::*;
use proptest::prelude::*;

proptest! {
    /// Compares with a model that has one cell for each byte: the overlay holds the newest data
    /// edit that no later drop covers.
    #[test]
    fn overlay_is_data_minus_drops_in_order(ops in proptest::collection::vec((any::<bool>(), 0u64..60, 1u64..30), 1..60)) {
        let r = Residents::new();
        let ino = Ino(3);
        let mut model: Vec<Option<(u8, u64)>> = vec![None; 100];
        for (i, (is_data, at, len)) in ops.iter().enumerate() {
            let lsn = i as u64 + 1;
            if *is_data {
                let bytes: Arc<[u8]> = (0..*len).map(|k| (lsn * 31 + k) as u8).collect();
                for k in 0..*len {
                    model[(at + k) as usize] = Some((bytes[k as usize], lsn));
                }
                r.add(ino, *at, *len, Lsn(lsn), Source::Bytes(bytes, 0));
            } else {
                r.drop_range(ino, *at, *len);
                model[*at as usize..(at + len) as usize].fill(None);
            }
            let oldest = model.iter().flatten().map(|(_, l)| *l).min();
            prop_assert_eq!(r.oldest().map(|l| l.0), oldest);
            prop_assert_eq!(r.len(), r.ranges(ino).len());
            prop_assert_eq!(r.overlaps(ino, *at, *len), *is_data);
        }
        let mut seen: Vec<Option<u8>> = vec![None; 100];
        for (_, pieces) in r.drain() {
            for (at, len, source) in pieces {
                let Source::Bytes(b, skip) = source else { panic!("only bytes were added") };
                for k in 0..len {
                    seen[(at + k) as usize] = Some(b[skip + k as usize]);
                }
            }
        }
        prop_assert_eq!(seen, model.iter().map(|c| c.map(|(b, _)| b)).collect::<Vec<_>>());
    }
}
