//! RDMA Reads into several elements: one Read Request for each, and one completion.

use super::*;
use uwarp_ddp::{STag, TaggedOffset};
use uwarp_rdmap::ReadRequestHeader;

/// Length in bytes of the memory that is read, and of each sink.
const LEN: usize = 200_000;
/// TO of the first byte that is read.
const FROM: u64 = 0x7000;

/// A client that reads memory of a server.
struct Reader {
    client: End,
    server: End,
    pool: BufferPool,
    source: Arc<Region>,
    content: Vec<u8>,
    sinks: [Arc<Region>; 2],
    /// All bytes that the client has sent in Full Operation.
    sent: Vec<u8>,
}

/// Registers `content` at `to_base`.
fn region(memory: &Memory, content: &[u8], to_base: u64, access: Access) -> Arc<Region> {
    let buffer = Arc::new(Buffer::zeroed(content.len()).unwrap());
    buffer.write_at(0, content).unwrap();
    let spec = RegionSpec {
        memory: Backing::buffer(buffer),
        to_base: Some(to_base),
        pd: 1,
        qp: None,
        access,
    };
    memory.table.insert(spec).unwrap()
}

impl Reader {
    fn new(ord: u16, settings: &Settings) -> Self {
        let pool = BufferPool::default();
        let mut client = End::new(&Memory::new(), settings);
        let config = InitiatorConfig {
            ord,
            ..initiator_config(settings)
        };
        assert!(client.conn.start_initiator(config, true).unwrap());
        client.conn.emss = 1460;
        client.conn.tcp_connected();
        let request = client.bytes();
        let mut server = accept(settings, &Memory::new(), &request);
        client.deliver(&server.bytes(), &pool);
        assert_eq!(client.conn.negotiated.as_ref().unwrap().ord, ord);
        let content: Vec<u8> = (0..LEN).map(|at| (at * 31 + (at >> 8)) as u8).collect();
        let source = region(&server.memory, &content, FROM, Access::REMOTE_READ);
        let sinks = [0x10_0000, 0x20_0000]
            .map(|base| region(&client.memory, &[CANARY; LEN], base, Access::LOCAL_WRITE));
        Reader {
            client,
            server,
            pool,
            source,
            content,
            sinks,
            sent: Vec::new(),
        }
    }

    /// Returns `len` bytes at offset `at` of a sink.
    fn sge(&self, sink: usize, at: u64, len: u32) -> Sge {
        Sge {
            addr: self.sinks[sink].to_base() + at,
            len,
            lkey: self.sinks[sink].stag().0,
        }
    }

    /// Creates a Read from offset `at` of the source.
    fn read<'a>(&self, wr_id: u64, sges: &'a [Sge], at: u64) -> SendWr<'a> {
        let rkey = self.source.stag().0;
        SendWr::read(wr_id, sges, RemoteBuffer::at(FROM + at, rkey))
    }

    /// Returns three elements in both sinks: 1000, 2000 and 10 bytes.
    fn three(&self) -> [Sge; 3] {
        [
            self.sge(0, 500, 1000),
            self.sge(1, 0, 2000),
            self.sge(0, 100, 10),
        ]
    }

    fn sink(&self, sink: usize, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.sinks[sink].read_at(at, &mut bytes).unwrap();
        bytes
    }

    /// Returns true if the lkey of a sink is valid.
    fn is_usable(&self, sink: usize) -> bool {
        let table = &self.client.memory.table;
        table.check_sge(&self.sge(sink, 0, 1), true, 1, 2).is_ok()
    }

    /// Delivers all bytes of the client to the server, and returns the Read Requests among them.
    fn ask(&mut self) -> Vec<ReadRequestHeader> {
        let bytes = self.client.bytes();
        self.server.deliver(&bytes, &self.pool);
        self.sent.extend_from_slice(&bytes);
        read_requests(&bytes, false)
    }

    /// Delivers all answers of the server to the client. Returns false if there are none.
    fn answer(&mut self) -> bool {
        let bytes = self.server.bytes();
        self.client.deliver(&bytes, &self.pool);
        !bytes.is_empty()
    }

    fn pump(&mut self) {
        pump(&mut self.client, &mut self.server, &self.pool);
    }
}

