use std::io::{self, Cursor, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::*;
use crate::{Packet, Reader};

/// Writer to memory. A test can inspect the bytes while the capture still writes.
#[derive(Clone, Default)]
pub(crate) struct Memory {
    written: Arc<Mutex<Vec<u8>>>,
    /// Number of bytes after which writes fail, as on a full disk.
    room: Option<usize>,
}

impl Memory {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.written.lock().unwrap().clone()
    }

    pub(crate) fn packets(&self) -> Vec<Packet> {
        read(self.bytes()).0
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut written = self.written.lock().unwrap();
        let room = self.room.map_or(usize::MAX, |room| room - written.len());
        if room == 0 {
            return Err(io::Error::other("no space left"));
        }
        let taken = bytes.len().min(room);
        written.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(crate) fn memory_capture() -> (Memory, Capture) {
    let memory = Memory::default();
    let capture = Capture::to_writer(Box::new(memory.clone())).unwrap();
    (memory, capture)
}

fn read(bytes: Vec<u8>) -> (Vec<Packet>, bool) {
    let mut reader = Reader::new(Cursor::new(bytes)).unwrap();
    let packets = reader.by_ref().map(Result::unwrap).collect();
    (packets, reader.cut_off())
}

#[test]
fn packets_of_several_interfaces_are_read_back_as_they_were_recorded() {
    let (memory, capture) = memory_capture();
    let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let tap = capture.interface("tap:uwarp0", LinkType::Ethernet);
    tap.packet(Direction::Inbound, &[&[1, 2, 3], &[], &[4]]);
    let tcp = capture.interface("tcp", LinkType::RawIp);
    tcp.packet_with_comment(Direction::Outbound, "held for 5 ms", &[&[5; 9]]);
    tap.packet(Direction::Unknown, &[&[6; 5]]);
    let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();

    let mut reader = Reader::new(Cursor::new(memory.bytes())).unwrap();
    let packets: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
    let seen: Vec<_> = packets
        .iter()
        .map(|p| (p.interface, p.link, p.direction, p.data.as_slice()))
        .collect();
    assert_eq!(
        seen,
        [
            (0, 1, Direction::Inbound, &[1u8, 2, 3, 4][..]),
            (1, 101, Direction::Outbound, &[5; 9]),
            (0, 1, Direction::Unknown, &[6; 5]),
        ]
    );
    assert_eq!(packets[1].comments, ["held for 5 ms"]);
    assert_eq!(reader.interfaces()[0].name.as_deref(), Some("tap:uwarp0"));
    assert_eq!(reader.interfaces()[1].name.as_deref(), Some("tcp"));
    let times: Vec<Duration> = packets.iter().map(|p| p.timestamp).collect();
    assert!(before <= times[0] && times[0] <= times[1] && times[1] <= times[2]);
    assert!(times[2] <= after);
}

#[test]
fn a_packet_is_in_the_file_when_the_call_returns() {
    let name = format!("uwarp-capture-{}-now.pcapng", std::process::id());
    let path = std::env::temp_dir().join(name);
    let capture = Capture::create(&path).unwrap();
    let interface = capture.interface("tcp", LinkType::RawIp);
    for count in 1..4 {
        interface.packet(Direction::Inbound, &[&[0; 100]]);
        assert_eq!(Reader::open(&path).unwrap().count(), count);
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_capture_cut_off_anywhere_is_readable_to_its_last_whole_packet() {
    let (memory, capture) = memory_capture();
    let interface = capture.interface("tcp", LinkType::RawIp);
    let start = memory.bytes().len();
    let mut ends = vec![start];
    for len in [1, 40, 7] {
        interface.packet(Direction::Outbound, &[&vec![9; len]]);
        ends.push(memory.bytes().len());
    }
    let whole = memory.bytes();
    for cut in start..=whole.len() {
        let (packets, cut_off) = read(whole[..cut].to_vec());
        let expected = ends.iter().filter(|end| **end <= cut).count() - 1;
        assert_eq!(packets.len(), expected, "cut at {cut}");
        assert_eq!(cut_off, !ends.contains(&cut), "cut at {cut}");
    }
}

#[test]
fn a_full_disk_ends_the_capture_and_nothing_else() {
    let memory = Memory {
        room: Some(400),
        ..Memory::default()
    };
    let capture = Capture::to_writer(Box::new(memory.clone())).unwrap();
    let interface = capture.interface("tcp", LinkType::RawIp);
    interface.packet(Direction::Outbound, &[&[1; 100]]);
    assert_eq!(capture.error(), None);
    interface.packet(Direction::Outbound, &[&[2; 300]]);
    let error = capture.error().unwrap();
    assert!(error.contains("no space left"), "{error}");
    interface.packet(Direction::Outbound, &[&[3; 10]]);
    let late = capture.interface("late", LinkType::Ethernet);
    late.packet(Direction::Outbound, &[&[4; 10]]);
    assert_eq!(capture.error(), Some(error));
    assert_eq!(memory.bytes().len(), 400);
    let (packets, cut_off) = read(memory.bytes());
    assert_eq!(packets.len(), 1);
    assert!(cut_off);
}

#[test]
fn a_capture_that_cannot_begin_is_an_error_of_its_creation() {
    let name = format!("uwarp-capture-{}-missing", std::process::id());
    let dir = std::env::temp_dir().join(name);
    std::fs::create_dir(&dir).unwrap();
    let created = Capture::create(dir.join("directory/x.pcapng"));
    std::fs::remove_dir(&dir).unwrap();
    assert!(created.is_err());
    let full = Memory {
        room: Some(5),
        ..Memory::default()
    };
    assert!(Capture::to_writer(Box::new(full)).is_err());
}

#[test]
fn packets_of_many_threads_stay_whole() {
    let (memory, capture) = memory_capture();
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let interface = capture.interface(&format!("if{thread}"), LinkType::RawIp);
            scope.spawn(move || {
                for i in 0..200 {
                    interface.packet(Direction::Inbound, &[&[thread; 1], &vec![thread; i]]);
                }
            });
        }
    });
    let packets = memory.packets();
    assert_eq!(packets.len(), 800);
    assert!(
        packets
            .iter()
            .all(|p| p.data.iter().all(|byte| *byte == p.data[0]))
    );
    assert!(packets.is_sorted_by_key(|p| p.timestamp));
}

#[test]
fn handles_may_be_shared_between_threads() {
    fn shareable<T: Send + Sync>() {}
    shareable::<Capture>();
    shareable::<Interface>();
    shareable::<crate::Flow>();
}

/// Directory of one test, which is removed at its end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("uwarp-capture-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_new_file_can_be_read_by_its_owner_only() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("mode");
    let path = folder.0.join("new.pcapng");
    drop(Capture::create(&path).unwrap());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_symbolic_link_is_refused_and_its_target_stays_as_it_is() {
    let folder = Folder::new("link");
    let (target, link) = (folder.0.join("target"), folder.0.join("link"));
    std::fs::write(&target, "precious").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let error = Capture::create(&link).err().unwrap().to_string();
    assert!(error.contains("symbolic link"), "{error}");
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "precious");
}

