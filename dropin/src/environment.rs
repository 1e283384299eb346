//! Settings from the environment (`UWARP_...`), for programs that have no flags for them. `uwarp
//! run` sets these variables.

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use uwarp_verbs::environment::{DeviceNames, FLAG_VALUES, flag, variable};
use uwarp_verbs::llp::DeviceSpec;
use uwarp_verbs::{OnNoReceive, Peer, RendezvousOptions, Revision, Settings};

use crate::persona::Persona;
use crate::qp::pair::{PairSettings, Patience};

/// Default maximum time that a message from the peer waits for the program to post a receive
/// (`UWARP_HOLD`). InfiniBand retransmits such a message up to seven times, or without limit. iWARP
/// has no counterpart. Most programs that rely on these retries post a receive within milliseconds.
const HOLD: Duration = Duration::from_secs(10);

/// Default time during which a refused TCP connection is tried again (`UWARP_CONNECT_RETRY`). A
/// client and a server are often started at the same time. InfiniBand's connection manager repeats
/// the request until the server listens, but TCP refuses the connection immediately.
const CONNECT_RETRY: Duration = Duration::from_secs(3);

/// Default minimum time that a send waits for a peer that is named by its number
/// (`UWARP_OOB_TIMEOUT`). Programs choose some two seconds for hardware, which does not stall as
/// long as a busy machine does.
const PATIENCE: Patience = Patience {
    least: Duration::from_secs(5),
    most: None,
};

/// Settings found in the environment.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) device: DeviceSpec,
    /// Kind of device that the program sees (`UWARP_PERSONA`).
    pub(crate) persona: Persona,
    /// Names of the devices that the program sees (`UWARP_NAME`).
    pub(crate) names: DeviceNames,
    pub(crate) pcap: Option<PathBuf>,
    pub(crate) settings: Settings,
    /// Ports and sources of queue pairs that are connected by their numbers (`UWARP_OOB_PORTS`,
    /// `UWARP_OOB_SOURCE`).
    pub(crate) rendezvous: RendezvousOptions,
    pub(crate) pairs: PairSettings,
    /// True if the library prints no messages on standard error (`UWARP_QUIET`).
    pub(crate) quiet: bool,
    /// Number added to each port of a program (`UWARP_PORT_OFFSET`). RDMA ports are TCP ports here.
    /// A program that uses one number for an RDMA port and a TCP port would find the port in use.
    pub(crate) port_offset: u16,
}

impl Environment {
    /// Reads the environment.
    ///
    /// # Errors
    /// Returns a message that names the variable with an invalid value, and the valid values.
    pub(crate) fn read() -> Result<Self, String> {
        Self::from(variable)
    }

