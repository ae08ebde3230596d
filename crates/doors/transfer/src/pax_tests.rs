use super::*;
use kedgefs::Timespec;

#[test]
fn a_record_counts_the_digits_of_its_length() {
    for (value, text) in [(1, "8 key=x\n"), (2, "9 key=xx\n"), (3, "11 key=xxx\n")] {
        let mut records = Records::default();
        records.add(b"key", &vec![b'x'; value]);
        let told = String::from_utf8(records.0.clone()).unwrap();
        assert_eq!(told, text);
    }
    for value in 80..120 {
        let mut records = Records::default();
        records.add(b"key", &vec![b'x'; value]);
        let told: usize =
            String::from_utf8(records.0.clone()).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert_eq!(told, records.0.len());
    }
}

#[test]
fn times_before_1970_count_back() {
    let text = |sec, nsec| decimal(Timespec { sec, nsec });
    assert_eq!(text(12, 5), "12.000000005");
    assert_eq!(text(-1, 0), "-1.000000000");
    // -2 plus three quarters of a second is -1.25.
    assert_eq!(text(-2, 750_000_000), "-1.250000000");
    assert_eq!(text(-1, 750_000_000), "-0.250000000");
}
