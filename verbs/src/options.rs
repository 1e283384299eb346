//! Options that users set: on the command line, and by environment variables (`UWARP_...`).
//!
//! [`OPTIONS`] is the table of them. Everything else is made from it:
//! * the options of the commands, with their help (`cli/src/options.rs`);
//! * the flags of `uwarp run`, which become variables of the program;
//! * the variables that the library for unmodified programs reads ([`Chosen::from_variables`]);
//! * the names that are known ([`unknown_variables`](crate::environment::unknown_variables)).

mod device_names;
mod table;

use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uwarp_llp::DeviceSpec;

use crate::settings::Settings;
pub(crate) use device_names::DEFAULT_NAME;
pub use device_names::{DeviceNames, DeviceNamesError};
pub use table::OPTIONS;

/// An option that users set.
#[derive(Debug)]
#[non_exhaustive]
pub struct UserOption {
    /// Name of the environment variable.
    pub variable: &'static str,
    /// Name on the command line, without `--`. `None`: there is only the variable.
    pub flag: Option<&'static str>,
    /// Name of the value in help texts.
    pub value_name: &'static str,
    /// Valid values, and what they change.
    pub kind: Kind,
    /// Value if the user gives none. `None`: then the option changes nothing.
    pub default: Option<&'static str>,
    /// Help of the commands that open a device. `None`: they do not have the option. A blank line
    /// separates the short help from what only `--help` shows.
    pub help: Option<&'static str>,
    /// Help of `uwarp run`, where it differs from `help`.
    pub run_help: Option<&'static str>,
}

/// Valid values of an option, and what they change.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// One of some words.
    Word(Words, fn(&mut Chosen, &str)),
    /// On or off. The flag takes no value and means on.
    Switch(fn(&mut Chosen, bool)),
    /// A path, which need not be UTF-8.
    Path(fn(&mut Chosen, &Path)),
    /// Text, with its description for errors.
    Text(&'static str, ReadText),
}

/// Words and their explanations, which may be empty.
pub type Words = &'static [(&'static str, &'static str)];

/// Reads a text, or says what is wrong with it.
pub type ReadText = fn(&mut Chosen, &str) -> Result<(), String>;

/// Values that the options of a command or the variables of a process select. Where nothing was
/// set and there is no default, a field has the default of its type.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Chosen {
    /// Network.
    pub device: DeviceSpec,
    /// File of the capture.
    pub pcap: Option<PathBuf>,
    /// Settings of the device.
    pub settings: Settings,
    /// Kind of device that unmodified programs see: RoCE if true, iWARP if false. `None`: the kind
    /// that fits the peer.
    pub roce: Option<bool>,
    /// Ports for queue pairs that are connected by their numbers. `None`: the system chooses.
    pub oob_ports: Option<RangeInclusive<u16>>,
    /// Accepts calls to such queue pairs from any address.
    pub oob_any_source: bool,
    /// Minimum time that a send waits for a peer that is named by its number.
    pub oob_timeout: Duration,
    /// Maximum of this time.
    pub oob_max_timeout: Option<Duration>,
    /// Names of the devices that unmodified programs see.
    pub names: DeviceNames,
    /// Ends a connection whose message finds no receive.
    pub strict: bool,
    /// Time to hold such a message, unless `strict` is set.
    pub hold: Duration,
    /// A Write completes when the peer has placed it. `None`: only on queue pairs that are
    /// connected by their numbers.
    pub placed_writes: Option<bool>,
    /// Number added to each port of an unmodified program, which may use the same number for TCP.
    pub port_offset: u16,
    /// Prints no messages on standard error.
    pub quiet: bool,
}

impl UserOption {
    /// Applies a value.
    ///
    /// # Errors
    /// Says what is wrong with the value, or what was expected.
    pub fn set(&self, chosen: &mut Chosen, value: &OsStr) -> Result<(), String> {
        match self.kind {
            Kind::Word(words, set) => {
                let found = words.iter().find(|(word, _)| *value == **word);
                let (word, _) = found.ok_or_else(|| {
                    let all: Vec<_> = words.iter().map(|(word, _)| *word).collect();
                    format!("expected {}", all.join(" or "))
                })?;
                set(chosen, word);
            }
            Kind::Switch(set) => {
                let on = value.to_str().and_then(flag);
                set(
                    chosen,
                    on.ok_or("expected 1 or 0 (also on or off, yes or no, true or false)")?,
                );
            }
            Kind::Path(set) => set(chosen, Path::new(value)),
            Kind::Text(_, set) => set(chosen, value.to_str().ok_or("it is not UTF-8")?)?,
        }
        Ok(())
    }
}

impl Chosen {
    /// Reads the variables of all options. An option whose variable is not set gets its default.
    ///
    /// # Errors
    /// Names the variable with an invalid value, and the valid values.
    pub fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, String> {
        let mut chosen = Self::default();
        for option in OPTIONS {
            let name = option.variable;
            let default = || option.default.map(OsString::from);
            let Some(value) = variable(name).or_else(default) else {
                continue;
            };
            option.set(&mut chosen, &value).map_err(|why| {
                // Bytes that are not UTF-8 become replacement characters.
                let value = value.display();
                match option.kind {
                    Kind::Text(expected, _) => {
                        format!("{name} is '{value}'; expected {expected}: {why}")
                    }
                    _ => format!("{name} is '{value}'; {why}"),
                }
            })?;
        }
        Ok(chosen)
    }
}

/// Returns true if `value` means on, and false if it means off. Returns `None` for any other value.
fn flag(value: &str) -> Option<bool> {
    let is_one_of = |words: [&str; 4]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    if is_one_of(["1", "on", "yes", "true"]) {
        Some(true)
    } else if is_one_of(["0", "off", "no", "false"]) {
        Some(false)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_has_words_for_both_and_no_other_ones() {
        for (word, meaning) in [
            ("1", Some(true)),
            ("on", Some(true)),
            ("YES", Some(true)),
            ("True", Some(true)),
            ("0", Some(false)),
            ("off", Some(false)),
            ("No", Some(false)),
            ("false", Some(false)),
            ("", None),
            ("2", None),
            ("perhaps", None),
        ] {
            assert_eq!(flag(word), meaning, "{word}");
        }
    }

    #[test]
    fn every_option_has_a_valid_default_and_one_name() {
        for option in OPTIONS {
            let name = option.variable;
            if let Some(flag) = option.flag {
                let upper = flag.to_uppercase().replace('-', "_");
                assert_eq!(name, format!("UWARP_{upper}"));
            }
            let has_help = option.help.or(option.run_help).is_some();
            assert_eq!(has_help, option.flag.is_some(), "{name}");
            let same = OPTIONS.iter().filter(|other| other.variable == name);
            assert_eq!(same.count(), 1, "{name}");
        }
        let chosen = Chosen::from_variables(|_| None).unwrap();
        assert_eq!(chosen.hold, Duration::from_secs(10));
    }
}
