use super::*;
use crate::abi::op;

#[test]
fn failures_are_reported_by_operation_and_errno() {
    let failures = Failures::default();
    assert_eq!(failures.to_json(), json!({}));
    failures.note(op::WRITE, 2, libc::ENOSPC);
    failures.note(op::CREATE, 2, libc::ENOSYS);
    assert_eq!(failures.to_json(), json!({"WRITE": {"ENOSPC": 1}}));
    failures.note(op::FSYNC, 2, libc::EIO);
    failures.note(op::WRITE, 2, libc::EIO);
    failures.note(op::WRITE, 2, libc::ENOSPC);
    failures.note(999, 2, 77);
    assert_eq!(
        failures.to_json(),
        json!({"WRITE": {"EIO": 1, "ENOSPC": 2}, "FSYNC": {"EIO": 1}, "UNKNOWN": {"errno_77": 1}})
    );
}
