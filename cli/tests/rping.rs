//! rping between two processes: its output, and its error messages for every kind of wrong peer.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use common::{Ended, PATIENCE, Uwarp, client, uwarp};
use uwarp_oracle::{Code, Crc, REJECT, Untagged, fpdu};
use uwarp_testkit::{raw_accept, raw_connect};
use uwarp_verbs::{
    AcceptOptions, Access, Device, Listener, QpCaps, RecvWr, RemoteBuffer, SendWr, Status, WcOpcode,
};

/// Returns the ping data of rping, up to its final zero.
fn ping_text(number: usize, size: usize) -> String {
    let label = format!("rdma-ping-{number}: ");
    let letters = (b'A'..=b'z').cycle().skip(number % 58).map(char::from);
    label.clone() + &letters.take(size - 1 - label.len()).collect::<String>()
}

fn lines(stdout: &str, prefix: &str) -> Vec<String> {
    let lines = stdout.lines().filter_map(|line| line.strip_prefix(prefix));
    lines.map(str::to_owned).collect()
}

#[test]
fn ten_pings_of_4096_bytes_are_printed_and_validated() {
    let (server, addr) = Uwarp::server(&["-v"]);
    let ended = client(addr, &["-C", "10", "-S", "4096", "-v", "-V"]).expect(0);
    let texts: Vec<_> = (0..10).map(|number| ping_text(number, 4096)).collect();
    assert_eq!(lines(&ended.stdout, "ping data: "), texts);
    assert_eq!(ended.stdout.lines().count(), 10);
    ended.says("client DISCONNECT EVENT...");

    let ended = server.end().expect(0);
    assert_eq!(lines(&ended.stdout, "server ping data: "), texts);
    assert_eq!(ended.stderr, "server DISCONNECT EVENT...\n");
}

/// The two commands of docs/commands.md, with another port.
#[test]
fn the_two_commands_of_the_manual_work() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
        .to_string();
    let server = Uwarp::start(&["rping", "-s", "-a", "127.0.0.1", "-p", &port, "-v"]);
    let args = [
        "rping",
        "-c",
        "-a",
        "127.0.0.1",
        "-p",
        &port,
        "-C",
        "10",
        "-S",
        "4096",
        "-v",
        "-V",
    ];
    let ended = (0..100)
        .find_map(|_| {
            let ended = uwarp(&args);
            let too_early = ended.stderr.contains("nothing listens");
            thread::sleep(std::time::Duration::from_millis(if too_early {
                50
            } else {
                0
            }));
            (!too_early).then_some(ended)
        })
        .unwrap()
        .expect(0);
    assert_eq!(ended.stdout.lines().count(), 10);
    assert_eq!(server.end().expect(0).stdout.lines().count(), 10);
}

#[test]
fn sizes_from_the_smallest_to_the_largest_are_validated_on_one_persistent_server() {
    let (_server, addr) = Uwarp::server(&["-P"]);
    for size in ["23", "26", "27", "64", "511", "65535"] {
        client(addr, &["-C", "20", "-S", size, "-V"]).expect(0);
    }
}

#[test]
fn many_clients_at_once_are_served() {
    let (_server, addr) = Uwarp::server(&["-P"]);
    let clients: Vec<_> = (0..8)
        .map(|_| thread::spawn(move || client(addr, &["-C", "50", "-S", "1000", "-V"])))
        .collect();
    for client in clients {
        client.join().unwrap().expect(0);
    }
}

#[test]
fn ipv6_and_a_source_address_work() {
    if TcpListener::bind("[::1]:0").is_err() {
        // Writes to stderr directly, because cargo shows the output of `eprintln!` for failing
        // tests only.
        let _ = writeln!(std::io::stderr(), "SKIPPED: no IPv6 on this machine");
        return;
    }
    let mut server = Uwarp::start(&["rping", "-s", "-a", "::1", "-p", "0", "-d"]);
    let line = server.stdout_until("rdma_listen ");
    let addr: SocketAddr = line.rsplit(' ').next().unwrap().parse().unwrap();
    client(addr, &["-C", "2", "-V", "-I", "::1"]).expect(0);
    server.end().expect(0);
}

