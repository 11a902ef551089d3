//! Support bundles of other tools: which file is the output of which command, on which node.

use super::split;
use super::{Foreign, Reader};
use crate::evidence::Other;

/// Returns whether the file at `path` may be evidence.
pub fn is_wanted(path: &str) -> bool {
    !path.ends_with('/')
}

pub(super) fn read(_name: &str, files: Vec<Other>) -> Option<Foreign> {
    let mut reader = Reader::default();
    for file in files {
        match file.content {
            Ok(bytes) => {
                for section in split::sections(&split::decode(&bytes)) {
                    reader.section(section);
                }
            }
            Err(why) => reader.unread.push(format!("{}: {why}", file.path)),
        }
    }
    reader.foreign("files".to_owned())
}
