//! A connection with a region at each end. It runs single operations and checks all data.

use serde_json::json;
use uwarp_interop::{Agent, Completion, Conn, Failure, PATIENCE, Post, Region, Result, Rig};
use uwarp_interop::{pattern, sge};
use uwarp_verbs::{
    Access, ConnectionInfo, EndReason, MemoryRegion, RecvWr, RemoteBuffer, SendWr, Sge, WcOpcode,
};

use crate::pair::{Ours, Pair, Role, Terms, connect_with};

/// Number of bytes after a message in its sink that must not change.
pub(crate) const GUARD: usize = 64;

/// The side that posts the work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    Us,
    Guest,
}

impl By {
    pub(crate) const BOTH: [By; 2] = [By::Us, By::Guest];

    /// Returns the name for tests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            By::Us => "by_us",
            By::Guest => "by_guest",
        }
    }

    /// Returns the name for the matrix.
    pub(crate) fn title(self) -> &'static str {
        match self {
            By::Us => "by uwarp",
            By::Guest => "by siw",
        }
    }
}

/// An operation of the verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    Send,
    SendSolicited,
    SendInvalidate,
    SendSolicitedInvalidate,
    Write,
    Read,
}

impl Op {
    pub(crate) const ALL: [Op; 6] = [
        Op::Send,
        Op::SendSolicited,
        Op::SendInvalidate,
        Op::SendSolicitedInvalidate,
        Op::Write,
        Op::Read,
    ];
    /// One operation of each message type.
    pub(crate) const PLAIN: [Op; 3] = [Op::Send, Op::Write, Op::Read];

    /// Returns the name for tests.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::Send => "send",
            Op::SendSolicited => "send_se",
            Op::SendInvalidate => "send_inv",
            Op::SendSolicitedInvalidate => "send_se_inv",
            Op::Write => "write",
            Op::Read => "read",
        }
    }

    /// Returns the name for the matrix.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Op::Send => "Send",
            Op::SendSolicited => "Send with SE",
            Op::SendInvalidate => "Send with Invalidate",
            Op::SendSolicitedInvalidate => "Send with SE and Invalidate",
            Op::Write => "Write",
            Op::Read => "Read",
        }
    }

    pub(crate) fn solicits(self) -> bool {
        matches!(self, Op::SendSolicited | Op::SendSolicitedInvalidate)
    }

    pub(crate) fn invalidates(self) -> bool {
        matches!(self, Op::SendInvalidate | Op::SendSolicitedInvalidate)
    }
}

/// A connection with a region at each end.
pub(crate) struct Bench {
    pub(crate) ours: Ours,
    pub(crate) conn: Conn,
    /// Region on our side, with all access rights.
    pub(crate) near: MemoryRegion,
    /// Region in the guest, with all access rights.
    pub(crate) far: Region,
    /// Number (`wr_id`) of the next work request, which is also the seed of its data.
    pub(crate) next: u64,
}

#[expect(clippy::cast_possible_truncation, reason = "tens of MiB at most")]
pub(crate) fn bytes(len: usize) -> u32 {
    len as u32
}

impl Bench {
    /// Connects, and sends the first message, which must come from the initiator (RFC 5044 section
    /// 7.1.2). The regions have room for `len` bytes. Receives of empty messages also have an
    /// element, because siw's library does not accept a receive without one.
    pub(crate) fn open(rig: &mut Rig, role: Role, terms: &Terms, len: usize) -> Result<Bench> {
        let ours = Ours::new(rig, terms)?;
        Bench::open_with(rig, role, ours, terms, len)
    }

