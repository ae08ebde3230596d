use super::*;
use crate::sim::{DistantDevice, FaultPlan, OpKind, SimDevice};
use crate::testing::{SIZE, refuses_bad_ranges, run, steps};
use crate::{Io, MemDevice, run_batch};
use proptest::prelude::*;

proptest! {
    #[test]
    fn behaves_like_a_vector_and_leaves_its_base(below in steps(), above in steps()) {
        let base = Arc::new(MemDevice::new(SIZE));
        let mut model = vec![0; SIZE as usize];
        run(&*base, &mut model, &below);
        let before = model.clone();
        run(&OverlayDevice::new(base.clone()), &mut model, &above);
        prop_assert!(base.bytes(0, SIZE as usize) == before);
    }
}

#[test]
fn bad_ranges_are_refused() {
    refuses_bad_ranges(&OverlayDevice::new(Arc::new(MemDevice::new(SIZE))));
}

#[test]
fn errors_of_the_base_are_passed_on_unless_the_range_was_written() {
    let base = Arc::new(SimDevice::new(MemDevice::new(SIZE)));
    base.set_plan(FaultPlan::new(0).fail(OpKind::Read, 0, 5).fail(OpKind::Read, 1, 5));
    let overlay = OverlayDevice::new(base);
    overlay.write(4096, &IoBuf::from_bytes(&[7; 4096]), false).unwrap();
    let mut buf = IoBuf::zeroed(2);
    assert!(overlay.read(0, &mut buf).is_err());
    let mut buf = IoBuf::zeroed(1);
    overlay.read(4096, &mut buf).unwrap();
    assert_eq!(buf.as_bytes()[0], 7);
    assert!(overlay.read(0, &mut buf).is_err());
    overlay.read(0, &mut buf).unwrap();
}

#[test]
fn reads_of_a_batch_overlap_in_the_base_where_nothing_was_written() {
    let mem = MemDevice::new(SIZE);
    for block in 0..8u64 {
        mem.write(block * 4096, &IoBuf::from_bytes(&[block as u8; 4096]), false).unwrap();
    }
    let base = Arc::new(DistantDevice::new(Arc::new(mem), std::time::Duration::ZERO));
    let overlay = OverlayDevice::new(base.clone());
    overlay.write(3 * 4096, &IoBuf::from_bytes(&[33; 4096]), false).unwrap();
    overlay.spoil(BlockNo(5), Error::NoSpace);
    let read = |block: u64| Io { offset: block * 4096, op: Op::Read(IoBuf::zeroed(1)) };
    let done = run_batch(&overlay, (0..8).map(read).collect());
    for (block, completion) in done.into_iter().enumerate() {
        let Op::Read(buf) = completion.op else { panic!("a read comes back as one") };
        match block {
            5 => assert!(matches!(completion.result, Err(Error::NoSpace))),
            3 => assert_eq!(buf.as_bytes()[0], 33),
            _ => assert_eq!(buf.as_bytes()[0], block as u8),
        }
    }
    assert_eq!((base.rounds(), base.requests()), (1, 6));
}
