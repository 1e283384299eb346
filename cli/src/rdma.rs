//! The command `rdma` for programs that call `rdma link show -j`, as iproute2 has it.
//!
//! `uwarp run` with `--preload` or `--sysfs namespace` puts a link to this executable, with that
//! name, first into the PATH. It shows what is in `/sys/class/infiniband`: there programs find
//! uwarp's device, and this one as well. It runs the next `rdma` of the PATH for everything else.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, iter};

use rustix::fs::{Access, access};

use crate::failure::{Failure, Report};
use crate::output::Output;

/// Name of the command.
pub(crate) const NAME: &str = "rdma";
const CLASS: &str = "/sys/class/infiniband";
const NET: &str = "/sys/class/net";

/// Kind of objects to show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Object {
    Devices,
    Links,
}

/// Objects to show, and their form.
#[derive(PartialEq, Eq, Debug)]
struct Asked {
    object: Object,
    json: bool,
    /// JSON of several lines.
    pretty: bool,
    /// More in the text: the index of the interface.
    details: bool,
    /// Name of the only device to show.
    device: Option<String>,
    /// Number of the only port to show.
    port: Option<u32>,
}

/// An attribute of an object: its name in JSON, the words before it in the text (`None`: not in the
/// text), and its value.
type Attribute = (&'static str, Option<&'static str>, Value);

enum Value {
    Number(u64),
    Text(String),
}

/// Returns true if the executable was called by the name `rdma`.
pub(crate) fn is_called() -> bool {
    let name = env::args_os().next();
    name.is_some_and(|name| Path::new(&name).file_name() == Some(OsStr::new(NAME)))
}

/// Shows devices or links, or runs the next `rdma` of the PATH.
pub(crate) fn run() -> Result<(), Failure> {
    let args: Vec<OsString> = env::args_os().skip(1).collect();
    let words: Option<Vec<&str>> = args.iter().map(|arg| arg.to_str()).collect();
    let Some(asked) = words.and_then(|words| asked(&words)) else {
        return run_next(&args);
    };
    let class = Path::new(CLASS);
    let devices = names(class);
    if let Some(name) = asked.device.as_ref().filter(|name| !devices.contains(name)) {
        return Err(Report::new(format!("there is no RDMA device '{name}'"))
            .expected(match devices.as_slice() {
                [] => format!("none, because {CLASS} shows no device"),
                names => names.join(" or "),
            })
            .into());
    }
    let shown = devices.iter().enumerate();
    let shown = shown.filter(|(_, name)| asked.device.as_ref().is_none_or(|only| only == *name));
    let objects = shown.flat_map(|(index, name)| match asked.object {
        Object::Devices => vec![device(class, index, name)],
        Object::Links => links(class, index, name, asked.port),
    });
    let text = match asked.json {
        true => json(objects, asked.pretty),
        false => text(objects, &asked),
    };
    match text.as_str() {
        "" => Ok(()),
        text => Output::Stdout.line(text),
    }
}

/// Reads the arguments. Options may be anywhere, and words may be abbreviated, as in iproute2.
/// Returns `None` if it is something else than showing devices or links.
fn asked(args: &[&str]) -> Option<Asked> {
    let mut asked = Asked {
        object: Object::Links,
        json: false,
        pretty: false,
        details: false,
        device: None,
        port: None,
    };
    let mut words = Vec::new();
    for arg in args {
        match (*arg, arg.strip_prefix('-')) {
            ("--json", _) => asked.json = true,
            ("--pretty", _) => asked.pretty = true,
            ("--details", _) => asked.details = true,
            (_, Some(letters)) if !letters.is_empty() => {
                for letter in letters.chars() {
                    match letter {
                        'j' => asked.json = true,
                        'p' => asked.pretty = true,
                        'd' => asked.details = true,
                        _ => return None,
                    }
                }
            }
            (word, _) => words.push(word),
        }
    }
    let is = |word: &str, whole: &str| !word.is_empty() && whole.starts_with(word);
    let mut words = words.into_iter();
    asked.object = match words.next()? {
        word if is(word, "dev") => Object::Devices,
        word if is(word, "link") => Object::Links,
        _ => return None,
    };
    match words.next() {
        None => return Some(asked),
        Some(word) if is(word, "show") || is(word, "list") => {}
        Some(_) => return None,
    }
    if let Some(name) = words.next() {
        let (device, port) = name.split_once('/').unwrap_or((name, ""));
        asked.device = Some(device.to_owned());
        asked.port = match port {
            "" => None,
            port => Some(port.parse().ok()?),
        };
    }
    words.next().is_none().then_some(asked)
}