    /// Connects as `open` does, with an existing end on our side.
    pub(crate) fn open_with(
        rig: &mut Rig,
        role: Role,
        ours: Ours,
        terms: &Terms,
        len: usize,
    ) -> Result<Bench> {
        let far = rig.agent.reg(len + GUARD, "lw,rw,rr")?;
        let pair = connect_with(rig, role, ours, terms, |agent, conn, ours| {
            match role {
                Role::GuestServes => agent.recv(conn, 1, &sge(&far, 0, 1), 1, 0)?,
                Role::GuestConnects => ours.qp.post_recv(&RecvWr::new(1, &[]))?,
            }
            Ok(())
        })?;
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let near = pair.ours.region(len + GUARD, all)?;
        let Pair { ours, conn, .. } = pair;
        let bench = Bench {
            ours,
            conn,
            near,
            far,
            next: 2,
        };
        let agent = &mut rig.agent;
        match role {
            Role::GuestServes => {
                bench.ours.qp.post_send(&SendWr::send(1, &[]))?;
                bench.ours.completion(1, WcOpcode::Send)?;
                agent.completion(conn)?.expect(1, "recv")?;
            }
            Role::GuestConnects => {
                agent.post(conn, &Post::new("send", 1, ""))?;
                bench.ours.completion(1, WcOpcode::Recv)?;
                agent.completion(conn)?.expect(1, "send")?;
            }
        }
        Ok(bench)
    }

    /// Runs one operation with `len` bytes and checks its result.
    pub(crate) fn run(&mut self, agent: &mut Agent, by: By, op: Op, len: usize) -> Result<()> {
        let number = self.next;
        self.next += 2;
        let done = match (by, op) {
            (By::Us, Op::Write) => self.write_by_us(agent, number, len),
            (By::Us, Op::Read) => self.read_by_us(agent, number, len),
            (By::Us, _) => self.send_by_us(agent, number, op, len),
            (By::Guest, Op::Write) => self.write_by_guest(agent, number, len),
            (By::Guest, Op::Read) => self.read_by_guest(agent, number, len),
            (By::Guest, _) => self.send_by_guest(agent, number, op, len),
        };
        done.map_err(|failure| {
            let end = self.ours.qp.end_reason().map(|reason| reason.to_string());
            failure.during(format!(
                "{} {} of {len} bytes (our end of the connection: {end:?})",
                op.title(),
                by.title()
            ))
        })
    }

    fn send_by_us(&self, agent: &mut Agent, number: u64, op: Op, len: usize) -> Result<()> {
        let conn = self.conn;
        // The receive is larger than the message, so that the reported length must come from the
        // message.
        agent.recv(conn, number, &sge(&self.far, 0, len + GUARD), 1, 0)?;
        clear(agent, &self.far, len)?;
        let list = self.source(number, len)?;
        let target = if op.invalidates() {
            Some(agent.reg(GUARD, "lw,rw")?)
        } else {
            None
        };
        let mut send = SendWr::send(number, &list);
        if op.solicits() {
            send = send.solicited();
        }
        if let Some(region) = &target {
            self.writable(region)?;
            send = send.invalidate(region.rkey);
        }
        self.ours.qp.post_send(&send)?;
        self.ours.completion(number, WcOpcode::Send)?;
        let came = agent.completion(conn)?;
        came.expect(number, "recv")?;
        // siw does not report an invalidated STag or SE to an application in user space.
        if (came.len, came.flags, came.invalidated) != (len as u64, 0, None) {
            return Err(Failure::new(format!("the guest received {came:?}")));
        }
        guest_has(agent, &self.far, number, len)
    }

    fn send_by_guest(&self, agent: &mut Agent, number: u64, op: Op, len: usize) -> Result<()> {
        let conn = self.conn;
        self.near.write_at(0, &vec![0; len + GUARD])?;
        let sink = [self.near.sge(0, bytes(len + GUARD))];
        self.ours.qp.post_recv(&RecvWr::new(number, &sink))?;
        agent.fill(&self.far, 0, len, number)?;
        let mut post = Post::new("send", number, if_any(&self.far, len));
        post.solicited = op.solicits();
        let mut target = None;
        if op.invalidates() {
            let region = target.insert(self.own_region()?);
            self.writable_by_guest(agent, region)?;
            post.op = "send_inv";
            post.inv = region.rkey();
            // siw's library takes the STag from `rkey`, which violates the standard API; see
            // `stag_0`.
            post.rkey = region.rkey();
        }
        agent.post(conn, &post)?;
        let came = self.ours.completion(number, WcOpcode::Recv)?;
        let want = (
            bytes(len),
            op.solicits(),
            target.as_ref().map(MemoryRegion::rkey),
        );
        if (came.byte_len, came.solicited, came.invalidated) != want {
            return Err(Failure::new(format!(
                "we received {came:?}, expected (bytes, solicited, invalidated) = {want:?}"
            )));
        }
        agent.completion(conn)?.expect(number, "send")?;
        self.we_have(number, len)
    }