/// Returns the Read Requests in bytes that begin and end with an FPDU.
fn read_requests(bytes: &[u8], markers: bool) -> Vec<ReadRequestHeader> {
    let mut deframer = Deframer::new(true, markers);
    let (mut at, mut found) = (0, Vec::new());
    while let Ok(Step::Fpdu(ulpdu)) = deframer.next(&bytes[at..]) {
        at += ulpdu.wire_len();
        let mut scratch = [0; 70];
        let head = ulpdu.head(&mut scratch);
        if head[0] & 0x80 == 0 && head[1] & 0x0F == 1 {
            found.push(ReadRequestHeader::parse(&head[18..]).unwrap());
        }
    }
    assert_eq!(at, bytes.len());
    found
}

/// Length in bytes of the first FPDU, without Markers.
fn first_fpdu(bytes: &[u8]) -> usize {
    let len = usize::from(u16::from_be_bytes([bytes[0], bytes[1]]));
    (2 + len).next_multiple_of(4) + 4
}

/// Returns the header that is due for an element, which is filled from offset `at` of the source.
fn header(reader: &Reader, sge: &Sge, at: u64) -> ReadRequestHeader {
    ReadRequestHeader {
        sink_stag: STag(sge.lkey),
        sink_to: TaggedOffset(sge.addr),
        len: sge.len,
        source_stag: reader.source.stag(),
        source_to: TaggedOffset(FROM + at),
    }
}

#[test]
fn each_element_has_a_read_request_of_its_own_and_the_read_one_completion() {
    // 5040-4.4-01, 5040-5.2-01, 5040-5.2.1-06
    let mut reader = Reader::new(4, &Settings::default());
    let [first, second, third] = reader.three();
    let empty = Sge {
        addr: 1,
        len: 0,
        lkey: 2,
    };
    let sges = [empty, first, second, empty, third];
    reader
        .client
        .conn
        .post_send(&reader.read(1, &sges, 7))
        .unwrap();
    assert_eq!(
        reader.ask(),
        [
            header(&reader, &first, 7),
            header(&reader, &second, 1007),
            header(&reader, &third, 3007)
        ]
    );
    reader.answer();
    let done = reader.client.completions();
    let [done] = done.as_slice() else {
        panic!("{done:?}")
    };
    assert_eq!(
        (done.wr_id, done.status, done.byte_len),
        (1, Status::Success, 3010)
    );
    assert_eq!(reader.sink(0, 500, 1000), reader.content[7..1007]);
    assert_eq!(reader.sink(1, 0, 2000), reader.content[1007..3007]);
    assert_eq!(reader.sink(0, 100, 10), reader.content[3007..3017]);
    assert_eq!(reader.sink(0, 110, 390), [CANARY; 390]);
}

#[test]
fn a_read_without_a_byte_is_one_empty_read_request() {
    // 5040-5.2.1-11
    let mut reader = Reader::new(4, &Settings::default());
    let empty = reader.sge(0, 0, 0);
    for sges in [&[][..], &[empty], &[empty, empty, empty]] {
        reader
            .client
            .conn
            .post_send(&reader.read(1, sges, 0))
            .unwrap();
        let asked = reader.ask();
        assert_eq!(asked.len(), 1);
        assert_eq!((asked[0].len, asked[0].source_to.0), (0, FROM));
        reader.answer();
        assert_eq!(reader.client.numbers(), [(1, Status::Success)]);
    }
}

#[test]
fn a_read_with_more_elements_than_ord_asks_as_responses_arrive() {
    // 5040-6.1-04
    let mut reader = Reader::new(2, &Settings::default());
    let sges = [0, 1, 0, 1, 0].map(|sink| reader.sge(sink, 0, 100));
    reader
        .client
        .conn
        .post_send(&reader.read(1, &sges, 0))
        .unwrap();
    for due in [2, 2, 1] {
        assert_eq!(reader.client.numbers(), []);
        assert_eq!(reader.ask().len(), due);
        assert_eq!(usize::from(reader.client.conn.places_used().1), due);
        assert!(reader.answer());
    }
    assert_eq!(reader.client.numbers(), [(1, Status::Success)]);
    assert!(reader.ask().is_empty());
    assert_eq!(reader.sink(0, 0, 100), reader.content[400..500]);
    assert_eq!(reader.sink(1, 0, 100), reader.content[300..400]);
}

