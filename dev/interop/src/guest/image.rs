//! Kernel and initramfs of the guest, from the cache or newly built.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Image of a guest that can be booted.
#[derive(Clone, Debug)]
pub struct Image {
    /// Directory with `vmlinuz`, `initrd` and `textbook`.
    pub(crate) dir: PathBuf,
    /// Versions of its contents, one per line: kernel, rdma-core, perftest, QEMU.
    pub versions: Vec<String>,
}

/// Reason why there is no image.
#[derive(Clone, Debug)]
pub enum Unready {
    /// The machine lacks packages, or it is not Linux on x86-64. The tests are skipped.
    Missing(String),
    /// The build failed.
    Failed(String),
}

impl Image {
    /// Returns the image for this machine's packages. Builds it if it is not in the cache.
    ///
    /// # Errors
    /// See [`Unready`].
    pub fn find() -> Result<Image, Unready> {
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            return Err(Unready::Missing("this needs Linux on x86-64".to_owned()));
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/build.sh");
        let built = Command::new("bash")
            .arg(&script)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| Unready::Missing(format!("bash cannot be run: {error}")))?;
        let said = String::from_utf8_lossy(&built.stderr).trim().to_owned();
        match built.status.code() {
            Some(0) => {}
            Some(3) => {
                return Err(Unready::Missing(said));
            }
            _ => {
                return Err(Unready::Failed(format!(
                    "{} failed:\n{said}",
                    script.display()
                )));
            }
        }
        let dir = PathBuf::from(String::from_utf8_lossy(&built.stdout).trim());
        let versions = std::fs::read_to_string(dir.join("versions"))
            .map_err(|error| Unready::Failed(format!("{}: {error}", dir.display())))?;
        Ok(Image {
            dir,
            versions: versions.lines().map(str::to_owned).collect(),
        })
    }

    /// Returns the path of the textbook program (`dropin/tests/c/textbook.c`), which the guest has
    /// in `/bin`.
    #[must_use]
    pub fn textbook(&self) -> PathBuf {
        self.dir.join("textbook")
    }

    /// Returns an image with more programs of this machine and their libraries; the programs are in
    /// its `/bin`. `dir` must be an empty directory that exists as long as the image is used.
    ///
    /// # Errors
    /// [`Unready::Failed`] with the output of the shell command.
    pub fn with_programs(&self, programs: &[PathBuf], dir: &Path) -> Result<Image, Unready> {
        let made = Command::new("bash")
            .args(["-c", ADD_PROGRAMS, "bash"])
            .args([&self.dir, dir])
            .args(programs)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| Unready::Missing(format!("bash cannot be run: {error}")))?;
        if !made.status.success() {
            let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
            return Err(Unready::Failed(format!(
                "programs could not be added to the guest: {said}"
            )));
        }
        Ok(Image {
            dir: dir.to_owned(),
            versions: self.versions.clone(),
        })
    }
}

/// Shell script that appends a second archive to the initramfs; the kernel unpacks all archives in
/// turn. Its arguments are the directory of the image, the directory for the new image, and the
/// programs.
const ADD_PROGRAMS: &str = r#"
set -euo pipefail
from=$1 to=$2
shift 2
mkdir -p "$to/root/bin"
for program in "$@"; do
    cp -L "$program" "$to/root/bin/"
    strip --strip-debug "$to/root/bin/$(basename "$program")"
    for library in $(ldd "$program" | grep -o '/[^ ]*'); do
        mkdir -p "$to/root$(dirname "$library")"
        cp -L "$library" "$to/root$library"
    done
done
cp "$from/vmlinuz" "$to/vmlinuz"
(cat "$from/initrd"; cd "$to/root" && find . | cpio --quiet -o -H newc | gzip -1) >"$to/initrd"
rm -rf "$to/root"
"#;
