//! Options of the table in `uwarp_verbs::options`, as clap declares and reads them.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Error, value_parser};
use uwarp_verbs::options::{Chosen, Kind, OPTIONS, UserOption};

/// Lets clap make a struct of one field. `$args`: the declarations; `$read`: reads the field.
macro_rules! options_of_table {
    ($name:ident, $args:expr, $read:path) => {
        impl clap::FromArgMatches for $name {
            fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
                $read(matches).map($name)
            }

            fn update_from_arg_matches(
                &mut self,
                matches: &clap::ArgMatches,
            ) -> Result<(), clap::Error> {
                Self::from_arg_matches(matches).map(|new| *self = new)
            }
        }

        impl clap::Args for $name {
            fn augment_args(command: clap::Command) -> clap::Command {
                command.args($args)
            }

            fn augment_args_for_update(command: clap::Command) -> clap::Command {
                Self::augment_args(command)
            }
        }
    };
}
pub(crate) use options_of_table;

/// Declares an option without variable, default and help. The name of its variable is the id.
pub(crate) fn flag(option: &'static UserOption) -> Option<Arg> {
    let arg = Arg::new(option.variable).long(option.flag?);
    let check = move |text: &str| {
        let result = option.set(&mut Chosen::default(), OsStr::new(text));
        result.map(|()| text.to_owned())
    };
    let possible = |(word, help): &(&'static str, &'static str)| match *help {
        "" => PossibleValue::new(*word),
        help => PossibleValue::new(*word).help(help),
    };
    Some(match option.kind {
        Kind::Word(words, _) => arg
            .value_name(option.value_name)
            .value_parser(PossibleValuesParser::new(words.iter().map(possible))),
        Kind::Switch(_) => arg.action(ArgAction::SetTrue).value_parser(check),
        Kind::Path(_) => arg
            .value_name(option.value_name)
            .value_parser(value_parser!(PathBuf)),
        Kind::Text(..) => arg.value_name(option.value_name).value_parser(check),
    })
}

/// Declares an option with its variable and its default.
fn with_variable(option: &'static UserOption) -> Option<Arg> {
    let arg = flag(option)?.env(option.variable).hide_env_values(true);
    Some(match (option.kind, option.default) {
        (Kind::Switch(_), _) | (_, None) => arg,
        (_, Some(default)) => arg.default_value(default),
    })
}

/// Declares the options of the commands that open a device: those whose name `is_wanted`.
pub(crate) fn of_devices(is_wanted: fn(&str) -> bool) -> impl Iterator<Item = Arg> {
    let wanted = OPTIONS
        .iter()
        .filter(move |option| option.flag.is_some_and(is_wanted));
    wanted.filter_map(|option| {
        let help = option.help?;
        let arg = with_variable(option)?.help_heading("Protocol and capture");
        Some(match help.split_once("\n\n") {
            None => arg.help(help),
            Some((short, _)) => arg.help(short).long_help(help),
        })
    })
}

/// Declares options that mean something else to a command. `helps`: their names, and the help.
pub(crate) fn with_help(
    helps: &'static [(&'static str, &'static str)],
) -> impl Iterator<Item = Arg> {
    OPTIONS.iter().filter_map(|option| {
        let (_, help) = helps.iter().find(|(name, _)| option.flag == Some(*name))?;
        Some(with_variable(option)?.help(*help))
    })
}

/// Reads the options of the table that the command has: from the command line, a variable, or the
/// default.
pub(crate) fn chosen(matches: &ArgMatches) -> Result<Chosen, Error> {
    let mut chosen = Chosen::default();
    for option in OPTIONS {
        // It is an error if the command does not have the option.
        let values = matches.try_get_raw(option.variable).unwrap_or_default();
        for value in values.into_iter().flatten() {
            let result = option.set(&mut chosen, value);
            result.map_err(|why| Error::raw(ErrorKind::ValueValidation, why))?;
        }
    }
    Ok(chosen)
}

/// Reads the options of the table that were given on the command line. Returns the values that
/// their variables take.
pub(crate) fn given(matches: &ArgMatches) -> Result<Vec<(&'static UserOption, OsString)>, Error> {
    let value = |option: &'static UserOption| {
        let values = matches.try_get_raw(option.variable).ok()??;
        let value = match option.kind {
            Kind::Switch(_) => "1".into(),
            _ => values.collect::<Vec<_>>().join(OsStr::new(",")),
        };
        let is_given = matches.value_source(option.variable) == Some(ValueSource::CommandLine);
        is_given.then_some((option, value))
    };
    Ok(OPTIONS.iter().filter_map(value).collect())
}