#[test]
fn a_fenced_request_waits_for_the_responses_to_all_elements() {
    // 5040-5.5-08
    for ord in [1, 4] {
        let mut reader = Reader::new(ord, &Settings::default());
        reader.server.post_receives(1);
        let sges = reader.three();
        for wr in [
            reader.read(1, &sges, 0),
            SendWr::send_inline(2, b"after").fence(),
        ] {
            reader.client.conn.post_send(&wr).unwrap();
        }
        let mut asked = 0;
        while asked < 3 {
            asked += reader.ask().len();
            let answer = reader.server.bytes();
            // All but the end of the last Response arrive.
            let cut = answer.len() - usize::from(asked == 3);
            reader.client.deliver(&answer[..cut], &reader.pool);
            if asked == 3 {
                assert!(reader.client.bytes().is_empty(), "ORD {ord}");
                reader.client.deliver(&answer[cut..], &reader.pool);
            }
        }
        reader.pump();
        let done = [(1, Status::Success), (2, Status::Success)];
        assert_eq!(reader.client.numbers(), done);
    }
}

#[test]
fn a_fenced_read_waits_for_earlier_reads_and_not_for_its_own_responses() {
    let mut reader = Reader::new(4, &Settings::default());
    let sges = reader.three();
    for wr in [
        reader.read(1, &sges[..1], 0),
        reader.read(2, &sges, 0).fence(),
    ] {
        reader.client.conn.post_send(&wr).unwrap();
    }
    for due in [1, 3] {
        assert_eq!(reader.ask().len(), due);
        reader.answer();
    }
    let done = [(1, Status::Success), (2, Status::Success)];
    assert_eq!(reader.client.numbers(), done);
}

#[test]
fn the_sink_is_invalidated_after_the_last_response() {
    for ord in [1, 2, 4] {
        let mut reader = Reader::new(ord, &Settings::default());
        let sges = [0, 1000, 5000].map(|at| reader.sge(1, at, 500));
        let wr = reader.read(1, &sges, 0).invalidate_sink();
        reader.client.conn.post_send(&wr).unwrap();
        let mut asked = 0;
        while asked < 3 {
            assert!(reader.is_usable(1));
            asked += reader.ask().len();
            let answer = reader.server.bytes();
            // FPDU by FPDU, so that each Response is complete before the next one.
            let mut rest = &answer[..];
            while !rest.is_empty() {
                assert!(reader.is_usable(1));
                assert_eq!(reader.client.numbers(), []);
                let (fpdu, more) = rest.split_at(first_fpdu(rest));
                reader.client.deliver(fpdu, &reader.pool);
                rest = more;
            }
        }
        assert!(!reader.is_usable(1));
        let done = reader.client.completions();
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].invalidated, Some(reader.sinks[1].stag().0));
    }
}

#[test]
fn an_element_that_the_peer_refuses_fails_the_whole_read() {
    // With four places the peer finds the error before it has answered. With one place, earlier
    // Requests are answered first.
    for (ord, first) in [(4, Status::WrFlush), (1, Status::Success)] {
        let mut reader = Reader::new(ord, &Settings::default());
        let one = [reader.sge(0, 0, 8)];
        let [mut a, mut b, mut c] = reader.three();
        // The last byte of the third element is after the end of the source.
        (a.len, b.len, c.len) = (100, 200, 51);
        let (sges, at) = ([a, b, c, reader.sge(1, 9000, 10)], LEN as u64 - 350);
        for wr in [
            reader.read(0, &one, 0),
            reader.read(1, &sges, at),
            reader.read(2, &one, 0),
        ] {
            reader.client.conn.post_send(&wr).unwrap();
        }
        reader.pump();
        assert_eq!(
            reader.client.numbers(),
            [(0, first), (1, Status::RemoteAccess), (2, Status::WrFlush)],
            "ORD {ord}"
        );
        if ord == 1 {
            assert_eq!(reader.sink(1, 0, 200), reader.content[LEN - 250..LEN - 50]);
        }
        assert_eq!(reader.sink(0, 100, 51), [CANARY; 51]);
        assert_eq!(reader.sink(1, 9000, 10), [CANARY; 10]);
    }
}

