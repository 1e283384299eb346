//! Connection between our side and a raw peer, from its setup to the end that a test expects.

use std::net::TcpListener;

use uwarp_verbs::{AcceptOptions, ConnectOptions, EndReason, Settings, Status};

use crate::consumer::{Consumer, Meanwhile};
use crate::memory::Place;
use crate::peer::{PATIENCE, Peer, eventually};
use crate::victim::WARM_UP_RECV;
#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub(crate) use crate::victim::{
    FENCED_SEND, FIRST_RECV, READ, RECV_AT, RECV_LEN, SECOND_RECV, SINK_AT, SINK_LEN, Victim,
    loopback, settings,
};
use crate::wire::{
    CRC, Code, ENHANCED, Fpdus, MARKERS, READ_REQUEST, REPLY, REQUEST, ReadHeader, SEND, Tagged,
    Untagged, WRITE, startup, words,
};

/// An STag that was never registered.
pub(crate) const NONSENSE: u32 = 0xDEAD_BEEF;

/// Offset, in the writable region, for the Write that follows every wrong FPDU.
const BEHIND: usize = 1600;

/// MPA role of our side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Initiator,
    Responder,
}

pub(crate) const ROLES: [Role; 2] = [Role::Responder, Role::Initiator];

/// Combinations of role and consumer with which `refuses` runs each test.
const WAYS: [(Role, Meanwhile); 4] = [
    (Role::Responder, Meanwhile::Absent),
    (Role::Initiator, Meanwhile::Absent),
    (Role::Responder, Meanwhile::Waits),
    (Role::Initiator, Meanwhile::Polls),
];

/// Parameters of a scene.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) role: Role,
    pub(crate) settings: Settings,
    /// IRD of our side.
    pub(crate) ird: u16,
    /// Flags of the raw peer's startup frame.
    pub(crate) flags: u8,
    /// True if our side posts receives.
    pub(crate) receives: bool,
    /// True if our side posts a Read and a fenced Send.
    pub(crate) sends: bool,
    /// True if a correct Write and a correct Send are exchanged first.
    pub(crate) warm_up: bool,
    /// Behaviour of our consumer after the warm-up.
    pub(crate) meanwhile: Meanwhile,
}

impl Setup {
    pub(crate) fn new(role: Role) -> Self {
        let settings = settings();
        Setup {
            role,
            settings,
            ird: 4,
            flags: CRC,
            receives: true,
            sends: true,
            warm_up: true,
            meanwhile: Meanwhile::Absent,
        }
    }
}

/// Expected end of the connection, as the peer sees it.
pub(crate) enum Sees {
    /// The peer receives this ULPDU and then a FIN.
    Terminate(Vec<u8>),
    /// The peer receives only a FIN.
    Fin,
    /// The peer receives nothing, because it has closed.
    Nothing,
}

/// A connection between our side and a raw peer.
pub(crate) struct Scene {
    pub(crate) victim: Victim,
    pub(crate) peer: Peer,
    /// MSN of the peer's next Send.
    pub(crate) msn: u32,
}

impl std::ops::Deref for Scene {
    type Target = Victim;

    fn deref(&self) -> &Victim {
        &self.victim
    }
}

impl std::ops::DerefMut for Scene {
    fn deref_mut(&mut self) -> &mut Victim {
        &mut self.victim
    }
}

impl Scene {
    /// Connects, exchanges a correct Write and a correct Send, and leaves requests outstanding.
    pub(crate) fn new(role: Role) -> Self {
        Self::with(&Setup::new(role))
    }

