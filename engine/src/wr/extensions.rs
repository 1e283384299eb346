//! Work requests of RFC 7306: Atomic Operations and Immediate Data.

use crate::mem::RemoteBuffer;
use crate::mem::Sge;
use uwarp_rdmap::AtomicOp;

use super::{SendOp, SendWr, Source};

/// Atomic Operations (RFC 7306 section 5).
///
/// Each operates on the first 8 bytes of `remote`: a word in the byte order of the peer's host, at
/// an address of the host that is a multiple of 8. (The address in `remote` may be any number if
/// the region is zero-based. If the word in the peer's memory is not aligned, the peer refuses with
/// `Status::RemoteOperation`.)
///
/// The previous value of the word is stored into `sink`, in the byte order of this host. `sink` is
/// one element of 8 bytes with local write access. Atomic Operations count against ORD as Reads do,
/// and are carried out in order with them.
///
/// They are atomic with respect to each other. If the peer is uwarp as well, they are also atomic
/// with respect to the CPUs of its machine.
impl<'a> SendWr<'a> {
    /// Adds `add` to the word at the start of `remote` (`IBV_WR_ATOMIC_FETCH_AND_ADD`). A carry out
    /// of bit 63 is lost. See [`mask`](Self::mask).
    #[must_use]
    pub fn fetch_add(wr_id: u64, sink: &'a [Sge], remote: RemoteBuffer, add: u64) -> Self {
        let op = AtomicOp::FetchAdd { add, mask: 0 };
        Self::atomic(wr_id, sink, remote, op)
    }

    /// Stores `swap` into the word at the start of `remote` if it holds `compare`
    /// (`IBV_WR_ATOMIC_CMP_AND_SWP`).
    ///
    /// The swap took place if the value stored into the sink equals `compare`. See
    /// [`compare_mask`](Self::compare_mask) and [`swap_mask`](Self::swap_mask).
    #[must_use]
    pub fn compare_swap(
        wr_id: u64,
        sink: &'a [Sge],
        remote: RemoteBuffer,
        compare: u64,
        swap: u64,
    ) -> Self {
        let op = AtomicOp::CompareSwap {
            compare,
            compare_mask: u64::MAX,
            swap,
            swap_mask: u64::MAX,
        };
        Self::atomic(wr_id, sink, remote, op)
    }

    /// Stores `swap` into the word at the start of `remote`, whatever it holds.
    ///
    /// This is a [`compare_swap`](Self::compare_swap) that compares no bits, and completes as one.
    /// libibverbs has no such operation (the kernel: `IB_WR_MASKED_ATOMIC_CMP_AND_SWP`).
    #[must_use]
    pub fn swap(wr_id: u64, sink: &'a [Sge], remote: RemoteBuffer, swap: u64) -> Self {
        Self::compare_swap(wr_id, sink, remote, 0, swap).compare_mask(0)
    }

    /// Makes [`fetch_add`](Self::fetch_add) add several fields of the word independently (RFC 7306
    /// section 5.1.1). Each 1 in `carries_end_at` marks the most significant bit of a field, and no
    /// carry leaves the field. Ignored by other requests.
    ///
    /// ```
    /// use uwarp_engine::mem::{RemoteBuffer, Sge};
    /// use uwarp_engine::wr::SendWr;
    /// let sink = [Sge { addr: 0x1000, len: 8, lkey: 0x1234_5601 }];
    /// let word = RemoteBuffer { addr: 0x8000, len: 8, rkey: 0x55 };
    /// // Two counters of 32 bits each: one more in the upper, two more in the lower.
    /// let wr = SendWr::fetch_add(7, &sink, word, 1 << 32 | 2).mask(1 << 63 | 1 << 31);
    /// ```
    #[must_use]
    pub fn mask(mut self, carries_end_at: u64) -> Self {
        if let SendOp::Atomic {
            op: AtomicOp::FetchAdd { mask, .. },
            ..
        } = &mut self.op
        {
            *mask = carries_end_at;
        }
        self
    }

    /// Restricts the comparison of [`compare_swap`](Self::compare_swap) to the bits that are 1 in
    /// `mask` (RFC 7306 section 5.1.2). Ignored by other requests.
    #[must_use]
    pub fn compare_mask(mut self, mask: u64) -> Self {
        if let SendOp::Atomic {
            op: AtomicOp::CompareSwap { compare_mask, .. },
            ..
        } = &mut self.op
        {
            *compare_mask = mask;
        }
        self
    }

