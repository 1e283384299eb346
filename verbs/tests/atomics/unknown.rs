//! Peers that do not implement RFC 7306. They send hand-made Terminate Messages: in the layout of
//! Linux siw, and in the two layouts of the RFCs.

use std::io::{Read as _, Write as _};

use uwarp_oracle::{Code, Crc, IMMEDIATE, fpdu, receive_fpdu};
use uwarp_verbs::{EndReason, Opcode, Peer, RemoteBuffer, SendWr, Status};

use crate::common::{RawPeer, Side, beside_raw_peer, raw_settings};
use crate::{all_of, sink};

/// Form of the Terminate Message with which the peer refuses.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// The layout of Linux siw, which has no headers. `Peer` is the profile of the connection.
    Siw(Peer),
    /// The layout of RFC 5040, with the DDP header of the message.
    Rfc,
    /// The layout of RFC 5040, without the DDP header.
    Bare,
}

const ALL: [Refusal; 4] = [
    Refusal::Siw(Peer::Siw),
    Refusal::Siw(Peer::Rfc),
    Refusal::Rfc,
    Refusal::Bare,
];

/// Connects to a raw peer, which will receive a message and refuse it.
fn connected(refusal: Refusal) -> (Side, RawPeer) {
    let peer = match refusal {
        Refusal::Siw(peer) => peer,
        Refusal::Rfc | Refusal::Bare => Peer::Rfc,
    };
    beside_raw_peer(raw_settings().peer(peer))
}

impl RawPeer {
    /// Reads FPDUs until the first message of RFC 7306, and returns that message.
    fn extension(&mut self) -> Vec<u8> {
        loop {
            let ulpdu = receive_fpdu(&mut self.stream).unwrap().ulpdu;
            if ulpdu[1] & 0x0F >= IMMEDIATE {
                return ulpdu;
            }
        }
    }

    /// Refuses a message, then closes.
    fn refuse(&mut self, refusal: Refusal, message: &[u8]) {
        let unexpected = Code::rdmap(2, 6);
        let terminate = match refusal {
            // siw exchanges layer and error type.
            Refusal::Siw(_) => Code::mpa(6).bare(),
            Refusal::Rfc => unexpected.about(message),
            Refusal::Bare => unexpected.bare(),
        };
        let fpdu = fpdu(&terminate, Crc::Zero);
        self.stream.write_all(&fpdu).unwrap();
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = self.stream.read_to_end(&mut Vec::new());
    }
}

/// Asserts that the end of the connection is attributed to a peer without RFC 7306, in the reason
/// and in its text.
#[track_caller]
fn does_not_know(side: &Side, expected: Opcode) {
    let reason = side.wait_end();
    let EndReason::PeerLacksRfc7306 { message, .. } = &reason else {
        panic!("{reason}")
    };
    assert_eq!(*message, expected);
    let words = reason.to_string();
    assert!(words.contains("the peer does not know RFC 7306"), "{words}");
    assert!(words.contains(&expected.to_string()), "{words}");
    assert_eq!(side.ended_event().1.to_string(), words);
}

#[test]
fn an_atomic_that_the_peer_does_not_know_is_an_invalid_request() {
    for refusal in ALL {
        let (a, mut peer) = connected(refusal);
        let out = sink(&a);
        let sges = all_of(&out);
        // The older Read must not be blamed.
        a.qp.post_send(&SendWr::read(1, &sges, RemoteBuffer::at(0x1000, 0x77)))
            .unwrap();
        a.qp.post_send(&SendWr::fetch_add(
            2,
            &sges,
            RemoteBuffer::at(0x1000, 0x77),
            1,
        ))
        .unwrap();
        a.qp.post_send(&SendWr::send_inline(3, b"behind").fence())
            .unwrap();
        let message = peer.extension();
        assert_eq!(message[1], 0x4A);
        peer.refuse(refusal, &message);
        a.send_cq.flushed(1);
        let done = a.send_cq.next();
        assert_eq!(
            (done.wr_id, done.status),
            (2, Status::RemoteInvalidRequest),
            "{refusal:?}"
        );
        a.send_cq.flushed(3);
        does_not_know(&a, Opcode::AtomicRequest);
    }
}

#[test]
fn immediate_data_that_the_peer_does_not_know_is_named_as_the_reason() {
    for refusal in ALL {
        for solicited in [false, true] {
            let (a, mut peer) = connected(refusal);
            let wr = SendWr::write_with_immediate_inline(
                1,
                b"data",
                RemoteBuffer::at(0x1000, 0x77),
                [1; 8],
            );
            let wr = if solicited { wr.solicited() } else { wr };
            a.qp.post_send(&wr).unwrap();
            // Like a Send, the message completes when TCP has taken it.
            a.send_cq.success(1);
            let message = peer.extension();
            peer.refuse(refusal, &message);
            let expected = if solicited {
                Opcode::ImmediateSolicited
            } else {
                Opcode::Immediate
            };
            does_not_know(&a, expected);
        }
    }
}

#[test]
fn an_unexpected_opcode_without_a_message_of_rfc_7306_is_what_it_was_before() {
    for refusal in [
        Refusal::Siw(Peer::Siw),
        Refusal::Siw(Peer::Rfc),
        Refusal::Bare,
    ] {
        let (a, mut peer) = connected(refusal);
        a.qp.post_send(&SendWr::send_inline(1, b"a Send")).unwrap();
        a.send_cq.success(1);
        peer.refuse(refusal, &[]);
        let reason = a.wait_end();
        assert!(
            matches!(reason, EndReason::TerminateReceived { .. }),
            "{reason}"
        );
    }
}