    pub(crate) fn with(setup: &Setup) -> Self {
        let mut victim = Victim::new(setup.settings.clone());
        if setup.receives {
            victim.post_receives();
        }
        let mut peer = match setup.role {
            Role::Responder => accepts(&victim, setup),
            Role::Initiator => connects(&victim, setup),
        };
        let crc = setup.settings.crc || setup.flags & CRC != 0;
        peer.tx = Fpdus::new(crc, setup.settings.markers);
        peer.rx = Fpdus::new(crc, setup.flags & MARKERS != 0);
        if setup.sends {
            victim.post_sends();
        }
        let mut scene = Scene {
            victim,
            peer,
            msn: 1,
        };
        if setup.warm_up {
            scene.warm_up(setup.receives);
        }
        if setup.sends && (setup.warm_up || setup.role == Role::Initiator) {
            let request = Untagged::new(READ_REQUEST, 1, 1, &scene.read_header().bytes());
            assert_eq!(scene.peer.receive_ulpdu(), request.bytes());
        }
        let Victim {
            send_cq, recv_cq, ..
        } = &scene.victim;
        scene.victim.consumer = Some(Consumer::start(setup.meanwhile, [send_cq, recv_cq]));
        scene
    }

    /// Exchanges a correct Write. If `send` is set, also exchanges a correct Send.
    fn warm_up(&mut self, send: bool) {
        let write = self.write(0, b"good Write");
        self.peer.send_ulpdus(&[write.bytes()]);
        self.memory.expect(Place::Writable, 0, b"good Write");
        if send {
            self.delivers(b"good Send");
        } else {
            let mut found = [0; 10];
            eventually("the Write is placed", || {
                self.memory.writable.read_at(0, &mut found).unwrap();
                (&found == b"good Write").then_some(())
            });
        }
    }

    /// Sends a correct Send and checks that it completes the oldest posted receive.
    pub(crate) fn delivers(&mut self, bytes: &[u8]) {
        let send = self.next_send(bytes);
        self.peer.send_ulpdus(&[send.bytes()]);
        self.delivered(bytes);
    }

    /// Checks that the Send with these bytes, which was sent last, completes the oldest posted
    /// receive.
    pub(crate) fn delivered(&mut self, bytes: &[u8]) {
        let wr_id = self.victim.receives[0];
        self.victim.receives(bytes.len());
        let at = RECV_AT + (wr_id - WARM_UP_RECV) as usize * RECV_LEN;
        self.memory.expect(Place::Local, at, bytes);
        self.msn += 1;
    }

    /// Returns a correct next Send of the peer.
    pub(crate) fn next_send(&self, payload: &[u8]) -> Untagged {
        Untagged::new(SEND, 0, self.msn, payload)
    }

    /// Returns a Write to `offset` of the writable region.
    pub(crate) fn write(&self, offset: u64, payload: &[u8]) -> Tagged {
        Tagged::new(
            WRITE,
            self.memory.writable.rkey(),
            self.memory.writable.addr() + offset,
            payload,
        )
    }

    /// Returns the header of a Read Request for 16 bytes of the readable region.
    pub(crate) fn read(&self) -> ReadHeader {
        let readable = self.memory.readable.remote();
        ReadHeader {
            sink_stag: 0x5151_5151,
            sink_to: 0x7000,
            len: 16,
            source_stag: readable.rkey,
            source_to: readable.addr,
        }
    }

    /// Returns a correct first Read Request of the peer.
    pub(crate) fn read_request(&self, header: ReadHeader) -> Untagged {
        Untagged::new(READ_REQUEST, 1, 1, &header.bytes())
    }

    /// Sends a ULPDU in a correct FPDU, directly followed by a correct Write. The Write must have
    /// no effect (5041-7.1-18).
    pub(crate) fn commits(&mut self, ulpdu: &[u8]) {
        let behind = self.write(BEHIND as u64, b"behind what was wrong").bytes();
        self.peer.send_ulpdus(&[ulpdu, &behind]);
    }

    /// Checks the end of the connection, first as the peer sees it, then by `Victim::check_end`.
    pub(crate) fn ends(self, sees: Sees, words: &str) {
        self.ends_blaming(sees, words, None);
    }

    /// Closes without an error. The peer closes first, then our side.
    pub(crate) fn closes(self) {
        self.peer.fin();
        self.ends(Sees::Fin, "closed by the peer");
    }

