//! Server of rping: reads the ping data of its clients and writes it back.

use std::time::Duration;

use uwarp_agent::clients::{Clients, Limits, Seat, Turn};
use uwarp_agent::workers::Workers;
use uwarp_verbs::{
    AcceptOptions, Access, ConnectRequest, Device, Listener, RemoteBuffer, SendWr, WcOpcode,
};

use super::data;
use super::session::{Session, Stop, local};
use super::{Options, Printer, SIZES};
use crate::advert::Advert;
use crate::device::check_network;
use crate::explain;
use crate::failure::{Failure, Report};
use crate::output::remark;

/// Memory in bytes that a client may need at once: its region, a copy of the ping data, a receive
/// buffer (256 KiB), and a staging buffer for the answer (384 KiB).
const MEMORY: usize = 2 * *SIZES.end() as usize + (640 << 10);
/// Number of bytes that printing needs at most for each byte of ping data: `\xNN` twice, in a
/// buffer that may have doubled.
const PRINTED: usize = 16;
/// Interval between checks for connections that are not iWARP.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn run(options: &Options, device: &Device, printer: Printer) -> Result<(), Failure> {
    let addr = options.listen_addr()?;
    let listener = device
        .listen(addr)
        .map_err(|error| explain::listen(&error, addr))?;
    printer.debug("rdma_bind_addr successful")?;
    printer.debug(format_args!("rdma_listen {}", listener.local_addr()))?;
    if !options.persistent {
        let request = next_request(device, &listener)?;
        // The server serves only one client. Closing the listener refuses all other clients at
        // once.
        drop(listener);
        return serve(device, request, None, printer);
    }
    let clients = Clients::new(options.limits());
    let workers = Workers::new("uwarp-rping");
    loop {
        let request = next_request(device, &listener)?;
        let (device, peer) = (device.clone(), request.peer_addr());
        let checked = workers.check_or_make_way(&device, MEMORY, &clients, peer.ip());
        if let Err(short) = checked {
            let text = format!("uwarp rping -s: {peer} was rejected: {short}");
            remark(Some(peer.ip()), text);
            let _ = request.reject(short.for_peer().as_bytes());
            continue;
        }
        let seat = match clients.admit(peer.ip()) {
            Ok(seat) => seat,
            Err(full) => {
                let text = format!(
                    "uwarp rping -s: {peer} was rejected: {full}\n  try: --max-clients with a larger number, or a shorter --silence"
                );
                remark(Some(peer.ip()), text);
                // If the private data cannot be sent, the request is rejected without it.
                let _ = request.reject(full.to_string().as_bytes());
                continue;
            }
        };
        let session = move || {
            if let Err(failure) = serve(&device, request, Some(seat), printer) {
                failure.print_remark("rping -s", Some(peer.ip()));
            }
        };
        if let Err(error) = workers.run(session) {
            let text = format!("uwarp rping -s: {peer} was refused, no thread for it: {error}");
            remark(Some(peer.ip()), text);
        }
    }
}

impl Options {
    /// Returns the limits of a persistent server.
    fn limits(&self) -> Limits {
        let silence = Duration::from_secs(self.silence.into());
        Limits::default()
            .max(self.max_clients as usize)
            .silence((!silence.is_zero()).then_some(silence))
    }
}

/// Waits for the next client. Reports connections that are not iWARP and continues. Fails if the
/// network has failed, because no client can connect then.
fn next_request(device: &Device, listener: &Listener) -> Result<ConnectRequest, Failure> {
    loop {
        let request = listener.wait_request(Some(LOOK));
        while let Some((peer, error)) = listener.poll_failure() {
            let what = explain::with_addr(&error, peer);
            let text = format!(
                "uwarp rping -s: {what}\n  at fault: the peer; its connection was closed, and the server continues"
            );
            remark(Some(peer.ip()), text);
        }
        if let Ok(request) = request {
            return Ok(request);
        }
        check_network(device)?;
    }
}

