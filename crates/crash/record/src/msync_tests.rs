use super::*;

const MAPS: &str = "\
55d0-55d1 r--p 00000000 fe:01 42 /usr/bin/x
7f0000000000-7f0000003000 rw-s 00001000 00:2a 7 /mnt/a b
7f0000003000-7f0000004000 rw-s 00009000 00:2a 7 /mnt/a b (deleted)
7f0000004000-7f0000005000 rw-s 00000000 00:2a 8 /mnt/other
7f0000005000-7f0000006000 rw-p 00000000 00:00 0 
";

const FILE: Named = Named { device: (0, 0x2a), ino: 7 };

#[test]
fn addresses_become_ranges_of_the_file() {
    let base = 0x7f00_0000_0000;
    assert_eq!(ranges(MAPS, base + 0x1000, base + 0x2000, FILE), [(0x2000, 0x3000)]);
    assert_eq!(ranges(MAPS, base + 0x1000, base + 0x1010, FILE), [(0x2000, 0x2010)]);
    // Two mappings of the file and one of another file.
    assert_eq!(ranges(MAPS, base + 0x2000, base + 0x6000, FILE), [(0x3000, 0x4000), (0x9000, 0xa000)]);
    assert_eq!(ranges(MAPS, base + 0x4000, u64::MAX, FILE), []);
    assert_eq!(ranges(MAPS, 0, u64::MAX, Named { ino: 42, ..FILE }), [], "another device");
}

#[test]
fn only_msync_has_addresses() {
    let line = |number: i64| format!("{number} 0x7f00 0x10 0x4 0x0 0x0 0x0 0x7ffc 0x7f01");
    assert_eq!(msync(&line(libc::SYS_msync)), Some((0x7f00, 0x7f10)));
    assert_eq!(msync(&line(libc::SYS_fsync)), None);
    assert_eq!(msync("running"), None);
    assert_eq!(msync("-1 0x7ffc 0x7f01"), None);
}
