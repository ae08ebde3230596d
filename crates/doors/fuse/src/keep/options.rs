//! The options that remounts have changed, as a list of words, which the next server applies.
//!
//! There are two places for the list. A word of the head has the place and the length of the valid
//! list, and is stored last; a new list goes to the other place. So a death leaves the old list or
//! the new one.

use super::Life;
use super::area::{Area, Head, OPTIONS_AT, OPTIONS_MAX, at};
use crate::errno::{Answer, EINVAL};
use kedgefs::Switches;
use std::io;

/// The decoded word of the head.
#[derive(Clone, Copy)]
struct Named {
    place: u64,
    len: u64,
}

impl Named {
    /// Returns `None` if no remount has changed any option.
    fn load(area: &Area) -> Option<Named> {
        let head: Head = area.read(0);
        let (place, len) = (head.options & 1, head.options >> 1);
        (len > 0).then_some(Named { place, len })
    }

    fn at(self) -> u64 {
        OPTIONS_AT + self.place * OPTIONS_MAX
    }

    fn store(self, area: &Area) {
        area.store(at!(options), self.len << 1 | self.place);
    }
}

fn load(area: &Area) -> io::Result<Switches> {
    let Some(named) = Named::load(area) else { return Ok(Switches::default()) };
    let invalid =
        |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("options of remounts: {why}"));
    if named.len > OPTIONS_MAX {
        return Err(invalid(format!("a list of {} bytes", named.len)));
    }
    let mut bytes = vec![0; named.len as usize];
    area.get(named.at(), &mut bytes);
    let text = String::from_utf8(bytes).map_err(|e| invalid(e.to_string()))?;
    text.parse().map_err(|e: kedgefs::Error| invalid(e.to_string()))
}

impl Area {
    /// Whether a remount has changed options.
    pub fn has_options(&self) -> bool {
        Named::load(self).is_some()
    }
}

impl Life {
    /// The options that remounts of this mount have changed.
    pub fn options(&self) -> io::Result<Switches> {
        load(&self.area)
    }
}

/// The accumulated changes of options by remounts.
pub(crate) struct Options(Switches);

impl Options {
    pub(crate) fn load(area: &Area) -> io::Result<Options> {
        load(area).map(Options)
    }

    /// Changes options by calling `set`, and stores the list if that succeeds. A death in between
    /// leaves a request without a reply, which is resent and sets the same values.
    pub(crate) fn change(
        &mut self,
        area: &Area,
        list: &[u8],
        set: impl FnOnce() -> Answer<()>,
    ) -> Answer<()> {
        set()?;
        let list = std::str::from_utf8(list).map_err(|_| EINVAL)?;
        for word in list.split(',').filter(|word| !word.is_empty()) {
            self.0.take(word)?;
        }
        let text = self.0.to_string();
        assert!(text.len() as u64 <= OPTIONS_MAX, "each option has a word of bounded length");
        let place = Named::load(area).map_or(0, |before| 1 - before.place);
        let named = Named { place, len: text.len() as u64 };
        area.fill(named.at(), text.as_bytes());
        named.store(area);
        Ok(())
    }
}

#[cfg(test)]
#[path = "options_tests.rs"]
mod tests;
