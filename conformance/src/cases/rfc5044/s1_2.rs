//! RFC 5044 section 1.2 and appendix C.1: phases of a connection, and versions of the upper layers.

use super::{every_pad, reads, sent, source, steps};
use crate::check::Rule;
use crate::script::Action::*;
use crate::script::{Case, Data, Post, Setup, StartupCheck, Want, must};

const DATA: &[u8] = &[0xa5; 100];

pub(super) fn cases() -> Vec<Case> {
    vec![
        must(
            "mpa/5044-1.2/1",
            &["5044-1.2-i01"],
            "Startup frames have no CRC and no Markers, even if both are used afterwards.",
        )
        .steps([
            Establish(Setup::default().crc(true).markers(true).private_data(DATA)),
            CheckStartup(StartupCheck::Key),
            CheckStartup(StartupCheck::PrivateData(DATA)),
            Ping,
        ]),
        must(
            "mpa/5044-C.1/1",
            &["5044-C.1-01"],
            "The versions of DDP and RDMAP are the same in both directions.",
        )
        .steps(steps([
            vec![
                Watch(&[Rule::DdpVersion, Rule::RdmapVersion]),
                Establish(Setup::default()),
                source(),
            ],
            reads(every_pad()),
            vec![
                Post(Post::send(100)),
                sent(100),
                Post(Post::write(1, 0, 100)),
                Expect(Want::Write {
                    stag: 1,
                    to: 0,
                    data: Data::len(100),
                }),
                Post(Post::read(1, 0, 100)),
                Expect(Want::ReadRequest {
                    size: 100,
                    stag: 1,
                    to: 0,
                }),
            ],
        ])),
    ]
}
