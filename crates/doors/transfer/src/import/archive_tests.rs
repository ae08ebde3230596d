use super::*;
use crate::import::sink::Meta;
use crate::pax::{self, Pax};

fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let body = 3 + key.len() + value.len();
    // The length counts its own digits.
    let len = (1..4).map(|digits| body + digits).find(|len| len.to_string().len() + body == *len).unwrap();
    [len.to_string().as_bytes(), b" ", key.as_bytes(), b"=", value, b"\n"].concat()
}

#[test]
fn a_record_may_hold_line_ends_and_zeros() {
    let bytes = [record("path", b"a\nb"), record("SCHILY.xattr.user.x", b"\0\n=12 y=z\n\xff")].concat();
    let records = parse_records(&bytes).unwrap();
    assert_eq!(records[&b"path"[..]], b"a\nb");
    let applying = Applying { local: &records, global: &Records::new() };
    assert_eq!(xattrs(&applying), [(b"user.x".to_vec(), b"\0\n=12 y=z\n\xff".to_vec())]);
}

#[test]
fn records_that_are_none_are_refused() {
    for bytes in [
        &b"path=a\n"[..],
        b"999 path=a\n",
        b"8 path=a\n", // the length is one too small
        b"6 a=\n",     // the length is one too large
        b"3 \n",
        b"18446744073709551616 a=b\n",
        b"-5 a=b\n",
        b"9 pathab\n",
    ] {
        assert!(parse_records(bytes).is_err(), "{}", bytes.escape_ascii());
    }
}

#[test]
fn times_have_fractions_and_signs() {
    let time = |text: &str| timestamp(text.as_bytes()).map(|t| (t.sec, t.nsec)).ok();
    assert_eq!(time("12"), Some((12, 0)));
    assert_eq!(time("12.5"), Some((12, 500_000_000)));
    assert_eq!(time("12.0000000019"), Some((12, 1)));
    assert_eq!(time("-1.25"), Some((-2, 750_000_000)));
    assert_eq!(time("-1"), Some((-1, 0)));
    for text in ["", "x", "1.x", "1.-2", "99999999999999999999"] {
        assert_eq!(time(text), None, "{text}");
    }
}

#[test]
fn pieces_of_a_sparse_file_must_add_up() {
    assert!(check_ranges(&[(0, 512), (1024, 512)], 1024, 4096).is_ok());
    assert!(check_ranges(&[(4096, 0)], 0, 4096).is_ok(), "GNU tar ends its maps with this range");
    type Case = (&'static [(u64, u64)], u64, u64);
    let wrong: &[Case] = &[
        (&[(0, 512)], 1024, 4096),              // less data than the file has
        (&[(1024, 512), (0, 512)], 1024, 4096), // not ascending
        (&[(0, 512), (256, 512)], 1024, 4096),  // overlap
        (&[(4096, 512)], 512, 4096),            // beyond the end
        (&[(u64::MAX, 2)], 2, u64::MAX),        // overflow
    ];
    for &(ranges, data, size) in wrong {
        assert!(check_ranges(ranges, data, size).is_err(), "{ranges:?}");
    }
}

fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o644);
    header.set_uid(1);
    header.set_gid(2);
    header.set_mtime(3);
    header.set_path("name").unwrap();
    header.set_cksum();
    header
}

fn first(bytes: &[u8]) -> Result<Option<Entry>> {
    Archive::new(bytes).next()
}

#[test]
fn amounts_that_a_header_claims_are_bounded() {
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader, EntryType::XGlobalHeader]
    {
        let error = first(header(kind, 1 << 40).as_bytes()).unwrap_err();
        assert!(format!("{error:#}").contains("more than"), "{error:#}");
        let error = first(header(kind, 100).as_bytes()).unwrap_err();
        assert!(format!("{error:#}").contains("ends in the middle"), "{error:#}");
    }
    // A map that claims a huge number of ranges.
    let mut sparse = header(EntryType::XHeader, 0);
    let records = [
        record("GNU.sparse.major", b"1"),
        record("GNU.sparse.minor", b"0"),
        record("GNU.sparse.realsize", b"4096"),
    ]
    .concat();
    sparse.set_size(records.len() as u64);
    sparse.set_cksum();
    let mut bytes = sparse.as_bytes().to_vec();
    bytes.extend_from_slice(&records);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes.extend_from_slice(header(EntryType::Regular, 512).as_bytes());
    let mut map = b"99999999999\n".to_vec();
    map.resize(512, 0);
    bytes.extend_from_slice(&map);
    let error = first(&bytes).unwrap_err();
    assert!(format!("{error:#}").contains("pieces"), "{error:#}");
}

