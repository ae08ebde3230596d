use super::*;
use serde_json::json;

#[test]
fn latches_are_shown_by_kind() {
    let kind = json!({
        "acquisitions": 9,
        "calls": 7,
        "wakeups": 2,
        "wait_ns": { "count": 3, "max": 5_500_000 },
        "wait_us_histogram": [2, 0, 0, 1],
        "wait_ms_histogram": [2, 0, 0, 1],
    });
    let idle = json!({
        "acquisitions": 1,
        "calls": 1,
        "wakeups": 0,
        "wait_ns": { "count": 0, "max": 0 },
        "wait_us_histogram": [],
        "wait_ms_histogram": [],
    });
    let tree = json!({
        "lock": "rwlock",
        "restarts": 4,
        "fallbacks": 0,
        "conversions": 0,
        "latches": { "write_leaf": kind, "read_leaf": idle },
    });
    let text = latches(&tree).unwrap();
    assert!(text.starts_with("tree_lock=rwlock: 4 descents"), "{text}");
    assert!(
        text.contains("write leaf: taken 9 times, 7 of them by a call that waits, 3 waits, 2 wake-ups, "),
        "{text}"
    );
    assert!(text.contains("         4 -> 7          : 1        |********************  "), "{text}");
    assert!(text.contains("usecs") && text.contains("msecs"), "{text}");
    let idle = &text[text.find("read leaf").unwrap()..];
    assert!(idle.starts_with("read leaf: taken 1 times, 1 of them by a call that waits, 0 waits"), "{text}");
    assert_eq!(latches(&json!({})), None);
}
