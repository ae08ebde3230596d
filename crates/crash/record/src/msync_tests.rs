#![allow(clippy::unwrap_used)]

use super::*;

const FILE: Named = Named { device: (0, 0x2a), ino: 7 };
const BASE: u64 = 0x7f00_0000_0000;

/// Returns two mappings of the file, one of another file, and one of a file on another device.
fn mapping(at: u64) -> io::Result<Option<FileMapping>> {
    let file = |start: u64, pages: u64, offset, device, ino| FileMapping {
        addresses: start..start + pages * 0x1000,
        offset,
        device,
        ino,
    };
    let all = [
        file(0x55d0_0000, 1, 0, (0xfe, 1), 7),
        file(BASE, 3, 0x1000, FILE.device, FILE.ino),
        file(BASE + 0x3000, 1, 0x9000, FILE.device, FILE.ino),
        file(BASE + 0x4000, 1, 0, FILE.device, 8),
    ];
    Ok(all.into_iter().find(|mapping| mapping.addresses.end > at))
}

#[test]
fn addresses_become_ranges_of_the_file() {
    let ranges = |start, end| ranges(mapping, start, end, FILE).unwrap();
    assert_eq!(ranges(BASE + 0x1000, BASE + 0x2000), [(0x2000, 0x3000)]);
    assert_eq!(ranges(BASE + 0x1000, BASE + 0x1010), [(0x2000, 0x2010)]);
    assert_eq!(ranges(BASE + 0x2000, BASE + 0x6000), [(0x3000, 0x4000), (0x9000, 0xa000)]);
    assert_eq!(ranges(BASE + 0x4000, u64::MAX), []);
    assert_eq!(ranges(0, BASE), [], "another device");
}

#[test]
fn only_msync_has_addresses() {
    let line = |number: i64| format!("{number} 0x7f00 0x10 0x4 0x0 0x0 0x0 0x7ffc 0x7f01");
    assert_eq!(msync(&line(libc::SYS_msync)), Some((0x7f00, 0x7f10)));
    assert_eq!(msync(&line(libc::SYS_fsync)), None);
    assert_eq!(msync("running"), None);
    assert_eq!(msync("-1 0x7ffc 0x7f01"), None);
}
