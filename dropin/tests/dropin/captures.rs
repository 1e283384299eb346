//! Tests that capture programs (`uwarp run --pcap`), and check with `uwarp dump` whether the two
//! sides use CRCs (`--crc`).

use std::process::Command;

use crate::prefix::{Prefix, said};
use crate::process::{Place, free_port};

/// Bit C in the byte that follows the key of an MPA Request or Reply Frame (RFC 5044 section 7.1).
const C: u8 = 0x40;
/// Number of pings that rping sends. Each has 64 bytes, which the server fetches with an RDMA Read
/// and returns with an RDMA Write.
const PINGS: usize = 10;

/// Values of bit C that a capture must show, one for each startup frame.
struct Due {
    request: bool,
    reply: bool,
}

/// Runs rping's server and client with these flags of `uwarp run` and returns what `uwarp dump -x`
/// prints about their captures. The command fails if a capture breaks the RFCs.
fn captured(prefix: &Prefix, server: &[&str], client: &[&str]) -> Result<[String; 2], String> {
    let port = free_port()?.to_string();
    let start = |side: &str, flags: &[&str]| {
        let file = prefix.scratch().join(format!("rping{side}-{port}.pcapng"));
        let name = file.to_str().ok_or("the path is not UTF-8")?;
        let flags = &[&["--pcap", name], flags].concat();
        let pings = PINGS.to_string();
        let words = ["rping", side, "-a", "127.0.0.1", "-p", &port, "-C", &pings];
        let running = Place { prefix, flags }.start(&words)?;
        Ok::<_, String>((running, file))
    };
    let (mut server, of_server) = start("-s", server)?;
    server.until_listening(port.parse().map_err(|_| "the port is not a number")?)?;
    let (mut client, of_client) = start("-c", client)?;
    client.end()?;
    server.end()?;
    let dump = |file| said(Command::new(prefix.uwarp()).args(["dump", "-x"]).arg(file));
    Ok([dump(of_server)?, dump(of_client)?])
}

/// Returns true if the bit C is set in the only startup frame with this name. Reads it from the
/// dumped byte, not from the command's description.
fn bit(said: &str, frame: &str) -> Result<bool, String> {
    let mut lines = said.lines().skip_while(|line| !line.contains(frame));
    let byte = lines.find_map(|line| line.trim_start().strip_prefix("0010  "));
    let byte = byte.and_then(|line| u8::from_str_radix(line.get(..2)?, 16).ok());
    match (byte, lines.any(|line| line.contains(frame))) {
        (Some(byte), false) => Ok(byte & C != 0),
        _ => Err(format!("expected one {frame}, got:\n{said}")),
    }
}

/// Checks that the capture has the whole conversation, and that its startup has these bits.
fn check(said: &str, due: &Due) -> Result<(), String> {
    let bits = (bit(said, "MPA Request")?, bit(said, "MPA Reply")?);
    if bits != (due.request, due.reply) {
        return Err(format!("the bits C are {bits:?}:\n{said}"));
    }
    // The empty Write that begins the peer-to-peer model does not count (RFC 6581 section 9.2).
    for message in [": RDMA Read Request MSN ", ": RDMA Write STag "] {
        let is = |line: &&str| line.contains(message) && line.contains(" 64 bytes ");
        let count = said.lines().filter(is).count();
        if count != PINGS {
            return Err(format!("{count} of '{message}':\n{said}"));
        }
    }
    // CRCs are used if either side wants them.
    let used = match bits {
        (false, false) => ": revision 2, no CRC, ",
        _ => ": revision 2, CRC, ",
    };
    match said.contains(used) {
        true => Ok(()),
        false => Err(format!("expected '{used}', got:\n{said}")),
    }
}

/// RFC 5044 section 7.1: the bit C in the MPA Request or Reply says that the sender wants CRCs.
/// CRCs are used if either frame has the bit. A responder that does not want CRCs still sets C in
/// the reply to a request with C.
pub(crate) fn a_capture_shows_the_crc_that_each_side_asked_for(
    prefix: &Prefix,
) -> Result<(), String> {
    const OFF: &[&str] = &["--crc", "off"];
    const ON: &[&str] = &["--crc", "on"];
    // Each row has the flags of the server, those of the client, and the bit C in the reply and in
    // the request.
    let rows: [(&[&str], &[&str], bool, bool); 5] = [
        (&[], &[], true, true),
        (ON, ON, true, true),
        (OFF, OFF, false, false),
        (ON, OFF, true, false),
        (OFF, ON, true, true),
    ];
    for (server, client, reply, request) in rows {
        let due = Due { request, reply };
        for said in captured(prefix, server, client)? {
            check(&said, &due).map_err(|error| format!("{server:?}, {client:?}: {error}"))?;
        }
    }
    Ok(())
}
