//! Every operation from both sides, with the sizes at which behavior changes.

use uwarp_interop::{Agent, Failure, Outcome, Post, Result, Rig, pattern, sge, sges};
use uwarp_verbs::{EndReason, RecvWr, RemoteBuffer, SendWr, Settings, Sge, WcOpcode};

use serde_json::json;

use crate::Case;
use crate::bench::{Bench, By, GUARD, Op, bytes};
use crate::pair::{Role, Terms};

/// Sizes of a message: 0 and 1 byte, around siw's inline frames, around the payload of one
/// 1500-byte segment for every message type, around 2^16, and large sizes.
pub(crate) const SIZES: [usize; 17] = [
    0,
    1,
    31,
    32,
    33,
    1423,
    1424,
    1425,
    1426,
    1427,
    1428,
    1429,
    65_535,
    65_536,
    65_537,
    1 << 20,
    16 << 20,
];
/// Sizes for tests in which all operations take turns.
pub(crate) const FEW_SIZES: [usize; 5] = [0, 1, 1425, 65_537, 1 << 20];

pub(crate) const STAG_0: &str = "siw's library sends STag 0 in a Send with Invalidate from user space, whatever \
                      invalidate_rkey says";

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for role in Role::BOTH {
        for op in Op::ALL {
            for by in By::BOTH {
                cases.push(case(
                    format!("{}::{}::{}", role.name(), op.name(), by.name()),
                    format!(
                        "{} {} of 0 bytes to 16 MiB, {}",
                        op.title(),
                        by.title(),
                        role.title()
                    ),
                    move |rig| sizes(rig, role, op, by),
                ));
            }
        }
        cases.push(case(
            format!("{}::crc_off", role.name()),
            format!(
                "Send, Write and Read both ways without CRC, {}",
                role.title()
            ),
            move |rig| without_crc(rig, role),
        ));
        for by in By::BOTH {
            cases.push(case(
                format!("{}::scatter_gather::{}", role.name(), by.name()),
                format!(
                    "Send and Write {} with scatter/gather lists at both ends, {}",
                    by.title(),
                    role.title()
                ),
                move |rig| scatter_gather(rig, role, by),
            ));
        }
        for (name, who, readers) in [
            ("by_us", "by uwarp", &[By::Us][..]),
            ("by_guest", "by siw", &[By::Guest]),
            ("both", "by each at once", &By::BOTH),
        ] {
            cases.push(case(
                format!("{}::reads_16::{name}", role.name()),
                format!("16 Reads outstanding {who}, {}", role.title()),
                move |rig| many_reads(rig, role, readers),
            ));
        }
    }
    cases
}

pub(crate) fn case(
    name: String,
    title: String,
    run: impl Fn(&mut Rig) -> Result<Outcome> + Send + Sync + 'static,
) -> Case {
    Case {
        suite: "agent",
        name,
        title,
        run: Box::new(run),
    }
}

fn sizes(rig: &mut Rig, role: Role, op: Op, by: By) -> Result<Outcome> {
    let largest = SIZES.into_iter().max().unwrap_or_default();
    let mut bench = Bench::open(rig, role, &Terms::default(), largest)?;
    for len in SIZES {
        bench.run(&mut rig.agent, by, op, len)?;
    }
    if op.invalidates() {
        return invalid_for_good(rig, &bench, by);
    }
    bench.close(&mut rig.agent, role)?;
    Ok(Outcome::Passed)
}

/// Checks that an invalidated region cannot be written any more.
fn invalid_for_good(rig: &mut Rig, bench: &Bench, by: By) -> Result<Outcome> {
    let agent = &mut rig.agent;
    match by {
        By::Us => {
            let region = agent.reg(GUARD, "lw,rw")?;
            agent.recv(bench.conn, 10, &sge(&bench.far, 0, 1), 1, 0)?;
            let send = SendWr::send(11, &[]).invalidate(region.rkey);
            bench.ours.qp.post_send(&send)?;
            bench.ours.completion(11, WcOpcode::Send)?;
            agent.completion(bench.conn)?.expect(10, "recv")?;
            let write =
                SendWr::write_inline(12, b"gone", RemoteBuffer::at(region.addr, region.rkey));
            bench.ours.qp.post_send(&write)?;
            bench.ours.completion(12, WcOpcode::RdmaWrite)?;
            agent.event(bench.conn, "disconnected")?;
            agent.check_zero(&region, 0, GUARD)?;
            bench.ended("TerminateReceived", |reason| match reason {
                // The code means: DDP, tagged buffer, invalid STag.
                EndReason::TerminateReceived { terminate, .. } => {
                    (terminate.layer(), terminate.etype(), terminate.code()) == (1, 1, 0)
                }
                _ => false,
            })?;
            Ok(Outcome::Passed)
        }
        By::Guest => {
            let region = bench.own_region()?;
            let (to, stag) = (region.addr(), region.rkey());
            bench.ours.qp.post_recv(&RecvWr::new(10, &[]))?;
            let mut send = Post::new("send_inv", 11, "").remote(0, stag);
            send.inv = stag;
            agent.post(bench.conn, &send)?;
            bench.ours.completion(10, WcOpcode::Recv)?;
            agent.completion(bench.conn)?.expect(11, "send")?;
            let write = Post::new("write", 12, sge(&bench.far, 0, GUARD)).remote(to, stag);
            agent.post(bench.conn, &write)?;
            agent.event(bench.conn, "disconnected")?;
            let mut came = [0xff; GUARD];
            region.read_at(0, &mut came)?;
            if came != [0; GUARD] {
                return Err(Failure::new("an invalidated region was written"));
            }
            bench.ended("TerminateSent", |reason| sent(reason, (1, 1, 0)))?;
            Ok(Outcome::Deviation(format!(
                "{STAG_0}; with the STag also in wr.rdma.rkey, the right one is sent"
            )))
        }
    }
}