/// Returns the names in a directory, in order.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names
}

fn device(class: &Path, index: usize, name: &str) -> Vec<Attribute> {
    let read = |file: &str| value(&class.join(name).join(file));
    // "1: CA"
    let kind = read("node_type").map(|kind| last_word(&kind).to_lowercase());
    let mut all = vec![
        ("ifindex", Some(""), Value::Number(index as u64)),
        ("ifname", Some(": "), Value::Text(name.to_owned())),
    ];
    for (json, words, found) in [
        ("node_type", ": node_type ", kind),
        ("fw", " fw ", read("fw_ver")),
        ("node_guid", " node_guid ", read("node_guid")),
        ("sys_image_guid", " sys_image_guid ", read("sys_image_guid")),
    ] {
        all.extend(found.map(|found| (json, Some(words), Value::Text(found))));
    }
    all
}

fn links(class: &Path, index: usize, name: &str, only: Option<u32>) -> Vec<Vec<Attribute>> {
    let ports = class.join(name).join("ports");
    let numbers = names(&ports);
    let numbers = numbers.iter().filter_map(|name| name.parse::<u32>().ok());
    let numbers = numbers.filter(|number| only.is_none_or(|only| only == *number));
    numbers
        .map(|number| {
            let port = ports.join(number.to_string());
            let mut all = vec![
                ("ifindex", None, Value::Number(index as u64)),
                ("ifname", Some("link "), Value::Text(name.to_owned())),
                ("port", Some("/"), Value::Number(number.into())),
            ];
            // "4: ACTIVE"
            let state = value(&port.join("state")).map(|state| last_word(&state).to_owned());
            all.extend(state.map(|state| ("state", Some(" state "), Value::Text(state))));
            let physical = value(&port.join("phys_state")).map(|state| constant(last_word(&state)));
            all.extend(
                physical.map(|it| ("physical_state", Some(" physical_state "), Value::Text(it))),
            );
            if let Some(interface) = interface(&port) {
                let index = value(&Path::new(NET).join(&interface).join("ifindex"));
                all.push(("netdev", Some(" netdev "), Value::Text(interface)));
                let index = index.and_then(|index| index.parse().ok());
                all.extend(
                    index.map(|it| ("netdev_index", Some(" netdev_index "), Value::Number(it))),
                );
            }
            all
        })
        .collect()
}

/// Returns the interface of a port: that of its first GID that has one.
fn interface(port: &Path) -> Option<String> {
    let ndevs = port.join("gid_attrs/ndevs");
    let mut indices: Vec<u32> = names(&ndevs)
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    indices.sort_unstable();
    let mut found = indices
        .iter()
        .filter_map(|index| value(&ndevs.join(index.to_string())));
    found.next()
}

/// Returns the text of a file without the line end, unless it is empty or cannot be read.
fn value(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let text = text.trim_end();
    (!text.is_empty()).then(|| text.to_owned())
}

fn last_word(text: &str) -> &str {
    text.rsplit(' ').next().unwrap_or(text)
}

/// Returns `LinkUp` as `LINK_UP`, as iproute2 writes it.
fn constant(text: &str) -> String {
    let mut out = String::new();
    for (at, letter) in text.char_indices() {
        if at > 0 && letter.is_uppercase() {
            out.push('_');
        }
        out.extend(letter.to_uppercase());
    }
    out
}

