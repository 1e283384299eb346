//! Parses arbitrary bytes as a Terminate Header, from a peer that is known to be Linux siw and from
//! one that is not. The fields must equal the model's, in the layout of RFC 5040 or of siw. The
//! message must have a description, and its emitted header must parse to the same fields.

use uwarp_rdmap::{
    MAX_TERMINATE_HEADER, Peer, ReadRequestHeader, StreamError, Terminate, TerminateCode,
};

use crate::input::Input;
use crate::model::terminate::{self, Header};

/// Runs one input, which is a Terminate Header. The bytes after the first four are also used as the
/// header of a Read Request whose response is under way.
pub fn run(data: &[u8]) {
    for peer in [Peer::Rfc, Peer::Siw] {
        let found = Terminate::parse_from(peer, data);
        let wanted = terminate::read(data, peer == Peer::Siw);
        assert_eq!(found.as_ref().map(plain), wanted, "{peer}");
        if let Some(found) = found {
            examine(&found, peer);
        }
    }
    assert_eq!(
        Terminate::parse(data),
        Terminate::parse_from(Peer::Rfc, data)
    );
    read_under_way(data);
    any_code(data);
}

/// Converts a message to the model's type.
fn plain(message: &Terminate) -> Header {
    Header {
        siw: message.read_as() == Peer::Siw,
        code: (message.layer(), message.etype(), message.code()),
        segment_len: message.segment_len(),
        ddp: message.ddp_bytes().map(<[u8]>::to_vec),
        read_request: message.rdma_header().map(|header| header.emit().to_vec()),
    }
}

/// Checks that the accessors of a message agree, and that its emitted header parses to the same
/// fields in the RFC's layout.
fn examine(message: &Terminate, peer: Peer) {
    let words = message.to_string();
    assert!(words.contains(message.reason().name()), "{words}");
    assert!(words.contains(&message.reason().to_string()), "{words}");
    assert_eq!(
        message.if_siw().is_some(),
        words.contains("from Linux siw it would mean")
    );
    assert!(message.if_siw().is_none() || message.read_as() == Peer::Rfc && peer == Peer::Rfc);
    assert!(message.siw_means().is_none() || message.read_as() == Peer::Siw);
    assert!(message.headers_fit() || message.read_as() == Peer::Siw);
    assert!(!message.is_about_read_request() || message.is_about_request());
    assert!(message.rdma_header().is_none() || message.is_about_read_request());
    let _ = (message.blame(), message.requirement(), message.rfc_reason());
    if let Some(ddp) = message.ddp_bytes() {
        assert_eq!(ddp.len() == 14, message.is_about_tagged());
    }

    let mut bytes = [0xEE; MAX_TERMINATE_HEADER];
    let len = message.emit(&mut bytes);
    assert!(bytes[len..].iter().all(|byte| *byte == 0xEE));
    let again = terminate::read(&bytes[..len], false).expect("a complete header was emitted");
    if !again.siw {
        assert_eq!(
            again,
            Header {
                siw: false,
                ..plain(message)
            }
        );
    }
}

/// Checks the Terminate Message for a Read that fails while its response is sent. The Read Request
/// Header in it must exclude the bytes that were already sent (RFC 5040 section 4.8).
fn read_under_way(data: &[u8]) {
    let mut input = Input::new(data);
    let sent = input.u32();
    let Some(request) = ReadRequestHeader::parse(input.take_rest()) else {
        return;
    };
    assert_eq!(request.emit(), data[4..32]);
    let error = StreamError::LocalCatastrophic;
    let told = Terminate::for_partial_read(&error, &request, sent);
    let left = told.rdma_header().expect("it has the Read Request Header");
    assert_eq!(left.len, request.len.saturating_sub(sent));
    assert_eq!(left.sink_to.0, request.sink_to.0.wrapping_add(sent.into()));
    assert_eq!(
        left.source_to.0,
        request.source_to.0.wrapping_add(sent.into())
    );
    assert_eq!(
        (left.sink_stag, left.source_stag),
        (request.sink_stag, request.source_stag)
    );
    let ended = Terminate::for_partial_read(&StreamError::Ended, &request, sent);
    assert_eq!(
        ended, told,
        "an error without a code is reported as a local one"
    );
}

/// Checks that every code has a description, and that an undefined code is described as such.
fn any_code(data: &[u8]) {
    let Some(&[kinds, code]) = data.first_chunk() else {
        return;
    };
    let code = TerminateCode {
        layer: kinds >> 4,
        etype: kinds & 15,
        code,
    };
    let unnamed = code.name() == "a code without a name";
    // Layer 1, type 0 has one name for all codes. Layer 1, type 3 has none, because the LLP defines
    // its codes.
    let named = match (code.layer, code.etype) {
        (1, 0) => true,
        (1, 3) => false,
        (layer, etype) => terminate::is_defined(layer, etype, code.code),
    };
    assert_eq!(unnamed, !named, "{code}");
    assert!(!code.kind().is_empty());
    if unnamed {
        assert!(code.requirement().is_none());
    }
    let _ = code.blame();
    assert_eq!(Terminate::new(code).reason(), code);
}