/// Returns true if our side ended the connection with a Terminate Message of this Layer, EType and
/// Error Code.
pub(crate) fn sent(reason: &EndReason, want: (u8, u8, u8)) -> bool {
    match reason {
        EndReason::TerminateSent {
            terminate: Some(it),
            ..
        } => (it.layer(), it.etype(), it.code()) == want,
        _ => false,
    }
}

fn without_crc(rig: &mut Rig, role: Role) -> Result<Outcome> {
    let terms = Terms {
        settings: Settings::default().crc(false),
        ..Terms::default()
    };
    let mut bench = Bench::open(rig, role, &terms, 1 << 20)?;
    bench.agreed(|info| !info.crc)?;
    all_operations(&mut bench, &mut rig.agent, &FEW_SIZES)?;
    bench.close(&mut rig.agent, role)?;
    Ok(Outcome::Passed)
}

/// Runs Sends, Writes and Reads of these sizes in both directions.
pub(crate) fn all_operations(bench: &mut Bench, agent: &mut Agent, sizes: &[usize]) -> Result<()> {
    for len in sizes {
        for op in Op::PLAIN {
            for by in By::BOTH {
                bench.run(agent, by, op, *len)?;
            }
        }
    }
    Ok(())
}

/// Pieces (offset and length) of 100,000 bytes at the source: one byte, an empty piece, pieces
/// across pages and unaligned ones. [`SCATTER`] has other boundaries.
const GATHER: [(usize, usize); 4] = [(3, 1), (101, 31_000), (40_000, 0), (50_005, 68_999)];
/// Pieces of the guest's source, without an empty one. In a list that siw sends, an empty element
/// between others is a null pointer in its kernel (`siw_tx_hdt`), and crashes the guest.
const GATHER_OF_GUEST: [(usize, usize); 4] = [(3, 1), (101, 31_000), (40_000, 2), (50_005, 68_997)];
const SCATTER: [(usize, usize); 4] = [(7, 50_000), (60_001, 3), (70_000, 0), (80_009, 49_997)];
const PIECES: usize = 100_000;
const ROOM: usize = 140_000;

