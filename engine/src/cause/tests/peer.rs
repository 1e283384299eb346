//! Causes for errors of the peer, and for errors that the peer reports.

use crate::mem::{Access, Named, StagFacts};
use uwarp_ddp::{DdpError, Msn, Qn, STag, TaggedFault, TaggedOffset, UntaggedFault};
use uwarp_rdmap::{AccessError, Opcode, Peer, ReadResponseFault, StreamError};

use super::*;

/// Every Terminate with defined numbers, and some with undefined ones.
fn terminates() -> impl Iterator<Item = Cause> {
    let codes = [(0_u8, 0_u8), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0)];
    codes.into_iter().flat_map(|(layer, etype)| {
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xFF]
            .into_iter()
            // The code of a local error has no meaning.
            .filter(move |code| etype != 0 || layer == 2 || *code == 0)
            .filter_map(move |code| {
                Terminate::parse(&[layer << 4 | etype, code, 0, 0]).map(Cause::from)
            })
    })
}

#[test]
fn terminates_in_words() {
    let title = "Terminate Messages of the peer, by number";
    let in_place = Terminate::parse(&[0x20, 2, 0, 0]).unwrap();
    let in_place =
        Cause::from_terminate(TerminateReport::new(&in_place, Work::Unknown).read_twice(true));
    insta::assert_snapshot!(table(title, terminates().chain([in_place]), &[]));
}

/// Terminates about a work request of this side. The cause names the request, and the hint says
/// what to ask of the peer.
#[test]
fn terminates_about_a_work_request_in_words() {
    let opcodes = every!(Opcode {
        Opcode::Send => [Opcode::Send],
        Opcode::Write => [Opcode::Write],
        Opcode::ReadRequest => [Opcode::ReadRequest],
        Opcode::ReadResponse => [Opcode::ReadResponse],
        Opcode::SendInvalidate => [Opcode::SendInvalidate],
        Opcode::SendSolicited => [Opcode::SendSolicited],
        Opcode::SendSolicitedInvalidate => [Opcode::SendSolicitedInvalidate],
        Opcode::Terminate => [Opcode::Terminate],
        Opcode::Immediate => [Opcode::Immediate],
        Opcode::ImmediateSolicited => [Opcode::ImmediateSolicited],
        Opcode::AtomicRequest => [Opcode::AtomicRequest],
        Opcode::AtomicResponse => [Opcode::AtomicResponse],
    });
    let about = |opcode, codes: &[[u8; 2]]| -> Vec<Cause> {
        let asked = Asked {
            opcode,
            stag: 0x001a_2b00,
            to: 0x1000,
            len: match opcode {
                Opcode::AtomicRequest | Opcode::Immediate | Opcode::ImmediateSolicited => 8,
                _ => 64,
            },
        };
        let told = |bytes: &[u8; 2]| {
            let terminate = Terminate::parse_from(Peer::Rfc, &[bytes[0], bytes[1], 0, 0]).unwrap();
            Cause::from_terminate(TerminateReport::about(&terminate, asked))
        };
        codes.iter().map(told).collect()
    };
    let causes = opcodes.into_iter().flat_map(|opcode| match opcode {
        Opcode::Write => about(
            opcode,
            &[[0x11, 0], [0x11, 1], [0x11, 2], [0x11, 3], [0x10, 0]],
        ),
        Opcode::ReadRequest => about(
            opcode,
            &[
                [0x01, 0],
                [0x01, 1],
                [0x01, 2],
                [0x01, 3],
                [0x01, 4],
                [0x12, 2],
            ],
        ),
        Opcode::AtomicRequest => about(
            opcode,
            &[[0x01, 0], [0x01, 2], [0x02, 7], [0x02, 6], [0x12, 2]],
        ),
        Opcode::Send | Opcode::SendSolicited => about(opcode, &[[0x12, 2], [0x12, 5], [0x00, 0]]),
        Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate => {
            about(opcode, &[[0x01, 0], [0x01, 9]])
        }
        Opcode::Immediate | Opcode::ImmediateSolicited => about(opcode, &[[0x12, 2]]),
        // A work request of this side never sends a response or a Terminate.
        Opcode::ReadResponse | Opcode::Terminate | Opcode::AtomicResponse => Vec::new(),
    });
    let title = "Terminate Messages of the peer about a work request of this side";
    insta::assert_snapshot!(table(title, causes, &[]));
}

