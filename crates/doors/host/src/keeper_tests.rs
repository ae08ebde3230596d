use super::is_too_old;

#[test]
fn a_kernel_that_cannot_send_requests_again_is_too_old() {
    for release in ["6.8.12-generic", "5.15.0", "4.19", "6.", ""] {
        assert!(is_too_old(release), "{release}");
    }
    for release in ["6.9.0", "6.10.3-arch1-1", "6.18.44-fc-v657", "7.0-rc1", "10.1.2"] {
        assert!(!is_too_old(release), "{release}");
    }
}
