//! RFC 6581 sections 9.2 and 9.3: the connection model and the RTR indication.

use super::{accepted, answered, asked, peer_to_peer, sends};
use crate::script::Action::*;
use crate::script::{
    Action, Case, Condition, Data, Ends, OutSegment, Post, Rtr, SINK_STAG, SINK_TO, Setup, Stag,
    StartupCheck, To, Want, answer_read, may, must, read_request, send, should, write,
};
use crate::wire::startup::{Enhanced, reply, request};

pub(super) fn cases() -> Vec<Case> {
    [
        requests(),
        replies(),
        initiator_indicates(),
        responder_receives_indication(),
        client_server(),
        early_ends(),
    ]
    .concat()
}

/// RTR indications: the number in case ids, the name, and the value.
const INDICATIONS: [(u8, &str, Rtr); 3] = [
    (1, "a Send (B)", Rtr::Send),
    (2, "an RDMA Write (C)", Rtr::Write),
    (3, "an RDMA Read (D)", Rtr::Read),
];

/// Returns enhanced data for the peer-to-peer model with only this RTR indication.
fn only(rtr: Rtr) -> Enhanced {
    peer_to_peer(rtr == Rtr::Send, rtr == Rtr::Write, rtr == Rtr::Read)
}

fn requests() -> Vec<Case> {
    vec![
        must(
            "mpa/6581-9.2/1",
            &["6581-9.2-01", "6581-9.2-02"],
            "A Request for the peer-to-peer model sets A and at least one of B, C and D.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default().peer_to_peer()),
            ExpectEnhanced,
            CheckStartup(StartupCheck::PeerToPeer(true)),
            CheckStartup(StartupCheck::SomeRtr),
        ]),
        must(
            "mpa/6581-9.2/2",
            &["6581-9.2-02", "6581-9.2-10"],
            "A Reply with only indications that the Request did not offer leads to a Terminate, because the Request offered all that the Initiator supports.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default().peer_to_peer()),
            ExpectEnhanced,
            ReplyOtherRtr,
            Operate,
            End(Ends::term(2, 0, 7)),
            End(Ends::close()),
        ]),
        must(
            "mpa/6581-9.2/3",
            &["6581-9.2-11", "6581-9.2-13"],
            "A Request for the client-server model sets none of A, B, C and D.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default()),
            ExpectEnhanced,
            CheckStartup(StartupCheck::PeerToPeer(false)),
            CheckStartup(StartupCheck::NoRtr),
        ]),
    ]
}

fn replies() -> Vec<Case> {
    let setup = Setup::default;
    let mut cases = vec![
        must(
            "mpa/6581-9.2/4",
            &["6581-9.2-04"],
            "A Reply sets A if the Request sets it.",
        )
        .target_responds()
        .steps(asked(setup(), peer_to_peer(true, true, true)))
        .steps([CheckStartup(StartupCheck::PeerToPeer(true))]),
        must(
            "mpa/6581-9.2/5",
            &["6581-9.2-03", "6581-9.2-06"],
            "The Reply to a Request that offers all RTR indications sets at least one.",
        )
        .target_responds()
        .steps(asked(setup(), peer_to_peer(true, true, true)))
        .steps([CheckStartup(StartupCheck::SomeRtr)]),
        must(
            "mpa/6581-9.2/6",
            &["6581-9.2-12", "6581-9.2-13"],
            "A Reply sets none of A, B, C and D if the Request does not set A.",
        )
        .target_responds()
        .steps(asked(setup(), Enhanced::client_server(4, 4)))
        .steps([
            CheckStartup(StartupCheck::PeerToPeer(false)),
            CheckStartup(StartupCheck::NoRtr),
        ]),
        should(
            "mpa/6581-9.2/7",
            &["6581-9.2-05"],
            "A Reply sets each indication that the Request offers and the Responder supports.",
        )
        .target_responds()
        .steps(asked(setup(), only(Rtr::Send)))
        .steps(asked(setup(), only(Rtr::Write)))
        .steps(asked(setup(), only(Rtr::Read)))
        .steps(asked(setup(), peer_to_peer(true, true, true)))
        .steps([CheckStartup(StartupCheck::RtrOfBefore)]),
    ];
    for (number, name, rtr) in INDICATIONS {
        let id = format!("mpa/6581-9.2/{}", 10 + number);
        let rule = format!(
            "The Reply to a Request that offers only {name} sets an indication that the Responder supports."
        );
        cases.push(
            must(&id, &["6581-9.2-03", "6581-9.2-08"], &rule)
                .target_responds()
                .steps(asked(setup(), only(rtr)))
                .steps([CheckStartup(StartupCheck::SomeRtr)]),
        );
    }
    cases
}

fn initiator_indicates() -> Vec<Case> {
    let mut cases = vec![
        may(
            "mpa/6581-9.2/20",
            &["6581-9.2-07"],
            "An Initiator copes with a Reply that sets more indications than offered.",
        )
        .target_initiates()
        .steps(answered(
            Setup::default().peer_to_peer(),
            peer_to_peer(true, true, true),
        ))
        .steps([ExpectRtr, Event("established"), Ping]),
    ];
    for (number, name, rtr) in INDICATIONS {
        let id = format!("mpa/6581-9.2/{}", 20 + number);
        let rule = format!("The RTR indication is {name} of zero length if that was negotiated.");
        let answers = match rtr {
            Rtr::Read => Some(Send(vec![answer_read(0, 0)])),
            Rtr::Send | Rtr::Write => None,
        };
        cases.push(
            must(&id, &["6581-9.2-09", "6581-9.2-i01", "6581-9.2-i02"], &rule)
                .target_initiates()
                .steps([
                    Begin(Setup::default().peer_to_peer()),
                    ExpectEnhanced,
                    Require(Condition::TargetOffersRtr(rtr)),
                    SendStartup(reply().enhanced(only(rtr))),
                    Operate,
                    Expect(Want::Rtr(rtr)),
                ])
                .steps(answers)
                .steps([
                    Event("established"),
                    Send(vec![send(16)]),
                    Delivered(Data::len(16)),
                    Ping,
                ]),
        );
    }
    cases
}