fn scatter_gather(rig: &mut Rig, role: Role, by: By) -> Result<Outcome> {
    let bench = Bench::open(rig, role, &Terms::default(), ROOM)?;
    let agent = &mut rig.agent;
    let (conn, far, near) = (bench.conn, &bench.far, &bench.near);
    let list = |pieces: &[(usize, usize)]| -> Vec<Sge> {
        let element = |(off, len): &(usize, usize)| near.sge(*off as u64, bytes(*len));
        pieces.iter().map(element).collect()
    };
    let qp = &bench.ours.qp;
    match by {
        By::Us => {
            pieces(&GATHER, |off, at, len| {
                Ok(near.write_at(off, &pattern(5, at as u64, len))?)
            })?;
            agent.recv(conn, 10, &sges(far, &SCATTER), 1, 0)?;
            qp.post_send(&SendWr::send(11, &list(&GATHER)))?;
            bench.ours.completion(11, WcOpcode::Send)?;
            expect_len(agent.completion(conn)?.expect(10, "recv")?.len)?;
            pieces(&SCATTER, |off, at, len| {
                agent.check(far, off, len, 5, at as u64)
            })?;

            agent.recv(conn, 12, &sge(far, 0, 1), 1, 0)?;
            qp.post_send_list(&[
                SendWr::write(13, &list(&GATHER), RemoteBuffer::at(far.addr, far.rkey)),
                SendWr::send(14, &[]),
            ])?;
            bench.ours.completion(13, WcOpcode::RdmaWrite)?;
            bench.ours.completion(14, WcOpcode::Send)?;
            agent.completion(conn)?.expect(12, "recv")?;
            agent.check(far, 0, PIECES, 5, 0)?;
        }
        By::Guest => {
            pieces(&GATHER_OF_GUEST, |off, at, len| {
                let (mr, seed) = (far.number, 6);
                agent.command(&json!({"cmd": "fill", "mr": mr, "off": off, "len": len,
                    "seed": seed, "at": at}))?;
                Ok(())
            })?;
            qp.post_recv(&RecvWr::new(10, &list(&SCATTER)))?;
            agent.post(conn, &Post::new("send", 11, sges(far, &GATHER_OF_GUEST)))?;
            let came = bench.ours.completion(10, WcOpcode::Recv)?;
            expect_len(came.byte_len.into())?;
            agent.completion(conn)?.expect(11, "send")?;
            pieces(&SCATTER, |off, at, len| {
                bench.holds(off, &pattern(6, at as u64, len))
            })?;

            qp.post_recv(&RecvWr::new(12, &[]))?;
            let write = Post::new("write", 13, sges(far, &GATHER_OF_GUEST));
            agent.post(conn, &write.remote(near.addr(), near.rkey()))?;
            agent.post(conn, &Post::new("send", 14, ""))?;
            bench.ours.completion(12, WcOpcode::Recv)?;
            agent.completion(conn)?.expect(13, "write")?;
            agent.completion(conn)?.expect(14, "send")?;
            bench.holds(0, &pattern(6, 0, PIECES))?;
        }
    }
    bench.close(agent, role)?;
    Ok(match by {
        By::Us => Outcome::Passed,
        By::Guest => Outcome::Deviation(
            "without an empty element between others: siw's kernel crashes when it sends such a list"
                .to_owned(),
        ),
    })
}

/// Calls `with` for each nonempty piece. The arguments are its offset, the offset of its data in
/// the message, and its length.
fn pieces(
    list: &[(usize, usize)],
    mut with: impl FnMut(usize, usize, usize) -> Result<()>,
) -> Result<()> {
    let mut at = 0;
    for (off, len) in list {
        if *len > 0 {
            with(*off, at, *len)?;
        }
        at += len;
    }
    Ok(())
}

fn expect_len(len: u64) -> Result<()> {
    if len == PIECES as u64 {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{len} bytes were received, not {PIECES}"
    )))
}

/// Number of Reads. It is twice the number that may be outstanding. So the second half of the Reads
/// waits for the first half.
const READS: usize = 32;
/// Length of each Read in bytes. It is a multiple of 4, so that the FPDUs of Responses have no
/// padding. QEMU's user network cuts a stream at multiples of 4, and siw misreads padding and CRC
/// that are divided between two segments (Q23).
const READ_LEN: usize = 20_004;

fn many_reads(rig: &mut Rig, role: Role, readers: &[By]) -> Result<Outcome> {
    // The first half of a region is read, and the second half is the sink.
    let half = READS * READ_LEN;
    let bench = Bench::open(rig, role, &Terms::default(), 2 * half)?;
    bench.agreed(|info| (info.ird, info.ord) == (16, 16))?;
    let agent = &mut rig.agent;
    let (near, far) = (&bench.near, &bench.far);
    near.write_at(0, &pattern(1, 0, half))?;
    agent.fill(far, 0, half, 2)?;
    let stride = READ_LEN as u64;
    if readers.contains(&By::Guest) {
        let mut reads = Post::new("read", 1000, sge(far, half, READ_LEN));
        reads = reads.remote(near.addr(), near.rkey());
        (reads.count, reads.stride, reads.rstride) = (READS as u64, stride, stride);
        agent.post(bench.conn, &reads)?;
    }
    if readers.contains(&By::Us) {
        let sinks: Vec<[Sge; 1]> = (0..READS)
            .map(|number| [near.sge((half + number * READ_LEN) as u64, bytes(READ_LEN))])
            .collect();
        let reads: Vec<SendWr<'_>> = (2000..)
            .zip(&sinks)
            .map(|(id, sink)| {
                SendWr::read(
                    id,
                    sink,
                    RemoteBuffer::at(far.addr + (id - 2000) * stride, far.rkey),
                )
            })
            .collect();
        bench.ours.qp.post_send_list(&reads)?;
        for id in (2000..).take(READS) {
            bench.ours.completion(id, WcOpcode::RdmaRead)?;
        }
        bench.holds(half, &pattern(2, 0, half))?;
    }
    if readers.contains(&By::Guest) {
        for id in (1000..).take(READS) {
            agent.completion(bench.conn)?.expect(id, "read")?;
        }
        agent.check(far, half, half, 1, 0)?;
    }
    bench.close(agent, role)?;
    Ok(Outcome::Passed)
}
