//! Client of rping: owns the ping data and checks the echo.

use uwarp_agent::clients::Turn;
use uwarp_verbs::{Access, ConnectOptions, Device, MemoryRegion};

use super::data;
use super::session::{Session, Stop, local};
use super::{Options, Printer};
use crate::advert::Advert;
use crate::explain;
use crate::failure::{Failure, Report};
use crate::output::notice;

pub(super) fn run(options: &Options, device: &Device, printer: Printer) -> Result<(), Failure> {
    let (from, to) = options.ends()?;
    let size = options.size as usize;
    let echo = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let session = Session::new(device, size, echo, to, printer)?;
    let start = session
        .pd
        .register(vec![0; size], Access::REMOTE_READ)
        .map_err(local)?;
    printer.debug("allocated & registered buffers...")?;

    // As in rping, one Read may be outstanding in each direction.
    let mut connect = ConnectOptions::default().ird(1).ord(1);
    connect.local = from;
    session
        .qp
        .connect(to, &connect)
        .map_err(|error| explain::connect(&error, to, &explain::Server::rping(to)))?;
    printer.debug("rdma_connect successful")?;
    session.debug_agreed()?;

    let result = pings(&session, &start, options);
    session.close();
    notice("client DISCONNECT EVENT...");
    result
}

fn pings(session: &Session, start: &MemoryRegion, options: &Options) -> Result<(), Failure> {
    let mut number = 0;
    while options.count == 0 || number < options.count {
        match ping(session, start, number, options.validate) {
            Ok(()) => {}
            Err(Stop::Failed(failure)) => return Err(failure),
            Err(Stop::PeerClosed) => {
                let peer = session.peer;
                return Err(Report::new(format!(
                    "{peer} closed the connection during ping {number}"
                ))
                .expected("the server to stay until the client is done")
                .fault("the server, which ended or was stopped")
                .into());
            }
        }
        number = number.wrapping_add(1);
    }
    Ok(())
}

fn ping(session: &Session, start: &MemoryRegion, number: u32, validate: bool) -> Result<(), Stop> {
    let (printer, echo) = (&session.printer, &session.data);
    let during = format!("ping {number}");
    let bytes = data::ping(number, start.len());
    start.write_at(0, &bytes).map_err(local)?;

    lend(session, start)?;
    session.receive(Turn::Due, &during)?;
    lend(session, echo)?;
    session.receive(Turn::Due, &during)?;

    let mut came = vec![0; echo.len()];
    echo.read_at(0, &mut came).map_err(local)?;
    if validate && let Some(at) = (0..bytes.len()).find(|at| came[*at] != bytes[*at]) {
        let (want, got) = (bytes[at], came[at]);
        return Err(Report::new(format!(
            "{during}: data mismatch! byte {at} came back as {got:#04x}"
        ))
        .expected(format!("{want:#04x}, as the server was to read it"))
        .fault("the server, or uwarp itself")
        .into());
    }
    if printer.verbose {
        printer
            .output
            .line(format_args!("ping data: {}", data::printable(&came)))?;
    }
    Ok(())
}

/// Sends the server an advert of the memory that it may read or write next.
fn lend(session: &Session, region: &MemoryRegion) -> Result<(), Failure> {
    let advert = Advert::of(region);
    session.printer.debug(format_args!(
        "RDMA addr {:x} rkey {:x} len {}",
        advert.addr, advert.rkey, advert.len
    ))?;
    session.send(advert)
}