/// Builds the message that the suite sends as this RTR indication.
fn indication(rtr: Rtr) -> OutSegment {
    match rtr {
        Rtr::Send => send(0),
        Rtr::Write => write(Stag::Is(0x0bad_0100), To::Is(u64::MAX), 0),
        Rtr::Read => read_request(Stag::Is(0), To::Is(0), 0),
    }
}

fn responder_receives_indication() -> Vec<Case> {
    let mut cases = Vec::new();
    for (number, name, rtr) in INDICATIONS {
        let id = format!("mpa/6581-9.2/{}", 30 + number);
        let rule = format!(
            "A Responder that agreed to {name} of zero length as the RTR indication may send once it arrived."
        );
        let answer: Option<Action> = (rtr == Rtr::Read).then(|| {
            Expect(Want::ReadResponse {
                stag: Stag::Is(SINK_STAG),
                to: SINK_TO,
                data: Data::none(),
            })
        });
        cases.push(
            must(&id, &["6581-9.2-i01"], &rule)
                .target_responds()
                .steps(asked(Setup::default(), only(rtr)))
                .steps([
                    Require(Condition::TargetOffersRtr(rtr)),
                    Operate,
                    Send(vec![indication(rtr)]),
                ])
                .steps(answer)
                .steps([Event("established"), Post(Post::send(5)), sends(5), Ping]),
        );
    }
    cases.push(
        should(
            "mpa/6581-9.2/34",
            &["6581-9.2-i01"],
            "The Send of an RTR indication does not reach the application, and uses up none of its receives.",
        )
        .target_responds()
        .steps(asked(Setup::default().receives(1, 64), only(Rtr::Send)))
        .steps([
            Require(Condition::TargetOffersRtr(Rtr::Send)),
            Operate,
            Send(vec![indication(Rtr::Send), send(9)]),
            Delivered(Data::len(9)),
            Ping,
        ]),
    );
    cases
}

fn client_server() -> Vec<Case> {
    let ignored = Enhanced {
        b: true,
        c: true,
        d: true,
        ..Enhanced::client_server(4, 4)
    };
    vec![
        must(
            "mpa/6581-9.2/41",
            &["6581-9.2-14", "6581-9.2-12"],
            "A Responder ignores B, C and D without A: its Reply does not set A.",
        )
        .target_responds()
        .steps([
            Begin(Setup::default()),
            SendStartup(request().enhanced(ignored)),
            ExpectEnhanced,
            CheckStartup(StartupCheck::Rejected(false)),
            CheckStartup(StartupCheck::PeerToPeer(false)),
        ]),
        must(
            "mpa/6581-9.2/42",
            &["6581-9.2-14"],
            "A Responder ignores B, C and D without A: a first Send of zero length reaches the application.",
        )
        .target_responds()
        .steps(asked(Setup::default(), ignored))
        .steps([
            Require(Condition::TargetAccepts),
            Operate,
            Send(vec![send(0), send(9)]),
            Delivered(Data::none()),
            Delivered(Data::len(9)),
        ]),
        must(
            "mpa/6581-9.2/43",
            &["6581-9.2-14"],
            "An Initiator ignores B, C and D without A: the first FPDU is the application's.",
        )
        .target_initiates()
        .steps([
            Begin(Setup::default()),
            ExpectEnhanced,
            SendStartup(reply().enhanced(ignored)),
            Operate,
            Event("established"),
            Post(Post::send(5)),
            sends(5),
        ]),
        must(
            "mpa/6581-9.2/44",
            &["6581-9.2-12"],
            "In the client-server model, both sides work as without enhanced setup.",
        )
        .target_responds()
        .steps(asked(Setup::default(), Enhanced::client_server(4, 4)))
        .steps(accepted())
        .steps([Post(Post::send(5)), sends(5), Ping]),
    ]
}

/// Cases in which a peer ends the connection before the Responder has received an RTR indication.
/// After each, another peer must be able to connect.
fn early_ends() -> Vec<Case> {
    let all = || asked(Setup::default(), peer_to_peer(true, true, true));
    let another = || [Establish(Setup::default()), Ping];
    vec![
        must(
            "mpa/6581-9.2/51",
            &["6581-9.2-03"],
            "A Responder whose peer resets the connection before its RTR indication continues to serve others.",
        )
        .target_responds()
        .dangerous()
        .steps(all())
        .steps([Reset])
        .steps(another()),
        must(
            "mpa/6581-9.2/52",
            &["6581-9.2-03"],
            "A Responder whose peer closes the connection before its RTR indication continues to serve others.",
        )
        .target_responds()
        .dangerous()
        .steps(all())
        .steps([Fin, End(Ends::any_term().or_close())])
        .steps(another()),
        must(
            "mpa/6581-9.2/53",
            &["6581-9.2-03"],
            "A Responder whose peer has an error in its first FPDU continues to serve others.",
        )
        .target_responds()
        .dangerous()
        .steps(all())
        .steps([
            Operate,
            Send(vec![send(16).qn(9)]),
            End(Ends::any_term().or_close()),
        ])
        .steps(another()),
    ]
}
