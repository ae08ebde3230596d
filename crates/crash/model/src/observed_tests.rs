#![allow(clippy::unwrap_used)]

use super::*;

const TERA: u64 = 1 << 40;

fn digest(path: &Path, size: u64, parts: &[(u64, &[u8])]) -> Digest {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    for (at, bytes) in parts {
        file.write_all_at(bytes, *at).unwrap();
    }
    digest_file(path).unwrap()
}

/// A digest depends on the bytes and the length, and not on which zeros are holes.
#[test]
fn the_digest_of_a_file_is_that_of_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let of = |size: u64, parts: &[(u64, &[u8])]| digest(&dir.path().join("f"), size, parts);
    let (zeros, ones) = (vec![0; 3 * PIECE as usize], vec![1; PIECE as usize + 1]);
    let all = [
        of(0, &[]),
        of(1, &[]),
        of(PIECE, &[]),
        of(TERA, &[]),
        of(1, &[(0, b"a")]),
        of(2, &[(0, b"a")]),
        of(TERA, &[(0, b"a")]),
        of(TERA, &[(PIECE, b"a")]),
        of(TERA, &[(TERA - 1, b"a")]),
        of(TERA, &[(0, &ones)]),
        of(TERA, &[(1, &ones)]),
        of(TERA, &[(0, b"a"), (TERA - 1, b"a")]),
    ];
    let distinct: std::collections::BTreeSet<Digest> = all.into_iter().collect();
    assert_eq!(distinct.len(), all.len());
    assert_eq!(of(TERA, &[(TERA / 2, &zeros)]), of(TERA, &[]));
    let at = TERA - 2 * PIECE;
    assert_eq!(of(TERA, &[(0, &zeros), (at, b"a")]), of(TERA, &[(at, b"a"), (at - 5 * PIECE, &zeros)]));
}

#[test]
fn only_wanted_files_are_read() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    for name in ["a", "d/a", "d/b"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    let tree = read_tree(dir.path(), &|path| path.starts_with(b"d/")).unwrap();
    assert_eq!(tree.keys().map(Vec::as_slice).collect::<Vec<_>>(), [b"d/a", b"d/b"]);
    assert_ne!(tree[&b"d/a"[..]], tree[&b"d/b"[..]]);
}
