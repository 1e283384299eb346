//! The attacked process, `uwarp agent`, observed from outside.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::{PATIENCE, Result};

/// Path of the command under test.
pub(crate) const UWARP: &str = env!("CARGO_BIN_EXE_uwarp");

/// Interval between two samples of the process's resources.
const LOOK: Duration = Duration::from_millis(20);

/// A running agent process, which is killed on drop.
pub(crate) struct Victim {
    child: Child,
    /// Keeps the read end of the agent's stdout open.
    _stdout: BufReader<ChildStdout>,
    /// Output on stderr so far.
    said: Arc<Mutex<String>>,
    /// RDMA address on which the agent answers pings, like `rping -s`.
    pub(crate) rdma: SocketAddr,
    pub(crate) control: SocketAddr,
}

/// Restriction of the victim's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confined {
    Not,
    /// The process may have at most this many descriptors.
    Descriptors(u32),
    /// All threads share one arena of the allocator. With several arenas, memory that one thread
    /// frees is useless to the others. The process then grows at random for dozens of rounds,
    /// although the amount of memory in use does not increase.
    OneArena,
}

/// Resources that a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Resident memory in bytes, without file-backed pages.
    pub(crate) memory: u64,
    pub(crate) descriptors: u64,
}

impl Usage {
    /// Returns the larger value of each resource.
    pub(crate) fn max(self, other: Usage) -> Usage {
        Usage {
            memory: self.memory.max(other.memory),
            descriptors: self.descriptors.max(other.descriptors),
        }
    }
}

/// Unit of processor time in /proc, in seconds.
const TICK: f64 = 0.01;

impl Victim {
    /// Starts an agent on these ports of 127.0.0.1: one for RDMA and one for controllers. Port 0
    /// selects a free port.
    pub(crate) fn start(ports: [u16; 2], confined: Confined) -> Result<Victim> {
        Victim::start_at("tcp", "127.0.0.1", ports, confined)
    }

    /// Like [`Victim::start`], but on this device and at this address of it. Controllers always
    /// reach it at 127.0.0.1.
    pub(crate) fn start_at(
        device: &str,
        addr: &str,
        ports: [u16; 2],
        confined: Confined,
    ) -> Result<Victim> {
        let mut command = match confined {
            Confined::Not | Confined::OneArena => Command::new(UWARP),
            Confined::Descriptors(descriptors) => {
                let mut shell = Command::new("sh");
                let limited = format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"");
                shell.args(["-c", &limited, UWARP]);
                shell
            }
        };
        if confined == Confined::OneArena {
            // The allocator's per-thread caches would also make the size of the process vary at
            // random.
            let tunables = "glibc.malloc.arena_max=1:glibc.malloc.tcache_count=0";
            command.env("GLIBC_TUNABLES", tunables);
        }
        let mut child = command
            .args(["agent", "--no-token", "--device", device, "-a", addr, "-p"])
            .arg(ports[0].to_string())
            .arg("--control")
            .arg(ports[1].to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let said = Arc::new(Mutex::new(String::new()));
        if let Some(stderr) = child.stderr.take() {
            let said = Arc::clone(&said);
            thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(io::Result::ok) {
                    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                    said.push_str(&line);
                    said.push('\n');
                }
            });
        }
        let Some(stdout) = child.stdout.take() else {
            return Err("the agent has no output".into());
        };
        let mut stdout = BufReader::new(stdout);
        let mut addrs = [None, None];
        for addr in &mut addrs {
            let mut line = String::new();
            stdout.read_line(&mut line)?;
            *addr = line.trim().rsplit(' ').next().and_then(|a| a.parse().ok());
        }
        let [Some(rdma), Some(control)] = addrs else {
            let _ = child.kill();
            let _ = child.wait();
            let said = said.lock().unwrap_or_else(PoisonError::into_inner);
            return Err(format!("the agent did not print its addresses, but:\n{said}").into());
        };
        Ok(Victim {
            child,
            _stdout: stdout,
            said,
            rdma,
            control,
        })
    }

    /// Output on stderr so far.
    pub(crate) fn said(&self) -> String {
        let said = self.said.lock();
        said.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks whether the process still runs. Reaps it if it has ended.
    pub(crate) fn poll_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn usage(&self) -> io::Result<Usage> {
        usage(self.child.id())
    }

    /// Returns the processor time that the process has used, in seconds.
    pub(crate) fn processor(&self) -> Result<f64> {
        processor(self.child.id())
    }

    /// Starts to watch the process's resources.
    pub(crate) fn watch(&self) -> Watch {
        Watch::start(self.child.id())
    }

    /// Kills the process by SIGKILL.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Waits until the process has at most `may_keep` bytes more memory than before the attack.
    /// Returns the number of bytes that it has more.
    pub(crate) fn wait_freed(&self, before: Usage, may_keep: u64) -> Result<u64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let kept = self.usage()?.memory.saturating_sub(before.memory);
            if kept <= may_keep {
                return Ok(kept);
            }
            if Instant::now() > deadline {
                return Err(format!("it keeps {kept} bytes of memory after the attack").into());
            }
            thread::sleep(LOOK);
        }
    }

    /// Waits until the process has no more descriptors than before the attack. The last connection
    /// of the attack is then gone.
    pub(crate) fn wait_recovered(&self, before: Usage) -> Result<()> {
        wait_recovered(self.child.id(), before)
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Returns figures about the memory of a process from `/proc`, in bytes.
fn memory<const N: usize>(id: u32, kinds: [&str; N]) -> io::Result<[u64; N]> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    Ok(kinds.map(|kind| {
        let line = status.lines().find_map(|line| line.strip_prefix(kind));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    }))
}

