//! POSIX access control lists, encoded as Linux passes them to user space: as the value of the
//! attributes `system.posix_acl_access` and `system.posix_acl_default`.
//!
//! ```text
//! version 4 (2) | tag 2 | permissions 2 | id 4 | tag 2 | …
//! ```
//!
//! A valid list (1) is of version 2, (2) has one entry each for the owner, the owning group and the
//! others, (3) has at most one mask, and has a mask if it has an entry for a named user or group,
//! (4) has its entries in the order of their tags, (5) grants only read, write and execute, and (6)
//! fits an attribute.

use crate::XATTR_PART_MAX;

/// The attribute with the permissions that go beyond the mode bits of its file.
pub const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute with a directory's default list, from which new entries of the directory inherit.
pub const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEAD: usize = 4;
const ENTRY: usize = 8;
/// The `id` of an entry that does not name a user or group.
const NOBODY: u32 = u32::MAX;

/// Returns whether the value of the attribute `name` must be an access control list.
pub fn is_acl_name(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// The class of users to whom an entry applies. Linux defines the numbers, which are on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u16)]
pub enum Tag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    Mask = 0x10,
    Others = 0x20,
}

impl Tag {
    const ALL: [Tag; 6] = [Tag::Owner, Tag::User, Tag::OwningGroup, Tag::Group, Tag::Mask, Tag::Others];

    fn of(n: u16) -> Option<Tag> {
        Tag::ALL.into_iter().find(|tag| *tag as u16 == n)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub tag: Tag,
    /// Sum of read (4), write (2) and execute (1).
    pub permissions: u16,
    /// The id of the user or group, for entries that name one.
    pub id: u32,
}

/// A valid access control list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Returns `None` if the list is not valid.
    pub fn new(entries: Vec<Entry>) -> Option<Acl> {
        let count = |tag| entries.iter().filter(|e| e.tag == tag).count();
        let once = [Tag::Owner, Tag::OwningGroup, Tag::Others].into_iter().all(|tag| count(tag) == 1);
        let named = count(Tag::User) + count(Tag::Group) > 0;
        let masked = count(Tag::Mask) == 1 || count(Tag::Mask) == 0 && !named;
        let ordered = entries.is_sorted_by_key(|e| e.tag) && entries.iter().all(|e| e.permissions <= 7);
        let fits = HEAD + entries.len() * ENTRY <= XATTR_PART_MAX;
        (once && masked && ordered && fits).then_some(Acl(entries))
    }

    /// Returns `None` if the bytes are not a valid list.
    pub fn decode(bytes: &[u8]) -> Option<Acl> {
        let (head, entries) = bytes.split_first_chunk::<HEAD>()?;
        let (entries, rest) = entries.as_chunks::<ENTRY>();
        if u32::from_le_bytes(*head) != VERSION || !rest.is_empty() {
            return None;
        }
        let entry = |[a, b, c, d, id @ ..]: &[u8; ENTRY]| {
            let tag = Tag::of(u16::from_le_bytes([*a, *b]))?;
            Some(Entry { tag, permissions: u16::from_le_bytes([*c, *d]), id: u32::from_le_bytes(*id) })
        };
        Acl::new(entries.iter().map(entry).collect::<Option<Vec<_>>>()?)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.0.len() * ENTRY);
        out.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.0 {
            let named = matches!(entry.tag, Tag::User | Tag::Group);
            out.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            out.extend_from_slice(&entry.permissions.to_le_bytes());
            out.extend_from_slice(&if named { entry.id } else { NOBODY }.to_le_bytes());
        }
        out
    }

    /// Returns the entries in the order of their tags.
    pub fn entries(&self) -> &[Entry] {
        &self.0
    }

    fn permissions(&self, tag: Tag) -> Option<u32> {
        self.0.iter().find(|e| e.tag == tag).map(|e| e.permissions.into())
    }

    /// Returns the tag of the entry to which the mode's group bits correspond.
    fn group_class(&self) -> Tag {
        if self.permissions(Tag::Mask).is_some() { Tag::Mask } else { Tag::OwningGroup }
    }

    /// Returns the nine permission bits of a mode that correspond to the list.
    pub fn mode(&self) -> u32 {
        let bits = |tag| self.permissions(tag).expect("a valid list has it");
        bits(Tag::Owner) << 6 | bits(self.group_class()) << 3 | bits(Tag::Others)
    }

    /// Returns whether the mode bits alone can express the list.
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// Returns the list after a chmod of its file to `mode`.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Acl {
        let group = self.group_class();
        for entry in &mut self.0 {
            match entry.tag {
                Tag::Owner => entry.permissions = (mode >> 6 & 7) as u16,
                Tag::Others => entry.permissions = (mode & 7) as u16,
                tag if tag == group => entry.permissions = (mode >> 3 & 7) as u16,
                _ => {}
            }
        }
        self
    }

    /// Returns the access list of a file created with `mode` in a directory with this default list:
    /// each class gets only the permissions that both the list and `mode` grant.
    #[must_use]
    pub fn for_new(self, mode: u32) -> Acl {
        let mode = self.mode() & mode;
        self.with_mode(mode)
    }
}

#[cfg(test)]
#[path = "acl_tests.rs"]
mod tests;
