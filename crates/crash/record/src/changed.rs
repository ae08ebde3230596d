//! Finds the bytes of a page that the program has changed.

use kedge_crash::page::PAGE;
use std::ops::Range;

/// For each page of `new`, the range of bytes that hold new values. The kernel writes `new` at
/// `offset`. Adjacent ranges are merged. `old` may be shorter, if the file ends there.
///
/// There is one range for each page, even if bytes inside it are unchanged: the order in which the
/// program stored the bytes is not known, and a file system that never tears a page writes them
/// together.
pub(crate) fn changed(offset: u64, old: &[u8], new: &[u8]) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let mut at = 0;
    while at < new.len() {
        let skip = ((offset + at as u64) % PAGE as u64) as usize;
        let page = at..new.len().min(at + PAGE - skip);
        let differs = |n: &usize| old.get(*n) != Some(&new[*n]);
        // Handle common cases first: most pages of a large write are entirely new or unchanged.
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