    /// Writes from our side. The Send after the Write shows that the Write has arrived.
    fn write_by_us(&self, agent: &mut Agent, number: u64, len: usize) -> Result<()> {
        let (conn, far) = (self.conn, &self.far);
        clear(agent, far, len)?;
        agent.recv(conn, number + 1, &sge(far, 0, 1), 1, 0)?;
        let list = self.source(number, len)?;
        self.ours.qp.post_send_list(&[
            SendWr::write(number, &list, RemoteBuffer::at(far.addr, far.rkey)),
            SendWr::send(number + 1, &[]),
        ])?;
        self.ours.completion(number, WcOpcode::RdmaWrite)?;
        self.ours.completion(number + 1, WcOpcode::Send)?;
        let came = agent.completion(conn)?;
        empty(came.expect(number + 1, "recv")?)?;
        guest_has(agent, far, number, len)
    }

    fn write_by_guest(&self, agent: &mut Agent, number: u64, len: usize) -> Result<()> {
        let conn = self.conn;
        self.near.write_at(0, &vec![0; len + GUARD])?;
        self.ours.qp.post_recv(&RecvWr::new(number + 1, &[]))?;
        agent.fill(&self.far, 0, len, number)?;
        let (to, rkey) = (self.near.addr(), self.near.rkey());
        let write = Post::new("write", number, if_any(&self.far, len)).remote(to, rkey);
        agent.post(conn, &write)?;
        agent.post(conn, &Post::new("send", number + 1, ""))?;
        let came = self.ours.completion(number + 1, WcOpcode::Recv)?;
        if came.byte_len != 0 {
            return Err(Failure::new(format!("an empty Send was {came:?}")));
        }
        agent.completion(conn)?.expect(number, "write")?;
        agent.completion(conn)?.expect(number + 1, "send")?;
        self.we_have(number, len)
    }

    fn read_by_us(&self, agent: &mut Agent, number: u64, len: usize) -> Result<()> {
        self.near.write_at(0, &vec![0; len + GUARD])?;
        agent.fill(&self.far, 0, len, number)?;
        let sink = [self.near.sge(0, bytes(len))];
        let (from, rkey) = (self.far.addr, self.far.rkey);
        self.ours
            .qp
            .post_send(&SendWr::read(number, &sink, RemoteBuffer::at(from, rkey)))?;
        self.ours.completion(number, WcOpcode::RdmaRead)?;
        self.we_have(number, len)
    }

    fn read_by_guest(&self, agent: &mut Agent, number: u64, len: usize) -> Result<()> {
        clear(agent, &self.far, len)?;
        self.near.write_at(0, &pattern(number, 0, len))?;
        let (from, rkey) = (self.near.addr(), self.near.rkey());
        let read = Post::new("read", number, sge(&self.far, 0, len)).remote(from, rkey);
        agent.post(self.conn, &read)?;
        agent.completion(self.conn)?.expect(number, "read")?;
        guest_has(agent, &self.far, number, len)
    }

    /// Fills our region with the data to send, and returns its scatter/gather list.
    fn source(&self, seed: u64, len: usize) -> Result<Vec<Sge>> {
        self.near.write_at(0, &pattern(seed, 0, len))?;
        let list = (len > 0).then(|| self.near.sge(0, bytes(len)));
        Ok(list.into_iter().collect())
    }

    /// Checks that our region holds the data of `seed`, and zeros after it.
    fn we_have(&self, seed: u64, len: usize) -> Result<()> {
        let want = [pattern(seed, 0, len), vec![0; GUARD]].concat();
        self.holds(0, &want)
    }

    /// Checks that our region has these bytes at `off`.
    pub(crate) fn holds(&self, off: usize, want: &[u8]) -> Result<()> {
        let mut came = vec![0; want.len()];
        self.near.read_at(off, &mut came)?;
        match (0..want.len()).find(|at| came[*at] != want[*at]) {
            None => Ok(()),
            Some(at) => Err(Failure::new(format!(
                "byte {} of our region is {:#04x}, but {:#04x} was sent",
                off + at,
                came[at],
                want[at]
            ))),
        }
    }

