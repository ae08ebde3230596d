use super::*;

/// The key of vector 10 of IEEE 1619.
const KEY_10: &str = "2718281828459045235360287471352662497757247093699959574966967627\
                      3141592653589793238462643383279502884197169399375105820974944592";

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

/// Vectors 10 and 13 of the standard, whose plaintext is the bytes 0 to 255, twice. OpenSSL gives
/// the same results.
#[test]
fn the_vectors_of_the_standard() {
    let xts = Xts::new(&bytes(KEY_10).try_into().unwrap());
    let plain: Vec<u8> = (0..UNIT).map(|i| i as u8).collect();
    for (unit, first, last) in [
        (
            0xff,
            "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b",
            "773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151",
        ),
        (
            0xff_ffff_ffff,
            "64497e5a831e4a932c09be3e5393376daa599548b816031d224bbf50a818ed23",
            "6975be5e0b4efce51cd3e70c25a1fbbbd609d273ad5b0d59631c531f6a0a57b9",
        ),
    ] {
        let mut text = plain.clone();
        xts.encrypt(unit, &mut text);
        assert_eq!((&text[..32], &text[UNIT - 32..]), (&*bytes(first), &*bytes(last)));
        xts.decrypt(unit, &mut text);
        assert_eq!(text, plain);
    }
}

/// Encrypting several units in one call gives the same result as single calls. Equal units at
/// different positions have different results.
#[test]
fn each_unit_has_its_own_tweak() {
    let xts = Xts::new(&[7; KEY]);
    let mut together = vec![3; 4 * UNIT];
    xts.encrypt(u64::MAX - 3, &mut together);
    let alone = (u64::MAX - 3..=u64::MAX).flat_map(|unit| {
        let mut bytes = vec![3; UNIT];
        xts.encrypt(unit, &mut bytes);
        bytes
    });
    assert!(alone.collect::<Vec<_>>() == together);
    assert_ne!(together[..UNIT], together[UNIT..2 * UNIT]);
}
