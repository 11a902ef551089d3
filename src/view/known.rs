//! Unknown values in JSON.

use serde::{Serialize, Serializer};

use kpx_node::evidence::Gap;

/// Serialises a value that may be unknown: `null` for a gap, which the view lists among its gaps.
pub(super) fn or_null<T: Serialize, S: Serializer>(
    value: &Result<T, Gap>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    value.as_ref().ok().serialize(serializer)
}