#[test]
fn an_unusable_element_refuses_the_post_or_fails_the_read_in_its_turn() {
    for late in [false, true] {
        let mut reader = Reader::new(4, &Settings::default());
        Arc::get_mut(&mut reader.client.conn.ctx)
            .unwrap()
            .late_faults = late;
        let [a, b, c] = reader.three();
        let wrong = Sge {
            lkey: c.lkey ^ 1,
            ..c
        };
        let (good, bad) = ([a, b, c], [a, b, wrong, c]);
        let first = reader.read(0, &good, 0);
        reader.client.conn.post_send(&first).unwrap();
        let posted = reader.client.conn.post_send(&reader.read(1, &bad, 0));
        let last = reader.read(2, &good, 0);
        reader.client.conn.post_send(&last).unwrap();
        let mut asked = 0;
        loop {
            asked += reader.ask().len();
            if !reader.answer() {
                break;
            }
        }
        if late {
            assert_eq!(posted, Ok(()));
            assert_eq!(
                reader.client.numbers(),
                [
                    (0, Status::Success),
                    (1, Status::LocalProtection),
                    (2, Status::WrFlush)
                ]
            );
            assert_eq!(asked, 3, "nothing of the Read was requested");
        } else {
            let Err(PostErrorKind::Memory(fault)) = posted else {
                panic!("{posted:?}")
            };
            assert_eq!(fault.index, 2);
            let done = [(0, Status::Success), (2, Status::Success)];
            assert_eq!(reader.client.numbers(), done);
        }
    }
}

#[test]
fn an_element_that_is_deregistered_fails_the_whole_read() {
    for ord in [1, 4] {
        let mut reader = Reader::new(ord, &Settings::default());
        let sges = reader.three();
        reader
            .client
            .conn
            .post_send(&reader.read(1, &sges, 0))
            .unwrap();
        let second = reader.sinks[1].stag();
        reader.client.memory.table.remove(second).unwrap();
        while !reader.ask().is_empty() && reader.answer() {}
        assert_eq!(reader.client.numbers(), [(1, Status::LocalProtection)]);
        assert_eq!(reader.sink(0, 500, 1000), reader.content[..1000]);
        assert_eq!(reader.sink(0, 100, 10), [CANARY; 10]);
        let end = &reader.client.conn.end;
        assert!(matches!(end, Some(EndReason::LocalError { .. })), "{end:?}");
    }
}

#[test]
fn a_read_that_is_interrupted_between_two_responses_is_flushed_once() {
    type Interrupt = fn(&mut Connection);
    let ends: [Interrupt; 3] = [
        |conn| conn.peer_fin(false),
        |conn| {
            let addr = "192.0.2.2:7174".parse().unwrap();
            conn.lost(LlpError::Reset { addr });
        },
        |conn| conn.abort(),
    ];
    for ord in [1, 2, 4] {
        for end in ends {
            let mut reader = Reader::new(ord, &Settings::default());
            let sges = reader.three();
            for wr in [
                reader.read(1, &sges, 0),
                reader.read(2, &sges, 0).unsignaled(),
                SendWr::send_inline(3, b"never"),
            ] {
                reader.client.conn.post_send(&wr).unwrap();
            }
            reader.ask();
            let answer = reader.server.bytes();
            let first = &answer[..first_fpdu(&answer)];
            reader.client.deliver(first, &reader.pool);
            assert_eq!(reader.client.numbers(), []);
            end(&mut reader.client.conn);
            let done = [1, 2, 3].map(|wr_id| (wr_id, Status::WrFlush));
            assert_eq!(reader.client.numbers(), done, "ORD {ord}");
            assert!(reader.client.conn.sq.is_empty());
            assert_eq!(reader.sink(0, 500, 1000), reader.content[..1000]);
        }
    }
}

