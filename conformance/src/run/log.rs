//! Log of a case. Its size is limited, so that a target that floods the suite cannot exhaust
//! memory.

use std::collections::VecDeque;

use super::outcome::{LogEntry, Who};
use crate::words::many;

/// Maximum number of bytes kept from the beginning of a case, and also from its end. Few cases
/// exchange more.
const KEPT: usize = 256 << 10;
/// Estimated memory of an entry in bytes, besides its text and data.
const ENTRY: usize = 128;

/// Log of sent and received data. If it grows too large, entries in the middle are dropped.
#[derive(Default)]
pub(super) struct Log {
    head: Vec<LogEntry>,
    head_size: usize,
    tail: VecDeque<LogEntry>,
    tail_size: usize,
    /// Last dropped entry, number of dropped entries, and number of their bytes.
    left_out: Option<(LogEntry, usize, usize)>,
}

fn size(entry: &LogEntry) -> usize {
    ENTRY + entry.text.len() + entry.bytes.len()
}

impl Log {
    pub(super) fn push(&mut self, entry: LogEntry) {
        let size_of_it = size(&entry);
        if self.tail.is_empty() && self.head_size + size_of_it <= KEPT {
            self.head_size += size_of_it;
            self.head.push(entry);
            return;
        }
        self.tail_size += size_of_it;
        self.tail.push_back(entry);
        // The latest entry is kept, even if it is larger than the limit.
        while self.tail_size > KEPT && self.tail.len() > 1 {
            let Some(out) = self.tail.pop_front() else {
                return;
            };
            self.tail_size -= size(&out);
            let (entries, bytes) = self
                .left_out
                .as_ref()
                .map_or((0, 0), |(_, entries, bytes)| (*entries, *bytes));
            let bytes = bytes + out.bytes.len();
            self.left_out = Some((out, entries + 1, bytes));
        }
    }

    /// Returns all entries. One note replaces the dropped entries.
    pub(super) fn into_entries(self) -> Vec<LogEntry> {
        let mut entries = self.head;
        if let Some((last, count, bytes)) = self.left_out {
            entries.push(LogEntry {
                who: Who::Note,
                text: format!(
                    "{count} more, with {bytes}, are left out here",
                    bytes = many(bytes, "byte")
                ),
                bytes: Vec::new(),
                markers: None,
                ..last
            });
        }
        entries.extend(self.tail);
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(at: u64, len: usize) -> LogEntry {
        LogEntry {
            who: Who::Target,
            connection: 0,
            at,
            text: String::new(),
            bytes: vec![0; len],
            markers: None,
        }
    }

    #[test]
    fn a_short_log_is_kept_whole() {
        let mut log = Log::default();
        for at in 0..100 {
            log.push(entry(at, 1000));
        }
        let entries = log.into_entries();
        let times: Vec<u64> = entries.iter().map(|entry| entry.at).collect();
        assert_eq!(times, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn of_a_flood_the_beginning_and_the_end_are_kept_and_a_note_counts_the_rest() {
        for len in [8, 64000] {
            let mut log = Log::default();
            let all = (8 * KEPT / (len + ENTRY)) as u64;
            for at in 0..all {
                log.push(entry(at, len));
            }
            let entries = log.into_entries();
            let kept: usize = entries.iter().map(size).sum();
            assert!(kept <= 2 * KEPT + 2 * ENTRY, "{kept}");
            assert_eq!((entries[0].at, entries[entries.len() - 1].at), (0, all - 1));
            let note = entries.iter().find(|one| one.who == Who::Note).unwrap();
            let out = all as usize + 1 - entries.len();
            let due = format!(
                "{out} more, with {}, are left out here",
                many(out * len, "byte")
            );
            assert_eq!(note.text, due);
        }
    }

    #[test]
    fn the_last_entry_is_kept_whatever_its_size() {
        let mut log = Log::default();
        log.push(entry(0, 3 * KEPT));
        log.push(entry(1, 3 * KEPT));
        let entries = log.into_entries();
        assert_eq!((entries.len(), entries[1].at), (2, 1));
    }
}