#[test]
fn nothing_that_listens_is_named() {
    let ended = uwarp(&["rping", "-c", "-a", "127.0.0.1", "-p", "1"]).expect(1);
    ended.says("nothing listens at 127.0.0.1:1").says("try: ");
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ended = uwarp(&["rping", "-s", "-a", "127.0.0.1", "-p", &port]).expect(1);
    ended.says(&format!("127.0.0.1:{port} is in use"));
}

#[test]
fn a_peer_that_is_no_iwarp_is_named() {
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = fake.local_addr().unwrap();
    thread::spawn(move || {
        let (mut stream, _) = fake.accept().unwrap();
        let _ = stream.read(&mut [0; 20]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    let ended = client(addr, &[]).expect(1);
    ended.says(&format!("the peer at {addr} answered 'HTTP/1.1 400"));
    ended.says("not an MPA Reply").says("at fault: ");
}

#[test]
fn a_server_that_knows_revision_1_only_is_met_with_advice() {
    let (_server, addr) = Uwarp::server(&["-P", "--mpa", "1"]);
    client(addr, &["-C", "1"])
        .expect(1)
        .says("try: try again with --mpa 1");
    client(addr, &["-C", "1", "--mpa", "1"]).expect(0);
}

/// Runs a client against a server that answers the first FPDU with a Terminate (unexpected opcode),
/// in the layout of Linux siw.
fn client_of_siw(args: &[&str]) -> Ended {
    let fake = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = fake.local_addr().unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = raw_accept(&fake, 0, PATIENCE).unwrap();
        stream.read_exact(&mut [0; 40]).unwrap(); // a Send of 16 bytes
        // The code is 0/2/06 (unexpected opcode). siw exchanges layer and error type.
        let terminate = Code {
            layer: 2,
            etype: 0,
            code: 6,
        };
        let fpdu = fpdu(&terminate.bare(), Crc::Zero);
        stream.write_all(&fpdu).unwrap();
        // Waits until the client has closed, because a reset could arrive before the Terminate.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let args = [&["-C", "1", "--mpa", "1", "--crc", "off"], args].concat();
    let ended = client(addr, &args).expect(1);
    server.join().unwrap();
    ended
}

#[test]
fn a_terminate_of_siw_is_told_in_words_with_its_profile_and_hinted_at_without() {
    client_of_siw(&["--peer", "siw"])
        .says("the peer ended the connection: unexpected opcode")
        .says("sent in the layout of Linux siw");
    client_of_siw(&[])
        .says("the peer ended the connection: IRD too small")
        .says("from Linux siw it would mean: unexpected opcode")
        .says("try: use --peer siw");
}

#[test]
fn a_server_that_is_stopped_is_named_by_its_client() {
    let (mut server, addr) = Uwarp::server(&[]);
    let port = addr.port().to_string();
    let mut client = Uwarp::start(&["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-v"]);
    client.stdout_until("rdma-ping-5: ");
    server.kill();
    let ended = client.end().expect(1);
    ended.says(&addr.to_string()).says("at fault: ");
}

/// Index of the byte of the echo that the server below changes: an `H` becomes an `h`.
const WRONG: usize = 20;

/// Serves one ping of one client as an rping server does, but changes one byte of the echo.
fn echo_with_a_wrong_byte(device: &Device, listener: &Listener) {
    const SIZE: u32 = 64;
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(64).unwrap();
    let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    let inbox = pd.register(vec![0; 16], Access::LOCAL_WRITE).unwrap();
    let data = pd
        .register(vec![0; SIZE as usize], Access::LOCAL_WRITE)
        .unwrap();
    let post_recv = || qp.post_recv(&RecvWr::new(0, &[inbox.sge(0, 16)])).unwrap();
    let wait = |opcode| {
        loop {
            let done = cq.wait(Some(PATIENCE)).unwrap();
            assert_eq!(done.status, Status::Success);
            if done.opcode == opcode {
                return;
            }
        }
    };
    // Waits for the client's next advert. Returns its address and key.
    let receive = || {
        wait(WcOpcode::Recv);
        let mut advert = [0; 16];
        inbox.read_at(0, &mut advert).unwrap();
        post_recv();
        let (addr, rest) = advert.split_first_chunk().unwrap();
        let (rkey, len) = rest.split_first_chunk().unwrap();
        assert_eq!(len, SIZE.to_be_bytes());
        (u64::from_be_bytes(*addr), u32::from_be_bytes(*rkey))
    };
    let go_ahead = || qp.post_send(&SendWr::send_inline(0, &[0; 16])).unwrap();

    post_recv();
    let request = listener.wait_request(Some(PATIENCE)).unwrap();
    request.accept(&qp, &AcceptOptions::default()).unwrap();
    let (addr, rkey) = receive();
    let sges = [data.sge(0, SIZE)];
    qp.post_send(&SendWr::read(0, &sges, RemoteBuffer::at(addr, rkey)))
        .unwrap();
    wait(WcOpcode::RdmaRead);
    go_ahead();

    let (addr, rkey) = receive();
    let mut byte = [0];
    data.read_at(WRONG, &mut byte).unwrap();
    assert_eq!(byte, *b"H");
    data.write_at(WRONG, b"h").unwrap();
    qp.post_send(&SendWr::write(0, &sges, RemoteBuffer::at(addr, rkey)))
        .unwrap();
    wait(WcOpcode::RdmaWrite);
    go_ahead();
    let _ = qp.wait_closed(PATIENCE);
}

/// Runs a client against a server that changes one byte of the echo.
fn client_of_a_wrong_echo(args: &[&str]) -> Ended {
    let device = Device::tcp().unwrap();
    let listener = device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr();
    let server = thread::spawn(move || echo_with_a_wrong_byte(&device, &listener));
    let ended = client(addr, &[&["-C", "1", "-v"], args].concat());
    server.join().unwrap();
    ended
}

#[test]
fn one_wrong_byte_in_the_echo_is_found_when_validating() {
    let ended = client_of_a_wrong_echo(&["-V"]).expect(1);
    ended.says(&format!(
        "ping 0: data mismatch! byte {WRONG} came back as 0x68\n  expected: 0x48"
    ));
    assert_eq!(ended.stdout, "");
}

#[test]
fn one_wrong_byte_in_the_echo_is_of_no_interest_without_validating() {
    let ended = client_of_a_wrong_echo(&[]).expect(0);
    let mut text = ping_text(0, 64);
    text.replace_range(WRONG..=WRONG, "h");
    assert_eq!(ended.stdout, format!("ping data: {text}\n"));
}

// A client that sends raw bytes, for errors that a correct client does not make.

/// Opens a TCP connection and completes the MPA startup, without CRC if the server does not use
/// CRCs.
fn started(addr: SocketAddr) -> TcpStream {
    raw_connect(addr, 0, PATIENCE).unwrap().0
}

/// Returns an FPDU without CRC: a Send whose payload is an advert (address, STag and length).
fn advert() -> Vec<u8> {
    let advert = [[0; 4], [0; 4], [0, 0, 0, 7], [0, 0, 0, 64]].concat();
    fpdu(&Untagged::send(1).with(&advert), Crc::Zero)
}

/// Checks that a correct client is still served.
fn still_serves(addr: SocketAddr) {
    client(addr, &["-C", "3", "-V", "--crc", "off"]).expect(0);
}

#[test]
fn a_client_that_is_no_iwarp_is_named_and_the_next_one_is_served() {
    let (mut server, addr) = Uwarp::server(&["-P"]);
    let mut stream = TcpStream::connect(addr).unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let line = server.stderr_until("not an MPA Request");
    let from = stream.local_addr().unwrap();
    assert!(
        line.contains(&format!("the peer at {from} sent 'GET / HTTP/1.1'")),
        "{line}"
    );
    assert!(
        matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)),
        "the server closed it"
    );
    still_serves(addr);
}

#[test]
fn garbage_in_place_of_an_fpdu_is_named_and_the_next_client_is_served() {
    let (mut server, addr) = Uwarp::server(&["-P"]);
    let mut stream = started(addr);
    // The length field is valid, and garbage follows.
    stream
        .write_all(&[&[0, 40][..], &[0xA5; 400]].concat())
        .unwrap();
    let line = server.stderr_until("damaged stream");
    assert!(
        line.contains(&stream.local_addr().unwrap().to_string()),
        "{line}"
    );
    still_serves(addr);
}

fn server_with(visit: impl FnOnce(TcpStream)) -> Ended {
    let (server, addr) = Uwarp::server(&["--crc", "off"]);
    visit(started(addr));
    server.end()
}

#[test]
fn a_client_that_vanishes_before_its_first_ping_is_told_of() {
    let ended = server_with(drop).expect(1);
    ended.says("closed the connection before its first ping");
}

#[test]
fn a_client_that_vanishes_in_the_middle_of_a_ping_is_told_of() {
    let ended = server_with(|mut stream| stream.write_all(&advert()).unwrap()).expect(1);
    // The connection may end by FIN or by RST. TCP sends RST if the client closes with an unread
    // Read Request.
    ended.says("ping 0");
    let blamed = ["at fault: the client", "at fault: the peer"];
    assert!(
        blamed.iter().any(|blamed| ended.stderr.contains(blamed)),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_client_that_vanishes_in_the_middle_of_an_fpdu_is_told_of() {
    let ended = server_with(|mut stream| stream.write_all(&advert()[..30]).unwrap()).expect(1);
    ended.says("in the middle of an FPDU");
}

#[test]
fn a_client_that_is_killed_does_not_stop_a_persistent_server() {
    let (mut server, addr) = Uwarp::server(&["-P"]);
    let port = addr.port().to_string();
    let mut victim = Uwarp::start(&["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-v"]);
    victim.stdout_until("rdma-ping-3: ");
    victim.kill();
    server.stderr_until("server DISCONNECT EVENT");
    still_serves(addr);
}

#[test]
fn an_iwarp_client_that_is_not_rping_is_told_of() {
    let mut message = advert();
    // The ULPDU is one byte shorter than with an advert: 33 bytes, followed by one more byte of
    // padding.
    message[1] = 33;
    let ended = server_with(|mut stream| {
        stream.write_all(&message).unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    ended.expect(1).says("a message of 15 bytes");
}

/// Opens a TCP connection, sends an MPA Request and reads the Reply. Returns its private data if
/// the server rejects the connection.
fn knock(addr: SocketAddr) -> (TcpStream, Option<String>) {
    let (stream, reply) = raw_connect(addr, 0, PATIENCE).unwrap();
    let said = || String::from_utf8(reply.private_data.clone()).unwrap();
    let said = reply.is(REJECT).then(said);
    (stream, said)
}

/// Returns the number of threads of the server that are for clients.
fn serving_threads(server: &Uwarp) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.id())).unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.trim() == "uwarp-rping").count()
}

/// Before, each of them had a thread of the server.
#[test]
fn silent_clients_beyond_the_limit_are_rejected_in_words_and_get_no_thread() {
    let (mut server, addr) = Uwarp::server(&["-P", "--max-clients", "4", "--silence", "0"]);
    let knocks: Vec<_> = (0..20).map(|_| knock(addr)).collect();
    let words = "the server already serves 4 at once, its limit";
    for (number, (_, said)) in knocks.iter().enumerate() {
        assert_eq!(said.as_deref(), (number >= 4).then_some(words), "{number}");
    }
    let line = server.stderr_until("was rejected");
    assert!(line.contains(words), "{line}");
    server.stderr_until("try: --max-clients");
    assert_eq!(serving_threads(&server), 4);
    let ended = client(addr, &["-C", "1"]).expect(1);
    ended.says("rejected the connection and said \"the server already serves 4 at once");
}

/// Before, a client that said nothing held its thread for ever.
#[test]
fn a_silent_client_that_fills_the_server_is_disconnected_and_an_honest_one_is_served() {
    let limits = ["-P", "--max-clients", "1", "--silence", "1", "--crc", "off"];
    let (mut server, addr) = Uwarp::server(&limits);
    // The first one never begins its first ping, and the other one never answers the Read of its
    // ping.
    for first_words in [Vec::new(), advert()] {
        // The thread of the client before may not have ended yet. The server prints 30 messages
        // about one address at once, and drops what comes faster.
        let mut silent = std::iter::repeat_with(|| {
            thread::sleep(std::time::Duration::from_millis(50));
            knock(addr)
        });
        let (mut silent, _) = silent.find(|(_, said)| said.is_none()).unwrap();
        silent.write_all(&first_words).unwrap();
        let line = server.stderr_until("the client said nothing for 1 s");
        assert!(line.contains("ping 0"), "{line}");
        server.stderr_until("expected: each step of a ping within 1 s");
        // Ends when the server has closed the connection, by FIN or by RST.
        let _ = silent.read_to_end(&mut Vec::new());
        still_serves(addr);
    }
}

/// Connection of a client that has done one ping.
struct Paused {
    qp: uwarp_verbs::Qp,
    _memory: uwarp_verbs::MemoryRegion,
}

impl Paused {
    fn new(device: &Device, addr: SocketAddr) -> Paused {
        const SIZE: u32 = 64;
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
        let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
        let inbox = pd.register(vec![0; 16], Access::LOCAL_WRITE).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = pd.register(vec![0; SIZE as usize], rights).unwrap();
        let lent = memory.remote();
        let advert = [
            &lent.addr.to_be_bytes()[..],
            &lent.rkey.to_be_bytes(),
            &SIZE.to_be_bytes(),
        ];
        let post_recv = || qp.post_recv(&RecvWr::new(0, &[inbox.sge(0, 16)])).unwrap();
        post_recv();
        qp.connect(addr, &uwarp_verbs::ConnectOptions::default())
            .unwrap();
        // The memory is the source of the ping and the sink of its echo.
        for _ in 0..2 {
            let advert = advert.concat();
            qp.post_send(&SendWr::send_inline(0, &advert)).unwrap();
            while cq.wait(Some(PATIENCE)).unwrap().opcode != WcOpcode::Recv {}
            post_recv();
        }
        Paused {
            qp,
            _memory: memory,
        }
    }
}

/// Before, there was no limit, so no client had to give way. A limit alone would lock all others
/// out for ever, because a pause between two pings has no limit.
#[test]
fn a_client_that_pauses_gives_way_to_a_new_one_when_the_server_is_full() {
    let limits = ["-P", "--max-clients", "2", "--silence", "1"];
    let (_server, addr) = Uwarp::server(&limits);
    let device = Device::tcp().unwrap();
    let paused = [(); 2].map(|()| Paused::new(&device, addr));
    // Until one of them has paused for long enough, new ones are rejected.
    loop {
        let ended = client(addr, &["-C", "1", "-V"]);
        if ended.status.success() {
            break;
        }
        ended.says("the server already serves 2 at once, its limit");
        thread::sleep(std::time::Duration::from_millis(50));
    }
    let deadline = std::time::Instant::now() + PATIENCE;
    let has_ended = |paused: &Paused| paused.qp.end_reason().is_some();
    while !paused.iter().any(has_ended) {
        assert!(std::time::Instant::now() < deadline);
        thread::sleep(std::time::Duration::from_millis(5));
    }
    // One place was enough for the new client.
    assert!(!paused.iter().all(has_ended));
}

#[test]
fn the_limits_are_for_a_persistent_server() {
    for option in ["--max-clients", "--silence"] {
        let ended = uwarp(&["rping", "-s", "-a", "127.0.0.1", option, "3"]).expect(2);
        ended.says("-P");
    }
}
