//! Table of the commands, with the members that each command accepts.

use crate::endpoint::QP_KEYS;
use crate::json::{Fields, Line, shortened};
use crate::refusal::Refusal;
use crate::session::Session;

type Run = fn(&mut Session, &Fields, &mut Line) -> Result<(), Refusal>;

/// Members that every command accepts.
const EVERY: &str = "id cmd";
/// Members that `connect` and `accept` accept.
const ANSWER_KEYS: &str = "ird ord data";

struct Command {
    name: &'static str,
    keys: &'static [&'static str],
    run: Run,
}

const fn command(name: &'static str, keys: &'static [&'static str], run: Run) -> Command {
    Command { name, keys, run }
}

#[rustfmt::skip]
const COMMANDS: &[Command] = &[
    command("query", &[], Session::query),
    // `Session::admit` has checked the token.
    command("token", &["token"], |_, _, _| Ok(())),
    command("reset", &[], |session, _, _| { session.reset(); Ok(()) }),
    command("exit", &[], |session, _, _| { session.leaving = true; Ok(()) }),
    command("reg", &["len access pd skew conn zero_based"], Session::reg),
    command("dereg", &["mr"], Session::dereg),
    command("fill", &["mr off len seed at zero"], Session::fill),
    command("check", &["mr off len seed at zero"], Session::check),
    command("hash", &["mr off len"], Session::hash),
    command("peek", &["mr off len"], Session::peek),
    command("poke", &["mr off data"], Session::poke),
    command("bind", &["conn mr off len access zero_based mw wr_id"], Session::bind),
    command("unbind", &["mw"], Session::unbind),
    command("inval", &["conn rkey wr_id"], Session::inval),
    command("srq", &["max_wr sge limit pd"], Session::srq),
    command("srq_modify", &["srq max_wr limit"], Session::srq_modify),
    command("srq_query", &["srq"], Session::srq_query),
    command("srq_destroy", &["srq"], Session::srq_destroy),
    command("listen", &["addr port backlog auto", ANSWER_KEYS, QP_KEYS], Session::listen),
    command("unlisten", &["listener"], Session::unlisten),
    command("open", &["addr port source source_port", QP_KEYS], Session::open),
    command("connect", &["conn peer_to_peer", ANSWER_KEYS], Session::connect),
    command("accept", &["conn", ANSWER_KEYS], Session::accept),
    command("reject", &["conn data ord_needed"], Session::reject),
    command("disconnect", &["conn"], Session::disconnect),
    command("destroy", &["conn"], Session::destroy),
    command("modify", &["conn state"], Session::modify),
    command("modify_access", &["conn access"], Session::modify_access),
    command("query_qp", &["conn"], Session::query_qp),
    command("recv", &["conn wr_id sge count stride"], Session::recv),
    command("srq_recv", &["srq wr_id sge count stride"], Session::srq_recv),
    command(
        "post",
        &[
            "conn op wr_id sge count stride raddr rkey rstride inv imm compare swap",
            "compare_mask swap_mask mask se inline fence signal",
        ],
        Session::post,
    ),
    command("poll", &["conn"], Session::poll),
];

/// Executes a command. Adds the members of its result to `answer`.
pub(crate) fn run(
    session: &mut Session,
    fields: &Fields,
    answer: &mut Line,
) -> Result<(), Refusal> {
    let name = fields.text("cmd", "")?;
    let Some(command) = COMMANDS.iter().find(|command| command.name == name) else {
        let name = shortened(name);
        return Err(Refusal::agent(format!("there is no command '{name}'")));
    };
    fields.only(&[&[EVERY], command.keys].concat())?;
    (command.run)(session, fields, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/agent.md is the reference for controllers, so it has to mention every command and
    /// member.
    #[test]
    fn every_command_and_member_is_documented() {
        let text = include_str!("../../../docs/agent.md");
        for command in COMMANDS {
            let start = format!("| `{}`", command.name);
            assert!(text.contains(&start), "no row of {}", command.name);
            let words = command.keys.iter().flat_map(|keys| keys.split(' '));
            for key in words.filter(|key| !key.is_empty()) {
                assert!(text.contains(&format!("`{key}`")), "no word of {key}");
            }
        }
    }
}
