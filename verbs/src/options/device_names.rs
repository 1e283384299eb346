//! Names of the devices that unmodified programs see (`UWARP_NAME`).

use std::fmt;
use std::str::FromStr;

/// Name of a device, unless programs are to see another.
pub(crate) const DEFAULT_NAME: &str = "uwarp0";

/// Names of the devices that unmodified programs see: one or more, each different. As text they are
/// separated by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceNames(Vec<String>);

impl DeviceNames {
    /// The longest name, in bytes: `ibv_device` has room for 63 and a zero.
    pub const MAX_LEN: usize = 63;

    /// Returns the names, at least one.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl Default for DeviceNames {
    /// Returns one name, that of [`Device::name`](crate::Device::name).
    fn default() -> Self {
        Self(vec![DEFAULT_NAME.to_owned()])
    }
}

impl fmt::Display for DeviceNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// Error of a text that is not a list of names of devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceNamesError {
    /// A name is empty, or has other characters than letters, digits, `_` and `-`.
    #[error("a name is '{0}'; expected 1 to 63 letters, digits, '_' or '-'")]
    Name(String),
    /// A name is longer than [`DeviceNames::MAX_LEN`].
    #[error("a name has {0} bytes; expected 1 to 63 letters, digits, '_' or '-'")]
    TooLong(usize),
    /// Two devices have the same name.
    #[error("two devices are named '{0}'; expected different names")]
    Twice(String),
}

impl FromStr for DeviceNames {
    type Err = DeviceNamesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut names = Vec::new();
        for name in text.split(',') {
            let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_valid) {
                return Err(DeviceNamesError::Name(name.to_owned()));
            }
            if name.len() > Self::MAX_LEN {
                return Err(DeviceNamesError::TooLong(name.len()));
            }
            if names.iter().any(|other| other == name) {
                return Err(DeviceNamesError::Twice(name.to_owned()));
            }
            names.push(name.to_owned());
        }
        Ok(Self(names))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> DeviceNamesError {
        text.parse::<DeviceNames>().unwrap_err()
    }

    #[test]
    fn names_are_separated_by_commas() {
        for text in ["uwarp0", "mlx5_0,mlx5_1", "a-b,B,0", &"n".repeat(63)] {
            assert_eq!(text.parse::<DeviceNames>().unwrap().to_string(), text);
        }
        let names: DeviceNames = "mlx5_0,mlx5_1".parse().unwrap();
        assert!(names.iter().eq(["mlx5_0", "mlx5_1"]));
        assert!(DeviceNames::default().iter().eq(["uwarp0"]));
    }

    #[test]
    fn a_name_with_other_characters_or_without_any_is_refused() {
        for (text, name) in [
            ("", ""),
            ("a,", ""),
            (",a", ""),
            ("mlx5 0", "mlx5 0"),
            ("a,b/c", "b/c"),
            ("..", ".."),
            ("n\u{e4}me", "n\u{e4}me"),
        ] {
            assert_eq!(error(text), DeviceNamesError::Name(name.to_owned()));
        }
    }

    #[test]
    fn a_name_that_is_too_long_or_given_twice_is_refused() {
        assert_eq!(error(&"n".repeat(64)), DeviceNamesError::TooLong(64));
        assert_eq!(error("a,b,a"), DeviceNamesError::Twice("a".to_owned()));
    }
}
