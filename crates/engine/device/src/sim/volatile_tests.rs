use super::*;
use crate::MemDevice;
use crate::conformance;
use crate::sim::{FaultPlan, OpKind, SimDevice};
use crate::testing::{SIZE, run, steps};
use kedge_base::spawn_named;
use proptest::prelude::*;

const B: u64 = BLOCK_SIZE as u64;

fn filled(byte: u8) -> IoBuf {
    IoBuf::from_bytes(&[byte; BLOCK_SIZE])
}

proptest! {
    #[test]
    fn behaves_like_a_vector(steps in steps()) {
        let inner = Arc::new(MemDevice::new(SIZE));
        let device = VolatileDevice::new(inner.clone());
        let mut model = vec![0; SIZE as usize];
        run(&device, &mut model, &steps);
        device.flush().unwrap();
        prop_assert!(device.is_clean());
        prop_assert!(inner.bytes(0, SIZE as usize) == model);
    }
}

fn new(medium: Arc<MemDevice>) -> Arc<dyn Device> {
    Arc::new(VolatileDevice::new(medium))
}

#[test]
fn the_contract_is_kept() {
    conformance::conform(&|size| new(Arc::new(MemDevice::new(size))));
    let medium = Arc::new(MemDevice::new(SIZE));
    conformance::durable(&|_| new(medium.clone()), &|_| new(medium.clone()));
}

#[test]
fn only_flush_and_fua_reach_the_inner_device() {
    let inner = Arc::new(SimDevice::new(MemDevice::new(SIZE)));
    let device = VolatileDevice::new(inner.clone());
    device.write(0, &filled(1), false).unwrap();
    device.write(B, &filled(2), false).unwrap();
    device.write_zeroes(2 * B, B).unwrap();
    assert_eq!(inner.stats().writes.get(), 0);
    device.write(B, &filled(3), true).unwrap();
    assert_eq!((inner.stats().writes.get(), inner.stats().fua_writes.get()), (1, 1));
    assert_eq!(inner.view().bytes(0, 1), [0], "a FUA write flushes no others");
    device.flush().unwrap();
    assert_eq!(inner.pending(), 0, "what is flushed is durable below");
    assert_eq!((inner.view().bytes(0, 1), inner.view().bytes(B, 1)), (vec![1], vec![3]));
}

#[test]
fn a_failed_flush_keeps_what_was_not_written() {
    let inner = Arc::new(SimDevice::new(MemDevice::new(SIZE)));
    let device = VolatileDevice::new(inner.clone());
    inner.set_plan(FaultPlan::new(0).fail(OpKind::Write, 1, 5));
    device.write(0, &filled(1), false).unwrap();
    device.write(5 * B, &filled(2), false).unwrap();
    assert!(device.flush().is_err());
    assert!(!device.is_clean());
    let mut buf = IoBuf::zeroed(1);
    device.read(5 * B, &mut buf).unwrap();
    assert_eq!(buf.as_bytes()[0], 2);
}

#[test]
fn readers_and_writers_go_on_during_flushes() {
    let device = Arc::new(VolatileDevice::new(Arc::new(MemDevice::new(SIZE))));
    let threads: Vec<_> = (0..4u64)
        .map(|t| {
            let device = device.clone();
            let body = move || {
                for i in 0..2000u64 {
                    let at = (t * 20 + i % 20) * B;
                    device.write(at, &filled((i % 255) as u8 + 1), i % 17 == 0).unwrap();
                    if i % 13 == t {
                        device.flush().unwrap();
                    }
                    let mut buf = IoBuf::zeroed(1);
                    device.read(at, &mut buf).unwrap();
                    assert_eq!(buf.as_bytes()[0], (i % 255) as u8 + 1, "thread {t}, write {i}");
                }
            };
            spawn_named(&format!("user-{t}"), body).unwrap()
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}
