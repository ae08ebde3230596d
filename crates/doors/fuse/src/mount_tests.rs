use super::*;

#[test]
fn a_policy_against_fuseblk_leaves_a_plain_mount_and_a_device_in_use_does_not() {
    let mount = |errno| MountError::Mount {
        source_dev: "/dev/loop0".into(),
        dir: "/mnt".into(),
        error: io::Error::from_raw_os_error(errno),
    };
    for (errno, is_plain) in
        [(libc::EPERM, true), (libc::ENODEV, true), (libc::EACCES, true), (libc::EBUSY, false)]
    {
        assert_eq!(is_not_for_us(&mount(errno)), is_plain, "{errno}");
    }
}