fn tagged_faults() -> Vec<TaggedFault> {
    every!(TaggedFault {
        TaggedFault::InvalidSTag => [TaggedFault::InvalidSTag],
        TaggedFault::NotAssociated => [TaggedFault::NotAssociated],
        TaggedFault::AccessRights => [TaggedFault::AccessRights],
        TaggedFault::ToWrap => [TaggedFault::ToWrap],
        TaggedFault::BaseOrBounds => [TaggedFault::BaseOrBounds],
    })
}

/// Returns the error of an access to 64 bytes.
fn access(opcode: Opcode, fault: TaggedFault) -> AccessError {
    AccessError {
        opcode,
        fault,
        stag: STag(0x001a_2b00),
        to: TaggedOffset(0x1000),
        len: 64,
    }
}

fn ddp() -> Vec<DdpError> {
    let (qn, msn) = (Qn(0), Msn(7));
    let untagged = every!(UntaggedFault {
        UntaggedFault::InvalidQn(_) => [UntaggedFault::InvalidQn(Qn(9))],
        UntaggedFault::NoBuffer { .. } => [
            UntaggedFault::NoBuffer { qn, msn },
            UntaggedFault::NoBuffer { qn: Qn(1), msn },
            UntaggedFault::NoBuffer { qn: Qn(2), msn },
        ],
        UntaggedFault::MsnRange { .. } => [UntaggedFault::MsnRange { expected: msn, got: Msn(9) }],
        UntaggedFault::InvalidMo { .. } => [UntaggedFault::InvalidMo { expected: 100, got: 50 }],
        UntaggedFault::MessageTooLong { .. } => [
            UntaggedFault::MessageTooLong { qn, end: 100, buffer: 64 },
            UntaggedFault::MessageTooLong { qn: Qn(1), end: 100, buffer: 64 },
        ],
    });
    let mut errors = every!(DdpError {
        DdpError::TooShort { .. } => [DdpError::TooShort { len: 4, needed: 18 }],
        DdpError::Version { .. } => [
            DdpError::Version { tagged: true, got: 2 },
            DdpError::Version { tagged: false, got: 2 },
        ],
        DdpError::LocalCatastrophic => [DdpError::LocalCatastrophic],
        DdpError::Untagged(_) => [DdpError::Untagged(UntaggedFault::InvalidQn(Qn(9)))],
    });
    errors.truncate(4);
    errors.extend(untagged.into_iter().map(DdpError::Untagged));
    errors
}

fn stream() -> Vec<StreamError> {
    let opcode = Opcode::ReadRequest;
    let mismatches = every!(ReadResponseFault {
        ReadResponseFault::WrongSTag { .. } => [
            ReadResponseFault::WrongSTag { expected: STag(1), got: STag(2) }
        ],
        ReadResponseFault::WrongOffset { .. } => [
            ReadResponseFault::WrongOffset { expected: TaggedOffset(8), got: TaggedOffset(0) }
        ],
        ReadResponseFault::TooLong { .. } => [ReadResponseFault::TooLong { expected: 64, got: 65 }],
        ReadResponseFault::TooShort { .. } => [ReadResponseFault::TooShort { expected: 64, got: 63 }],
    });
    let mut errors = every!(StreamError {
        StreamError::RdmapVersion(_) => [StreamError::RdmapVersion(2)],
        StreamError::UnexpectedOpcode(_) => [StreamError::UnexpectedOpcode(0xf)],
        StreamError::WrongBufferModel { .. } => [StreamError::WrongBufferModel { opcode }],
        StreamError::WrongQueue { .. } => [StreamError::WrongQueue { opcode, got: Qn(0) }],
        StreamError::OpcodeChanged { .. } => [
            StreamError::OpcodeChanged { first: Opcode::Send, got: Opcode::SendSolicited }
        ],
        // `refused_accesses_in_words` has the words of causes.
        StreamError::Access(_) => [
            StreamError::Access(access(Opcode::ReadRequest, TaggedFault::BaseOrBounds)),
        ],
        StreamError::Misaligned { .. } => [
            StreamError::Misaligned { stag: STag(0x001a_2b00), to: TaggedOffset(0x1004) }
        ],
        StreamError::UnexpectedAtomicOp(_) => [StreamError::UnexpectedAtomicOp(1)],
        StreamError::ImmediateLength { .. } => [
            StreamError::ImmediateLength { opcode: Opcode::Immediate, got: 4 }
        ],
        StreamError::IrdExceeded { .. } => [StreamError::IrdExceeded { ird: 4 }],
        StreamError::ReadResponseUnexpected => [StreamError::ReadResponseUnexpected],
        StreamError::AtomicResponseUnexpected => [StreamError::AtomicResponseUnexpected],
        StreamError::AtomicResponseMismatch { .. } => [
            StreamError::AtomicResponseMismatch { expected: 1, got: 2 }
        ],
        StreamError::TooShort { .. } => [StreamError::TooShort { opcode, len: 20, needed: 46 }],
        StreamError::NotLast { .. } => [StreamError::NotLast { opcode }],
        StreamError::LocalCatastrophic => [StreamError::LocalCatastrophic],
        StreamError::Ended => [StreamError::Ended],
        StreamError::Ddp(_) => [StreamError::Ddp(DdpError::LocalCatastrophic)],
        StreamError::ReadResponseMismatch(_) => [
            StreamError::ReadResponseMismatch(ReadResponseFault::TooLong { expected: 64, got: 65 })
        ],
        StreamError::Mpa(_) => [StreamError::Mpa(1)],
    });
    errors.truncate(errors.len() - 3);
    errors.extend(ddp().into_iter().map(StreamError::Ddp));
    errors.extend(
        mismatches
            .into_iter()
            .map(StreamError::ReadResponseMismatch),
    );
    errors.extend((1..=8).map(StreamError::Mpa));
    errors
}

