//! Parses the arguments of a request.
//!
//! Requests come from the kernel, but nothing here trusts them. A truncated argument struct, a name
//! without its end, or a length beyond the data fails with EINVAL.

use crate::errno::{Answer, EINVAL};
use zerocopy::{FromBytes, Immutable, KnownLayout};

/// The byte that ends a name.
pub(crate) const NAME_END: u8 = 0;

/// Parses the body of a request.
pub(crate) struct Args<'a>(&'a [u8]);

impl<'a> Args<'a> {
    pub(crate) fn new(body: &'a [u8]) -> Args<'a> {
        Args(body)
    }

    pub(crate) fn take<T: FromBytes + KnownLayout + Immutable>(&mut self) -> Answer<T> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| EINVAL)?;
        self.0 = rest;
        Ok(value)
    }

    pub(crate) fn text(&mut self) -> Answer<&'a [u8]> {
        let end = self.0.iter().position(|&b| b == NAME_END).ok_or(EINVAL)?;
        let text = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(text)
    }

    /// Takes a name, which may be `.` or `..`. Only a lookup may name these two.
    pub(crate) fn name_or_dots(&mut self) -> Answer<&'a [u8]> {
        let name = self.text()?;
        if name.is_empty() || name.contains(&b'/') { Err(EINVAL) } else { Ok(name) }
    }

    pub(crate) fn name(&mut self) -> Answer<&'a [u8]> {
        let name = self.name_or_dots()?;
        if matches!(name, b"." | b"..") { Err(EINVAL) } else { Ok(name) }
    }

    /// Whether the rest of the body is exactly a name and a value of `size` bytes.
    pub(crate) fn is_name_and_value(&self, size: u32) -> bool {
        let name = self.0.iter().position(|&b| b == NAME_END);
        name.is_some_and(|len| len > 0 && self.0.len() - len - 1 == size as usize)
    }

    pub(crate) fn bytes(&mut self, len: u32) -> Answer<&'a [u8]> {
        self.0.get(..len as usize).ok_or(EINVAL)
    }
}
