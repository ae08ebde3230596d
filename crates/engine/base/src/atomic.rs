//! Atomic types with the interface of `std::sync::atomic`. With the feature `simulated`, the
//! scheduler of a [`crate::machine`] may switch to another thread before each atomic operation,
//! except before [`Ordering::Relaxed`] operations: those only count and measure, or a fence or a
//! lock orders them. The machine runs one thread at a time. So it explores interleavings but never
//! returns stale values; stale values are covered by the model checker of the tree's latches
//! (loom).

pub use std::sync::atomic::{Ordering, fence};

#[cfg(not(feature = "simulated"))]
pub use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

#[cfg(feature = "simulated")]
pub use on::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

#[cfg(feature = "simulated")]
mod on {
    use super::Ordering;
    use crate::machine::touch;

    #[track_caller]
    fn before<T>(value: &T, order: Ordering, writes: bool) {
        if order != Ordering::Relaxed {
            touch(value, writes);
        }
    }

    macro_rules! common {
        ($name:ident, $value:ty) => {
            /// Stands in for the type of the same name in `std::sync::atomic`.
            #[derive(Debug, Default)]
            pub struct $name(std::sync::atomic::$name);

            impl $name {
                pub const fn new(value: $value) -> $name {
                    $name(std::sync::atomic::$name::new(value))
                }

                #[track_caller]
                pub fn load(&self, order: Ordering) -> $value {
                    before(self, order, false);
                    self.0.load(order)
                }

                #[track_caller]
                pub fn store(&self, value: $value, order: Ordering) {
                    before(self, order, true);
                    self.0.store(value, order);
                }

                #[track_caller]
                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    before(self, order, true);
                    self.0.swap(value, order)
                }

                #[track_caller]
                pub fn compare_exchange(
                    &self,
                    old: $value,
                    new: $value,
                    order: Ordering,
                    failed: Ordering,
                ) -> Result<$value, $value> {
                    before(self, order, true);
                    self.0.compare_exchange(old, new, order, failed)
                }

                #[track_caller]
                pub fn compare_exchange_weak(
                    &self,
                    old: $value,
                    new: $value,
                    order: Ordering,
                    failed: Ordering,
                ) -> Result<$value, $value> {
                    before(self, order, true);
                    self.0.compare_exchange_weak(old, new, order, failed)
                }

                #[track_caller]
                pub fn fetch_update(
                    &self,
                    order: Ordering,
                    failed: Ordering,
                    f: impl FnMut($value) -> Option<$value>,
                ) -> Result<$value, $value> {
                    before(self, order, true);
                    self.0.fetch_update(order, failed, f)
                }

                pub fn get_mut(&mut self) -> &mut $value {
                    self.0.get_mut()
                }

                pub fn into_inner(self) -> $value {
                    self.0.into_inner()
                }
            }

            impl From<$value> for $name {
                fn from(value: $value) -> $name {
                    $name::new(value)
                }
            }
        };
    }

    macro_rules! fetch {
        ($name:ident, $value:ty: $($method:ident)*) => {
            impl $name {
                $(#[track_caller]
                pub fn $method(&self, value: $value, order: Ordering) -> $value {
                    before(self, order, true);
                    self.0.$method(value, order)
                })*
            }
        };
    }

    macro_rules! integer {
        ($($name:ident, $value:ty;)*) => {
            $(common!($name, $value);
            fetch!($name, $value: fetch_add fetch_sub fetch_max fetch_min fetch_and fetch_or fetch_xor);)*
        };
    }

    integer! {
        AtomicI64, i64;
        AtomicU8, u8;
        AtomicU32, u32;
        AtomicU64, u64;
        AtomicUsize, usize;
    }
    common!(AtomicBool, bool);
    fetch!(AtomicBool, bool: fetch_and fetch_or fetch_xor);
}