    pub(crate) fn from(var: impl Fn(&str) -> Option<OsString>) -> Result<Self, String> {
        let crc = choice(&var, "UWARP_CRC", &[("on", true), ("off", false)])?.unwrap_or(true);
        let mut settings = Settings::default()
            .crc(crc)
            // perftest's `ib_send_bw -e` waits for these events.
            .event_on_write(switch(&var, "UWARP_WRITE_EVENTS")?.unwrap_or(true));
        settings.markers =
            choice(&var, "UWARP_MARKERS", &[("on", true), ("off", false)])?.unwrap_or(false);
        settings.fpdu_segments =
            parse(&var, "UWARP_FPDU_SEGMENTS", "a number of TCP segments")?.unwrap_or_default();
        let revisions = [("1", Revision::One), ("2", Revision::Two)];
        settings.send_in_place = switch(&var, "UWARP_SEND_IN_PLACE")?.unwrap_or(false);
        if let Some(revision) = choice(&var, "UWARP_MPA", &revisions)? {
            (settings.revision, settings.accept_revision) = (revision, revision);
        }
        let peers = [("rfc", Peer::Rfc), ("siw", Peer::Siw)];
        settings.peer = choice(&var, "UWARP_PEER", &peers)?.unwrap_or(Peer::Rfc);
        let persona = persona(&var, settings.peer, settings.revision)?;
        let placed_writes = switch(&var, "UWARP_PLACED_WRITES")?;
        settings.placed_writes = placed_writes.unwrap_or(false);
        let what = "a number of milliseconds, or the minimum and the maximum, such as 1000-5000";
        let patience = parse(&var, "UWARP_OOB_TIMEOUT", what)?;
        let pairs = PairSettings {
            patience: patience.unwrap_or(PATIENCE),
            // Programs that exchange queue pair numbers tell of their Writes by another connection.
            placed_writes: placed_writes.unwrap_or(true),
        };
        // Programs written for libibverbs expect that either side may send first. A siw client
        // cannot request the MPA model in which the server may send first.
        settings.send_first = settings.peer == Peer::Siw;
        let strict = switch(&var, "UWARP_STRICT")?.unwrap_or(false);
        let hold = parse(&var, "UWARP_HOLD", "a number of milliseconds")?;
        let retry = parse(&var, "UWARP_CONNECT_RETRY", "a number of milliseconds")?;
        settings.timeouts.refused = retry.map_or(CONNECT_RETRY, Duration::from_millis);
        settings.on_no_receive = match (strict, hold) {
            (true, _) => OnNoReceive::Terminate,
            (false, hold) => OnNoReceive::Hold(hold.map_or(HOLD, Duration::from_millis)),
        };
        let device = match parse::<DeviceSpec>(
            &var,
            "UWARP_DEVICE",
            "a device ('uwarp run --help' lists them)",
        )? {
            Some(device) => device,
            None => "tcp".parse().map_err(|error| format!("{error}"))?,
        };
        Ok(Environment {
            device,
            persona,
            names: parse(&var, "UWARP_NAME", "names of devices, separated by commas")?
                .unwrap_or_default(),
            pcap: var("UWARP_PCAP").map(PathBuf::from),
            settings,
            rendezvous: rendezvous(&var)?,
            pairs,
            port_offset: parse(&var, "UWARP_PORT_OFFSET", "a number up to 65535")?.unwrap_or(0),
            quiet: switch(&var, "UWARP_QUIET")?.unwrap_or(false),
        })
    }
}

/// Reads the persona. A siw peer and MPA revision 1 imply `iwarp` and exclude `roce`, because only
/// librdmacm connects them.
fn persona(
    var: &impl Fn(&str) -> Option<OsString>,
    peer: Peer,
    revision: Revision,
) -> Result<Persona, String> {
    let personas = [("iwarp", Persona::Iwarp), ("roce", Persona::Roce)];
    match choice(var, "UWARP_PERSONA", &personas)? {
        Some(Persona::Roce) if peer == Peer::Siw => Err(
            "UWARP_PERSONA is 'roce' and UWARP_PEER is 'siw'; siw is an iWARP device, which \
             connects by librdmacm only: use UWARP_PERSONA=iwarp with it, or UWARP_PEER=rfc for a \
             peer that is uwarp"
                .to_owned(),
        ),
        Some(Persona::Roce) if revision == Revision::One => Err(
            "UWARP_PERSONA is 'roce' and UWARP_MPA is '1'; queue pairs are connected by their \
             numbers with MPA revision 2 only: leave one of the two out"
                .to_owned(),
        ),
        Some(asked) => Ok(asked),
        None if peer == Peer::Siw || revision == Revision::One => Ok(Persona::Iwarp),
        None => Ok(Persona::Roce),
    }
}

/// Reads the options for queue pairs that are connected by their numbers.
fn rendezvous(var: &impl Fn(&str) -> Option<OsString>) -> Result<RendezvousOptions, String> {
    let sources = [("check", false), ("any", true)];
    let any_source = choice(var, "UWARP_OOB_SOURCE", &sources)?.unwrap_or(false);
    let what = "two ports from 1024 on, such as 20000-20099";
    let ports = parse::<Ports>(var, "UWARP_OOB_PORTS", what)?;
    let options = RendezvousOptions::default().any_source(any_source);
    Ok(options.ports(ports.map(|Ports(first, last)| first..=last)))
}

impl FromStr for Patience {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let time = |text: &str| {
            let number = text.parse().map_err(|error| format!("'{text}': {error}"));
            number.map(Duration::from_millis)
        };
        let Some((least, most)) = text.split_once('-') else {
            let least = time(text)?;
            return Ok(Patience { least, most: None });
        };
        let (least, most) = (time(least)?, time(most)?);
        if least > most {
            return Err("the minimum is above the maximum".to_owned());
        }
        let most = Some(most);
        Ok(Patience { least, most })
    }
}

