//! Builder methods for structs of options. Other crates need them because they cannot construct a
//! `#[non_exhaustive]` struct.

/// Creates one method per field, with the name of the field: `Options::default().field(value)`.
/// With `const`, the methods are `const fn`, which requires fields without destructors.
macro_rules! setters {
    (const $type:ident { $($field:ident: $kind:ty,)* }) => {
        impl $type {
            $(setters!(@ $field: $kind, const);)*
        }
    };
    ($type:ident { $($field:ident: $kind:ty,)* }) => {
        impl $type {
            $(setters!(@ $field: $kind,);)*
        }
    };
    (@ $field:ident: $kind:ty, $($const:ident)?) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
        #[must_use]
        pub $($const)? fn $field(mut self, $field: $kind) -> Self {
            self.$field = $field;
            self
        }
    };
}
pub(crate) use setters;
