//! Runs every example as two processes, a server and a client.

mod running;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use running::{Running, client};
use uwarp_examples::LONGEST;
use uwarp_verbs::{Access, ConnectOptions, Device, QpCaps, RemoteBuffer, SendWr};

const ALL: [&str; 7] = [
    env!("CARGO_BIN_EXE_rpc"),
    env!("CARGO_BIN_EXE_upload_ring"),
    env!("CARGO_BIN_EXE_upload_token"),
    env!("CARGO_BIN_EXE_hybrid"),
    env!("CARGO_BIN_EXE_kv"),
    env!("CARGO_BIN_EXE_counter"),
    env!("CARGO_BIN_EXE_async_rpc"),
];

#[test]
fn a_wrong_argument_prints_the_usage_and_exits_2() {
    for program in ALL {
        for args in [
            &[][..],
            &["serve"],
            &["server", "nowhere"],
            &["server", "127.0.0.1:0", "x"],
        ] {
            let ended = Running::start(program, args).end();
            assert_eq!(ended.code, Some(2), "{program} {args:?}: {ended:?}");
            assert!(ended.stderr.contains("usage: "), "{}", ended.stderr);
            assert!(ended.stderr.contains(" client [ADDR"), "{}", ended.stderr);
        }
    }
}

#[test]
fn each_example_has_less_than_150_lines_and_is_in_the_readme() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(here.join("README.md")).unwrap();
    let mut count = 0;
    for file in here.join("src/bin").read_dir().unwrap() {
        let path = file.unwrap().path();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines < 150, "{} has {lines} lines", path.display());
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(readme.contains(&format!("(src/bin/{name})")), "{name}");
        count += 1;
    }
    assert_eq!(count, ALL.len());
}

#[test]
fn a_client_without_a_server_says_so_and_exits_1() {
    // Nothing listens on port 1.
    let addr = "127.0.0.1:1";
    for program in ALL {
        let ended = Running::start(program, &["client", addr]).end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains(addr), "{}", ended.stderr);
    }
}

#[test]
fn rpc_answers_come_by_write_and_send() {
    let program = env!("CARGO_BIN_EXE_rpc");
    let (server, addr) = Running::server(program);
    let said = client(program, &addr, &["20"]);
    assert_eq!(said, "primes below 20: 19 bytes, 2 3 5 7 11 13 17 19\n");
    assert_eq!(server.line(), "answered 20 with 19 bytes");
    // Another client of the same server, with answers of three sizes.
    let said = client(program, &addr, &[]);
    assert_eq!(said.lines().count(), 3);
    assert!(
        said.contains("primes below 10: 7 bytes, 2 3 5 7\n"),
        "{said}"
    );
    assert!(said.contains("... 49999\n"), "{said}");
}

#[test]
fn an_upload_through_a_ring_arrives_whole() {
    let program = env!("CARGO_BIN_EXE_upload_ring");
    let (server, addr) = Running::server(program);
    upload(program, &server, &addr, "received");
}

#[test]
fn an_upload_by_token_is_read_by_the_server_and_the_key_is_void_after() {
    let program = env!("CARGO_BIN_EXE_upload_token");
    let (server, addr) = Running::server(program);
    upload(program, &server, &addr, "read");
    assert!(client(program, &addr, &[]).contains("the key is void: true"));
}

#[test]
fn a_file_that_is_longer_than_the_server_takes_is_refused_with_both_lengths() {
    let name = format!("uwarp-examples-long-{}", std::process::id());
    let path = std::env::temp_dir().join(name);
    // A sparse file, which takes no space.
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(LONGEST + 1).unwrap();
    for program in [
        env!("CARGO_BIN_EXE_upload_ring"),
        env!("CARGO_BIN_EXE_upload_token"),
    ] {
        let (server, addr) = Running::server(program);
        let args = ["client", &addr, path.to_str().unwrap()];
        let ended = Running::start(program, &args).end();
        assert_eq!((ended.code, &ended.stdout[..]), (Some(1), ""));
        let told = "the file has 67108865 bytes, but the server accepts at most 67108864";
        assert!(ended.stderr.contains(told), "{}", ended.stderr);
        // The server still serves other clients.
        let said = client(program, &addr, &["/dev/null"]);
        assert!(said.starts_with("uploaded 0 bytes"), "{said}");
        drop(server);
    }
    std::fs::remove_file(path).unwrap();
}

