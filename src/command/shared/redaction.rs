//! Keys of redaction.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use color_eyre::eyre::{WrapErr as _, eyre};
use sha2::{Digest as _, Sha256};

use super::failure::{Failure, Hint as _};

/// The fewest bytes of a file with a key.
const FEWEST: usize = 32;

/// Returns 32 random bytes.
pub(in crate::command) fn random() -> Result<[u8; 32], Failure> {
    let mut key = [0; 32];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut key))
        .wrap_err("cannot read the key of the redaction from /dev/urandom")?;
    Ok(key)
}

/// Returns the key that the file at `path` gives.
pub(in crate::command) fn read(path: &Path) -> Result<[u8; 32], Failure> {
    const MAKE: &str = "`head -c 32 /dev/urandom > FILE` makes a key";
    let bytes = fs::read(path)
        .wrap_err_with(|| {
            format!(
                "cannot read the key of the redaction from {}",
                path.display()
            )
        })
        .hint(MAKE)?;
    if bytes.len() < FEWEST {
        let error = eyre!(
            "the key in {} has {} bytes: it needs at least {FEWEST}",
            path.display(),
            bytes.len()
        );
        return Err(Failure::from(error).with_hint(MAKE));
    }
    Ok(of(&bytes))
}

/// Returns the key that a file with `bytes` gives.
pub(in crate::command) fn of(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}
