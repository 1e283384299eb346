//! Agent of uwarp: an RDMA application under the control of another program. Controllers send
//! commands as lines of JSON. The agent executes them with RDMA, and reports events and
//! completions. `docs/agent.md` in the repository describes the protocol.
//!
//! The command `uwarp agent` runs the agent. [`serve`] runs it on threads of a program, over any
//! [`Device`](uwarp_verbs::Device). [`LocalSession`] serves a controller in the same program,
//! without threads.
//!
//! With [`serve`], each controller has a thread of its own. It also has its own connections,
//! listeners and regions, which are removed when it disconnects. A thread never blocks on a
//! controller that does not read, so no controller can block another.
//!
//! Whoever controls an agent can do everything that the agent can. On an address that other hosts
//! reach, an agent therefore needs a token ([`Options::token`]), which controllers have to send.
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

mod budget;
pub mod clients;
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
mod token;
mod work;
pub mod workers;

pub use local::LocalSession;
pub use serve::{Agent, Options, ServeError, serve};
pub use token::random_token;
