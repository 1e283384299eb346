//! Checks every block of commands in the documents. Each block is run in a shell, or the names in
//! it are checked, or it has a reason why only a reader can run it.

use std::fmt::Write as _;
use std::io::Write as _;

use crate::named;
use crate::pages::{Block, blocks, pages, spans, text};
use crate::shell::{Home, has_example, has_library, has_program, way_in};

/// Treatment of a block of commands.
enum How {
    Run(Run),
    /// The block has commands of Cargo or ci.sh, which CI runs. The test checks that everything
    /// they name exists.
    Named,
    /// No test runs the block, for this reason.
    Reader(&'static str),
}

/// Settings to run a block in its own network namespace.
struct Run {
    /// Commands to run before those of the block.
    before: &'static str,
    /// Number of commands at the start of the block that are servers in terminals of their own.
    servers: usize,
    /// First words of commands that are skipped, because only a reader can run them.
    but: &'static [&'static str],
    /// Programs of the distribution that must be installed.
    programs: &'static [&'static str],
    /// Programs of `examples/` that must be built. A build of the workspace puts them into the
    /// command's directory.
    examples: &'static [&'static str],
    /// Device nodes that must be accessible.
    devices: &'static [&'static str],
    /// True if the block runs unmodified programs on the drop-in library.
    dropin: bool,
    /// Lines of output on the page that the program does not print in every run.
    mostly: &'static [&'static str],
}

const RUN: Run = Run {
    before: "",
    servers: 0,
    but: &[],
    programs: &[],
    examples: &[],
    devices: &[],
    dropin: false,
    mostly: &[],
};

/// Commands that start a target of the conformance suite at the address that the pages use.
const TARGET: &str = "ip addr add 192.0.2.2/32 dev lo
export UWARP_TOKEN=secret
uwarp agent -a 192.0.2.2 -p 7174 --control 192.0.2.2:7175 >/dev/null &
until_listening";

/// Commands that start a server of rping at the address that the pages use.
const SERVER: &str = "ip addr add 192.0.2.2/32 dev lo
uwarp rping -s -a 192.0.2.2 -P &
until_listening";

const VETH: &str = "ip link add veth0 type veth peer name veth1
ip link set veth0 up
ip link set veth1 up";

/// Entries of: page, first words of the block's first command, treatment of the block. An entry may
/// match several blocks.
#[rustfmt::skip]
const BLOCKS: &[(&str, &str, How)] = &[
    ("README.md", "cargo build", How::Run(Run { dropin: true, ..RUN })),
    ("README.md", "uwarp run -- rping", How::Run(Run {
        dropin: true,
        programs: &["rping"],
        // rping's threads race at its end, so it does not always print these lines.
        mostly: &["server DISCONNECT EVENT...", "wait for RDMA_READ_ADV state 10"],
        ..RUN
    })),
    ("README.md", "uwarp run -- ibv_rc_pingpong", How::Run(Run {
        dropin: true,
        servers: 1,
        programs: &["ibv_rc_pingpong"],
        ..RUN
    })),
    ("README.md", "export UWARP_TOKEN", How::Run(RUN)),
    ("README.md", "cargo example", How::Run(Run { examples: &["rpc"], ..RUN })),
    ("README.md", "cargo test", How::Named),
    ("CONTRIBUTING.md", "./ci.sh", How::Named),
    ("CONTRIBUTING.md", "grep", How::Reader("it lists the places of an example")),
    ("CONTRIBUTING.md", "UWARP_DROPIN_MATRIX", How::Named),
    ("docs/agent.md", "uwarp agent", How::Run(Run { servers: 1, ..RUN })),
    ("docs/commands.md", "uwarp completions", How::Run(Run {
        before: "mkdir -p ~/.local/share/bash-completion/completions ~/.local/share/man/man1",
        ..RUN
    })),
    ("docs/commands.md", "uwarp rping", How::Run(Run { servers: 1, ..RUN })),
    ("docs/commands.md", "cargo build", How::Named),
    ("docs/conformance.md", "uwarp conformance --target 192.0.2.2:7174 --no-agent", How::Run(Run { before: TARGET, ..RUN })),
    ("docs/conformance.md", "rping -s", How::Reader("the target has an RDMA device")),
    ("docs/conformance.md", "export UWARP_TOKEN", How::Run(RUN)),
    ("docs/conformance.md", "uwarp conformance --device", How::Reader("cli/tests/conformance_devices.rs sets up both ends")),
    ("docs/conformance.md", "uwarp conformance --list", How::Run(Run { before: TARGET, ..RUN })),
    ("docs/conformance.md", "uwarp conformance --target 192.0.2.2:7174 --deviations", How::Reader("the file is the reader's own")),
    ("docs/dump.md", "uwarp rping", How::Run(Run { before: SERVER, but: &["tcpdump", "zcat"], ..RUN })),
    ("docs/errors.md", "UWARP_TRACE", How::Reader("the program is the reader's own")),
    ("docs/links.md", "uwarp rping -s --device tcp:192.0.2.1", How::Reader("both are servers; the blocks after it run them with clients")),
    ("docs/links.md", "unshare", How::Reader("it opens a shell; the other blocks of the page run in such a namespace")),
    ("docs/links.md", "uwarp rping -s --device tap:uw0", How::Run(Run { devices: &["/dev/net/tun"], ..RUN })),
    ("docs/links.md", "ip tuntap", How::Run(Run { before: "USER=root", devices: &["/dev/net/tun"], ..RUN })),
    ("docs/links.md", "ip link add veth0", How::Run(RUN)),
    ("docs/links.md", "ip addr add 2001:db8::2/64", How::Run(Run { before: VETH, ..RUN })),
    ("docs/links.md", "uwarp rping -s --device unix", How::Run(RUN)),
    ("docs/links.md", "qemu-system", How::Reader("the guest is the reader's own")),
    ("docs/performance.md", "./ci.sh bench", How::Named),
    ("docs/performance.md", "cargo build", How::Named),
    ("docs/peers.md", "uwarp rping", How::Run(Run { before: SERVER, but: &["UWARP_PEER"], ..RUN })),
    ("docs/perf.md", "uwarp perf", How::Run(Run { servers: 1, ..RUN })),
    ("docs/testing.md", "", How::Named),
    ("dropin/README.md", "cargo build", How::Run(Run { dropin: true, programs: &["ibv_devinfo"], ..RUN })),
    ("dropin/README.md", "target/release/uwarp run -- ib_write_bw", How::Run(Run {
        dropin: true,
        servers: 1,
        programs: &["ib_write_bw"],
        ..RUN
    })),
    ("dropin/README.md", "target/release/uwarp run --pcap", How::Run(Run { dropin: true, servers: 1, programs: &["rping"], ..RUN })),
    ("dropin/README.md", "target/release/uwarp run --preload", How::Run(Run { dropin: true, ..RUN })),
    ("dropin/README.md", "target/release/uwarp run --sysfs", How::Run(Run { dropin: true, ..RUN })),
    ("dropin/README.md", "cargo test", How::Named),
    ("dropin/README.md", "UWARP_MIGRATIONS", How::Named),
    ("dropin/README.md", "UWARP_DROPIN_CRATES", How::Named),
    ("examples/README.md", "cargo example", How::Named),
];

