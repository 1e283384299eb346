//! Checks the rules that relate frames of a connection: MSN, MO and TO, responses and their
//! requests, IRD, and the end of a direction.

use std::collections::VecDeque;

use uwarp_ddp::{Header, Msn, STag, TaggedHeader, UntaggedHeader};
use uwarp_rdmap::{AtomicRequestHeader, Opcode, ReadRequestHeader};

use super::finding::Findings;
use super::segment::{Body, Segment};
use super::words::many;

/// Maximum number of unanswered requests that are remembered. If there are more, responses are no
/// longer checked.
const MAX_REQUESTS: usize = 20_000;
/// Number of queues whose MSNs are checked.
const QUEUES: usize = 4;

/// State of the messages that one direction sent.
#[derive(Debug, Default)]
pub(super) struct Sent {
    queues: [Queue; QUEUES],
    /// Incomplete RDMA Write.
    write: Option<TaggedMessage>,
    /// Incomplete Read Response.
    response: Option<TaggedMessage>,
    reads: VecDeque<ReadRequestHeader>,
    atomics: VecDeque<u32>,
    /// True if the unanswered requests are unknown, because the capture lacks bytes of this
    /// connection.
    requests_unknown: bool,
    terminated: bool,
}

/// State of an untagged queue.
#[derive(Debug)]
struct Queue {
    /// Next expected MSN. `None` after a gap.
    due: Option<Msn>,
    open: Option<UntaggedMessage>,
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            due: Some(Msn::FIRST),
            open: None,
        }
    }
}

/// An untagged message whose last segment has not been sent yet.
#[derive(Debug, Clone, Copy)]
struct UntaggedMessage {
    msn: Msn,
    ulp: u8,
    word: u32,
    /// Next expected MO.
    mo: u32,
}

/// A tagged message whose last segment has not been sent yet.
#[derive(Debug, Clone, Copy)]
struct TaggedMessage {
    stag: STag,
    /// Next expected TO.
    to: u64,
    /// Number of payload bytes so far.
    bytes: u64,
}

impl Sent {
    /// Resets the state of this direction after a gap in the capture.
    pub(super) fn lose_track(&mut self) {
        self.queues = Default::default();
        for queue in &mut self.queues {
            queue.due = None;
        }
        self.write = None;
        self.response = None;
    }

    /// Forgets all unanswered requests, because the capture lacks bytes of one of the two
    /// directions.
    pub(super) fn forget_requests(&mut self) {
        self.requests_unknown = true;
        self.reads = VecDeque::new();
        self.atomics = VecDeque::new();
    }

    /// Returns the memory that the unanswered requests use, in bytes.
    pub(super) fn held(&self) -> usize {
        self.reads.len() * size_of::<ReadRequestHeader>() + self.atomics.len() * size_of::<u32>()
    }

    /// Checks the next segment of this direction. `ird` is the IRD of the other side, if it was
    /// negotiated.
    pub(super) fn judge(
        &mut self,
        segment: &Segment,
        peer: &mut Sent,
        ird: Option<u16>,
        findings: &mut Findings,
    ) {
        findings.demand(
            !self.terminated,
            "5040-5.4-07",
            || "after the Terminate Message, which must be the last of its direction",
        );
        match &segment.header {
            Header::Untagged(header) => self.untagged(segment, header, findings),
            Header::Tagged(header) => match segment.opcode() {
                Some(Opcode::ReadResponse) => self.read_response(segment, header, peer, findings),
                Some(Opcode::Write) => {
                    let message = self.write.take();
                    self.write = tagged(segment, header, message, findings);
                }
                _ => {}
            },
        }
        match &segment.body {
            Body::ReadRequest(request) => self.read(*request, ird, findings),
            Body::AtomicRequest(request) => self.atomic(request, ird, findings),
            Body::AtomicResponse(response) => {
                if !peer.requests_unknown {
                    atomic_response(response.id, &mut peer.atomics, findings);
                }
            }
            Body::Terminate(_) => self.terminated = true,
            Body::Payload | Body::Immediate(_) => {}
        }
    }

    fn untagged(&mut self, segment: &Segment, header: &UntaggedHeader, findings: &mut Findings) {
        // `Segment::judge` reports a Queue Number above 3.
        let Some(queue) = self.queues.get_mut(header.qn.0 as usize) else {
            return;
        };
        let message = match queue.open.take() {
            Some(message) if message.msn == header.msn => {
                continues(&message, header, findings);
                message
            }
            open => {
                if let Some(message) = open {
                    findings.demand(false, "5041-4.3-10", || {
                        format!(
                            "MSN {}: message {} has no last segment yet",
                            header.msn, message.msn
                        )
                    });
                } else if let Some(due) = queue.due {
                    let id = match due {
                        Msn::FIRST => "5041-4.3-08",
                        _ => "5041-4.3-07",
                    };
                    findings.demand(header.msn == due, id, || {
                        format!("MSN {} on QN {}: expected {due}", header.msn, header.qn)
                    });
                    findings.demand(header.mo == 0, "5041-4.3-11", || {
                        format!(
                            "MO {} in the first segment of a message: must be 0",
                            header.mo
                        )
                    });
                }
                UntaggedMessage {
                    msn: header.msn,
                    ulp: header.ulp,
                    word: header.ulp_word,
                    mo: 0,
                }
            }
        };
        queue.due = Some(header.msn.next());
        queue.open = (!header.last).then_some(UntaggedMessage {
            mo: header.mo.wrapping_add(segment.len),
            ..message
        });
    }

