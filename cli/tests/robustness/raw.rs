//! The attacker, which sends arbitrary bytes over plain TCP.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use uwarp_ddp::{Header, MAX_HEADER, Msn, STag, TaggedHeader, TaggedOffset, UntaggedHeader};
use uwarp_mpa::{Deframer, Framer, Initiator, InitiatorConfig, Model, Outcome, Revision, Step};
use uwarp_rdmap::{
    Opcode, QN_READ_REQUEST, QN_SEND, QN_TERMINATE, ReadRequestHeader, Terminate, control,
};

use crate::{PATIENCE, Result};

/// Source address of attacks. Honest peers use another address.
pub(crate) const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 66);

/// Length of a startup frame without Private Data, in bytes.
const FRAME: usize = 20;

/// Opens a TCP connection from the attacker's address.
pub(crate) fn tcp(to: SocketAddr) -> io::Result<TcpStream> {
    tcp_from(ATTACKER, to)
}

/// Opens a TCP connection from this address.
pub(crate) fn tcp_from(from: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect_timeout(&to.into(), PATIENCE)?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Ends a connection by a reset.
pub(crate) fn reset(stream: TcpStream) -> io::Result<()> {
    Socket::from(stream).set_linger(Some(Duration::ZERO))
}

/// Creates an initiator that asks for CRCs, with IRD and ORD of 16.
pub(crate) fn initiator() -> Result<Initiator> {
    Ok(Initiator::new(InitiatorConfig {
        revision: Revision::Two,
        crc: true,
        markers: false,
        ird: 16,
        ord: 16,
        max_ird: 16,
        model: Model::ClientServer,
        private_data: Vec::new(),
    })?)
}

/// Message from the victim, or the end of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// A Terminate Message: its layer, Error Type and Error Code.
    Terminate([u8; 3]),
    /// A segment of a Read Response, with this many bytes.
    ReadResponse(usize),
    /// The victim closed or reset the connection.
    Closed,
}

/// Connection of the attacker after a successful MPA startup.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    framer: Framer,
    deframer: Deframer,
    /// Bytes that arrived and are not parsed yet.
    input: Vec<u8>,
    batch: Vec<u8>,
    reads: u32,
}

impl Peer {
    /// Connects as an honest peer would.
    pub(crate) fn connect(to: SocketAddr) -> Result<Peer> {
        Peer::connect_from(ATTACKER, to)
    }

    /// Connects as an honest peer would, from this address.
    pub(crate) fn connect_from(from: Ipv4Addr, to: SocketAddr) -> Result<Peer> {
        let mut stream = tcp_from(from, to)?;
        let mut initiator = initiator()?;
        stream.write_all(initiator.request())?;
        let mut reply = vec![0; FRAME];
        stream.read_exact(&mut reply)?;
        let rest = usize::from(u16::from_be_bytes([reply[18], reply[19]]));
        reply.resize(FRAME + rest, 0);
        stream.read_exact(&mut reply[FRAME..])?;
        match initiator.receive(&reply)? {
            (_, Some(Outcome::Accepted(agreed))) => Ok(Peer {
                stream,
                framer: Framer::new(agreed.crc, agreed.tx_markers),
                deframer: Deframer::new(agreed.crc, agreed.rx_markers),
                input: Vec::new(),
                batch: Vec::new(),
                reads: 0,
            }),
            (_, outcome) => Err(format!("not accepted: {outcome:?}").into()),
        }
    }

    fn stage(&mut self, header: &Header, rest: &[u8]) -> Result<()> {
        let mut bytes = [0; MAX_HEADER];
        let len = header.emit(&mut bytes);
        self.framer
            .frame(&bytes[..len], rest, 0, rest.len(), &mut self.batch)?;
        Ok(())
    }

