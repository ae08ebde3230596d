//! Layouts of the on-disk structures. They are asserted at compile time, and `cargo xtask docs`
//! generates the tables in `docs/FORMAT.md` from them.

/// A field of an on-disk structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    pub name: &'static str,
    pub offset: usize,
    pub bytes: usize,
    /// A note for readers of the generated table; may be empty.
    pub note: &'static str,
}

/// An on-disk structure with its fields in order.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub bytes: usize,
    pub fields: &'static [Field],
}

impl Layout {
    /// Returns the fields as a Markdown table (`cargo xtask docs`).
    pub fn table(&self) -> String {
        let mut out = String::from("| offset | bytes | field | |\n|---|---|---|---|\n");
        for Field { name, offset, bytes, note } in self.fields {
            out += &format!("| {offset} | {bytes} | `{name}` | {note} |\n");
        }
        out
    }
}

/// `layout!(NAME: Struct, size, { field: offset, bytes, "note"; … })` defines `NAME` as a
/// [`Layout`] and asserts at compile time the size of the structure and the offset and size of each
/// field. The fields must be listed in order and without gaps, so that no field can be missing.
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
        /// Field offsets and sizes of the structure, asserted at compile time.
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
