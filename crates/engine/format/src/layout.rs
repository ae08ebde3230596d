//! Layouts of the on-disk structures: asserted at compile time, and the source of the tables in
//! `docs/FORMAT.md`.

/// A field of an on-disk structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    pub offset: usize,
    pub bytes: usize,
    /// A note for readers of the table; may be empty.
    pub note: &'static str,
}

/// An on-disk structure, its fields in their order.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub bytes: usize,
    pub fields: &'static [Field],
}

impl Layout {
    /// The fields as a Markdown table (`cargo xtask docs`).
    pub fn table(&self) -> String {
        let mut out = String::from("| offset | bytes | field | |\n|---|---|---|---|\n");
        for Field { name, offset, bytes, note } in self.fields {
            out += &format!("| {offset} | {bytes} | `{name}` | {note} |\n");
        }
        out
    }
}

/// `layout!(NAME: Struct, size, { field: offset, bytes, "note"; … })` makes `NAME` a [`Layout`] and
/// asserts at compile time the size of the structure, and the offset and size of each field. Fields
/// are listed in order and without gaps, so that none can be missing.
macro_rules! layout {
    ($name:ident: $raw:ty, $size:expr, { $($field:ident: $offset:expr, $bytes:expr $(, $note:literal)?;)* }) => {
        const _: () = {
            const fn size_of_field<T, F>(_: fn(T) -> F) -> usize {
                size_of::<F>()
            }
            let mut end = 0;
            $(
                assert!(std::mem::offset_of!($raw, $field) == $offset, stringify!($field));
                assert!(size_of_field(|raw: $raw| raw.$field) == $bytes, stringify!($field));
                assert!(end == $offset, concat!("a gap before ", stringify!($field)));
                end = $offset + $bytes;
            )*
            assert!(end == $size && size_of::<$raw>() == $size, "fields are missing");
        };
        /// Offsets and sizes, as asserted.
        pub const $name: crate::layout::Layout = crate::layout::Layout {
            bytes: $size,
            fields: &[$(crate::layout::Field {
                name: stringify!($field),
                offset: $offset,
                bytes: $bytes,
                note: concat!("", $($note)?),
            }),*],
        };
    };
}
pub(crate) use layout;