#[test]
fn a_descriptor_of_this_process_is_accepted_by_its_path() {
    use std::os::fd::AsRawFd;
    let folder = Folder::new("descriptor");
    let file = std::fs::File::create(folder.0.join("file")).unwrap();
    for path in ["/dev/fd", "/proc/self/fd"] {
        let path = format!("{path}/{}", file.as_raw_fd());
        assert!(Capture::create(&path).is_ok(), "{path}");
    }
}

/// Before, the call that filled the pipe never returned.
#[test]
fn a_pipe_that_is_not_read_drops_and_counts_packets_and_blocks_nobody() {
    use std::io::Read;
    use std::os::fd::AsRawFd;
    const PACKETS: u64 = 3000;
    let (mut reader, writer) = io::pipe().unwrap();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&reports);
    let options = CaptureOptions::default();
    let options = options.on_problem(move |text| heard.lock().unwrap().push(text.to_owned()));
    let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let capture = options.create(path).unwrap();
    drop(writer);
    let interface = capture.interface("tcp", LinkType::RawIp);
    for _ in 0..PACKETS {
        interface.packet(Direction::Outbound, &[&[7; 8000]]);
    }
    let dropped = capture.dropped();
    assert!(0 < dropped && dropped < PACKETS, "{dropped}");
    assert!(!capture.finish(Duration::from_millis(1)));
    let whole = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_| bytes).unwrap()
    });
    assert!(capture.finish(Duration::from_secs(300)));
    // The reader has room again.
    interface.packet(Direction::Inbound, &[&[8; 10]]);
    assert_eq!((capture.dropped(), capture.error()), (dropped, None));
    drop((interface, capture));
    let bytes = whole.join().unwrap();
    let mut counted = vec![4, 0, 8, 0];
    counted.extend(dropped.to_le_bytes());
    let of_packet = bytes.windows(counted.len()).filter(|at| *at == counted);
    assert_eq!(of_packet.count(), 1, "epb_dropcount");
    counted[0] = 5;
    let stated = bytes.windows(counted.len()).filter(|at| *at == counted);
    assert_eq!(stated.count(), 1, "isb_ifdrop");
    let (packets, cut_off) = read(bytes);
    assert!(!cut_off);
    assert_eq!(packets.len() as u64, PACKETS - dropped + 1);
    assert_eq!(reports.lock().unwrap().len(), 1);
}
