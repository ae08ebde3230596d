//! Shortens a failing list of operations.

use crate::ops::Op;

/// Removes runs of operations, long runs first, as long as `fails` holds for the rest. Calls
/// `fails` at most `tries` times.
pub fn shrink(mut ops: Vec<Op>, tries: usize, mut fails: impl FnMut(&[Op]) -> bool) -> Vec<Op> {
    let mut left = tries;
    let mut run = (ops.len() / 2).max(1);
    loop {
        let mut removed = false;
        let mut at = 0;
        while at < ops.len() {
            if left == 0 {
                return ops;
            }
            left -= 1;
            let mut fewer = ops.clone();
            fewer.drain(at..(at + run).min(ops.len()));
            if fails(&fewer) {
                ops = fewer;
                removed = true;
            } else {
                at += run;
            }
        }
        if run == 1 && !removed {
            return ops;
        }
        if !removed || run > ops.len() {
            run = (run / 2).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_what_is_needed() {
        let handle = |handle| Op::Close { handle };
        let ops: Vec<Op> = (0..200u8).map(handle).collect();
        let needed = [handle(17), handle(90), handle(91)];
        let short = shrink(ops, 10_000, |ops| needed.iter().all(|op| ops.contains(op)));
        assert_eq!(short, needed);
    }
}
