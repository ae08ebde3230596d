//! Reads: lookup by key, the next or previous item, and scans of ranges.

use crate::tree::Tree;
use kedge_base::Result;
use kedge_format::Key;
use smallvec::SmallVec;
use std::ops::ControlFlow;

/// Items copied from one leaf. The inline capacities suit short scans, which are the most frequent.
#[derive(Default)]
struct Batch {
    bytes: SmallVec<[u8; 512]>,
    /// Each item's key and the end of its value; the value starts at the end of the previous one.
    items: SmallVec<[(Key, usize); 8]>,
}

impl Tree {
    pub fn get(&self, key: Key) -> Result<Option<Vec<u8>>> {
        self.get_with(key, |value| value.to_vec())
    }

    /// Runs `f` on the value of `key`, under the leaf's read latch: `f` must not call the tree. `f`
    /// may run more than once; the result of the last call is returned.
    #[inline]
    pub fn get_with<R>(&self, key: Key, mut f: impl FnMut(&[u8]) -> R) -> Result<Option<R>> {
        self.with_leaf(&key, |n| n.search(&key).ok().map(|i| f(n.view().value(i))))
    }

    pub fn contains(&self, key: Key) -> Result<bool> {
        Ok(self.get_with(key, |_| ())?.is_some())
    }

    /// Returns the first item whose key is not below `key`.
    pub fn next_at_or_after(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
        let mut at = key;
        loop {
            let (found, high) = self.with_leaf(&at, |n| {
                let view = n.view();
                let i = n.search(&at).unwrap_or_else(|i| i);
                let found = (i < view.items()).then(|| (view.key(i), view.value(i).to_vec()));
                (found, n.range.high)
            })?;
            match (found, high) {
                (Some(item), _) => return Ok(Some(item)),
                (None, Some(high)) => at = high,
                (None, None) => return Ok(None),
            }
        }
    }

    /// Returns the last item whose key is not above `key`.
    pub fn prev_at_or_before(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
        let mut at = key;
        loop {
            let (found, low) = self.with_leaf(&at, |n| {
                let view = n.view();
                let end = n.search(&at).map_or_else(|i| i, |i| i + 1);
                let found = end.checked_sub(1).map(|i| (view.key(i), view.value(i).to_vec()));
                (found, n.range.low)
            })?;
            match (found, key_before(&low)) {
                (Some(item), _) => return Ok(Some(item)),
                (None, Some(before)) => at = before,
                (None, None) => return Ok(None),
            }
        }
    }

    /// Runs `f` on the items of a range in key order, until `f` breaks. `f` runs without a latch
    /// and may call the tree. The items of each leaf are read atomically. The scan sees concurrent
    /// changes in leaves that it has not reached yet, but not in leaves that it has passed.
    pub fn scan(
        &self,
        from: Key,
        to_inclusive: Key,
        f: &mut dyn FnMut(Key, &[u8]) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut at = from;
        let mut batch = Batch::default();
        while at <= to_inclusive {
            let high = self.with_leaf(&at, |n| {
                batch.bytes.clear();
                batch.items.clear();
                let view = n.view();
                for i in n.search(&at).unwrap_or_else(|i| i)..view.items() {
                    let key = view.key(i);
                    if key > to_inclusive {
                        break;
                    }
                    batch.bytes.extend_from_slice(view.value(i));
                    batch.items.push((key, batch.bytes.len()));
                }
                n.range.high
            })?;
            let mut start = 0;
            for (key, end) in &batch.items {
                if f(*key, &batch.bytes[start..*end]).is_break() {
                    return Ok(());
                }
                start = *end;
            }
            match high {
                Some(high) => at = high,
                None => return Ok(()),
            }
        }
        Ok(())
    }
}

/// Returns the greatest key below `key`.
fn key_before(key: &Key) -> Option<Key> {
    if let Some(offset) = key.offset.checked_sub(1) {
        return Some(Key { offset, ..*key });
    }
    if let Some(kind) = key.kind.checked_sub(1) {
        return Some(Key { kind, offset: u64::MAX, ..*key });
    }
    key.ino.checked_sub(1).map(|ino| Key { ino, kind: u8::MAX, offset: u64::MAX })
}
