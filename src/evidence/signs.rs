//! Text of logs that kpx looks for. The redaction keeps the lines with it.

/// A redacted log without any of them.
pub const NOTHING_KEPT: &str = "no line that kpx looks for";
/// kube-proxy falls back to another mode: the kernel has no IPVS.
pub const NO_IPVS: &str = "can't use the IPVS proxier";
/// Another program holds the lock of iptables.
pub const LOCK_HELD: &str = "holding the xtables lock";
/// The kernel's IP sets are newer than the tool.
pub const NEWER_SETS: &str = "not supported by userspace";
/// kube-proxy's mode, with [`MODE_END`] behind it: `"Using ipvs Proxier"` since 1.22, `Using ipvs Proxier.` before.
pub const MODE: &str = "Using ";
/// The end of the line with kube-proxy's mode.
pub const MODE_END: &str = " Proxier";
/// The default scheduler follows.
pub const SCHEDULER: &str = "IPVS scheduler not specified, use ";
/// The kernel loads a driver that the distribution no longer maintains; in lower case.
const UNMAINTAINED: &str = "unmaintained driver";

/// Returns whether kpx looks for the text of `line`, a line of kube-proxy's log.
pub(super) fn is_of_proxy(line: &str) -> bool {
    let mode = || {
        let rest = line.split_once(MODE);
        rest.is_some_and(|(_, rest)| rest.contains(MODE_END))
    };
    [NO_IPVS, LOCK_HELD, NEWER_SETS, SCHEDULER]
        .iter()
        .any(|sign| line.contains(sign))
        || mode()
}

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
