use super::*;

#[test]
fn members_join_objects() {
    assert_eq!(with_member("{}", "a", "1"), "{\"a\":1}");
    assert_eq!(with_member("{\n}\n", "a", "1"), "{\"a\":1}");
    assert_eq!(with_member("{\"b\": 2\n}\n", "a", "{}"), "{\"b\": 2,\"a\":{}}");
    assert_eq!(with_member("", "a", "1"), "{\"a\":1}");
}

#[test]
fn strings_are_escaped() {
    assert_eq!(json_string("a\"b\\c\nd"), "\"a\\\"b\\\\c\\u000ad\"");
}