/// A range of ports, both ends included.
struct Ports(u16, u16);

impl FromStr for Ports {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, last) = text.split_once('-').ok_or("there is no '-'")?;
        let port = |text: &str| text.parse::<u16>().map_err(|_| "an end is no port");
        match (port(first)?, port(last)?) {
            (first, last) if first > last => Err("the first is above the last"),
            (first, _) if first < 1024 => Err("the first is below 1024"),
            (first, last) => Ok(Ports(first, last)),
        }
    }
}

/// Reads a variable that is on or off. The values are the same as on the command line.
fn switch(var: &impl Fn(&str) -> Option<OsString>, name: &str) -> Result<Option<bool>, String> {
    let Some(value) = var(name) else {
        return Ok(None);
    };
    value.to_str().and_then(flag).map(Some).ok_or_else(|| {
        let value = value.display();
        format!("{name} is '{value}'; expected {FLAG_VALUES}")
    })
}

fn choice<T: Copy>(
    var: &impl Fn(&str) -> Option<OsString>,
    name: &str,
    choices: &[(&str, T)],
) -> Result<Option<T>, String> {
    let Some(value) = var(name) else {
        return Ok(None);
    };
    let found = choices.iter().find(|(word, _)| value == *word);
    let all: Vec<_> = choices.iter().map(|(word, _)| *word).collect();
    // The message shows replacement characters for bytes that are not UTF-8.
    found.map(|(_, choice)| Some(*choice)).ok_or_else(|| {
        format!(
            "{name} is '{}'; expected {}",
            value.display(),
            all.join(" or ")
        )
    })
}

fn parse<T: FromStr<Err: Display>>(
    var: &impl Fn(&str) -> Option<OsString>,
    name: &str,
    what: &str,
) -> Result<Option<T>, String> {
    let Some(value) = var(name) else {
        return Ok(None);
    };
    let wrong = |why: &dyn Display| {
        let value = value.display();
        format!("{name} is '{value}'; expected {what}: {why}")
    };
    let text = value.to_str().ok_or_else(|| wrong(&"it is not UTF-8"))?;
    text.parse().map(Some).map_err(|error| wrong(&error))
}

#[cfg(test)]
mod tests {
    use uwarp_verbs::FpduSegments;

    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Environment, String> {
        Environment::from(move |asked| (asked == name).then(|| value.into()))
    }

    #[test]
    fn without_variables_the_defaults_hold_messages_and_use_crc() {
        let environment = with("", "").unwrap();
        assert!(environment.settings.crc);
        assert_eq!(environment.settings.on_no_receive, OnNoReceive::Hold(HOLD));
        assert!(environment.settings.event_on_write);
        assert_eq!(environment.device.to_string(), "tcp");
    }

    #[test]
    fn the_settings_of_the_readme_are_all_variables_but_that_of_the_agent() {
        let readme = include_str!("../README.md");
        let rows = readme.lines().filter_map(|line| {
            let (name, _) = line.strip_prefix("| `")?.split_once("` |")?;
            name.starts_with("UWARP_").then_some(name)
        });
        let mut found: Vec<_> = rows.collect();
        found.sort_unstable();
        let mut all = uwarp_verbs::environment::VARIABLES.to_vec();
        all.retain(|name| *name != "UWARP_TOKEN");
        assert_eq!(found, all);
    }

