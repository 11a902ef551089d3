//! Loads a module file into the kernel.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, BufReader, Read as _};
use std::path::Path;

use flate2::read::GzDecoder;
use lzma_rust2::XzReader;
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module, init_module};
use ruzstd::decoding::StreamingDecoder;

use super::LoadError;
use kpx_node::apply::StepError;

/// Loads the module in the file `path`; returns whether it was not loaded before. `locked` means that the kernel
/// accepts no more modules.
pub(super) fn insert(
    path: &Path,
    options: &str,
    locked: impl FnOnce() -> bool,
) -> Result<bool, LoadError> {
    let failed = |why: &dyn std::fmt::Display| format!("cannot load {}: {why}", path.display());
    let options = CString::new(options)
        .map_err(|_| StepError::Refused(failed(&"its options contain a zero byte")))?;
    let unreadable = |e: io::Error| LoadError::Unsure(failed(&e));
    let compressed = read(path).map_err(unreadable)?;
    let loaded = if let Some(image) = &compressed {
        init_module(image, &options)
    } else {
        let file = File::open(path).map_err(unreadable)?;
        finit_module(&file, &options, ModuleInitFlags::empty())
    };
    match loaded {
        Ok(()) => Ok(true),
        Err(Errno::EEXIST) => Ok(false),
        Err(Errno::EPERM) if locked() => {
            let what =
                "kernel.modules_disabled is 1, so no module can be loaded until the next boot";
            Err(StepError::Refused(failed(&what)).into())
        }
        Err(Errno::EPERM) if compressed.is_none() => {
            let what = "CAP_SYS_MODULE is required; run kpx as root, outside a container";
            Err(StepError::Denied(failed(&what)).into())
        }
        Err(errno @ (Errno::ENOKEY | Errno::EKEYREJECTED)) => {
            let what = format!("{}: the kernel accepts only signed modules", errno.desc());
            Err(StepError::Refused(failed(&what)).into())
        }
        // Some kernels load modules only from files, including compressed ones; newer versions of modprobe support
        // that.
        Err(errno) if compressed.is_some() => Err(LoadError::Unsure(failed(&errno.desc()))),
        Err(errno) => Err(StepError::Refused(failed(&errno.desc())).into()),
    }
}

/// Returns the uncompressed content of the compressed file `path`; `None` if it is not compressed.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut image = Vec::new();
    match path.extension().and_then(|end| end.to_str()) {
        Some("gz") => {
            GzDecoder::new(File::open(path)?).read_to_end(&mut image)?;
        }
        Some("xz") => {
            let file = BufReader::new(File::open(path)?);
            XzReader::new(file, true).read_to_end(&mut image)?;
        }
        Some("zst") => {
            // Read at once: the decoder reads in small pieces.
            let bytes = fs::read(path)?;
            let mut decoder = StreamingDecoder::new(bytes.as_slice()).map_err(io::Error::other)?;
            decoder.read_to_end(&mut image)?;
        }
        _ => return Ok(None),
    }
    Ok(Some(image))
}
