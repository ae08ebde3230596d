use super::*;
use serde_json::json;

#[test]
fn members_join_objects() {
    assert_eq!(with_members("{}", [("a", json!(1))]), r#"{"a":1}"#);
    assert_eq!(with_members("{\"b\": 2\n}\n", [("a", json!({"c": "\""}))]), r#"{"a":{"c":"\""},"b":2}"#);
    assert_eq!(with_members("{\"a\":1}", []), r#"{"a":1}"#);
    for text in ["", "[1]", "{\"b\":"] {
        assert_eq!(with_members(text, [("a", json!(1))]), r#"{"a":1}"#);
    }
}