#[test]
fn each_block_of_commands_has_its_treatment() {
    let mut wrong = Vec::new();
    let mut used = vec![false; BLOCKS.len()];
    for (page, block) in all() {
        let commands = block.commands();
        let at = format!("{page}:{}", block.line);
        match block.language.as_str() {
            "sh" | "console" => match entry(&page, &commands) {
                Some(index) => {
                    used[index] = true;
                    if let How::Reader(why) = BLOCKS[index].2 {
                        say(&format!("{at}: nothing runs it: {why}"));
                    }
                }
                None => wrong.push(format!("{at}: no entry for '{}'", commands[0])),
            },
            "" | "text" => {
                let is_command = |line: &&String| {
                    ["uwarp ", "cargo ", "./ci.sh", "target/release/uwarp"]
                        .iter()
                        .any(|start| line.starts_with(start))
                };
                if let Some(command) = commands.iter().find(is_command) {
                    wrong.push(format!("{at}: '{command}' is in a block that is not 'sh'"));
                }
            }
            _ => {}
        }
    }
    for ((page, first, _), used) in BLOCKS.iter().zip(used) {
        if !used {
            wrong.push(format!("{page}: no block begins with '{first}'"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_of_cargo_and_ci_name_what_exists() {
    let mut wrong = Vec::new();
    for (page, block) in all_of(|how| matches!(how, How::Named)) {
        for command in block.commands() {
            if let Err(why) = named::check(&command) {
                wrong.push(format!("{page}:{}: {command}: {why}", block.line));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn commands_of_the_pages_do_what_they_say() {
    let mut wrong = String::new();
    for (number, (page, block)) in all_of(|how| matches!(how, How::Run(_)))
        .into_iter()
        .enumerate()
    {
        let index = entry(&page, &block.commands()).expect("it was found before");
        let How::Run(run) = &BLOCKS[index].2 else {
            unreachable!("only these were taken");
        };
        let at = format!("{page}:{}", block.line);
        if let Some(why) = run.lacks() {
            let required = |name| std::env::var(name).is_ok_and(|value| value == "1");
            let must = match run.dropin {
                true => required("UWARP_REQUIRE_DROPIN"),
                false => required("UWARP_REQUIRE_NETNS"),
            };
            assert!(!must, "{at} cannot run: {why}");
            say(&format!("SKIPPED: {at}: {why}"));
            continue;
        }
        let script = run.script(&block);
        let home = Home::new(&number.to_string());
        let ended = match home.run(&script) {
            Ok(ended) => ended,
            Err(why) => panic!("{at}: {why}"),
        };
        let said = ended.stdout;
        if !ended.status.success() {
            let _ = writeln!(wrong, "{at}: {}\n{script}\n{said}", ended.status);
        }
        for line in block.output() {
            let is_said = said
                .lines()
                .any(|other| other.trim_end() == line.trim_end());
            if !is_said && !run.mostly.contains(&line) {
                let _ = writeln!(
                    wrong,
                    "{at}: the page shows '{line}'; the output is\n{said}"
                );
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Commands in running text must have a subcommand and options that the help lists.
#[test]
fn commands_in_code_spans_have_options_that_exist() {
    let mut wrong = Vec::new();
    for page in pages() {
        for span in spans(&text(&page)) {
            let words: Vec<&str> = span.split_whitespace().collect();
            let ["uwarp", subcommand, rest @ ..] = words.as_slice() else {
                continue;
            };
            if subcommand.starts_with('-') || !subcommand.chars().all(|c| c.is_ascii_lowercase()) {
                continue;
            }
            let help = help(subcommand);
            let Some(help) = help else {
                wrong.push(format!("{page}: `{span}`: no such subcommand"));
                continue;
            };
            // The words after `--` are a program and its own options.
            for word in rest.iter().take_while(|word| **word != "--") {
                let option = word
                    .trim_matches(['[', ']'])
                    .split('=')
                    .next()
                    .unwrap_or(word);
                if option.starts_with("--") && !help.contains(option) {
                    wrong.push(format!("{page}: `{span}`: no option {option}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Prints a line to stderr, which cargo shows even if the test passes.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Returns the help text of a subcommand, or `None` if there is no such subcommand.
fn help(subcommand: &str) -> Option<String> {
    let said = std::process::Command::new(env!("CARGO_BIN_EXE_uwarp"))
        .args([subcommand, "--help"])
        .output()
        .expect("the command starts");
    said.status
        .success()
        .then(|| String::from_utf8_lossy(&said.stdout).into_owned())
}

/// Returns the code blocks of all pages, each with its page.
fn all() -> Vec<(String, Block)> {
    pages()
        .into_iter()
        .flat_map(|page| {
            let found = blocks(&text(&page));
            found.into_iter().map(move |block| (page.clone(), block))
        })
        .filter(|(_, block)| !block.commands().is_empty())
        .collect()
}

fn all_of(is: impl Fn(&How) -> bool) -> Vec<(String, Block)> {
    let mut blocks = all();
    blocks.retain(|(page, block)| {
        matches!(block.language.as_str(), "sh" | "console")
            && entry(page, &block.commands()).is_some_and(|index| is(&BLOCKS[index].2))
    });
    assert!(!blocks.is_empty());
    blocks
}

/// Returns the index of the matching entry in [`BLOCKS`]. The entry with the longest prefix wins.
fn entry(page: &str, commands: &[String]) -> Option<usize> {
    (0..BLOCKS.len())
        .filter(|&index| BLOCKS[index].0 == page && commands[0].starts_with(BLOCKS[index].1))
        .max_by_key(|&index| BLOCKS[index].1.len())
}

impl Run {
    /// Returns the reason why the block cannot run here, if there is one.
    fn lacks(&self) -> Option<String> {
        if let Err(why) = way_in() {
            return Some(format!("no network namespace: {why}"));
        }
        if self.dropin && !has_library() {
            return Some("a library is not built: cargo build".to_owned());
        }
        if let Some(program) = self.programs.iter().find(|program| !has_program(program)) {
            return Some(format!("{program} is not installed"));
        }
        if let Some(example) = self.examples.iter().find(|example| !has_example(example)) {
            return Some(format!(
                "the example {example} is not built: cargo build -p uwarp-examples"
            ));
        }
        let is_closed = |path: &&&str| {
            let mut options = std::fs::OpenOptions::new();
            options.read(true).write(true).open(path).is_err()
        };
        (self.devices.iter().find(is_closed)).map(|path| format!("{path} cannot be opened"))
    }

    /// Returns the script of a block. It waits for one more listening port after each command that
    /// ends with `&`, and after each of the first `servers` commands.
    fn script(&self, block: &Block) -> String {
        let mut script = String::from(UNTIL_LISTENING);
        script.push_str(self.before);
        script.push('\n');
        for (index, command) in block.commands().iter().enumerate() {
            // The script must use its own directory, because files of other runs may be in /tmp.
            let command = command
                .replace("target/release/uwarp", "uwarp")
                .replace("cargo example ", "")
                .replace("/tmp/", "./");
            if self.but.iter().any(|but| command.starts_with(but)) || command.starts_with("cargo ")
            {
                continue;
            }
            let is_server = index < self.servers;
            let waits = is_server || (block.language == "console" && command.ends_with('&'));
            if waits {
                script.push_str("mark_listening\n");
            }
            script.push_str(&command);
            script.push_str(if is_server { " &\n" } else { "\n" });
            if waits {
                script.push_str("until_listening\n");
            }
        }
        script
    }
}

/// Shell functions that count the listening TCP ports and wait for one more.
const UNTIL_LISTENING: &str = "listening=0
count_listening() { cat /proc/net/tcp /proc/net/tcp6 | awk '$4 == \"0A\"' | wc -l; }
mark_listening() { listening=$(count_listening); }
until_listening() {
    for _ in $(seq 300); do
        [ \"$(count_listening)\" -le \"$listening\" ] || return 0
        sleep 0.1
    done
    echo 'no port listens'
    return 1
}
";
