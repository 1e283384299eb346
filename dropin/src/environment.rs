//! Settings from the environment (`UWARP_...`), for programs that have no flags for them. `uwarp
//! run` sets these variables.

use std::ffi::OsString;

use uwarp_verbs::environment::variable;
use uwarp_verbs::options::Chosen;
use uwarp_verbs::{OnNoReceive, Peer, Revision};

use crate::persona::Persona;
use crate::qp::pair::{PairSettings, Patience};

/// Settings found in the environment.
#[derive(Debug)]
pub(crate) struct Environment {
    /// Values of the variables. The settings are complete.
    pub(crate) chosen: Chosen,
    /// Kind of device that the program sees (`UWARP_PERSONA`).
    pub(crate) persona: Persona,
    pub(crate) pairs: PairSettings,
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
        let mut chosen = Chosen::from_variables(var)?;
        let settings = &mut chosen.settings;
        let persona = persona(chosen.roce, settings.peer, settings.revision)?;
        settings.placed_writes = chosen.placed_writes.unwrap_or(false);
        // Programs written for libibverbs expect that either side may send first. A siw client
        // cannot request the MPA model in which the server may send first.
        settings.send_first = settings.peer == Peer::Siw;
        settings.on_no_receive = match chosen.strict {
            true => OnNoReceive::Terminate,
            false => OnNoReceive::Hold(chosen.hold),
        };
        let pairs = PairSettings {
            patience: Patience {
                least: chosen.oob_timeout,
                most: chosen.oob_max_timeout,
            },
            // Programs that exchange queue pair numbers tell of their Writes by another connection.
            placed_writes: chosen.placed_writes.unwrap_or(true),
        };
        Ok(Environment {
            chosen,
            persona,
            pairs,
        })
    }
}

