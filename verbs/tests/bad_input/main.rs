//! Bad input over real sockets: a raw peer that builds every byte itself does each wrong thing to
//! the software RNIC, and every case looks at all that must follow.
//!
//! * The peer gets the Terminate Message that the RFCs name, byte for byte, or a close, and a FIN.
//! * Outstanding work completes with the right status, the rest flushed; one event says why in words.
//! * A second connection of the same device works before, meanwhile and after.
//! * No byte changes that the peer had no right to change.
//! * Nothing is left: the device, made with limits that the case fills, has place for as much again.
//!
//! Tests cite the requirements that they pin (`5041-7.1-10`: RFC, section, number).

#[path = "../common/raw/consumer.rs"]
mod consumer;
mod crowd;
mod ends;
mod extensions;
mod framing;
#[path = "../common/raw/healthy.rs"]
mod healthy;
mod initiator;
mod invalidate;
mod leaks;
#[path = "../common/raw/memory.rs"]
mod memory;
mod mutations;
#[path = "../common/raw/peer.rs"]
mod peer;
#[path = "../common/program.rs"]
mod program;
mod rdmap;
mod reads;
mod responder;
#[path = "../common/raw/scene.rs"]
mod scene;
mod tagged;
mod terminate;
mod timeouts;
mod untagged;
#[path = "../common/raw/victim.rs"]
mod victim;
#[path = "../common/raw/wire.rs"]
mod wire;
