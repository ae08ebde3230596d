use super::*;
use crate::MemDevice;
use crate::sim::{FaultPlan, OpKind, SimDevice};
use crate::testing::{SIZE, refuses_bad_ranges, run, steps};
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