fn text(objects: impl Iterator<Item = Vec<Attribute>>, asked: &Asked) -> String {
    let lines = objects.map(|attributes| {
        let mut line = String::new();
        for (name, words, value) in attributes {
            let is_detail = name == "netdev_index" && !asked.details;
            if let Some(words) = words.filter(|_| !is_detail) {
                let _ = match value {
                    Value::Number(number) => write!(line, "{words}{number}"),
                    Value::Text(text) => write!(line, "{words}{text}"),
                };
            }
        }
        line + " "
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn json(objects: impl Iterator<Item = Vec<Attribute>>, pretty: bool) -> String {
    let objects = objects.map(|attributes| {
        let pairs = attributes.into_iter().map(|(name, _, value)| {
            let value = match value {
                Value::Number(number) => number.into(),
                Value::Text(text) => serde_json::Value::from(text),
            };
            match pretty {
                true => format!("\n        \"{name}\": {value}"),
                false => format!("\"{name}\":{value}"),
            }
        });
        let end = if pretty { "\n    " } else { "" };
        format!("{{{}{end}}}", pairs.collect::<Vec<_>>().join(","))
    });
    let objects: Vec<_> = objects.collect();
    match pretty {
        true => format!("[ {} ]", objects.join(",")),
        false => format!("[{}]", objects.join(",")),
    }
}

/// Set to the path of each `rdma` that was called, so that none is called again.
const PASSED: &str = "_UWARP_RDMA_PASSED";

/// Becomes the next `rdma` of the PATH that is none of uwarp.
fn run_next(args: &[OsString]) -> Result<(), Failure> {
    let this = env::current_exe().and_then(fs::canonicalize);
    let passed = env::var_os(PASSED).unwrap_or_default();
    let passed: Vec<PathBuf> = env::split_paths(&passed).chain(this.ok()).collect();
    let path = env::var_os("PATH").unwrap_or_default();
    let places = env::split_paths(&path).filter(|place| place.is_absolute());
    // It is in a directory that the PATH of many users does not have.
    let places = places.chain(iter::once(PathBuf::from("/usr/sbin")));
    let files = places.map(|place| place.join(NAME));
    let mut files = files.filter(|file| {
        let real = fs::canonicalize(file);
        real.is_ok_and(|real| real.is_file() && !passed.contains(&real))
            && access(file, Access::EXEC_OK).is_ok()
    });
    let error = match files.next() {
        Some(next) => {
            // It may be a script that calls this command.
            let passed = passed.iter().cloned().chain(fs::canonicalize(&next).ok());
            match env::join_paths(passed) {
                Ok(passed) => Command::new(next).args(args).env(PASSED, passed).exec(),
                Err(error) => io::Error::other(error),
            }
        }
        None => io::Error::from(io::ErrorKind::NotFound),
    };
    Err(Report::new(format!(
        "uwarp's rdma shows devices and links only, and that of iproute2 cannot be run: {error}"
    ))
    .expected("rdma [-j] [-p] [-d] { link | dev } [ show [ DEV[/PORT] ] ]")
    .advice("install iproute2")
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_may_be_anywhere_and_words_may_be_short() {
        let links = |json, pretty| {
            Some(Asked {
                object: Object::Links,
                json,
                pretty,
                details: false,
                device: None,
                port: None,
            })
        };
        for args in [
            &["link", "show", "-j"][..],
            &["-j", "link"],
            &["--json", "l", "s"],
            &["link", "-j", "list"],
        ] {
            assert_eq!(asked(args), links(true, false), "{args:?}");
        }
        assert_eq!(asked(&["link", "show", "-jp"]), links(true, true));
        assert_eq!(asked(&["link"]), links(false, false));
        let port = asked(&["link", "show", "a/1"]).unwrap();
        assert_eq!((port.device.as_deref(), port.port), (Some("a"), Some(1)));
        let device = asked(&["dev", "show", "a"]).unwrap();
        assert_eq!(
            (device.object, device.device.as_deref(), device.port),
            (Object::Devices, Some("a"), None)
        );
        for other in [
            &[][..],
            &["-V"],
            &["link", "add", "rxe0"],
            &["link", "show", "a/x"],
            &["link", "show", "a", "b"],
            &["resource", "show"],
            &[""],
            &["-"],
        ] {
            assert_eq!(asked(other), None, "{other:?}");
        }
    }

    #[test]
    fn states_are_written_as_constants() {
        assert_eq!(constant("LinkUp"), "LINK_UP");
        assert_eq!(constant("Polling"), "POLLING");
        assert_eq!(last_word("4: ACTIVE"), "ACTIVE");
    }
}
