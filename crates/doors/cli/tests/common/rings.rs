//! FUSE over io_uring in the running kernel.

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Turns FUSE over io_uring on in the kernel. It stays on, because tests of other programs may use
/// it too. Returns `false`, after a report, if the kernel lacks it or this user may not turn it on.
pub fn rings_are_on() -> bool {
    let is_on = std::fs::read_to_string(SWITCH).is_ok_and(|text| text.trim() == "Y");
    let on = is_on || std::fs::write(SWITCH, "Y").is_ok();
    if !on {
        kedge_base::skip::note("FUSE over io_uring needs Linux 6.14, and root to turn it on");
    }
    on
}
