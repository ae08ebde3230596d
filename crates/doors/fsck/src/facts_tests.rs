use super::*;

#[test]
fn lost_ranges_touch_what_lies_in_them() {
    let key = |ino, offset| Key { ino, kind: 1, offset };
    let mut lost = Lost::default();
    assert!(!lost.has(key(3, 0)));
    lost.range(key(3, 5), Some(key(4, 2)));
    lost.item(key(9, u64::MAX));
    assert!(!lost.has(key(3, 4)) && lost.has(key(3, 5)) && lost.has(key(4, 1)) && !lost.has(key(4, 2)));
    assert!(lost.touches_inode(Ino(3)) && lost.touches_inode(Ino(4)) && lost.touches_inode(Ino(9)));
    assert!(!lost.touches_inode(Ino(2)) && !lost.touches_inode(Ino(5)) && !lost.touches_inode(Ino(10)));
    lost.range(key(20, 0), None);
    assert!(lost.touches_inode(Ino(u64::MAX)) && lost.has(Key::MAX));
}

#[test]
fn successors_carry() {
    let key = Key { ino: 1, kind: 255, offset: u64::MAX };
    assert_eq!(successor(key), Some(Key { ino: 2, ..Key::MIN }));
    assert_eq!(successor(Key::MAX), None);
}
