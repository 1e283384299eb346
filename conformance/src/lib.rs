//! Conformance suite for iWARP: MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040, RFC
//! 7306).
//!
//! The suite is a peer that can send any bytes. It builds its messages and judges the answers with
//! its own code. It shares no code with the stack of uwarp, because a mistake in shared code would
//! go unnoticed. Its *cases* are data: a rule, the ids of the requirements that the case checks,
//! and steps. [`run`] plays cases against a target and returns an [`Outcome`] for each.
//!
//! ```no_run
//! use uwarp_conformance::{Config, Selection, Target, run};
//!
//! let mut config = Config::new(Target::At("127.0.0.1:7174".parse()?));
//! config.agent = Some("127.0.0.1:7175".parse()?);
//! for outcome in run(&config, &Selection(vec!["mpa/5044-7.1.2".into()]), &())? {
//!     println!("{} {}", outcome.id, outcome.verdict.word());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! Some cases need the application on the target to act: to post a receive, register memory or
//! issue a Read. An agent on the target does this at the request of the suite, through the protocol
//! in `docs/agent.md`. The other cases run against any server that accepts a connection.

#![forbid(unsafe_code)]

mod agent;
mod cases;
mod catalogue;
mod check;
mod codes;
mod coverage;
mod deviations;
pub mod report;
mod run;
mod script;
mod size;
mod transport;
mod wire;
mod words;

pub use agent::{AgentError, Channel};
pub use cases::{explain, list};
pub use catalogue::{Requirement, requirements, section_of};
pub use codes::{CodeException, Codes, codes};
pub use coverage::{Coverage, Exception, coverage};
pub use run::{
    Config, Ending, Failure, LogEntry, Outcome, Progress, Route, RunError, Selection, Target,
    Targets, Verdict, Who, run, run_with_agent, run_with_targets,
};
pub use script::{CaseInfo, Level};
pub use transport::{Got, KernelTcp, Listener, LlpTcp, Network, Stream};

pub(crate) use run::{run_matches, run_order};
