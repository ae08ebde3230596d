use super::*;

#[test]
fn lists_of_processors_are_counted() {
    let lists =
        [("0", Some(1)), ("0-3\n", Some(4)), ("0-3,6,8-9", Some(7)), ("3-1", None), ("", None), ("x", None)];
    for (list, count) in lists {
        assert_eq!(processors(list), count, "{list}");
    }
}
