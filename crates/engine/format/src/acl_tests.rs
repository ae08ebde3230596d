use super::*;

fn entry(tag: Tag, permissions: u16, id: u32) -> Entry {
    Entry { tag, permissions, id }
}

/// The list that setfacl makes of `u::rw-,u:1000:rwx,g::r--,m::rwx,o::---`.
fn sample() -> Vec<Entry> {
    vec![
        entry(Tag::Owner, 6, NOBODY),
        entry(Tag::User, 7, 1000),
        entry(Tag::OwningGroup, 4, NOBODY),
        entry(Tag::Mask, 7, NOBODY),
        entry(Tag::Others, 0, NOBODY),
    ]
}

#[test]
fn a_list_has_the_bytes_that_linux_gives_it() {
    let bytes = Acl::new(sample()).unwrap().encode();
    let linux = [
        [2, 0, 0, 0].as_slice(),
        &[1, 0, 6, 0, 255, 255, 255, 255],
        &[2, 0, 7, 0, 0xe8, 3, 0, 0],
        &[4, 0, 4, 0, 255, 255, 255, 255],
        &[16, 0, 7, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ];
    assert_eq!(bytes, linux.concat());
    assert_eq!(Acl::decode(&bytes), Acl::new(sample()));
}

#[test]
fn the_mask_is_the_group_class() {
    let acl = Acl::new(sample()).unwrap();
    assert_eq!((acl.mode(), acl.is_minimal()), (0o670, false));
    let set = acl.with_mode(0o451);
    assert_eq!(set.mode(), 0o451);
    assert_eq!(set.permissions(Tag::OwningGroup), Some(4), "the mask limits it, and it stays");

    let plain: Vec<_> = sample().into_iter().filter(|e| e.tag as u16 & 0x12 == 0).collect();
    let plain = Acl::new(plain).unwrap();
    assert_eq!((plain.mode(), plain.is_minimal()), (0o640, true));
    assert_eq!(plain.with_mode(0o111).permissions(Tag::OwningGroup), Some(1));
}

#[test]
fn a_new_file_has_no_more_than_its_mode_and_the_default_allow() {
    let acl = Acl::new(sample()).unwrap();
    assert_eq!(acl.clone().for_new(0o644).mode(), 0o640);
    assert_eq!(acl.clone().for_new(0o777).mode(), 0o670);
    assert_eq!(acl.for_new(0o000).mode(), 0);
}

#[test]
fn what_is_no_list_is_refused() {
    let mut bad: Vec<(&str, Vec<Entry>)> = Vec::new();
    for (i, what) in ["no owner", "", "no group", "no mask", "no others"].into_iter().enumerate() {
        let mut entries = sample();
        entries.remove(i);
        if !what.is_empty() {
            bad.push((what, entries));
        }
    }
    for i in [0, 2, 3, 4] {
        let mut entries = sample();
        entries.insert(i, entries[i]);
        bad.push(("one twice", entries));
    }
    let mut entries = sample();
    entries.swap(1, 2);
    bad.push(("out of order", entries));
    let mut entries = sample();
    entries[1].permissions = 8;
    bad.push(("a permission that is none", entries));
    let mut entries = sample();
    entries.splice(1..1, vec![entry(Tag::User, 7, 1); 507]);
    bad.push(("too long", entries));
    for (what, entries) in bad {
        assert_eq!(Acl::new(entries), None, "{what}");
    }

    let good = Acl::new(sample()).unwrap().encode();
    for len in 0..good.len() {
        assert_eq!(Acl::decode(&good[..len]), None, "{len} bytes");
    }
    for (at, byte) in [(0, 1), (3, 1), (4, 3), (5, 1)] {
        let mut bytes = good.clone();
        bytes[at] = byte;
        assert_eq!(Acl::decode(&bytes), None, "byte {at}");
    }
}
