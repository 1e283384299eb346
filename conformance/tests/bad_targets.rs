//! A target that is broken, or is not an iWARP endpoint, gets a verdict. The suite neither hangs
//! nor aborts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::SockRef;
use uwarp_conformance::{
    Config, Ending, KernelTcp, Listener, Network, Outcome, Selection, Stream, Target, Verdict, run,
};

/// A TCP server that runs a function on each connection.
struct Server {
    at: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn new(serve: impl Fn(TcpStream) + Send + Clone + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream.unwrap()));
            }
        });
        Server {
            at,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.at);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Plays the cases about startup and some cases about the other layers. Asserts that several of
/// them fail, and that none ends with an error of the suite.
fn play(server: &Server) -> Vec<Outcome> {
    let some = [
        "mpa/5044-7.1.1",
        "mpa/5044-7.1.2",
        "ddp/5041-7.1",
        "rdmap/5040-5.4",
    ];
    let outcomes = play_some(server, &some);
    let failed = outcomes
        .iter()
        .filter(|one| matches!(one.verdict, Verdict::Fail(_)));
    assert!(failed.count() >= 5);
    outcomes
}

fn play_some(server: &Server, some: &[&str]) -> Vec<Outcome> {
    let mut config = Config::new(Target::At(server.at));
    config.timeout = Duration::from_millis(200);
    config.quiet = Duration::from_millis(20);
    let selection = Selection(some.iter().map(|id| (*id).to_owned()).collect());
    let outcomes = run(&config, &selection, &()).unwrap();
    let errors: Vec<&Outcome> = outcomes
        .iter()
        .filter(|one| matches!(one.verdict, Verdict::Infrastructure(_)))
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    outcomes
}

fn endings(outcomes: &[Outcome]) -> Vec<Ending> {
    outcomes
        .iter()
        .filter_map(|outcome| outcome.ending)
        .collect()
}

#[test]
fn one_that_hangs_is_told_as_silence() {
    let server = Server::new(|mut stream| {
        // Reads, so that its TCP window stays open, but sends nothing.
        while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
    });
    assert!(endings(&play(&server)).contains(&Ending::Silence));
}

#[test]
fn one_that_closes_at_once_is_told_as_a_close() {
    let server = Server::new(drop);
    let endings = endings(&play(&server));
    assert!(
        endings
            .iter()
            .all(|ending| matches!(ending, Ending::Close | Ending::Reset))
    );
}

#[test]
fn one_that_resets_is_told_as_a_reset() {
    let server = Server::new(|stream| {
        SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
    });
    let endings = endings(&play(&server));
    assert!(
        endings
            .iter()
            .all(|ending| matches!(ending, Ending::Close | Ending::Reset))
    );
}

#[test]
fn one_that_floods_fails_and_does_not_fill_the_memory() {
    let server = Server::new(|mut stream| while stream.write_all(&[0; 65536]).is_ok() {});
    let outcomes = play(&server);
    let left_out = |outcome: &Outcome| {
        let mut entries = outcome.log.iter();
        entries.any(|entry| entry.text.ends_with("are left out here"))
    };
    assert!(outcomes.iter().any(left_out));
    for outcome in outcomes {
        let bytes: usize = outcome.log.iter().map(|entry| entry.bytes.len()).sum();
        assert!(bytes < 1 << 20, "{}: {bytes} in the log", outcome.id);
    }
}

/// The target completes startup and then sends FPDUs endlessly.
#[test]
fn one_that_sends_fpdus_without_end_fails() {
    let server = Server::new(|mut stream| {
        if !answer_request(&mut stream) {
            return;
        }
        let sends = send(1024).repeat(60);
        while stream.write_all(&sends).is_ok() {}
    });
    fails_for_it_has_no_end(&server);
}