/// A request of the property test.
#[derive(Clone, Debug)]
enum Request {
    /// A Read into elements of these lengths, each in the sink with this index.
    Read(Vec<(usize, u32)>),
    Write,
    Atomic,
}

fn requests() -> impl Strategy<Value = Vec<(Request, bool)>> {
    let len = prop_oneof![1 => Just(0_u32), 3 => 1_u32..20, 3 => 1_u32..2000];
    let elements = prop::collection::vec((0_usize..2, len), 0..=8);
    let request = prop_oneof![
        4 => elements.prop_map(Request::Read),
        1 => Just(Request::Write),
        1 => Just(Request::Atomic),
    ];
    prop::collection::vec((request, prop::bool::weighted(0.2)), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The model: each Read has a Request for each non-empty element (one if there is none), in
    /// posting order, and completes once, with the sum of the lengths.
    #[test]
    fn reads_into_any_elements_place_the_bytes_of_the_source_and_complete_in_order(
        requests in requests(),
        ord in 1_u16..=4,
        markers in any::<bool>(),
        chunk in prop_oneof![1_usize..100, Just(1000), Just(1 << 20)],
    ) {
        let settings = Settings { markers, ..Settings::default() };
        let mut reader = Reader::new(ord, &settings);
        let open = Arc::clone(&reader.server.memory.open);
        let target = |at| RemoteBuffer::at(open.to_base() + at, open.stag().0);
        let (mut due, mut completions) = (Vec::new(), Vec::new());
        let mut model = [vec![CANARY; LEN], vec![CANARY; LEN]];
        let mut free = [0, 0];
        let mut take = |sink: usize, len: u32| {
            let at = free[sink];
            // A gap of one byte between two elements.
            free[sink] += len as usize + 1;
            at
        };
        for (wr_id, (request, fence)) in (0..).zip(&requests) {
            let mut sges = Vec::new();
            let (wr, len) = match request {
                Request::Read(elements) => {
                    let from = wr_id * 17;
                    let mut at = from;
                    for &(sink, len) in elements {
                        let to = take(sink, len);
                        let sge = reader.sge(sink, to as u64, len);
                        sges.push(sge);
                        if len > 0 {
                            due.push(header(&reader, &sge, at));
                            let bytes = &reader.content[at as usize..][..len as usize];
                            model[sink][to..to + len as usize].copy_from_slice(bytes);
                        }
                        at += u64::from(len);
                    }
                    if at == from {
                        let none = Sge::default();
                        due.push(header(&reader, &none, from));
                    }
                    (reader.read(wr_id, &sges, from), (at - from) as u32)
                }
                Request::Write => (SendWr::write_inline(wr_id, b"between", target(0)), 0),
                Request::Atomic => {
                    // The word has its initial value, all canaries, as the sink does.
                    sges.push(reader.sge(0, take(0, 8) as u64, 8));
                    (SendWr::fetch_add(wr_id, &sges, target(64), 0), 8)
                }
            };
            let wr = if *fence { wr.fence() } else { wr };
            reader.client.conn.post_send(&wr).unwrap();
            completions.push((wr_id, Status::Success, len));
        }
        loop {
            let [there, back] = [reader.client.bytes(), reader.server.bytes()];
            if there.is_empty() && back.is_empty() {
                break;
            }
            prop_assert!(reader.client.conn.places_used().1 <= ord);
            for part in there.chunks(chunk) {
                reader.server.deliver(part, &reader.pool);
            }
            for part in back.chunks(chunk) {
                reader.client.deliver(part, &reader.pool);
            }
            reader.sent.extend(there);
        }
        prop_assert_eq!(read_requests(&reader.sent, markers), due);
        let done = reader.client.completions();
        let done: Vec<_> = done.iter().map(|done| (done.wr_id, done.status, done.byte_len)).collect();
        prop_assert_eq!(done, completions);
        for (sink, model) in model.iter().enumerate() {
            prop_assert!(reader.sink(sink, 0, LEN) == *model);
        }
    }
}
