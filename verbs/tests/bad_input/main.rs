//! Bad input over real sockets. A raw peer builds every byte itself and sends each kind of wrong
//! input to the software RNIC. Each test checks all consequences:
//!
//! * The peer receives the Terminate Message that the RFCs require, byte for byte, or a close, and
//!   a FIN.
//! * Outstanding requests complete with the right status or are flushed; one event gives the
//!   reason.
//! * A second connection of the same device works before, during and after the bad input.
//! * No byte changes that the peer had no right to change.
//! * Nothing is left over: after the test the device has room for as many objects as its limits
//!   allow.
//!
//! Tests cite the requirements that they check (`5041-7.1-10`: RFC, section, number).

#[path = "../common/raw/consumer.rs"]
mod consumer;
mod ends;
mod extensions;
mod framing;
#[path = "../common/raw/healthy.rs"]
mod healthy;
mod initiator;
mod invalidate;
mod leaks;
mod many_peers;
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

use uwarp_oracle as wire;
