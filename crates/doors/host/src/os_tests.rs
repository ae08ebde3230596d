use super::*;
use anyhow::Context;

#[test]
fn a_shortage_is_found_below_any_text_and_of_any_library() {
    let io = |errno| anyhow::Error::from(io::Error::from_raw_os_error(errno));
    for (e, is_short) in [
        (anyhow::Error::from(Errno::NOMEM), true),
        (anyhow::Error::from(Errno::NFILE), true),
        (io(libc::EMFILE), true),
        (io(libc::EAGAIN), true),
        (anyhow::Error::from(Errno::PERM), false),
        (io(libc::ENOENT), false),
        (anyhow::anyhow!("no number"), false),
    ] {
        let e = Err::<(), _>(e).context("watch a server").context("serve").unwrap_err();
        assert_eq!(is_shortage(&e), is_short, "{e:#}");
        let passes = e.chain().filter_map(io_error).any(|e| may_pass(&e));
        assert_eq!(passes, is_short, "{e:#}");
    }
}