/// A header of extension records, padded to a block.
fn extension(kind: EntryType, records: &[u8]) -> Vec<u8> {
    let mut bytes = [header(kind, records.len() as u64).as_bytes(), records].concat();
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

/// Regression: each global header was bounded, but not their sum, which stays in memory.
#[test]
fn global_records_are_bounded_together() {
    let global = |key: &str, bytes: usize| extension(EntryType::XGlobalHeader, &long(key, bytes));
    let entry = header(EntryType::Regular, 0);
    let two = |second: &str| [&global("a", 3 << 20)[..], &global(second, 3 << 20), entry.as_bytes()].concat();
    let error = first(&two("b")).expect_err("6 MiB of global records");
    assert!(format!("{error:#}").contains("global extension headers"), "{error:#}");
    // The second record replaces the first.
    assert!(first(&two("a")).unwrap().is_some());
}

/// A record whose value has this many bytes.
fn long(key: &str, bytes: usize) -> Vec<u8> {
    let body = 3 + key.len() + bytes;
    let len = (1..9).map(|digits| body + digits).find(|len| len.to_string().len() + body == *len).unwrap();
    [format!("{len} {key}=").as_bytes(), &vec![b'v'; bytes], b"\n"].concat()
}

#[test]
fn records_of_an_entry_come_before_global_ones() {
    let global = [
        record("SCHILY.xattr.user.a", b"global"),
        record("SCHILY.xattr.user.b", b"global"),
        record("uid", b"77"),
        record("mtime", b"5"),
    ];
    let local = [record("SCHILY.xattr.user.b", b"local"), record("uid", b"78")];
    let bytes = [
        extension(EntryType::XGlobalHeader, &global.concat()),
        extension(EntryType::XHeader, &local.concat()),
        header(EntryType::Regular, 0).as_bytes().to_vec(),
        header(EntryType::Regular, 0).as_bytes().to_vec(),
    ];
    let bytes = bytes.concat();
    let mut archive = Archive::new(&bytes[..]);
    let mut next = || {
        let entry = archive.next().unwrap().unwrap();
        let mut xattrs = entry.xattrs;
        xattrs.sort();
        (entry.uid, entry.mtime.sec, xattrs)
    };
    let named = |a: &[u8], b: &[u8]| vec![(b"user.a".to_vec(), a.to_vec()), (b"user.b".to_vec(), b.to_vec())];
    assert_eq!(next(), (78, 5, named(b"global", b"local")));
    assert_eq!(next(), (77, 5, named(b"global", b"global")));
}

/// Regression: `user.a=b` with the value `v` arrived as `user.a` with the value `b=v`, and `user.=`
/// as `user.`, a name that no file can have.
#[test]
fn names_of_attributes_may_hold_equals_and_percent_signs() {
    let names = ["user.a=b", "user.=", "user.%", "user.%3D", "user.%25=%", "user.plain"];
    let named = |name: &&str| (name.as_bytes().to_vec(), b"v".to_vec());
    let meta = Meta { xattrs: names.iter().map(named).collect(), ..Meta::default() };
    let mut archive = Pax::new(Vec::new());
    let (kind, path) = (EntryType::Fifo, &b"name"[..]);
    archive.entry(&pax::Entry { kind, path, meta: &meta, target: b"", device: None }).unwrap();
    let bytes = archive.end().unwrap();
    let mut arrived = first(&bytes).unwrap().unwrap().xattrs;
    let mut sent = meta.xattrs;
    arrived.sort();
    sent.sort();
    assert_eq!(arrived, sent);
    // What GNU tar writes for `user.a=b%`, and names that other programs write as they are.
    for (key, name) in [
        ("SCHILY.xattr.user.a%3Db%25", "user.a=b%"),
        ("SCHILY.xattr.user.%", "user.%"),
        ("SCHILY.xattr.user.%3d%2", "user.%3d%2"),
    ] {
        let records = parse_records(&record(key, b"=v")).unwrap();
        let applying = Applying { local: &records, global: &Records::new() };
        assert_eq!(xattrs(&applying), [(name.as_bytes().to_vec(), b"=v".to_vec())], "{key}");
    }
    assert_eq!(encoded(b"user.a=b%"), b"user.a%3Db%25");
}

#[test]
fn a_header_with_a_wrong_checksum_is_none() {
    let mut bytes = header(EntryType::Regular, 0).as_bytes().to_vec();
    assert!(first(&bytes).unwrap().is_some());
    bytes[0] ^= 1;
    assert!(format!("{:#}", first(&bytes).unwrap_err()).contains("checksum"));
    assert!(format!("{:#}", first(b"short").unwrap_err()).contains("in the middle"));
    assert!(format!("{:#}", first(b"").unwrap_err()).contains("empty"));
}

/// Regression: the padding overflowed, and so did the skip to the next header.
#[test]
fn an_entry_of_the_largest_size_is_an_archive_that_ends_early() {
    for size in [u64::MAX, u64::MAX - 1, u64::MAX - 511, u64::MAX - 512] {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(size);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        let mut archive = Archive::new(&header.as_bytes()[..]);
        assert_eq!(archive.next().unwrap().unwrap().size, size);
        assert!(archive.next().unwrap().is_none(), "there is no more");
    }
}
