use super::*;
use kedge_device::Oldest;
use std::time::Duration;

fn tree(pending: &Pending) -> Value {
    let mut tree = json!({ MEMBER: to_json(pending) });
    write_date(&mut tree);
    tree
}

#[test]
fn a_device_that_hangs_is_told_and_no_other() {
    assert_eq!(text(&json!({})), None, "a mount of an older version");
    assert_eq!(text(&tree(&Pending::default())), None);
    let oldest = Oldest { op: "write_zeroes", age: Duration::from_secs(42), since: 1_000_000_000 };
    let busy = Pending { outstanding: 7, oldest: Some(oldest), ..Pending::default() };
    assert_eq!(text(&tree(&busy)), None, "none is late");
    let hangs = Pending { late: 3, ..busy };
    assert_eq!(
        text(&tree(&hangs)).unwrap(),
        "does not answer since 2001-09-09T01:46:40Z: 3 of 7 requests wait for more than 5 s, the oldest, a \
         zeroing, for 42.0 s"
    );
}
