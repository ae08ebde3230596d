use super::version;

#[test]
fn releases_of_kernels_are_compared_as_numbers() {
    assert_eq!(version("6.18.44-fc-v669"), Some((6, 18)));
    assert_eq!(version("6.8-rc1"), Some((6, 8)));
    assert_eq!(version("7.0"), Some((7, 0)));
    assert!(version("6.9.1") < version("6.16"));
    assert_eq!(version("six"), None);
}
