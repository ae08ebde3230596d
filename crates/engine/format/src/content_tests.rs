use super::*;

fn with(patches: &[(usize, &[u8])]) -> Content {
    let mut head = vec![0; HEAD_BYTES];
    for (at, bytes) in patches {
        head[*at..at + bytes.len()].copy_from_slice(bytes);
    }
    Content::of(&head)
}

#[test]
fn signatures_are_recognised() {
    assert_eq!(with(&[]), Content::Blank);
    for (name, at, magic) in SIGNATURES {
        assert_eq!(with(&[(*at, magic)]), Content::Other(name));
    }
    // A FAT or NTFS volume begins with a boot sector.
    assert_eq!(with(&[(510, &[0x55, 0xaa]), (3, b"NTFS    ")]).name(), Some("an NTFS file system"));
    assert_eq!(with(&[(50_000, b"x")]).name(), Some("data of an unknown kind"));
    assert_eq!(with(&[(0, b"KEDGEFS\0")]), Content::KedgeFs);
    assert_eq!(with(&[(65536, b"KEDGEFS\0")]).name(), Some("a KedgeFS image"), "the second slot alone");
}

#[test]
fn a_short_device_is_judged_by_what_there_is() {
    for len in [0, 1, 511, 1080, 1081, 4096, 65536] {
        assert_eq!(Content::of(&vec![0; len]), Content::Blank, "{len}");
    }
    assert_eq!(Content::of(b"XFSB"), Content::Other("an XFS file system"));
}
