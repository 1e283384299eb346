//! uwarp: the application under test. Controllers tell it by lines of JSON what to do with RDMA, and it reports what
//! happens: `docs/agent.md` in the repository has the protocol. The command `uwarp agent` runs it; [`serve`] runs it
//! inside of a program, over any [`Device`](uwarp_verbs::Device), and [`LocalSession`] serves the program itself, without threads.
//!
//! Each controller of [`serve`] is served by a thread of its own around `poll(2)`, and has connections, listeners and regions of its
//! own, which end when it leaves. Nothing that it says is waited for, so nothing that it does holds up another.
//!
//! ```
//! use std::io::{BufRead, BufReader, Write};
//! use std::net::{TcpListener, TcpStream};
//! use uwarp_agent::{Options, serve};
//! use uwarp_verbs::Device;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let control = TcpListener::bind("127.0.0.1:0")?;
//! let agent = serve(&Device::tcp()?, control, Options::default())?;
//! let mut controller = TcpStream::connect(agent.control_addr())?;
//! controller.write_all(b"{\"id\":1,\"cmd\":\"reg\",\"len\":64}\n")?;
//! let mut lines = BufReader::new(controller).lines();
//! assert!(lines.next().unwrap()?.contains("\"hello\":\"uwarp-agent\""));
//! assert!(lines.next().unwrap()?.starts_with("{\"id\":1,\"ok\":true,\"mr\":0,"));
//! # Ok(()) }
//! ```

mod cm;
mod command;
mod control;
mod controller;
mod endpoint;
mod hub;
mod json;
mod local;
mod memory;
mod numbers;
mod pattern;
mod query;
mod refusal;
mod report;
mod rping;
mod serve;
mod session;
mod srq;
mod work;

pub use local::LocalSession;
pub use serve::{Agent, Options, ServeError, serve};
