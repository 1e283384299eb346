//! A client, which has consecutive connections. Two threads post requests to each of them.

use std::net::SocketAddr;

use uwarp_verbs::{
    Access, Buffer, ConnectOptions, Qp, QpCaps, RemoteBuffer, SendWr, WcOpcode, WindowKind,
    inc_rkey,
};

use crate::common::{LIMIT, Side, pattern, same, slice};
use crate::ledger::{Ledger, Life};
use crate::server::{LENT, MESSAGE, PeerRegions, Server, Word, message};
use crate::{ROUNDS, common};

/// Runs one connection, from the creation of its QP to its end.
pub(crate) fn live(a: &Side, ledger: &Ledger, server: &Server<'_>, addr: SocketAddr, life: Life) {
    let caps = QpCaps::default().max_send_wr(16);
    let qp = a.pd.create_qp(ledger.cq(), ledger.cq(), caps).unwrap();
    let options = ConnectOptions::default()
        .private_data([life.client.to_be_bytes(), life.number.to_be_bytes()].concat());
    let connected = qp.connect(addr, &options).unwrap();
    let lent = PeerRegions::from_bytes(&connected.private_data);
    std::thread::scope(|scope| {
        scope.spawn(|| send(a, &qp, ledger, life));
        scope.spawn(|| one_sided(a, &qp, ledger, server, life, lent));
    });
    if life.is_rough() {
        abort_busy(&qp, ledger, life, lent);
        assert!(qp.reset());
        return;
    }
    ledger.post(&qp, life, 0, WcOpcode::Send, |wr_id| {
        SendWr::send(wr_id, &[]).invalidate(lent.rkey)
    });
    ledger.wait(life, 0);
    qp.disconnect();
    assert!(qp.wait_closed(LIMIT), "{:?}", qp.end_reason());
}

/// Posts from two threads, one of which aborts meanwhile.
fn abort_busy(qp: &Qp, ledger: &Ledger, life: Life, lent: PeerRegions) {
    let write = |poster| {
        for _ in 0..10 {
            ledger.post(qp, life, poster, WcOpcode::RdmaWrite, |wr_id| {
                SendWr::write_inline(wr_id, &[0xEE; 200], RemoteBuffer::at(0, lent.rkey))
            });
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| write(1));
        write(0);
        qp.abort();
        write(0);
    });
    ledger.wait(life, 0);
    ledger.wait(life, 1);
}

/// Posts Sends and Immediate Data without waiting for their completions.
fn send(a: &Side, qp: &Qp, ledger: &Ledger, life: Life) {
    let source = a.blank(ROUNDS as usize * MESSAGE);
    for round in 0..ROUNDS {
        let word = Word { life, round };
        if round % 4 == 3 {
            ledger.post(qp, life, 0, WcOpcode::Send, |wr_id| {
                SendWr::immediate(wr_id, word.immediate()).solicited()
            });
            continue;
        }
        let at = round as usize * MESSAGE;
        source.write_at(at, &message(word)).unwrap();
        let sges = [source.sge(at as u64, MESSAGE as u32)];
        ledger.post(qp, life, 0, WcOpcode::Send, |wr_id| {
            SendWr::send(wr_id, &sges)
        });
    }
    ledger.wait(life, 0);
    source.deregister().unwrap();
}

/// Posts atomics, Writes and Reads, and uses windows and fast registration. Checks each round
/// before the next one.
fn one_sided(
    a: &Side,
    qp: &Qp,
    ledger: &Ledger,
    server: &Server<'_>,
    life: Life,
    lent: PeerRegions,
) {
    let post = |opcode, wr: &dyn Fn(u64) -> SendWr<'static>| {
        ledger.post(qp, life, 1, opcode, wr);
    };
    let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    let counted = server.counter();
    let fast =
        a.pd.alloc_fast_region(Buffer::zeroed(4096).unwrap())
            .unwrap();
    let window = a.pd.alloc_window(WindowKind::Type2B).unwrap();
    for round in 0..ROUNDS {
        let seed = u64::from(life.client) << 32 | u64::from(life.number) << 16 | u64::from(round);
        let rights = all | Access::WINDOW_BIND;
        let source = a.pd.register(pattern(seed, LENT), rights).unwrap();
        let (sink, old) = (a.blank(LENT), a.blank(8));
        let (from, to, word) = (
            [source.sge(0, LENT as u32)],
            [sink.sge(0, LENT as u32)],
            [old.sge(0, 8)],
        );
        ledger.post(qp, life, 1, WcOpcode::RdmaWrite, |wr_id| {
            SendWr::write(wr_id, &from, RemoteBuffer::at(0, lent.rkey))
        });
        ledger.post(qp, life, 1, WcOpcode::RdmaRead, |wr_id| {
            SendWr::read(wr_id, &to, RemoteBuffer::at(0, lent.rkey))
        });
        ledger.post(qp, life, 1, WcOpcode::FetchAdd, |wr_id| {
            SendWr::fetch_add(
                wr_id,
                &word,
                RemoteBuffer::at(counted.addr, counted.rkey),
                1,
            )
        });
        let rkey = inc_rkey(window.rkey());
        let bind = source.window(0, 100, Access::REMOTE_READ);
        let part = fast.register(inc_rkey(fast.stag()), 64, 64, all);
        post(WcOpcode::BindWindow, &|wr_id| {
            SendWr::bind_window(wr_id, rkey, &bind)
        });
        post(WcOpcode::Register, &|wr_id| SendWr::register(wr_id, &part));
        for stag in [rkey, part.stag] {
            post(WcOpcode::LocalInvalidate, &|wr_id| {
                SendWr::local_invalidate(wr_id, stag)
            });
        }
        ledger.wait(life, 1);
        same(
            &common::content(&sink),
            &pattern(seed, LENT),
            "what was written is read",
        );
        let before = u64::from_ne_bytes(slice(&old, 0, 8).try_into().unwrap());
        server.counted(before);
        assert!(!window.is_bound() && !fast.is_valid());
        source.deregister().unwrap();
        sink.deregister().unwrap();
    }
}
