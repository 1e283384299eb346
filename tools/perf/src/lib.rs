//! uwarp, performance tests: bandwidth, message rate and latency of RDMA operations between two
//! processes, in the manner of perftest. The command `uwarp perf` runs these tests, and other
//! programs can run them with this crate.
//!
//! The client has the [`Plan`], and the server performs the other side of the plan. They exchange
//! messages in JSON over a control connection (`control`), and move data over one connection for
//! each QP of the plan. `uwarp perf` and perftest share a default port. The first message of each
//! side therefore has the format of perftest's first message, so that each program can recognize
//! the other (`greeting`).
//!
//! ```
//! use uwarp_perf::{Plan, Server, Test, run};
//! use uwarp_verbs::Device;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::tcp()?;
//! let server = Server::listen(&device, "127.0.0.1:0".parse()?)?;
//! let addr = server.local_addr();
//! let serving = std::thread::spawn(move || server.serve_one(|_| {}));
//!
//! let mut plan = Plan::new(Test::WriteLatency, &[64]);
//! plan.iterations = 100;
//! let results = run(&device, addr, &plan, |_| {})?;
//! assert_eq!(results.rows[0].size, 64);
//! serving.join().unwrap()?;
//! # Ok(()) }
//! ```

mod bandwidth;
mod client;
mod control;
mod error;
mod event;
mod greeting;
mod latency;
mod message;
mod perftest;
mod plan;
mod results;
mod server;
mod traffic;
mod usage;

pub use client::{Client, run};
pub use error::PerfError;
pub use event::Event;
pub use plan::{ATOMIC_SIZE, Atomic, Plan, PlanError, Test, Until, Waiting};
pub use results::{Bandwidth, Figures, Latency, Results, Row};
pub use server::Server;
