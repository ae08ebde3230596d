use super::*;
use crate::conformance::{conform, durable};
use crate::sim::SimDevice;
use crate::{Io, MemDevice, run_batch};

const CHEAP: Cost = Cost { memory_kib: 8, passes: 1, lanes: 1 };
const B: u64 = BLOCK_SIZE as u64;

fn secret() -> Secret {
    Secret::new(b"open sesame".to_vec())
}

/// Makes an encrypted device whose `size` bytes read as zeros.
fn zeros(size: u64) -> MemDevice {
    let below = Arc::new(MemDevice::new(CRYPT_AREA + size));
    CryptDevice::format(below.clone(), &secret(), CHEAP).unwrap().write_zeroes(0, size).unwrap();
    below.fork()
}

#[test]
fn an_encrypted_device_conforms() {
    conform(&|size| Arc::new(CryptDevice::open(Arc::new(zeros(size)), &secret()).unwrap()));
}

/// Torn writes and lost writes are the same as without encryption.
#[test]
fn a_power_failure_is_that_of_the_device_below() {
    for seed in 0..50 {
        let sim = std::cell::RefCell::new(None);
        let make = |size| -> Arc<dyn Device> {
            let below = Arc::new(SimDevice::new(zeros(size)));
            *sim.borrow_mut() = Some(below.clone());
            Arc::new(CryptDevice::open(below, &secret()).unwrap())
        };
        durable(&make, &|device| {
            drop(device);
            let medium = sim.borrow_mut().take().expect("was made").crash(seed);
            Arc::new(CryptDevice::open(Arc::new(medium), &secret()).unwrap())
        });
    }
}

/// The caller's buffer is returned unchanged, and the medium contains none of its bytes.
#[test]
fn nothing_readable_reaches_the_device() {
    let below = Arc::new(MemDevice::new(CRYPT_AREA + 8 * B));
    let device = CryptDevice::format(below.clone(), &secret(), CHEAP).unwrap();
    let text = IoBuf::from_bytes(&b"attack at dawn! ".repeat(2 * BLOCK_SIZE / 16));
    device.write(0, &text, true).unwrap();
    let ios = vec![
        Io { offset: 2 * B, op: Op::Write { buf: text.clone(), fua: false } },
        Io { offset: 4 * B, op: Op::Write { buf: text.clone(), fua: true } },
        Io { offset: 0, op: Op::Flush },
    ];
    for done in run_batch(&device, ios) {
        done.result.unwrap();
        assert!(!matches!(&done.op, Op::Write { buf, .. } if buf.as_bytes() != text.as_bytes()));
    }
    device.write_zeroes(6 * B, 2 * B).unwrap();
    let medium = below.bytes(0, (CRYPT_AREA + 8 * B) as usize);
    assert!(!medium.windows(16).any(|bytes| bytes == b"attack at dawn! "));
    let mut units: Vec<&[u8]> = medium[CRYPT_AREA as usize..].chunks(UNIT).collect();
    units.sort_unstable();
    assert!(units.windows(2).all(|two| two[0] != two[1]), "equal sectors are not equal on the medium");
    for at in [0, 2, 4] {
        let mut buf = IoBuf::zeroed(2);
        device.read(at * B, &mut buf).unwrap();
        assert!(buf.as_bytes() == text.as_bytes());
    }
}

#[test]
fn the_wrong_key_and_a_plain_image_are_named() {
    let below = Arc::new(zeros(8 * B));
    let e = CryptDevice::open(below, &Secret::new(b"open".to_vec())).map(drop).unwrap_err();
    assert!(e.to_string().contains("opens no slot"), "{e}");
    let plain = Arc::new(MemDevice::new(CRYPT_AREA + B));
    assert!(!CryptHeader::is_there(&*plain).unwrap());
    let e = CryptDevice::open(plain, &secret()).map(drop).unwrap_err();
    assert!(e.to_string().contains("damaged header"), "{e}");
}

#[test]
fn discards_stay_above() {
    let device = CryptDevice::open(Arc::new(zeros(8 * B)), &secret()).unwrap();
    assert_eq!((device.geometry().discard_granularity, device.geometry().discard_zeroes), (0, false));
    assert!(matches!(device.discard(0, B), Err(Error::Io { errno: libc::EOPNOTSUPP, .. })));
    let mut buf = IoBuf::zeroed(1);
    device.read(0, &mut buf).unwrap();
    assert!(buf.as_bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn secrets_are_not_printed() {
    assert_eq!(format!("{:?}", secret()), "Secret");
    let header = CryptHeader::new(&[7; KEY], &secret(), CHEAP).unwrap();
    // A single 7 proves nothing, because other fields such as the random UUID may contain one.
    assert!(!format!("{header:?}").contains("7, 7, 7, 7, 7"), "{header:?}");
}
