//! Seeds from MPA startup between an initiator and a responder of the stack.

use uwarp_fuzz::input::Seed;
use uwarp_mpa::{
    Accept, Initiator, InitiatorConfig, Model, Responder, ResponderConfig, Revision, RtrKinds,
};

/// Appends the configurations of both roles, in the format of `mpa_startup`.
fn configured(flags: u8) -> Seed {
    let initiator = Seed::new().u8(flags).u16(4).u16(8).u16(32).u16(5);
    let responder = initiator.u8(0b0011_1011).u16(16);
    responder.u16(4).u16(6).slice(&[1, 16, 3])
}

/// Creates the seeds of `mpa_startup`: Requests, Replies and rejections, for both roles.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for revision in [Revision::One, Revision::Two] {
        for (model, flags) in [
            (Model::ClientServer, 0b0000_0010),
            (Model::PeerToPeer(RtrKinds::ALL), 0b0101_1010),
        ] {
            if revision == Revision::One && model != Model::ClientServer {
                continue;
            }
            let flags = flags | u8::from(revision == Revision::Two);
            let mut initiator = Initiator::new(InitiatorConfig {
                revision,
                crc: true,
                markers: false,
                ird: 4,
                ord: 8,
                max_ird: 32,
                model,
                private_data: b"hello".to_vec(),
            })
            .unwrap();
            let mut responder = Responder::new(ResponderConfig {
                crc: true,
                markers: true,
                max_revision: Revision::Two,
                max_ird: 16,
                rtr: RtrKinds::ALL,
            })
            .unwrap();
            let request = initiator.request().to_vec();
            responder.receive(&request).unwrap();
            let rejected = responder.clone().reject(b"no place", Some(40)).unwrap();
            let accept = Accept {
                ird: 4,
                ord: 6,
                private_data: b"welcome",
            };
            let (mut reply, _) = responder.accept(accept).unwrap();
            initiator.receive(&reply).unwrap();
            // The first FPDU follows at once.
            reply.extend_from_slice(&[0, 14, 0xC1, 0x40]);
            for frame in [request, reply, rejected] {
                seeds.push(configured(flags).rest(&frame).done());
            }
        }
    }
    // IRD and ORD are left to the ULPs.
    let left = Seed::new()
        .u8(0b0111_1011)
        .u16(4)
        .u16(0x3FFF)
        .u16(32)
        .u16(5);
    seeds.push(left.u8(0b0011_1011).u16(16).u16(4).u16(6).done());
    seeds.push(configured(1).rest(b"GET / HTTP/1.1\r\n\r\n").done());
    seeds
}