#[test]
fn broken_rules_in_words() {
    let causes = stream()
        .into_iter()
        .map(|error| Cause::broken(error.into()));
    let no_receive = DdpError::Untagged(UntaggedFault::NoBuffer {
        qn: Qn(0),
        msn: Msn(7),
    });
    let held = every!(Held {
        Held::No => [Held::No],
        Held::For(_) => [Held::For(20)],
        Held::UntilClose(_) => [Held::UntilClose(2100)],
    });
    let after_wait = held.into_iter().map(|held| {
        Cause::broken(Broken {
            error: StreamError::Ddp(no_receive),
            held,
        })
    });
    let text = [
        // `Ended` is no error and is never reported.
        table(
            "rules that the peer broke",
            causes,
            &["what arrives on it is dropped"],
        ),
        table("and the wait for a receive", after_wait, &[]),
    ];
    insta::assert_snapshot!(text.concat());
}

#[test]
fn refused_accesses_in_words() {
    let named = every!(Named {
        Named::Nothing => [Named::Nothing],
        Named::OtherKey => [Named::OtherKey],
        Named::Region => [Named::Region],
        Named::Window => [Named::Window],
        Named::Unbound => [Named::Unbound],
        Named::Invalidated => [Named::Invalidated],
        Named::RevokedDuringRead => [Named::RevokedDuringRead],
    });
    let refusal = |opcode, fault, named, rights| {
        let (base, size) = (0x1000, 4096);
        let facts = match named {
            Named::Region | Named::Window | Named::Invalidated => StagFacts {
                named,
                base,
                size,
                access: rights,
            },
            Named::Nothing | Named::OtherKey | Named::Unbound | Named::RevokedDuringRead => {
                StagFacts::without_region(named)
            }
        };
        Cause::access(Refusal::new(access(opcode, fault), facts))
    };
    let mut causes = Vec::new();
    for named in &named {
        let opcode = if *named == Named::RevokedDuringRead {
            Opcode::ReadRequest
        } else {
            Opcode::Write
        };
        let fault = TaggedFault::InvalidSTag;
        causes.push(refusal(opcode, fault, *named, Access::NONE));
    }
    for fault in tagged_faults() {
        for named in [Named::Region, Named::Window] {
            causes.push(refusal(Opcode::Write, fault, named, Access::REMOTE_READ));
        }
    }
    for opcode in [Opcode::ReadRequest, Opcode::AtomicRequest] {
        let fault = TaggedFault::NotAssociated;
        causes.push(refusal(opcode, fault, Named::Region, Access::NONE));
    }
    for opcode in [Opcode::Write, Opcode::ReadRequest, Opcode::AtomicRequest] {
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        for access in [Access::NONE, Access::LOCAL_WRITE, all] {
            causes.push(refusal(
                opcode,
                TaggedFault::AccessRights,
                Named::Region,
                access,
            ));
        }
    }
    for named in &named {
        let fault = TaggedFault::InvalidSTag;
        causes.push(refusal(Opcode::SendInvalidate, fault, *named, Access::NONE));
    }
    insta::assert_snapshot!(table("accesses of the peer that were refused", causes, &[]));
}