/// Serves one client, from its connection request to the end of its connection. The client of a
/// server that is not persistent has no seat.
fn serve(
    device: &Device,
    request: ConnectRequest,
    seat: Option<Seat>,
    printer: Printer,
) -> Result<(), Failure> {
    let peer = request.peer_addr();
    // The client chooses the size. The buffer has room for the largest size of rping.
    let mut session = Session::new(
        device,
        *SIZES.end() as usize,
        Access::LOCAL_WRITE,
        peer,
        printer,
    )?;
    session.take(seat);
    printer.debug("accepting client connection request")?;
    // As in rping, one Read may be outstanding in each direction.
    let accept = AcceptOptions::default().ird(1).ord(1);
    request.accept(&session.qp, &accept).map_err(local)?;
    session.debug_agreed()?;

    let (result, pings) = pings(&session);
    session.close();
    printer.debug(format_args!("{pings} pings of {peer} served"))?;
    remark(None, "server DISCONNECT EVENT...");
    result
}

/// Serves pings until the client closes the connection. Returns the result and the number of pings.
fn pings(session: &Session) -> (Result<(), Failure>, u64) {
    let peer = session.peer;
    let closed = |when: &str| {
        Report::new(format!("{peer} closed the connection {when}"))
            .expected("the client to close between two pings")
            .fault("the client, which ended or was stopped")
    };
    let mut done = 0;
    loop {
        let during = format!("ping {done}");
        let turn = match done {
            0 => Turn::Due,
            _ => Turn::BetweenPings,
        };
        let stop = match session.receive(turn, &during) {
            Err(Stop::PeerClosed) if done > 0 => return (Ok(()), done),
            Err(Stop::PeerClosed) => closed("before its first ping").into(),
            Err(Stop::Failed(failure)) => failure,
            Ok(source) => match ping(session, source, &during) {
                Ok(()) => {
                    done += 1;
                    continue;
                }
                Err(Stop::PeerClosed) => closed(&format!("in the middle of {during}")).into(),
                Err(Stop::Failed(failure)) => failure,
            },
        };
        return (Err(stop), done);
    }
}

/// Serves one ping, from the advert of its data to the second go-ahead message.
fn ping(session: &Session, source: Advert, during: &str) -> Result<(), Stop> {
    let (printer, data) = (&session.printer, &session.data);
    show(session, source)?;
    if source.len as usize > data.len() {
        let what = format!(
            "{}, {during}: the client offers ping data of {} bytes",
            session.peer, source.len
        );
        return Err(Report::new(what)
            .expected(format!("at most {}, as rping has", data.len()))
            .fault("the client")
            .into());
    }
    let sges = [data.sge(0, source.len)];
    session.post(&SendWr::read(
        0,
        &sges,
        RemoteBuffer::at(source.addr, source.rkey),
    ))?;
    printer.debug("server posted rdma read req")?;
    session.wait_for(WcOpcode::RdmaRead, Turn::Due, during)?;
    printer.debug("server received read complete")?;

    let mut bytes = session.copy.borrow_mut();
    bytes.resize(source.len as usize, 0);
    data.read_at(0, &mut bytes).map_err(local)?;
    if printer.verbose {
        let printed = session
            .device
            .check_memory(PRINTED * bytes.len(), "printing the ping data");
        printed.map_err(local)?;
        printer.output.line(format_args!(
            "server ping data: {}",
            data::printable(&bytes)
        ))?;
    }
    session.send(Advert::default())?;
    printer.debug("server posted go ahead")?;

    let sink = session.receive(Turn::Due, during)?;
    show(session, sink)?;
    // As in rping, the text and its final zero are written back.
    let len = source
        .len
        .min(u32::try_from(data::text_len(&bytes) + 1).unwrap_or(u32::MAX));
    if sink.len < len {
        let what = format!(
            "{}, {during}: the client offers room for {} bytes",
            session.peer, sink.len
        );
        return Err(Report::new(what)
            .expected(format!("room for the {len} bytes that were read"))
            .fault("the client")
            .into());
    }
    let sges = [data.sge(0, len)];
    session.post(&SendWr::write(
        0,
        &sges,
        RemoteBuffer::at(sink.addr, sink.rkey),
    ))?;
    session.wait_for(WcOpcode::RdmaWrite, Turn::Due, during)?;
    printer.debug("server rdma write complete")?;
    session.send(Advert::default())?;
    printer.debug("server posted go ahead")?;
    Ok(())
}

fn show(session: &Session, advert: Advert) -> Result<(), Failure> {
    session.printer.debug(format_args!(
        "Received rkey {:x} addr {:x} len {} from peer",
        advert.rkey, advert.addr, advert.len
    ))?;
    session.printer.debug("server received sink adv")
}