/// The target sends an FPDU now and then, endlessly. Each FPDU arrives before the timeout.
#[test]
fn one_that_sends_fpdus_now_and_then_without_end_fails() {
    let server = Server::new(|mut stream| {
        if !answer_request(&mut stream) {
            return;
        }
        let send = send(32);
        while stream.write_all(&send).is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    // If the suite waits forever, this call does not return.
    fails_for_it_has_no_end(&server);
}

/// Reads the Request and answers with a Reply without C set. Returns false if the connection fails.
fn answer_request(stream: &mut TcpStream) -> bool {
    let mut header = [0; 20];
    if stream.read_exact(&mut header).is_err() {
        return false;
    }
    let len = usize::from(u16::from_be_bytes([header[18], header[19]]));
    stream.read_exact(&mut vec![0; len]).is_ok()
        && stream
            .write_all(b"MPA ID Rep Frame\x00\x01\x00\x00")
            .is_ok()
}

/// Returns the FPDU of a Send segment that is not the last one of its message. `ulpdu`: its
/// ULPDU_Length.
fn send(ulpdu: u16) -> Vec<u8> {
    let mut send = ulpdu.to_be_bytes().to_vec();
    send.extend_from_slice(&[0x01, 0x43]);
    send.resize(2 + usize::from(ulpdu), 0);
    send.resize(send.len().next_multiple_of(4) + 4, 0);
    send
}

fn fails_for_it_has_no_end(server: &Server) {
    let outcomes = play_some(server, &["ddp/5041-7.1/1"]);
    assert!(
        matches!(&outcomes[0].verdict, Verdict::Fail(failure) if failure.received.contains("no end")),
        "{outcomes:?}"
    );
}

#[test]
fn one_that_speaks_http_fails_with_what_it_said() {
    let server = Server::new(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    let outcomes = play(&server);
    let said = outcomes.iter().any(|outcome| {
        let bytes = outcome.log.iter().flat_map(|entry| entry.bytes.clone());
        String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).contains("HTTP/1.1 400")
    });
    assert!(said);
}

#[test]
fn one_that_is_not_there_is_an_error_of_the_run_and_not_of_the_target() {
    let at = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    let mut config = Config::new(Target::At(at));
    config.timeout = Duration::from_millis(200);
    let selection = Selection(vec!["mpa/5044-7.1.1/3".into()]);
    let outcomes = run(&config, &selection, &()).unwrap();
    assert!(
        matches!(&outcomes[0].verdict, Verdict::Infrastructure(what) if what.contains("is it running"))
    );
}

/// TCP of the kernel. It counts the connection attempts.
#[derive(Default)]
struct Counting {
    network: KernelTcp,
    tried: AtomicUsize,
}

impl Network for Counting {
    fn connect(
        &self,
        to: SocketAddr,
        mss: Option<u16>,
        timeout: Duration,
    ) -> std::io::Result<Box<dyn Stream>> {
        self.tried.fetch_add(1, Ordering::Relaxed);
        self.network.connect(to, mss, timeout)
    }

    fn own_ip(&self) -> IpAddr {
        self.network.own_ip()
    }

    fn listen(
        &self,
        at: Option<SocketAddr>,
        peer: Option<SocketAddr>,
        mss: Option<u16>,
    ) -> std::io::Result<Box<dyn Listener>> {
        self.network.listen(at, peer, mss)
    }
}

/// Returns true if a case was skipped because the target was found dead.
fn is_gone(outcome: &Outcome) -> bool {
    let words = [
        "the target cannot be reached",
        "the target is gone since case ",
    ];
    matches!(&outcome.verdict, Verdict::Skipped(why) if words.iter().any(|begin| why.starts_with(begin)))
}

/// Plays all cases for MPA. Returns the outcomes of the cases that were not skipped, the number of
/// cases skipped because the target was found dead, and the number of connection attempts.
fn play_all(at: SocketAddr, jobs: usize) -> (Vec<Outcome>, usize, usize) {
    let network = Arc::new(Counting::default());
    let mut config = Config::new(Target::At(at));
    config.timeout = Duration::from_millis(200);
    config.quiet = Duration::from_millis(20);
    config.jobs = jobs;
    config.network = network.clone();
    let outcomes = run(&config, &Selection(vec!["mpa".into()]), &()).unwrap();
    let gone = outcomes.iter().filter(|one| is_gone(one)).count();
    let tried = outcomes
        .into_iter()
        .filter(|outcome| !matches!(outcome.verdict, Verdict::Skipped(_)));
    (tried.collect(), gone, network.tried.load(Ordering::Relaxed))
}

#[test]
fn one_that_is_not_there_is_tried_once_and_not_by_each_case() {
    let at = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap();
    for jobs in [1, 4] {
        let (tried, gone, connections) = play_all(at, jobs);
        assert_eq!(connections, 1, "{jobs} jobs");
        assert_eq!(tried.len(), 1, "{tried:?}");
        assert!(gone > 20, "{gone}");
    }
}

/// Cases that run before the target ends get their verdicts. One case finds that the target has
/// ended, and the others are skipped.
#[test]
fn one_that_dies_is_waited_for_once() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = server.local_addr().unwrap();
    let lives = std::thread::spawn(move || {
        for _ in 0..5 {
            drop(server.accept().unwrap());
        }
    });
    let (tried, gone, _) = play_all(at, 1);
    lives.join().unwrap();
    let errors: Vec<&Outcome> = tried
        .iter()
        .filter(|one| matches!(one.verdict, Verdict::Infrastructure(_)))
        .collect();
    assert!(errors.len() <= 1, "{errors:?}");
    assert!((2..=6).contains(&tried.len()) && gone > 20, "{tried:?}");
}

/// A server that restarts after each connection is unreachable for a moment between connections.
#[test]
fn one_that_comes_back_is_no_dead_one() {
    let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = first.local_addr().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let lives = std::thread::spawn(move || {
        let mut server = Some(first);
        while !stopped.load(Ordering::Relaxed) {
            // Waits for a connection before the listener is closed again.
            let listener = match server.take() {
                Some(listener) => listener,
                None => TcpListener::bind(at).unwrap(),
            };
            drop(listener.accept().unwrap());
        }
    });
    let mut config = Config::new(Target::At(at));
    config.timeout = Duration::from_secs(60);
    config.quiet = Duration::from_millis(20);
    config.jobs = 1;
    let selection = Selection(vec!["mpa/5044-7.1.1".into()]);
    let outcomes = run(&config, &selection, &()).unwrap();
    stop.store(true, Ordering::Relaxed);
    // The server may still wait for a connection.
    while !lives.is_finished() {
        let _ = TcpStream::connect(at);
        std::thread::yield_now();
    }
    lives.join().unwrap();
    for outcome in outcomes {
        assert!(
            !matches!(outcome.verdict, Verdict::Infrastructure(_)) && !is_gone(&outcome),
            "{outcome:?}"
        );
    }
}

/// Reads FPDUs until one has a ULPDU of fewer than `least` bytes. Returns false if the connection
/// ends before.
fn read_until_short_fpdu(stream: &mut TcpStream, least: u16) -> bool {
    let mut ulpdu = [0; 2];
    while stream.read_exact(&mut ulpdu).is_ok() {
        let len = u16::from_be_bytes(ulpdu);
        let rest = (2 + usize::from(len)).next_multiple_of(4) + 2;
        if len < least {
            return true;
        }
        if stream.read_exact(&mut vec![0; rest]).is_err() {
            break;
        }
    }
    false
}

/// Starts a target that exits when it receives an FPDU with a ULPDU of fewer than `least` bytes.
fn one_that_dies_of_a_short_fpdu(least: u16) -> (SocketAddr, JoinHandle<()>) {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = server.local_addr().unwrap();
    let lives = std::thread::spawn(move || {
        loop {
            let (mut stream, _) = server.accept().unwrap();
            if answer_request(&mut stream) && read_until_short_fpdu(&mut stream, least) {
                drop(server);
                return;
            }
        }
    });
    (at, lives)
}

fn play_dangerous(config: &mut Config, some: &[&str]) -> Vec<Outcome> {
    config.timeout = Duration::from_millis(200);
    config.quiet = Duration::from_millis(20);
    config.dangerous = true;
    let selection = Selection(some.iter().map(|id| (*id).to_owned()).collect());
    run(config, &selection, &()).unwrap()
}

/// Asserts that the target died in the first case, and that the other cases were skipped.
fn died_of_the_first(outcomes: &[Outcome]) {
    let (first, others) = outcomes.split_first().unwrap();
    assert!(
        matches!(&first.verdict, Verdict::Fail(failure) if failure.ending == Some(Ending::Died)),
        "{first:?}"
    );
    assert_eq!(first.ending, Some(Ending::Died));
    let why = format!("the target is gone since case {}", first.id);
    for other in others {
        assert_eq!(other.verdict, Verdict::Skipped(why.clone()), "{}", other.id);
    }
}

#[test]
fn one_that_dies_of_a_case_fails_in_it_and_not_in_others() {
    for jobs in [1, 4] {
        let (at, lives) = one_that_dies_of_a_short_fpdu(14);
        let mut config = Config::new(Target::At(at));
        config.jobs = jobs;
        let outcomes = play_dangerous(&mut config, &["ddp/5041-4.1/14", "ddp/5041-4.2/2*"]);
        lives.join().unwrap();
        assert!(outcomes.len() > 5);
        died_of_the_first(&outcomes);
    }
}

/// Starts an agent that serves one session at a time. It answers the command `listen` with the port
/// that the function returns, and exits if the function returns `None`.
fn agent(mut listen: impl FnMut() -> Option<u16> + Send + 'static) -> (SocketAddr, JoinHandle<()>) {
    let control = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let at = control.local_addr().unwrap();
    let serve = move || {
        loop {
            let (mut session, _) = control.accept().unwrap();
            let hello = b"{\"hello\":\"uwarp-agent\",\"protocol\":1}\n";
            // A connection without a command makes the agent exit. The test opens one at its end.
            if session.write_all(hello).is_err() || session.peek(&mut [0]).unwrap_or(0) == 0 {
                return;
            }
            for line in BufReader::new(session.try_clone().unwrap()).lines() {
                let Ok(line) = line else { break };
                let command: serde_json::Value = serde_json::from_str(&line).unwrap();
                let mut answer = serde_json::json!({ "id": command["id"], "ok": true });
                if command["cmd"] == "listen" {
                    let Some(port) = listen() else { return };
                    answer["port"] = port.into();
                    answer["listener"] = 1.into();
                }
                if writeln!(session, "{answer}").is_err() {
                    break;
                }
            }
        }
    };
    (at, std::thread::spawn(serve))
}

#[test]
fn one_that_dies_with_its_agent_fails() {
    let (at, lives) = agent(|| None);
    let mut config = Config::new(Target::At(at));
    config.agent = Some(at);
    let outcomes = play_dangerous(&mut config, &["mpa/5044-7.1.1/2*"]);
    lives.join().unwrap();
    assert!(outcomes.len() > 2);
    // Slow cases are played first.
    let (mut failed, others): (Vec<_>, Vec<_>) = outcomes
        .into_iter()
        .partition(|one| !matches!(one.verdict, Verdict::Skipped(_)));
    failed.extend(others);
    died_of_the_first(&failed);
}

/// Plays cases with an agent. The agent names a closed port in its first `closed` answers, and then
/// the port of a server.
fn play_beside_an_agent(closed: usize) -> Vec<Outcome> {
    let server = Server::new(drop);
    let nowhere = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let [right, wrong] = [server.at, nowhere.local_addr().unwrap()].map(|at| at.port());
    drop(nowhere);
    let mut listens = 0;
    let (at, lives) = agent(move || {
        listens += 1;
        Some(if listens <= closed { wrong } else { right })
    });
    let mut config = Config::new(Target::At(server.at));
    config.agent = Some(at);
    let outcomes = play_dangerous(&mut config, &["mpa/5044-7.1.1"]);
    drop(TcpStream::connect(at).unwrap());
    lives.join().unwrap();
    outcomes
}

/// Returns true if the case found that nothing listens at the port.
fn found_none(outcome: &Outcome) -> bool {
    matches!(&outcome.verdict, Verdict::Infrastructure(why) if why.contains("takes no connection"))
}

#[test]
fn a_listener_of_one_case_fails_alone() {
    let outcomes = play_beside_an_agent(1);
    let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|one| is(one)).count();
    assert_eq!(count(is_gone), 0, "{outcomes:?}");
    assert_eq!(count(found_none), 1, "{outcomes:?}");
    assert!(count(|one| matches!(one.verdict, Verdict::Fail(_))) > 5);
}

/// Has the same effect as a firewall that drops everything.
#[test]
fn listeners_that_all_fail_are_tried_a_few_times() {
    let outcomes = play_beside_an_agent(usize::MAX);
    let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|one| is(one)).count();
    assert_eq!(count(found_none), 4, "{outcomes:?}");
    assert!(count(is_gone) > 5, "{outcomes:?}");
}
