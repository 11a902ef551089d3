//! Texts that kpx looks for in logs. The redaction keeps the lines with them.

/// A redacted log without any of them.
pub const NOTHING_KEPT: &str = "no line that kpx looks for";
/// The kernel loads a driver that the distribution no longer maintains; in lower case.
const UNMAINTAINED: &str = "unmaintained driver";

/// Returns whether `line`, a message of the kernel, reports a driver that the distribution no longer maintains.
pub fn is_unmaintained(line: &str) -> bool {
    line.to_lowercase().contains(UNMAINTAINED)
}

/// Returns whether `line`, a message of the kernel, reports a processor that nft holds.
pub fn is_soft_lockup(line: &str) -> bool {
    line.contains("soft lockup") && line.contains("[nft:")
}

/// Returns whether kpx looks for the text of `line`, a message of the kernel.
pub fn is_of_kernel(line: &str) -> bool {
    is_unmaintained(line) || is_soft_lockup(line)
}
