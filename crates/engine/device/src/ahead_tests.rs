use super::*;
use crate::sim::{DistantDevice, FaultPlan, OpKind, SimDevice};
use crate::{Device, MemDevice};
use kedge_base::BLOCK_SIZE;

const B: u64 = BLOCK_SIZE as u64;

/// Makes a device whose block `i` is filled with the byte `i`.
fn filled(blocks: u64) -> MemDevice {
    let device = MemDevice::new(blocks * B);
    for i in 0..blocks {
        device.write(i * B, &IoBuf::from_bytes(&[i as u8; BLOCK_SIZE]), false).unwrap();
    }
    device
}

#[test]
fn answers_come_in_the_order_asked_whatever_the_device_does_first() {
    let device = SimDevice::new(filled(16));
    // The second read completes last.
    device.set_plan(FaultPlan::new(7).last(OpKind::Read, 1));
    let mut ahead = ReadAhead::new(&device);
    assert!(ahead.take().is_none());
    ahead.ask((0..6).map(|i| (i * B, 1)));
    assert_eq!(ahead.asked(), 6);
    for i in 0..3 {
        assert_eq!(ahead.take().unwrap().unwrap().as_bytes()[0], i);
    }
    ahead.ask([(10 * B, 2)]);
    for (i, blocks) in [(3, 1), (4, 1), (5, 1), (10, 2)] {
        let buf = ahead.take().unwrap().unwrap();
        assert_eq!((buf.as_bytes()[0], buf.blocks()), (i, blocks));
    }
    assert!(ahead.take().is_none());
}

#[test]
fn an_error_belongs_to_its_read() {
    let device = SimDevice::new(filled(8));
    device.set_plan(FaultPlan::new(1).bad_range(OpKind::Read, 2 * B..3 * B, libc::EIO));
    let mut ahead = ReadAhead::new(&device);
    ahead.ask((0..4).map(|i| (i * B, 1)));
    for i in 0..4 {
        match ahead.take().unwrap() {
            Ok(buf) => assert!(i != 2 && buf.as_bytes()[0] == i),
            Err(e) => assert!(i == 2 && matches!(e, Error::Io { .. }), "{i}: {e}"),
        }
    }
}

#[test]
fn what_is_in_flight_costs_one_round_trip_and_may_be_left() {
    let device = DistantDevice::new(Arc::new(filled(64)), std::time::Duration::ZERO);
    let mut ahead = ReadAhead::new(&device);
    ahead.ask((0..8).map(|i| (i * B, 1)));
    assert_eq!((device.rounds(), device.in_flight_max()), (1, 8));
    ahead.take().unwrap().unwrap();
    drop(ahead);
    // A result that was not taken is not delivered to another reader.
    let mut ahead = ReadAhead::new(&device);
    ahead.ask([(20 * B, 1)]);
    assert_eq!(ahead.take().unwrap().unwrap().as_bytes()[0], 20);
    assert_eq!(device.rounds(), 2);
}

#[test]
fn a_reader_may_go_while_the_device_still_works() {
    let inner = Arc::new(SimDevice::new(filled(8)));
    inner.set_plan(FaultPlan::new(1).hold(OpKind::Read, 0));
    let device = Arc::new(DistantDevice::new(inner.clone(), std::time::Duration::from_millis(1)));
    let mut ahead = ReadAhead::new(&*device);
    ahead.ask([(0, 1)]);
    drop(ahead);
    inner.release();
    // Closing the device waits for the completion, although the reader has not taken the result.
    inner.heal();
    drop(device);
}
