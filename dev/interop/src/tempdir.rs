//! A temporary directory that is removed when this process ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, fs};

/// An empty directory. It is removed on drop and when this process ends, whatever the cause.
#[derive(Debug)]
pub(crate) struct TempDir {
    path: PathBuf,
    /// Shell that waits for the end of its input and then removes the directory. The input ends
    /// when this process ends.
    remover: Child,
}

impl TempDir {
    pub(crate) fn new() -> io::Result<TempDir> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("uwarp-interop-{}-{number}", std::process::id());
        let path = env::temp_dir().join(name);
        fs::create_dir(&path)?;
        // The shell has its own process group, so that signals of the terminal do not reach it.
        let remover = Command::new("sh")
            .args(["-c", "read -r _; rm -rf \"$1\"", "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        match remover {
            Ok(remover) => Ok(TempDir { path, remover }),
            Err(error) => {
                fs::remove_dir(&path)?;
                Err(error)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        drop(self.remover.stdin.take());
        let _ = self.remover.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_goes_with_its_owner() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().to_owned();
        fs::write(path.join("file"), "text").unwrap();
        drop(dir);
        assert!(!path.exists());
    }
}