    pub(crate) fn ends_blaming(self, sees: Sees, words: &str, blamed: Option<(u64, Status)>) {
        let Scene {
            mut victim,
            mut peer,
            ..
        } = self;
        let sees_nothing = matches!(sees, Sees::Nothing);
        if let Sees::Terminate(due) = sees {
            let found = peer.receive_ulpdu();
            assert_eq!(
                hex(&found),
                hex(&due),
                "the Terminate that came, and the one that was due"
            );
        }
        if !sees_nothing {
            peer.expect_fin();
            victim.healthy.works();
            peer.fin();
        }
        victim.check_end(words, blamed);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x} ")).collect()
}

/// Connects with our side as responder, revision 1.
fn accepts(victim: &Victim, setup: &Setup) -> Peer {
    let mut peer = Peer::connect(victim.listener.local_addr());
    peer.send_startup(REQUEST, setup.flags, 1, b"who calls");
    let request = victim.listener.wait_request(Some(PATIENCE)).unwrap();
    assert_eq!(request.private_data(), b"who calls");
    let options = AcceptOptions::default()
        .private_data(b"who answers".to_vec())
        .ird(setup.ird)
        .ord(4);
    request.accept(&victim.qp, &options).unwrap();
    let crc = setup.settings.crc || setup.flags & CRC != 0;
    assert_eq!(
        peer.receive_startup(),
        startup(REPLY, flags(crc, setup), 1, b"who answers")
    );
    peer
}

/// Connects with our side as initiator, revision 2.
fn connects(victim: &Victim, setup: &Setup) -> Peer {
    let listener = TcpListener::bind(loopback()).unwrap();
    let to = listener.local_addr().unwrap();
    let options = ConnectOptions::default()
        .private_data(b"who calls".to_vec())
        .ird(setup.ird)
        .ord(4);
    std::thread::scope(|scope| {
        let qp = &victim.qp;
        let connecting = scope.spawn(move || qp.connect(to, &options));
        let mut peer = Peer::accept(&listener);
        let private_data = [&words(setup.ird, 4)[..], b"who calls"].concat();
        let request = startup(
            REQUEST,
            flags(setup.settings.crc, setup) | ENHANCED,
            2,
            &private_data,
        );
        assert_eq!(peer.receive_startup(), request);
        let reply = [&words(4, setup.ird)[..], b"who answers"].concat();
        peer.send_startup(REPLY, setup.flags | ENHANCED, 2, &reply);
        assert_eq!(
            connecting.join().unwrap().unwrap().private_data,
            b"who answers"
        );
        peer
    })
}

/// Returns the flags that our side should send.
fn flags(crc: bool, setup: &Setup) -> u8 {
    (if crc { CRC } else { 0 }) | if setup.settings.markers { MARKERS } else { 0 }
}

/// Checks a wrong ULPDU in both roles and with each way of driving our side. The peer must get a
/// Terminate with this code.
pub(crate) fn refuses(bad: impl Fn(&mut Scene) -> Vec<u8>, code: Code, words: &str) {
    refuses_blaming(bad, code, words, None);
}

/// Does the same as `refuses`, but one work request must complete with a status of its own.
pub(crate) fn refuses_blaming(
    bad: impl Fn(&mut Scene) -> Vec<u8>,
    code: Code,
    words: &str,
    blamed: Option<(u64, Status)>,
) {
    for (role, meanwhile) in WAYS {
        let mut scene = Scene::with(&Setup {
            meanwhile,
            ..Setup::new(role)
        });
        let ulpdu = bad(&mut scene);
        scene.refuses(&ulpdu, code, words, blamed);
    }
}

impl Scene {
    /// Sends this ULPDU. The peer must get a Terminate with this code.
    pub(crate) fn refuses(
        mut self,
        ulpdu: &[u8],
        code: Code,
        words: &str,
        blamed: Option<(u64, Status)>,
    ) {
        self.commits(ulpdu);
        let reason_code = code.to_string();
        let qp = &self.victim.qp;
        eventually("the QP notices", || qp.end_reason());
        match qp.end_reason() {
            Some(reason @ EndReason::TerminateSent { .. }) => {
                assert!(
                    reason.to_string().contains(&reason_code),
                    "the reason is: {reason}"
                );
            }
            other => panic!("the reason is: {other:?}"),
        }
        self.ends_blaming(Sees::Terminate(code.about(ulpdu)), words, blamed);
    }
}
