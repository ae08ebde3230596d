#![allow(clippy::unwrap_used)]

use super::*;

/// A table of two functions, `a` of 16 bytes and `b` of 8. In the first 4 bytes of `a` the return
/// address is at the stack pointer, after these 32 bytes above it.
fn table() -> Vec<u8> {
    let mut bytes = vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
    let (names, units, files, values, table) = (72u64, 76, 80, 96, 112);
    for field in [2, 1, 0, names, units, files, values, table] {
        bytes.extend(field.to_le_bytes());
    }
    bytes.extend(b"a\0b\0");
    bytes.extend(0u32.to_le_bytes());
    bytes.extend(b"/src/main.go\0\0\0\0");
    // At offset 1 are the distances, at 7 the file, at 11 the lines.
    bytes.extend([0, 2, 4, 64, 12, 0, 0, 2, 16, 0, 0, 22, 16, 0, 0, 0]);
    for (entry, function) in [(0u32, 20u32), (16, 64)] {
        bytes.extend(entry.to_le_bytes());
        bytes.extend(function.to_le_bytes());
    }
    bytes.extend(24u32.to_le_bytes());
    for (entry, name) in [(0u32, 0u32), (16, 2)] {
        for field in [entry, name, 0, 0, 1, 7, 11, 0, 0, 0, 0] {
            bytes.extend(field.to_le_bytes());
        }
    }
    bytes
}

#[test]
fn functions_have_names_lines_and_frames() {
    let table = GoTable::read(&table(), 0x1000).unwrap();
    assert_eq!(table.name(0x1000), Some(("a".to_owned(), Some("/src/main.go:10".to_owned()))));
    assert_eq!(table.name(0x100f).unwrap().0, "a");
    assert_eq!(table.name(0x1010).unwrap().0, "b");
    for outside in [0, 0xfff, 0x1018, u64::MAX] {
        assert_eq!(table.name(outside), None);
    }
    assert_eq!(
        (table.frame(0x1003), table.frame(0x1004), table.frame(0x100f)),
        (Some(0), Some(32), Some(32))
    );
    assert!(!table.is_outermost(0x1000));
}

#[test]
fn damage_gives_no_answer() {
    let whole = table();
    for at in 0..whole.len() {
        for byte in [0, 0x7f, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            if let Some(table) = GoTable::read(&bytes, 0x1000) {
                for address in (0xff0..0x1030).chain([0, u64::MAX]) {
                    // Any result is right for damaged bytes, but there must be one soon.
                    let _any = (table.name(address), table.frame(address));
                }
            }
        }
        assert!(GoTable::read(&whole[..at.min(71)], 0x1000).is_none());
    }
}
