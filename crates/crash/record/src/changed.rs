//! Which bytes of a page the program changed.

use kedge_crash::page::PAGE;
use std::ops::Range;

/// The range of bytes that hold new values, for each page of `new`, which the kernel writes at
/// `offset`. Ranges that touch are one. `old` may end early, where the file ends.
///
/// One range for each page, even if bytes between are as before: in which order the program stored
/// them is not known, and a file system that never tears a page writes them together.
pub(crate) fn changed(offset: u64, old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < new.len() {
        let skip = ((offset + at as u64) % PAGE as u64) as usize;
        let page = at..new.len().min(at + PAGE - skip);
        let differs = |n: &usize| old.get(*n) != Some(&new[*n]);
        // Most pages of a large write are either new or as before.
        let is_same = old.get(page.clone()) == Some(&new[page.clone()]);
        let (mut forwards, mut backwards) = (page.clone(), page.clone());
        let ends = if is_same { None } else { forwards.find(differs).zip(backwards.rfind(differs)) };
        if let Some((first, last)) = ends {
            match ranges.last_mut().filter(|range| range.end == first) {
                Some(range) => range.end = last + 1,
                None => ranges.push(first..last + 1),
            }
        }
        at = page.end;
    }
    ranges
}

#[cfg(test)]
#[path = "changed_tests.rs"]
mod tests;