    /// Restricts the swap of [`compare_swap`](Self::compare_swap) to the bits that are 1 in `mask`
    /// (RFC 7306 section 5.1.2). Ignored by other requests.
    #[must_use]
    pub fn swap_mask(mut self, mask: u64) -> Self {
        if let SendOp::Atomic {
            op: AtomicOp::CompareSwap { swap_mask, .. },
            ..
        } = &mut self.op
        {
            *swap_mask = mask;
        }
        self
    }

    fn atomic(wr_id: u64, sink: &'a [Sge], remote: RemoteBuffer, op: AtomicOp) -> Self {
        let op = |rkey, remote_addr| SendOp::Atomic {
            rkey,
            remote_addr,
            op,
        };
        Self::with_remote(wr_id, op, Source::Sges(sink), remote)
    }
}

/// Immediate Data (RFC 7306 section 6): 8 bytes that arrive in a completion of the peer's receive
/// queue, as `Completion::immediate`. Alone or after a
/// Write they consume one receive, whose memory is not touched and may have any size. With a Send
/// they come in the completion of its receive.
///
/// On the wire, Immediate Data is a separate message. By convention the 4 bytes of other RDMA
/// interfaces are the first 4 of the 8, followed by zeros; uwarp does not interpret them. Those
/// interfaces report the length of the Write in the completion of the receive (`byte_len` of
/// `ibv_wc`). Here `byte_len` is 0, and `Completion::written` has the
/// length of the Write.
impl<'a> SendWr<'a> {
    /// Creates an RDMA Write followed by Immediate Data (`IBV_WR_RDMA_WRITE_WITH_IMM`): one request
    /// with one completion, which has the opcode of a Write. The peer sees the bytes of the Write
    /// no later than the Immediate Data.
    #[must_use]
    pub fn write_with_immediate(
        wr_id: u64,
        sges: &'a [Sge],
        remote: RemoteBuffer,
        immediate: [u8; 8],
    ) -> Self {
        Self::write(wr_id, sges, remote).with_immediate(immediate)
    }

    /// Creates a [`write_with_immediate`](Self::write_with_immediate) of `data`, which is copied
    /// when the request is posted (`IBV_WR_RDMA_WRITE_WITH_IMM` with `IBV_SEND_INLINE`).
    #[must_use]
    pub fn write_with_immediate_inline(
        wr_id: u64,
        data: &'a [u8],
        remote: RemoteBuffer,
        immediate: [u8; 8],
    ) -> Self {
        Self::write_inline(wr_id, data, remote).with_immediate(immediate)
    }

    /// Creates a request that sends only Immediate Data. Its completion has the opcode of a Send.
    ///
    /// libibverbs has no such request. Its `IBV_WR_SEND_WITH_IMM` is a
    /// [`send_with_immediate`](Self::send_with_immediate).
    #[must_use]
    pub fn immediate(wr_id: u64, immediate: [u8; 8]) -> Self {
        Self::new(wr_id, SendOp::Immediate, Source::Inline(&[])).with_immediate(immediate)
    }

    /// Creates a Send with 4 bytes of Immediate Data (`IBV_WR_SEND_WITH_IMM`): one request with one
    /// completion. At the peer it takes one receive, whose completion has the opcode of a receive
    /// and the data, followed by 4 zeros.
    ///
    /// iWARP has no such message, so only QPs that are connected by their numbers
    /// (`Qp::pair`) exchange it, as Immediate Data and a Send. Posting it on
    /// another QP fails with
    /// `PostErrorKind::NoSendWithImmediate`.
    #[must_use]
    pub fn send_with_immediate(wr_id: u64, sges: &'a [Sge], immediate: [u8; 4]) -> Self {
        Self::send(wr_id, sges).with_immediate(send_immediate(immediate))
    }

    /// Creates a [`send_with_immediate`](Self::send_with_immediate) of `data`, which is copied when
    /// the request is posted (`IBV_WR_SEND_WITH_IMM` with `IBV_SEND_INLINE`).
    #[must_use]
    pub fn send_with_immediate_inline(wr_id: u64, data: &'a [u8], immediate: [u8; 4]) -> Self {
        Self::send_inline(wr_id, data).with_immediate(send_immediate(immediate))
    }

    /// Adds Immediate Data to an RDMA Write (RFC 7306 section 6), or 4 bytes and 4 zeros to a
    /// [Send](Self::send_with_immediate).
    ///
    /// Posting any other request with Immediate Data fails with
    /// `PostErrorKind::ImmediateUnfit`.
    #[must_use]
    pub fn with_immediate(mut self, immediate: [u8; 8]) -> Self {
        self.imm = Some(immediate);
        self
    }
}

/// Returns 4 bytes of Immediate Data as requests and completions show them.
pub(crate) fn send_immediate([a, b, c, d]: [u8; 4]) -> [u8; 8] {
    [a, b, c, d, 0, 0, 0, 0]
}