/// Uploads an empty file, the example itself, and generated data. Checks that the server prints the
/// same length and checksum as the client.
fn upload(program: &str, server: &Running, addr: &str, verb: &str) {
    for file in [Some("/dev/null"), Some(program), None] {
        let said = client(program, addr, file.as_slice());
        let line = said.strip_prefix("uploaded ").expect(&said);
        let checked = line.split(", ").take(2).collect::<Vec<_>>().join(", ");
        assert_eq!(server.line(), format!("{verb} {}", checked.trim_end()));
    }
}

#[test]
fn a_hybrid_sends_what_is_small_and_lends_what_is_large() {
    let program = env!("CARGO_BIN_EXE_hybrid");
    let (server, addr) = Running::server(program);
    let said = client(program, &addr, &[]);
    let expected = "0 bytes arrived, in the Send\n\
        100 bytes arrived, in the Send\n\
        4096 bytes arrived, in the Send\n\
        4097 bytes arrived, Read by the server\n\
        100000 bytes arrived, Read by the server\n\
        1000000 bytes arrived, Read by the server\n";
    assert_eq!(said, expected);
    let ways = ["message", "message", "message", "token", "token", "token"];
    for (line, way) in said.lines().zip(ways) {
        let bytes = line.split(' ').next().unwrap();
        assert_eq!(server.line(), format!("{bytes} bytes by {way}"));
    }
}

#[test]
fn a_key_value_store_is_read_while_its_server_sleeps() {
    let program = env!("CARGO_BIN_EXE_kv");
    let (mut server, addr) = Running::server(program);
    let said = client(program, &addr, &[]);
    let expected = "apple = a round fruit (version 1)\n\
        cherry = a small red one (version 1)\n\
        durian not found\n";
    assert_eq!(said, expected);
    server.type_line("put apple a green one");
    assert_eq!(server.line(), "version 2 of apple");
    let said = client(program, &addr, &["apple"]);
    assert_eq!(said, "apple = a green one (version 2)\n");
    // The main thread sleeps, and clients that read do not wake it. So its number of voluntary
    // context switches, which the kernel counts, must not change.
    if let Some(before) = naps(&server) {
        client(program, &addr, &["apple,cherry,apple,cherry"]);
        assert_eq!(naps(&server), Some(before));
    }
}

/// Returns the number of voluntary context switches of the main thread, or `None` if the system
/// does not report it. (The id of the main thread is that of the process.)
fn naps(server: &Running) -> Option<u64> {
    let id = server.id();
    let status = std::fs::read_to_string(format!("/proc/{id}/task/{id}/status")).ok()?;
    let line = status
        .lines()
        .find(|line| line.starts_with("voluntary_ctxt_switches"))?;
    line.rsplit('\t').next()?.parse().ok()
}

/// The test itself is the only client, so only its Reads could wake a thread of the server.
#[test]
fn no_thread_of_the_servers_program_runs_for_a_read() {
    let (server, addr) = Running::server(env!("CARGO_BIN_EXE_kv"));
    let device = Device::tcp().unwrap();
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
    let qp = pd.create_qp(&cq, &cq, QpCaps::default()).unwrap();
    let connected = qp
        .connect(addr.as_str(), &ConnectOptions::default())
        .unwrap();
    let table = RemoteBuffer::from_bytes(&connected.private_data).unwrap();
    let sink = pd.register(vec![0; 256], Access::LOCAL_WRITE).unwrap();
    let read = || {
        let sink = [sink.sge(0, 256)];
        qp.post_send(&SendWr::read(1, &sink, table)).unwrap();
        cq.wait(None).unwrap().ok().unwrap();
    };
    read();
    // `at_rest` may see a thread in a short sleep before its final wait. Such a thread still wakes,
    // but not in every round. A thread that runs for Reads would wake in every round.
    for _ in 0..10 {
        let Some(before) = at_rest(&server) else {
            return;
        };
        // One thread reads standard input, one listens, and one serves this client.
        assert_eq!(before.len(), 3, "{before:?}");
        for _ in 0..500 {
            read();
        }
        if at_rest(&server) == Some(before) {
            return;
        }
    }
    panic!("in each of ten times 500 Reads a thread of the server's program ran");
}

