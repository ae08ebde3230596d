use super::*;

#[test]
fn each_queue_has_entries_on_any_number_of_processors() {
    for others in 0..=1 << 13 {
        let each = entries_of_other(others);
        assert!((1..=ENTRIES.1).contains(&each) && ENTRIES.0 + others * each <= ENTRIES_MAX, "{others}");
    }
    assert_eq!(entries_of_other(7), 64);
}
