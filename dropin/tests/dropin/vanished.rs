//! Memory that a program unmaps before it deregisters it, and faults of the program itself
//! (`tests/c/vanished.c`).

use crate::c;
use crate::prefix::Prefix;
use crate::process::{Place, free_port};

/// Runs a server with this handler of SIGSEGV, and a client that writes and reads memory which the
/// server has unmapped. Returns what the server printed, or a sentence with the status by which it
/// ended.
fn server_with(prefix: &Prefix, handler: &str) -> Result<Result<String, String>, String> {
    let program = c::compile(prefix, "cc", "vanished.c", &["-lrdmacm", "-libverbs"])?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let port = free_port()?;
    let number = port.to_string();
    let place = Place { prefix, flags: &[] };
    let mut server = place.start(&[program, &number, handler])?;
    server.until_listening(port)?;
    let mut client = place.start(&[program, &number, "127.0.0.1"])?;
    let said = client.end();
    let said = said.map_err(|error| format!("{error}\n{}", server.words("was the server")))?;
    if !said.contains("read: status ") || said.contains("read: status 0") {
        return Err(format!(
            "the Read should fail, and the client printed:\n{said}"
        ));
    }
    server.until_said("lives")?;
    let served = server.output();
    let causes = served.matches("is not mapped any more").count();
    if causes != 2 {
        return Err(server.words("should explain the end of each of the two connections"));
    }
    Ok(server.end())
}

/// Checks that the program's handler saw the program's fault, and none of the library.
fn saw_its_own(prefix: &Prefix, handler: &str) -> Result<(), String> {
    let said = server_with(prefix, handler)??;
    // SIGSEGV and SEGV_MAPERR.
    match said.contains("1 fault of its own, signal 11, code 1, at 0x10") {
        true => Ok(()),
        false => Err(format!("the handler saw something else:\n{said}")),
    }
}

pub(crate) fn a_handler_that_is_older_sees_the_faults_of_the_program(
    prefix: &Prefix,
) -> Result<(), String> {
    saw_its_own(prefix, "before")
}

pub(crate) fn a_handler_that_replaces_ours_sees_the_faults_of_the_program(
    prefix: &Prefix,
) -> Result<(), String> {
    saw_its_own(prefix, "after")
}

pub(crate) fn a_fault_of_a_program_without_a_handler_ends_it(
    prefix: &Prefix,
) -> Result<(), String> {
    match server_with(prefix, "none")? {
        Err(ended) if ended.contains("signal: 11") => Ok(()),
        Err(ended) | Ok(ended) => Err(format!("it should end by SIGSEGV:\n{ended}")),
    }
}
