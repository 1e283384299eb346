//! A startup frame is handed to TCP completely, in one call.
//!
//! Linux siw has a single worker, which waits for the rest of a frame that arrives in pieces. Other
//! connections then wait as well.

use super::line::over_line;
use super::wire::startup;
use super::*;

/// Returns the bytes that a connection hands to TCP in its first turn, call by call, each with the
/// number of pieces.
fn first_turn(end: End) -> Vec<(usize, Vec<u8>)> {
    let (mut driven, line) = over_line(end, usize::MAX);
    driven.turn(&BufferPool::default(), Instant::now());
    std::mem::take(&mut line.lock().calls)
}

#[test]
fn startup_frames_go_to_tcp_in_one_call() {
    let settings = Settings::default();
    for private_data in [0, 1, 251, 508] {
        let mut client = End::new(&Memory::new(), &settings);
        let config = InitiatorConfig {
            private_data: vec![7; private_data],
            ..initiator_config(&settings)
        };
        assert!(client.conn.start_initiator(config, true).unwrap());
        let mut calls = first_turn(client);
        let (pieces, request) = calls.remove(0);
        assert_eq!((pieces, calls.len()), (1, 0));
        assert_eq!(startup(&request).len, request.len());

        let mut server = accept(&settings, &Memory::new(), &request);
        // This Send is posted before the Reply is sent. None of its bytes may be in the call of the
        // Reply.
        server
            .conn
            .post_send(&SendWr::send_inline(1, b"early"))
            .unwrap();
        let mut calls = first_turn(server);
        let (pieces, reply) = calls.remove(0);
        assert_eq!((pieces, calls.len()), (1, 0));
        assert_eq!(startup(&reply).len, reply.len());
    }
}