    /// Registers a region that the guest's QP may write and invalidate.
    pub(crate) fn own_region(&self) -> Result<MemoryRegion> {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let (pd, qp) = (&self.ours.pd, &self.ours.qp);
        Ok(pd.register_for(qp, vec![0; GUARD], rights)?)
    }

    /// Checks that we can write this region of the guest.
    fn writable(&self, region: &Region) -> Result<()> {
        let write =
            SendWr::write_inline(0, b"writable", RemoteBuffer::at(region.addr, region.rkey));
        self.ours.qp.post_send(&write)?;
        // If siw refused the Write, the connection would end before the next message.
        self.ours.completion(0, WcOpcode::RdmaWrite)?;
        Ok(())
    }

    /// Checks that the guest can write this region of ours.
    fn writable_by_guest(&self, agent: &mut Agent, region: &MemoryRegion) -> Result<()> {
        let write = Post::new("write", 0, sge(&self.far, 0, GUARD));
        agent.post(self.conn, &write.remote(region.addr(), region.rkey()))?;
        agent.completion(self.conn)?.expect(0, "write")?;
        Ok(())
    }

    /// Checks the negotiated parameters with `is_it`.
    pub(crate) fn agreed(&self, is_it: impl FnOnce(&ConnectionInfo) -> bool) -> Result<()> {
        match self.ours.qp.connection() {
            Some(info) if is_it(&info) => Ok(()),
            other => Err(Failure::new(format!(
                "unexpected parameters were negotiated: {other:?}"
            ))),
        }
    }

    /// Checks that our side has ended, and that `is_it` accepts the reason.
    pub(crate) fn ended(&self, want: &str, is_it: impl FnOnce(&EndReason) -> bool) -> Result<()> {
        if !self.ours.qp.wait_closed(PATIENCE) {
            return Err(Failure::new("our side does not close"));
        }
        match self.ours.qp.end_reason() {
            Some(reason) if is_it(&reason) => Ok(()),
            other => Err(Failure::new(format!(
                "expected {want}, but our side ended with: {other:?}"
            ))),
        }
    }

    /// Ends the connection from the initiator's side. Checks that nothing unexpected is left on
    /// either side.
    pub(crate) fn close(self, agent: &mut Agent, role: Role) -> Result<()> {
        match role {
            Role::GuestServes => self.ours.qp.disconnect(),
            Role::GuestConnects => agent.disconnect(self.conn)?,
        }
        agent.event(self.conn, "disconnected")?;
        if !self.ours.qp.wait_closed(PATIENCE) {
            return Err(Failure::new("our side does not close"));
        }
        match (role, self.ours.qp.end_reason()) {
            (Role::GuestServes, Some(EndReason::LocalDisconnect))
            | (Role::GuestConnects, Some(EndReason::PeerDisconnect)) => {}
            (_, reason) => {
                return Err(Failure::new(format!(
                    "the close was not orderly: {reason:?}"
                )));
            }
        }
        let (theirs, ours) = (agent.unread(), self.ours.cq.poll_one());
        if !theirs.is_empty() || ours.is_some() {
            return Err(Failure::new(format!(
                "left over: in the guest {theirs:?}, on our side {ours:?}"
            )));
        }
        Ok(())
    }
}

/// Formats a scatter/gather list of `len` bytes; an empty one if `len` is 0.
fn if_any(region: &Region, len: usize) -> String {
    match len {
        0 => String::new(),
        len => sge(region, 0, len),
    }
}

/// Zeros the sink of a message of `len` bytes, and the guard bytes after it.
fn clear(agent: &mut Agent, region: &Region, len: usize) -> Result<()> {
    let all = len + GUARD;
    agent.command(
        &json!({"cmd": "fill", "mr": region.number, "off": 0, "len": all, "zero": true}),
    )?;
    Ok(())
}

/// Checks that the guest's region holds the data of `seed`, followed by zeros.
fn guest_has(agent: &mut Agent, region: &Region, seed: u64, len: usize) -> Result<()> {
    agent.check(region, 0, len, seed, 0)?;
    agent.check_zero(region, len, GUARD)
}

fn empty(came: &Completion) -> Result<()> {
    match came.len {
        0 => Ok(()),
        _ => Err(Failure::new(format!("an empty Send was {came:?}"))),
    }
}
