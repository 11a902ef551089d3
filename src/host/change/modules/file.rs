//! A module's file, handed to the kernel.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, BufReader, Read as _};
use std::path::Path;

use flate2::read::GzDecoder;
use nix::errno::Errno;
use nix::kmod::{ModuleInitFlags, finit_module, init_module};
use ruzstd::decoding::StreamingDecoder;

use super::Trouble;
use crate::apply::StepError;

/// Loads the module in the file at `path`; returns whether it was not loaded before. `locked` tells whether the kernel
/// takes no modules any more.
pub(super) fn insert(
    path: &Path,
    options: &str,
    locked: impl FnOnce() -> bool,
) -> Result<bool, Trouble> {
    let failed = |why: &dyn std::fmt::Display| format!("cannot load {}: {why}", path.display());
    let options = CString::new(options)
        .map_err(|_| StepError::Refused(failed(&"its options hold a zero byte")))?;
    let unreadable = |e: io::Error| Trouble::Unsure(failed(&e));
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
            let what = "kernel.modules_disabled is 1, so nothing can be loaded until the next boot";
            Err(StepError::Refused(failed(&what)).into())
        }
        Err(Errno::EPERM) if compressed.is_none() => {
            let what = "it takes CAP_SYS_MODULE; run kpx as root, outside a container";
            Err(StepError::Denied(failed(&what)).into())
        }
        Err(errno @ (Errno::ENOKEY | Errno::EKEYREJECTED)) => {
            let what = format!("{}: the kernel takes signed modules alone", errno.desc());
            Err(StepError::Refused(failed(&what)).into())
        }
        // Some kernels take modules from files alone, compressed ones too; newer modprobe knows how.
        Err(errno) if compressed.is_some() => Err(Trouble::Unsure(failed(&errno.desc()))),
        Err(errno) => Err(StepError::Refused(failed(&errno.desc())).into()),
    }
}

/// Returns what is in the compressed file at `path`; nothing if it is not compressed.
pub(super) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut image = Vec::new();
    match path.extension().and_then(|end| end.to_str()) {
        Some("gz") => {
            GzDecoder::new(File::open(path)?).read_to_end(&mut image)?;
        }
        Some("xz") => {
            let mut file = BufReader::new(File::open(path)?);
            lzma_rs::xz_decompress(&mut file, &mut image)
                .map_err(|e| io::Error::other(format!("{e:?}")))?;
        }
        Some("zst") => {
            // In one piece: the decoder reads little at a time.
            let bytes = fs::read(path)?;
            let mut decoder = StreamingDecoder::new(bytes.as_slice()).map_err(io::Error::other)?;
            decoder.read_to_end(&mut image)?;
        }
        _ => return Ok(None),
    }
    Ok(Some(image))
}