    /// Sends the staged bytes and empties the batch.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let sent = self.stream.write_all(&self.batch);
        self.batch.clear();
        sent
    }

    /// Sends the staged bytes without the last one, and empties the batch.
    pub(crate) fn flush_but_one(&mut self) -> io::Result<()> {
        self.batch.pop();
        self.flush()
    }

    /// Number of staged bytes.
    pub(crate) fn staged(&self) -> usize {
        self.batch.len()
    }

    /// Stages a segment of an RDMA Write.
    pub(crate) fn write(&mut self, last: bool, stag: u32, to: u64, bytes: &[u8]) -> Result<()> {
        let header = Header::Tagged(TaggedHeader {
            last,
            ulp: control(Opcode::Write),
            stag: STag(stag),
            to: TaggedOffset(to),
        });
        self.stage(&header, bytes)
    }

    /// Stages an empty segment of the first Send. The last segment of this Send is never sent.
    pub(crate) fn empty_send_segment(&mut self) -> Result<()> {
        let header = Header::Untagged(UntaggedHeader {
            last: false,
            ulp: control(Opcode::Send),
            ulp_word: 0,
            qn: QN_SEND,
            msn: Msn(1),
            mo: 0,
        });
        self.stage(&header, &[])
    }

    /// Stages a Read Request for `len` bytes of the victim's memory. The victim does not check the
    /// sink; it only copies the sink into the response.
    pub(crate) fn read(&mut self, len: u32, stag: u32, to: u64) -> Result<()> {
        self.reads += 1;
        let request = ReadRequestHeader {
            sink_stag: STag(0x0100),
            sink_to: TaggedOffset(0),
            len,
            source_stag: STag(stag),
            source_to: TaggedOffset(to),
        };
        let header = Header::Untagged(UntaggedHeader {
            last: true,
            ulp: control(Opcode::ReadRequest),
            ulp_word: 0,
            qn: QN_READ_REQUEST,
            msn: Msn(self.reads),
            mo: 0,
        });
        self.stage(&header, &request.emit())
    }

    /// Stages a Terminate Message with this MSN: a Local Catastrophic Error of the RDMA layer.
    pub(crate) fn terminate(&mut self, msn: u32) -> Result<()> {
        let header = Header::Untagged(UntaggedHeader {
            last: true,
            ulp: control(Opcode::Terminate),
            ulp_word: 0,
            qn: QN_TERMINATE,
            msn: Msn(msn),
            mo: 0,
        });
        self.stage(&header, &[0x00, 0x00, 0x00, 0x00])
    }

    /// Waits for the next message of the victim, or for the end of the connection.
    pub(crate) fn answer(&mut self) -> Result<Answer> {
        loop {
            if let Step::Fpdu(ulpdu) = self.deframer.next(&self.input)? {
                let mut scratch = [0; 128];
                let head = ulpdu.head(&mut scratch);
                let answer = read_answer(head, ulpdu.len())?;
                let used = ulpdu.wire_len();
                self.input.drain(..used);
                return Ok(answer);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) if self.input.is_empty() => return Ok(Answer::Closed),
                Ok(0) => return Err("the victim closes in the middle of an FPDU".into()),
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Ok(Answer::Closed);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Expects the victim to end the connection with this Terminate Message, and to send nothing
    /// else.
    pub(crate) fn expect_terminate(&mut self, code: [u8; 3]) -> Result<()> {
        for due in [Answer::Terminate(code), Answer::Closed] {
            let came = self.answer()?;
            if came != due {
                return Err(format!("the answer is {came:?}, and should be {due:?}").into());
            }
        }
        Ok(())
    }

    /// Sends an empty Read and waits for its response. The victim has then processed everything
    /// that was sent before the Read.
    pub(crate) fn expect_delivery(&mut self) -> Result<()> {
        self.read(0, 0, 0)?;
        self.flush()?;
        match self.answer()? {
            Answer::ReadResponse(0) => Ok(()),
            other => Err(format!("an empty Read is answered with {other:?}").into()),
        }
    }

    /// Reads until the victim closes or resets. Returns the number of bytes.
    pub(crate) fn drain(&mut self) -> io::Result<usize> {
        drain(&mut self.stream)
    }
}

/// Parses the start of a segment. `len`: length of the whole segment.
fn read_answer(head: &[u8], len: usize) -> Result<Answer> {
    let (header, at) = Header::parse(head)?;
    match header {
        Header::Untagged(header)
            if header.ulp == control(Opcode::Terminate) && header.qn == QN_TERMINATE =>
        {
            let said = Terminate::parse(&head[at..]).ok_or("a Terminate that is too short")?;
            Ok(Answer::Terminate([said.layer(), said.etype(), said.code()]))
        }
        Header::Tagged(header) if header.ulp == control(Opcode::ReadResponse) => {
            Ok(Answer::ReadResponse(len - at))
        }
        other => Err(format!("an unexpected segment: {other:?}").into()),
    }
}

/// Reads until the other side closes or resets. Returns the number of bytes.
pub(crate) fn drain(stream: &mut TcpStream) -> io::Result<usize> {
    let mut bytes = [0; 65_536];
    let mut came = 0;
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return Ok(came),
            Ok(count) => came += count,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(came),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
