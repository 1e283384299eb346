//! Connections over streams that the program has connected itself (RFC 5044 section 7.1).

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use uwarp_verbs::llp::Network;
use uwarp_verbs::llp::kernel::KernelNetwork;
use uwarp_verbs::llp::smol::{MemoryNetwork, MemorySettings};
use uwarp_verbs::{RequestError, Settings};

use super::*;

fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept().unwrap().0)
}

fn adopt(stream: TcpStream) -> Box<dyn uwarp_verbs::llp::Llp> {
    KernelNetwork::default().adopt(stream).unwrap()
}

#[test]
fn bytes_of_the_request_that_the_program_has_read_are_not_lost() {
    const WHOLE: usize = 20 + 4 + 9;
    for taken in [0, 1, 15, 20, 23, WHOLE - 1, WHOLE] {
        let (ours, mut theirs) = streams();
        let ends = Setup::new(Wire::Kernel).unconnected();
        let private_data = b"ninebytes".to_vec();
        let connect = ConnectOptions::default().private_data(private_data);
        let accept = AcceptOptions::default().private_data(b"answer".to_vec());
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| ends.a.qp.connect_over(adopt(ours), &connect));
            let mut read = vec![0; taken];
            theirs.read_exact(&mut read).unwrap();
            let request = ends.b.device.request_over(adopt(theirs), &read).unwrap();
            assert_eq!(
                request.private_data(),
                b"ninebytes",
                "{taken} bytes read before"
            );
            request.accept(&ends.b.qp, &accept).unwrap();
            assert_eq!(connecting.join().unwrap().unwrap().private_data, b"answer");
        });
        exchange(&ends.a, &ends.b);
    }
}

#[test]
fn programs_may_talk_first_and_then_go_on_with_rdma() {
    let (mut ours, mut theirs) = streams();
    ours.write_all(b"RDMA?").unwrap();
    let mut question = [0; 5];
    theirs.read_exact(&mut question).unwrap();
    theirs.write_all(b"yes").unwrap();
    let mut answer = [0; 3];
    ours.read_exact(&mut answer).unwrap();
    assert_eq!((&question, &answer), (b"RDMA?", b"yes"));
    let ends = Setup::new(Wire::Kernel).unconnected();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| ends.a.qp.connect_over(adopt(ours), &Default::default()));
        let request = ends.b.device.request_over(adopt(theirs), &[]).unwrap();
        request.accept(&ends.b.qp, &Default::default()).unwrap();
        connecting.join().unwrap().unwrap();
    });
    exchange(&ends.a, &ends.b);
    ends.a.qp.disconnect();
    assert!(matches!(ends.b.wait_end(), EndReason::PeerDisconnect));
}

#[test]
fn a_request_over_a_stream_may_be_rejected() {
    let (ours, theirs) = streams();
    let ends = Setup::new(Wire::Kernel).unconnected();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| ends.a.qp.connect_over(adopt(ours), &Default::default()));
        let request = ends.b.device.request_over(adopt(theirs), &[]).unwrap();
        request.reject(b"no").unwrap();
        let error = connecting.join().unwrap().unwrap_err();
        let ConnectError::Rejected { private_data, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(private_data, b"no");
    });
}

#[test]
fn what_is_not_an_mpa_request_is_named() {
    let device = Device::tcp().unwrap();
    let (mut ours, theirs) = streams();
    ours.write_all(b" / HTTP/1.1\r\n\r\n").unwrap();
    let error = device.request_over(adopt(theirs), b"GET").err().unwrap();
    let RequestError::Startup {
        peer,
        error: StartupError::NotMpa { .. },
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(*peer, ours.local_addr().unwrap());
    assert!(error.to_string().contains("GET"), "{error}");
    // Our side has closed the stream.
    ours.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!(ours.read(&mut [0; 1]).unwrap(), 0);

    let (ours, theirs) = streams();
    drop(ours);
    let error = device.request_over(adopt(theirs), &[]).err().unwrap();
    let RequestError::Startup {
        error: StartupError::Closed { received: 0, .. },
        ..
    } = error
    else {
        panic!("{error:?}")
    };
}

/// There is no second attempt, because a stream has no address to connect to.
#[test]
fn a_stream_that_the_peer_closed_is_not_tried_again_with_revision_1() {
    let mut setup = Setup::new(Wire::Kernel);
    setup.settings[0].retry_with_revision_1 = true;
    setup.settings[1].accept_revision = Revision::One;
    let ends = setup.unconnected();
    let (ours, theirs) = streams();
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| ends.a.qp.connect_over(adopt(ours), &Default::default()));
        assert!(ends.b.device.request_over(adopt(theirs), &[]).is_err());
        let error = connecting.join().unwrap().unwrap_err();
        assert!(
            matches!(
                error,
                ConnectError::Startup {
                    error: StartupError::Closed { .. },
                    ..
                }
            ),
            "{error:?}"
        );
    });
}

#[test]
fn streams_of_the_memory_link_are_as_good() {
    let (first, second) = MemoryNetwork::pair(&MemorySettings::default()).unwrap();
    let addr = "192.0.2.2:1".parse().unwrap();
    let mut listener = second.listen(addr, 8).unwrap();
    let ours = first.connect(None, addr).unwrap();
    let side = |network| {
        Side::new(
            Device::open(network, Settings::default()).unwrap(),
            QpCaps::default(),
            64,
        )
    };
    let (a, b) = (side(Arc::new(first)), side(Arc::new(second)));
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| a.qp.connect_over(ours, &Default::default()));
        let mut theirs = None;
        until("the connection", || {
            theirs = listener.try_accept().unwrap();
            theirs.is_some()
        });
        let request = b.device.request_over(theirs.unwrap(), &[]).unwrap();
        request.accept(&b.qp, &Default::default()).unwrap();
        connecting.join().unwrap().unwrap();
    });
    exchange(&a, &b);
}
