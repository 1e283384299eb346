//! Builder methods for the option structs of uwarp's crates. Other crates need them because the
//! structs are `#[non_exhaustive]`.

/// Defines one method per field, with the name of the field: `Options::default().field(value)`.
/// With `const` they are `const fn`, which requires fields without destructors.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    (const $type:ident { $($field:ident: $kind:ty,)* }) => {
        impl $type {
            $($crate::setters!(@ $field: $kind, const);)*
        }
    };
    ($type:ident { $($field:ident: $kind:ty,)* }) => {
        impl $type {
            $($crate::setters!(@ $field: $kind,);)*
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