/// Returns the persona. A siw peer and MPA revision 1 imply `iwarp` and exclude `roce`, because
/// only librdmacm connects them.
fn persona(roce: Option<bool>, peer: Peer, revision: Revision) -> Result<Persona, String> {
    let refusal = match (peer, revision) {
        (Peer::Siw, _) => {
            "UWARP_PERSONA is 'roce' and UWARP_PEER is 'siw'; siw is an iWARP device, which \
             connects by librdmacm only: use UWARP_PERSONA=iwarp with it, or UWARP_PEER=rfc for a \
             peer that is uwarp"
        }
        (_, Revision::One) => {
            "UWARP_PERSONA is 'roce' and UWARP_MPA is '1'; queue pairs are connected by their \
             numbers with MPA revision 2 only: leave one of the two out"
        }
        _ if roce == Some(false) => return Ok(Persona::Iwarp),
        _ => return Ok(Persona::Roce),
    };
    match roce {
        Some(true) => Err(refusal.to_owned()),
        _ => Ok(Persona::Iwarp),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use uwarp_verbs::environment::{LOG, TRACE};
    use uwarp_verbs::options::{DeviceNames, OPTIONS};
    use uwarp_verbs::{FpduSegments, Settings};

    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Environment, String> {
        Environment::from(move |asked| (asked == name).then(|| value.into()))
    }

    fn settings(name: &'static str, value: &'static str) -> Settings {
        with(name, value).unwrap().chosen.settings
    }

    #[test]
    fn without_variables_the_defaults_hold_messages_and_use_crc() {
        let chosen = with("", "").unwrap().chosen;
        let hold = OnNoReceive::Hold(Duration::from_secs(10));
        assert!(chosen.settings.crc && chosen.settings.event_on_write);
        assert_eq!(chosen.settings.on_no_receive, hold);
        assert_eq!(chosen.device.to_string(), "tcp");
    }

    /// Compares the first two columns (variable and flag), and the last one where an option has a
    /// default.
    #[test]
    fn the_settings_of_the_readme_are_those_of_the_table_of_options() {
        let readme = include_str!("../README.md");
        let mut rows = readme.lines().filter(|line| line.starts_with("| `UWARP_"));
        for option in OPTIONS {
            let row = rows.next().unwrap();
            let flag = option.flag.map(|flag| format!("`--{flag}` "));
            let flag = flag.unwrap_or_default();
            let begin = format!("| `{}` | {flag}| ", option.variable);
            assert!(row.starts_with(&begin), "{row}\n{begin}");
            let end = option.default.map(|value| format!("| `{value}` |"));
            assert!(row.ends_with(&end.unwrap_or_default()), "{row}");
        }
        for name in [LOG, TRACE] {
            assert!(rows.next().unwrap().starts_with(&format!("| `{name}` | |")));
        }
        assert_eq!(rows.next(), None);
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
        let [least, limit] = [200, 1000].map(Duration::from_millis);
        for (value, most) in [("200", None), ("200-1000", Some(limit))] {
            assert_eq!(time(value), Ok(Patience { least, most }));
        }
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
        let ports = |value| with("UWARP_OOB_PORTS", value).map(|found| found.chosen.oob_ports);
        assert_eq!(with("", "").unwrap().chosen.oob_ports, None);
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
        let names = |value| with("UWARP_NAME", value).map(|found| found.chosen.names.to_string());
        assert_eq!(with("", "").unwrap().chosen.names, DeviceNames::default());
        assert_eq!(names("mlx5_0,mlx5_1"), Ok("mlx5_0,mlx5_1".to_owned()));
        assert_eq!(
            names("mlx5_0,mlx5_0").unwrap_err(),
            "UWARP_NAME is 'mlx5_0,mlx5_0'; expected names of devices, separated by commas: \
             two devices are named 'mlx5_0'; expected different names"
        );
    }

    #[test]
    fn fpdus_go_over_several_segments_only_when_that_is_asked_for() {
        let segments = |name, value| settings(name, value).fpdu_segments;
        assert_eq!(segments("", ""), FpduSegments::ONE);
        let given = segments("UWARP_FPDU_SEGMENTS", "45");
        assert_eq!(given, FpduSegments::new(45).unwrap());
        for (value, words) in [
            ("0", "at least; expected 1 to 506"),
            ("507", "expected 1 to 506"),
            ("all", "not a number"),
        ] {
            let error = with("UWARP_FPDU_SEGMENTS", value).unwrap_err();
            assert!(error.contains("UWARP_FPDU_SEGMENTS is '"), "{error}");
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn payload_with_a_crc_is_sent_in_place_only_when_that_is_asked_for() {
        let in_place = |value| settings("UWARP_SEND_IN_PLACE", value).send_in_place;
        for value in ["1", "yes", "on", "TRUE"] {
            assert!(in_place(value), "{value}");
        }
        for value in ["0", "no", "off", "False"] {
            assert!(!in_place(value), "{value}");
        }
        let error = with("UWARP_SEND_IN_PLACE", "perhaps").unwrap_err();
        let values = "1 or 0 (also on or off, yes or no, true or false)";
        assert!(error.ends_with(values), "{error}");
        assert!(!settings("", "").send_in_place);
    }

    #[test]
    fn a_refused_connection_is_asked_for_again_unless_the_program_says_otherwise() {
        let refused = |name, value| settings(name, value).timeouts.refused;
        assert_eq!(refused("UWARP_CONNECT_RETRY", "0"), Duration::ZERO);
        assert_eq!(
            refused("UWARP_CONNECT_RETRY", "250"),
            Duration::from_millis(250)
        );
        assert_eq!(refused("", ""), Duration::from_secs(3));
    }

    #[test]
    fn a_server_may_send_first_to_siw_alone() {
        // Other clients can ask for the peer-to-peer model of RFC 6581. Without it the server has
        // to wait (RFC 5044 section 7.1.2).
        assert!(settings("UWARP_PEER", "siw").send_first);
        assert!(!settings("UWARP_PEER", "rfc").send_first);
        assert!(!settings("", "").send_first);
    }

    #[test]
    fn writes_send_events_unless_the_program_says_otherwise() {
        assert!(settings("UWARP_WRITE_EVENTS", "1").event_on_write);
        assert!(!settings("UWARP_WRITE_EVENTS", "0").event_on_write);
    }

    #[test]
    fn writes_wait_for_their_placement_on_queue_pairs_connected_by_number_unless_a_value_says_other()
     {
        let placed = |name, value| {
            let found = with(name, value).unwrap();
            let librdmacm = found.chosen.settings.placed_writes;
            (librdmacm, found.pairs.placed_writes)
        };
        assert_eq!(placed("UWARP_PLACED_WRITES", "1"), (true, true));
        assert_eq!(placed("UWARP_PLACED_WRITES", "0"), (false, false));
        assert_eq!(placed("", ""), (false, true));
    }

    #[test]
    fn strict_terminates_where_no_receive_is_posted() {
        let strict = settings("UWARP_STRICT", "1").on_no_receive;
        assert_eq!(strict, OnNoReceive::Terminate);
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
                Ok(found) => {
                    assert_eq!(name, "UWARP_PCAP");
                    assert_eq!(found.chosen.pcap, Some(value().into()));
                }
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