/// Waits until all threads sleep, except the library's own thread, which answers Reads. Returns the
/// number of voluntary context switches of each, or `None` if the system does not report it.
fn at_rest(server: &Running) -> Option<BTreeMap<u32, u64>> {
    let tasks = format!("/proc/{}/task", server.id());
    let deadline = Instant::now() + Duration::from_secs(60);
    'again: loop {
        assert!(Instant::now() < deadline, "the server does not rest");
        let mut naps = BTreeMap::new();
        for task in std::fs::read_dir(&tasks).ok()? {
            let Ok(status) = std::fs::read_to_string(task.ok()?.path().join("status")) else {
                continue 'again;
            };
            let field = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name))?;
                line.strip_prefix(':').map(str::trim)
            };
            if field("Name")? == "uwarp-progress" {
                continue;
            }
            if !field("State")?.starts_with('S') {
                continue 'again;
            }
            let id = field("Pid")?.parse().ok()?;
            naps.insert(id, field("voluntary_ctxt_switches")?.parse().ok()?);
        }
        return Some(naps);
    }
}

#[test]
fn a_value_that_is_stored_while_it_is_read_is_never_seen_half() {
    let program = env!("CARGO_BIN_EXE_kv");
    let (mut server, addr) = Running::server(program);
    let reads = vec!["apple"; 2000].join(",");
    let reader = Running::start(program, &["client", &addr, &reads]);
    for n in 0..2000u32 {
        let letter = char::from(b'a' + (n % 26) as u8);
        server.type_line(&format!("put apple {}", letter.to_string().repeat(190)));
    }
    let ended = reader.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut newest = 0;
    for line in ended.stdout.lines() {
        let (value, version) = line.split_once(" (version ").unwrap();
        let value = value.strip_prefix("apple = ").unwrap();
        let same = value.bytes().all(|byte| byte == value.as_bytes()[0]);
        assert!(
            value == "a round fruit" || same && value.len() == 190,
            "{line}"
        );
        let version: u64 = version.trim_end_matches(')').parse().unwrap();
        assert!(version >= newest, "back from {newest} to {version}");
        newest = version;
    }
}

#[test]
fn a_counter_and_a_lock_are_right_with_several_clients_at_once() {
    let program = env!("CARGO_BIN_EXE_counter");
    let (server, addr) = Running::server(program);
    let said = client(program, &addr, &["5"]);
    assert!(said.ends_with("counter 5, sum 5\n"), "{said}");
    assert_eq!(server.line(), "the counter is at 5");
    let clients: Vec<_> = (0..3)
        .map(|_| Running::start(program, &["client", &addr, "50"]))
        .collect();
    for client in clients {
        let ended = client.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.contains("counted 50, locked 50 times"));
    }
    // No addition was lost, neither by FetchAdd nor under the lock.
    let said = client(program, &addr, &["1"]);
    assert!(said.ends_with("counter 156, sum 156\n"), "{said}");
}

#[test]
fn the_async_api_serves_many_clients_on_one_thread_of_tokio() {
    let program = env!("CARGO_BIN_EXE_async_rpc");
    let (server, addr) = Running::server(program);
    let said = client(program, &addr, &[]);
    assert_eq!(said, "20 clients, answer of the first: 0 fo 7 PRAWi\n");
    for _ in 0..20 {
        assert_eq!(server.line(), "served 24 requests");
    }
    let said = client(program, &addr, &["word"]);
    assert!(said.ends_with("0 fo 7 drow\n"), "{said}");
}
