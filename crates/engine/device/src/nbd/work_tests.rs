use super::*;

const B: u32 = BLOCK_SIZE as u32;

fn export(flags: u16) -> Export {
    Export { size: 1 << 30, flags, payload_max: 2 * B, structured: true }
}

/// Returns command, flags, offset and length of each message.
fn parts(op: Kind, offset: u64, len: u64, flags: u16) -> Vec<(u16, u16, u64, u32)> {
    let mut plan = Plan::new(op, offset, len);
    let mut parts = Vec::new();
    while let Some(part) = plan.next(&export(flags)) {
        parts.push((part.command, part.flags, part.offset, part.len));
        plan.advance(&part);
    }
    parts
}

#[test]
fn operations_become_messages_that_the_server_knows() {
    let b = u64::from(B);
    let halves = |command, flags| vec![(command, flags, b, 2 * B), (command, flags, 3 * b, B)];
    assert_eq!(parts(Kind::Read, b, 3 * b, 0), halves(CMD_READ, 0));
    assert_eq!(parts(Kind::Write { fua: false }, b, 3 * b, CAN_FUA), halves(CMD_WRITE, 0));
    assert_eq!(parts(Kind::Write { fua: true }, b, 3 * b, CAN_FUA), halves(CMD_WRITE, FLAG_FUA));
    let mut emulated = halves(CMD_WRITE, 0);
    emulated.push((CMD_FLUSH, 0, 0, 0));
    assert_eq!(parts(Kind::Write { fua: true }, b, 3 * b, 0), emulated);
    assert_eq!(parts(Kind::Write { fua: true }, b, 0, 0), []);
    assert_eq!(parts(Kind::Flush, 0, 0, 0), [(CMD_FLUSH, 0, 0, 0)]);
    assert_eq!(parts(Kind::WriteZeroes, b, 3 * b, CAN_WRITE_ZEROES), [(CMD_WRITE_ZEROES, 0, b, 3 * B)]);
    assert_eq!(parts(Kind::WriteZeroes, b, 3 * b, 0), halves(CMD_WRITE, 0));
    let long = parts(Kind::Discard, 0, RANGE_MAX + b, CAN_TRIM);
    assert_eq!(long, [(CMD_TRIM, 0, 0, RANGE_MAX as u32), (CMD_TRIM, 0, RANGE_MAX, B)]);
}

#[test]
fn a_read_is_whole_when_each_byte_came_once() {
    let part = Part { command: CMD_READ, flags: 0, offset: 0, len: 4 * B, zeros: false };
    let mut coverage = Coverage::default();
    for (from, len) in [(3 * B, B), (0, B), (B, 100), (B + 100, B - 100)] {
        assert!(!coverage.is_whole(&part));
        coverage.add(from, len).unwrap();
    }
    for (from, len) in [(0, 1), (B - 1, 2), (2 * B - 1, 10), (0, 4 * B), (4 * B - 1, 1)] {
        coverage.add(from, len).unwrap_err();
    }
    coverage.add(2 * B, B).unwrap();
    assert!(coverage.is_whole(&part));
    let many = (0..1000).flat_map(|_| coverage.count(&part)).count();
    assert_eq!(many, 40, "the number of chunks is bounded");
}

/// In a build without overflow checks the sum would wrap to a small number, which lies inside of
/// the part.
#[test]
fn a_piece_whose_end_overflows_is_outside() {
    let part = Part { command: CMD_READ, flags: 0, offset: u64::from(B), len: 2 * B, zeros: false };
    let b = u64::from(B);
    assert_eq!(part.inside(b, 2 * B), Ok(0));
    assert_eq!(part.inside(2 * b, B), Ok(B));
    let outside = [
        (0, B),
        (b, 0),
        (b, 2 * B + 1),
        (3 * b, 1),
        (u64::MAX, 1),
        (u64::MAX, 2 * B),
        (b - 1, u32::MAX),
        (b + u64::from(u32::MAX), 1),
        (b + (1 << 32), 1),
        (b + 1, u32::MAX),
    ];
    for (offset, len) in outside {
        part.inside(offset, len).expect_err(&format!("{offset} {len}"));
    }
    let mut coverage = Coverage::default();
    coverage.add(u32::MAX, 1).unwrap_err();
    coverage.add(1, u32::MAX).unwrap_err();
    assert!(!coverage.is_whole(&part));
}
