//! Log of the guest's kernel, from its serial console.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Words with which the kernel reports a bug or a hang.
const TROUBLE: &[&str] = &[
    "BUG: ",
    "kernel BUG at",
    "invalid opcode",
    "Oops",
    "Kernel panic",
    "general protection fault",
    "soft lockup",
    "blocked for more than",
    "refcount_t: ",
];

/// Log of the serial console, collected by a thread until the console closes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Console {
    text: Arc<Mutex<String>>,
}

impl Console {
    pub(crate) fn follow(mut from: impl Read + Send + 'static) -> Console {
        let console = Console::default();
        let text = Arc::clone(&console.text);
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                let piece = String::from_utf8_lossy(&buffer[..count]).replace('\r', "");
                text.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push_str(&piece);
            }
        });
        console
    }

    pub(crate) fn text(&self) -> String {
        self.text
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns the last lines, for an error message.
    pub(crate) fn tail(&self) -> String {
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }

    /// Returns the first line that reports a bug or a hang, with the lines around it.
    pub(crate) fn trouble(&self) -> Option<String> {
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        let at = lines.iter().position(|line| is_trouble(line))?;
        let from = at.saturating_sub(8);
        Some(lines[from..lines.len().min(at + 30)].join("\n"))
    }
}

fn is_trouble(line: &str) -> bool {
    TROUBLE.iter().any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oops_is_seen_and_ordinary_lines_are_not() {
        assert!(is_trouble(
            "[   12.3] BUG: kernel NULL pointer dereference, address: 0"
        ));
        assert!(is_trouble("[   12.4] Oops: 0000 [#1] PREEMPT SMP PTI"));
        assert!(!is_trouble("uwarp-guest: ready"));
        assert!(!is_trouble("siw: device siw0 registered"));
    }
}
