#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are compared")]

use super::changed;

#[test]
fn each_page_has_one_range_of_new_bytes() {
    let old = vec![0; 3 * 4096];
    let of = |stores: &[usize]| {
        let mut new = old.clone();
        stores.iter().for_each(|at| new[*at] = 1);
        changed(8192, &old, &new)
    };
    assert!(of(&[]).is_empty());
    assert_eq!(of(&[5]), [5..6]);
    assert_eq!(of(&[5, 4000]), [5..4001]);
    assert_eq!(of(&[5, 8192 + 7]), [5..6, 8199..8200]);
    assert_eq!(of(&[4090, 4095, 4096]), [4090..4097], "ranges that touch are one");
}

#[test]
fn a_write_that_begins_inside_a_page_is_split_where_the_page_ends() {
    let (old, mut new) = (vec![0; 200], vec![0; 200]);
    (new[0], new[199]) = (1, 1);
    assert_eq!(changed(4096 - 100, &old, &new), [0..1, 199..200]);
}

#[test]
fn what_lies_beyond_the_end_of_the_old_bytes_is_new() {
    assert_eq!(changed(0, b"ab", b"ab\0\0"), [2..4]);
    assert_eq!(changed(0, b"", b"ab"), [0..2]);
}
