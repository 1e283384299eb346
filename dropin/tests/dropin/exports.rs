//! Reads from the source how each name is implemented: from the blocks `exports!` and `absent!` of
//! `src/exports`.

use std::collections::BTreeMap;

const SOURCES: [(&str, &str); 4] = [
    ("verbs.rs", include_str!("../../src/exports/verbs.rs")),
    ("rdmacm.rs", include_str!("../../src/exports/rdmacm.rs")),
    ("rsockets.rs", include_str!("../../src/exports/rsockets.rs")),
    ("private.rs", include_str!("../../src/exports/private.rs")),
];

/// Kind of function to which a name refers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Implementation {
    /// A function of this library.
    Function,
    /// A function that only returns an error.
    Absent,
}

/// Returns all functions in the source, with their versions (`name@@VERSION`).
///
/// # Errors
/// Returns a message if a line of a block cannot be parsed.
pub(crate) fn names() -> Result<BTreeMap<String, Implementation>, String> {
    let mut names = BTreeMap::new();
    for (file, source) in SOURCES {
        let mut block = None;
        let mut version = None;
        for line in source.lines().map(str::trim) {
            match line {
                "exports! {" => block = Some(Implementation::Function),
                "absent! {" => block = Some(Implementation::Absent),
                "}" => (block, version) = (None, None),
                _ => {}
            }
            let Some(implementation) = &block else {
                continue;
            };
            if line.ends_with("! {") || line.is_empty() || line.starts_with("//") {
                continue;
            }
            if let Some(text) = line.strip_prefix('"') {
                version = text.strip_suffix('"').map(str::to_owned);
                continue;
            }
            let (Some(version), Some((name, _))) = (&version, line.split_once(" => ")) else {
                return Err(format!("{file}: not a line of a block of names: {line}"));
            };
            names.insert(format!("{name}{version}"), implementation.clone());
        }
    }
    Ok(names)
}
