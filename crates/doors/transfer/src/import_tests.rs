use super::*;

#[test]
fn an_estimate_counts_whole_blocks_and_saturates() {
    let mut sum = Estimate::default();
    sum.data(1);
    sum.data(4096);
    sum.data(4097);
    assert_eq!(sum.data_bytes, 4 * 4096);
    sum.data(u64::MAX);
    assert!(sum.image_size() > 1 << 50, "larger than any image, and no overflow");
    assert_eq!(Estimate::default().image_size() % (1 << 20), 0);
    assert!(Estimate::default().image_size() >= 16 << 20, "the smallest image");
}

#[test]
fn each_option_that_tells_images_apart_is_in_the_seed() {
    let date = |sec| Timespec { sec, nsec: 0 };
    let options = FormatOptions { size: Some(1 << 30), label: "data".into(), ..FormatOptions::default() };
    let base = seed(date(7), &options);
    assert_eq!(base, seed(date(7), &options.clone()));
    let uuid = Some(uuid::Uuid::from_u128(1));
    for other in [
        seed(date(8), &options),
        seed(date(7), &FormatOptions { size: Some(2 << 30), ..options.clone() }),
        seed(date(7), &FormatOptions { label: "dato".into(), ..options.clone() }),
        seed(date(7), &FormatOptions { uuid, ..options.clone() }),
    ] {
        assert_ne!(base, other);
    }
}