/// Returns the peak of the process's memory, as the kernel recorded it. It includes peaks between
/// two samples.
fn peak(id: u32) -> io::Result<u64> {
    let [most, file] = memory(id, ["VmHWM:", "RssFile:"])?;
    Ok(most.saturating_sub(file))
}

/// Returns the processor time that a process has used, in seconds.
pub(crate) fn processor(id: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
    // The process name may contain anything. After it, `utime` and `stime` are fields 12 and 13,
    // counted from 1.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: std::result::Result<Vec<u64>, _> = ticks.map(str::parse).collect();
    Ok(ticks?.iter().sum::<u64>() as f64 * TICK)
}

/// Returns the resources that a process holds now.
pub(crate) fn usage(id: u32) -> io::Result<Usage> {
    // Pages of the program's file are excluded, because each newly executed code path adds some.
    let kinds = memory(id, ["RssAnon:", "RssShmem:"])?;
    Ok(Usage {
        memory: kinds.into_iter().sum(),
        descriptors: fs::read_dir(format!("/proc/{id}/fd"))?.count() as u64,
    })
}

/// Waits until a process has no more descriptors than before the attack.
pub(crate) fn wait_recovered(id: u32, before: Usage) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = usage(id)?;
        if now.descriptors <= before.descriptors {
            return Ok(());
        }
        if Instant::now() > deadline {
            let (now, before) = (now.descriptors, before.descriptors);
            return Err(
                format!("it still has {now} descriptors open, and had {before} before").into(),
            );
        }
        thread::sleep(LOOK);
    }
}

/// Watches a process and records the peak of its resources.
pub(crate) struct Watch {
    id: u32,
    stop: Arc<AtomicBool>,
    most: Arc<[AtomicU64; 2]>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts to watch the process with this number.
    pub(crate) fn start(id: u32) -> Watch {
        // Resets the peak that the kernel recorded.
        let _ = fs::write(format!("/proc/{id}/clear_refs"), "5");
        let stop = Arc::new(AtomicBool::new(false));
        let most = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let (stopped, seen) = (Arc::clone(&stop), Arc::clone(&most));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Ok(usage) = usage(id) {
                    seen[0].fetch_max(usage.memory, Ordering::Relaxed);
                    seen[1].fetch_max(usage.descriptors, Ordering::Relaxed);
                }
                thread::sleep(LOOK);
            }
        });
        Watch {
            id,
            stop,
            most,
            thread: Some(thread),
        }
    }

    pub(crate) fn most(&self) -> Usage {
        let seen = self.most[0].load(Ordering::Relaxed);
        Usage {
            memory: seen.max(peak(self.id).unwrap_or(0)),
            descriptors: self.most[1].load(Ordering::Relaxed),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