    #[test]
    fn peers_that_only_librdmacm_connects_to_imply_the_persona_iwarp_and_exclude_roce() {
        let with = |persona: &'static str, peer: &'static str, revision: &'static str| {
            let found = Environment::from(|asked| {
                let value = match asked {
                    "UWARP_PERSONA" => persona,
                    "UWARP_PEER" => peer,
                    "UWARP_MPA" => revision,
                    _ => "",
                };
                (!value.is_empty()).then(|| value.into())
            });
            found.map(|found| found.persona)
        };
        for (persona, peer, revision, due) in [
            ("", "", "", Persona::Roce),
            ("", "rfc", "2", Persona::Roce),
            ("", "siw", "", Persona::Iwarp),
            ("", "", "1", Persona::Iwarp),
            ("roce", "rfc", "2", Persona::Roce),
            ("iwarp", "", "", Persona::Iwarp),
            ("iwarp", "siw", "1", Persona::Iwarp),
        ] {
            let found = with(persona, peer, revision);
            assert_eq!(found, Ok(due), "{persona} {peer} {revision}");
        }
        let error = with("roce", "", "1").unwrap_err();
        assert!(error.contains("UWARP_MPA is '1'"), "{error}");
        let error = with("roce", "siw", "").unwrap_err();
        let begin = "UWARP_PERSONA is 'roce' and UWARP_PEER is 'siw'; ";
        assert!(error.starts_with(begin), "{error}");
    }

    #[test]
    fn the_time_for_a_peer_is_a_minimum_or_a_minimum_and_a_maximum() {
        let time = |value| with("UWARP_OOB_TIMEOUT", value).map(|found| found.pairs.patience);
        let [least, most] = [200, 1000].map(Duration::from_millis);
        assert_eq!(time("200"), Ok(Patience { least, most: None }));
        let limited = Some(most);
        let both = Patience {
            least,
            most: limited,
        };
        assert_eq!(time("200-1000"), Ok(both));
        for value in ["", "-", "1000-", "-1000", "1000-200", "1-2-3", "1s"] {
            let error = time(value).unwrap_err();
            assert!(
                error.contains("expected a number of milliseconds"),
                "{error}"
            );
        }
    }

    #[test]
    fn ports_for_queue_pairs_are_a_range_of_ports_that_no_service_of_the_system_has() {
        let ports = |value| with("UWARP_OOB_PORTS", value).map(|found| found.rendezvous.ports);
        assert_eq!(with("", "").unwrap().rendezvous.ports, None);
        assert_eq!(ports("20000-20099"), Ok(Some(20000..=20099)));
        assert_eq!(ports("20000-20000"), Ok(Some(20000..=20000)));
        for value in [
            "20000",
            "20099-20000",
            "1000-2000",
            "20000-70000",
            "a-b",
            "-",
        ] {
            let error = ports(value).unwrap_err();
            assert!(error.contains("expected two ports from 1024 on"), "{error}");
        }
    }

    #[test]
    fn a_device_has_the_names_of_the_variable() {
        let names = |value| with("UWARP_NAME", value).map(|found| found.names.to_string());
        assert_eq!(with("", "").unwrap().names, DeviceNames::default());
        assert_eq!(names("mlx5_0,mlx5_1"), Ok("mlx5_0,mlx5_1".to_owned()));
        assert_eq!(
            names("mlx5_0,mlx5_0").unwrap_err(),
            "UWARP_NAME is 'mlx5_0,mlx5_0'; expected names of devices, separated by commas: \
             two devices are named 'mlx5_0'; expected different names"
        );
    }

    #[test]
    fn fpdus_go_over_several_segments_only_when_that_is_asked_for() {
        let segments =
            |value| with("UWARP_FPDU_SEGMENTS", value).map(|found| found.settings.fpdu_segments);
        assert_eq!(
            with("", "").unwrap().settings.fpdu_segments,
            FpduSegments::ONE
        );
        assert_eq!(segments("45"), Ok(FpduSegments::new(45).unwrap()));
        for (value, words) in [
            ("0", "at least; expected 1 to 506"),
            ("507", "expected 1 to 506"),
            ("all", "not a number"),
        ] {
            let error = segments(value).unwrap_err();
            assert!(
                error.contains("UWARP_FPDU_SEGMENTS is '") && error.contains(words),
                "{error}"
            );
        }
    }

    #[test]
    fn payload_with_a_crc_is_sent_in_place_only_when_that_is_asked_for() {
        let in_place = |value| with("UWARP_SEND_IN_PLACE", value).unwrap().settings;
        for value in ["1", "yes", "on", "TRUE"] {
            assert!(in_place(value).send_in_place, "{value}");
        }
        for value in ["0", "no", "off", "False"] {
            assert!(!in_place(value).send_in_place, "{value}");
        }
        let error = with("UWARP_SEND_IN_PLACE", "perhaps").unwrap_err();
        assert!(error.ends_with(FLAG_VALUES), "{error}");
        assert!(!with("", "").unwrap().settings.send_in_place);
    }

    #[test]
    fn a_refused_connection_is_asked_for_again_unless_the_program_says_otherwise() {
        let refused = |value| {
            let environment = with("UWARP_CONNECT_RETRY", value).unwrap();
            environment.settings.timeouts.refused
        };
        assert_eq!(refused("0"), Duration::ZERO);
        assert_eq!(refused("250"), Duration::from_millis(250));
        let settings = with("", "").unwrap().settings;
        assert_eq!(settings.timeouts.refused, CONNECT_RETRY);
    }

    #[test]
    fn a_server_may_send_first_to_siw_alone() {
        // Other clients can ask for the peer-to-peer model of RFC 6581. Without it the server has
        // to wait (RFC 5044 section 7.1.2).
        assert!(with("UWARP_PEER", "siw").unwrap().settings.send_first);
        assert!(!with("UWARP_PEER", "rfc").unwrap().settings.send_first);
        assert!(!with("", "").unwrap().settings.send_first);
    }

    #[test]
    fn writes_send_events_unless_the_program_says_otherwise() {
        let events = |value| {
            let environment = with("UWARP_WRITE_EVENTS", value).unwrap();
            environment.settings.event_on_write
        };
        assert!(events("1"));
        assert!(!events("0"));
    }

    #[test]
    fn writes_wait_for_their_placement_on_queue_pairs_connected_by_number_unless_a_value_says_other()
     {
        let placed = |value| {
            let found = with("UWARP_PLACED_WRITES", value).unwrap();
            (found.settings.placed_writes, found.pairs.placed_writes)
        };
        assert_eq!(placed("1"), (true, true));
        assert_eq!(placed("0"), (false, false));
        let unset = with("", "").unwrap();
        assert!(!unset.settings.placed_writes && unset.pairs.placed_writes);
    }

    #[test]
    fn strict_terminates_where_no_receive_is_posted() {
        let environment = with("UWARP_STRICT", "1").unwrap();
        assert_eq!(environment.settings.on_no_receive, OnNoReceive::Terminate);
    }

    #[test]
    fn a_value_that_means_nothing_is_named_with_what_it_may_be() {
        let error = with("UWARP_CRC", "yes").unwrap_err();
        assert_eq!(error, "UWARP_CRC is 'yes'; expected on or off");
        let error = with("UWARP_HOLD", "soon").unwrap_err();
        assert!(error.starts_with("UWARP_HOLD is 'soon'; expected a number of milliseconds"));
    }

    #[test]
    fn a_value_that_is_no_text_is_not_taken_for_none() {
        use std::os::unix::ffi::OsStringExt as _;
        const ALL: [(&str, &str); 19] = [
            ("UWARP_DEVICE", "expected a device"),
            ("UWARP_PERSONA", "expected iwarp or roce"),
            ("UWARP_NAME", "expected names of devices"),
            ("UWARP_PLACED_WRITES", "expected 1 or 0"),
            ("UWARP_OOB_PORTS", "expected two ports"),
            ("UWARP_OOB_SOURCE", "expected check or any"),
            ("UWARP_OOB_TIMEOUT", "expected a number"),
            ("UWARP_CRC", "expected on or off"),
            ("UWARP_MARKERS", "expected on or off"),
            ("UWARP_FPDU_SEGMENTS", "expected a number"),
            ("UWARP_SEND_IN_PLACE", "expected 1 or 0"),
            ("UWARP_MPA", "expected 1 or 2"),
            ("UWARP_PEER", "expected rfc or siw"),
            ("UWARP_STRICT", "expected 1 or 0"),
            (
                "UWARP_HOLD",
                "expected a number of milliseconds: it is not UTF-8",
            ),
            ("UWARP_CONNECT_RETRY", "expected a number"),
            ("UWARP_PORT_OFFSET", "expected a number"),
            ("UWARP_QUIET", "expected 1 or 0"),
            ("UWARP_PCAP", ""),
        ];
        let value = || OsString::from_vec(b"on\xff".to_vec());
        for (name, expected) in ALL {
            let found = Environment::from(|asked| (asked == name).then(value));
            match found {
                // A file name need not be UTF-8.
                Ok(found) => assert_eq!((name, found.pcap), ("UWARP_PCAP", Some(value().into()))),
                Err(error) => {
                    let begin = format!("{name} is 'on\u{fffd}'; expected ");
                    assert!(
                        error.starts_with(&begin) && error.contains(expected),
                        "{error}"
                    );
                    assert_ne!(name, "UWARP_PCAP");
                }
            }
        }
    }
}