    fn read(&mut self, request: ReadRequestHeader, ird: Option<u16>, findings: &mut Findings) {
        if self.make_room() {
            self.reads.push_back(request);
            self.judge_outstanding(ird, findings);
        }
    }

    fn atomic(&mut self, request: &AtomicRequestHeader, ird: Option<u16>, findings: &mut Findings) {
        if self.make_room() {
            self.atomics.push_back(request.id);
            self.judge_outstanding(ird, findings);
        }
    }

    /// Makes room for one more request. Forgets all requests if there are too many. Returns false
    /// if the requests are not known.
    fn make_room(&mut self) -> bool {
        if self.reads.len() + self.atomics.len() >= MAX_REQUESTS {
            self.forget_requests();
        }
        !self.requests_unknown
    }

    /// Checks the number of outstanding requests against the IRD. Reads and atomics share queue 1
    /// and the resources that IRD counts (RFC 7306 section 5.2).
    fn judge_outstanding(&self, ird: Option<u16>, findings: &mut Findings) {
        let (reads, atomics) = (self.reads.len(), self.atomics.len());
        let Some(ird) = ird.filter(|ird| reads + atomics > usize::from(*ird)) else {
            return;
        };
        if atomics == 0 {
            findings.demand(false, "5040-6.1-04", || {
                let reads = many(reads, "Read");
                format!("{reads} outstanding, but the other side's IRD is {ird}")
            });
        } else {
            findings.demand(false, "7306-5.2.2-01", || {
                let (reads, atomics) = (many(reads, "Read"), many(atomics, "atomic"));
                format!("{reads} and {atomics} outstanding, but the other side's IRD is {ird}")
            });
        }
    }

    /// Checks a segment of a Read Response. `peer` is the direction that sent the request.
    fn read_response(
        &mut self,
        segment: &Segment,
        header: &TaggedHeader,
        peer: &mut Sent,
        findings: &mut Findings,
    ) {
        let begins = self.response.is_none();
        let message = self.response.take();
        self.response = tagged(segment, header, message, findings);
        if peer.requests_unknown {
            return;
        }
        let Some(request) = peer.reads.front().copied() else {
            findings.demand(
                false,
                "5040-5.2-01",
                || "no outstanding Read Request for this Response",
            );
            return;
        };
        // STag and TO need not be valid in a message without payload (5041-5.2-10).
        if begins && segment.len > 0 {
            findings.demand(header.stag == request.sink_stag, "5040-4.4-02", || {
                format!(
                    "STag {}, but the Read Request has SinkSTag {}",
                    header.stag, request.sink_stag
                )
            });
            findings.demand(header.to == request.sink_to, "5041-5.2-08", || {
                format!(
                    "TO {}, but the Read Request has SinkTO {}",
                    header.to, request.sink_to
                )
            });
        }
        let before = message.map_or(0, |message| message.bytes);
        let bytes = before + u64::from(segment.len);
        let asked = u64::from(request.len);
        let right = if header.last {
            bytes == asked
        } else {
            // Only the first segment that exceeds the length is reported.
            bytes <= asked || before > asked
        };
        findings.demand(right, "5040-5.2.1-10", || {
            let bytes = many(bytes, "byte");
            format!("{bytes} in response to a Read of {asked}")
        });
        if header.last {
            peer.reads.pop_front();
        }
    }
}

/// Checks a segment that continues an untagged message.
fn continues(message: &UntaggedMessage, header: &UntaggedHeader, findings: &mut Findings) {
    findings.demand(header.mo == message.mo, "5041-5.2-06", || {
        format!("MO {}: expected {}", header.mo, message.mo)
    });
    findings.demand(
        (header.ulp, header.ulp_word) == (message.ulp, message.word),
        "5041-4.3-04",
        || "RsvdULP (opcode, Invalidate STag) differs from the first segment of the message",
    );
}

/// Checks a segment of a tagged message. Returns the message if it is still incomplete afterwards.
fn tagged(
    segment: &Segment,
    header: &TaggedHeader,
    message: Option<TaggedMessage>,
    findings: &mut Findings,
) -> Option<TaggedMessage> {
    if let Some(message) = message
        && segment.len > 0
    {
        findings.demand(header.stag == message.stag, "5041-4.2-08", || {
            format!(
                "STag {}, but the message began with {}",
                header.stag, message.stag
            )
        });
        findings.demand(header.to.0 == message.to, "5041-5.2-08", || {
            format!("TO {}: expected {:#x}", header.to, message.to)
        });
    }
    (!header.last).then(|| TaggedMessage {
        stag: header.stag,
        to: header.to.advance(segment.len).0,
        bytes: message.map_or(0, |message| message.bytes) + u64::from(segment.len),
    })
}

fn atomic_response(id: u32, waiting: &mut VecDeque<u32>, findings: &mut Findings) {
    match waiting.pop_front() {
        None => findings.demand(
            false,
            "7306-5.2.1-09",
            || "no outstanding Atomic Request for this Response",
        ),
        Some(due) => findings.demand(id == due, "7306-5.2.1-i03", || {
            format!("Original Request Identifier {id:#x}, but the Request has {due:#x}")
        }),
    }
}

#[cfg(test)]
#[path = "order/tests.rs"]
mod tests;
