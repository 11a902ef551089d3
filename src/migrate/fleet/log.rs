//! What a new kube-proxy says of itself in its log.

use crate::backend::Mode;

/// What a log tells.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Said {
    /// The mode that it started in.
    pub mode: Option<Mode>,
    /// The scheduler of its virtual servers, where it tells of one.
    pub scheduler: Option<String>,
}

/// Reads the log of a kube-proxy; what it said last counts.
pub fn said(log: &str) -> Said {
    let mut said = Said::default();
    for line in log.lines() {
        // `"Using ipvs Proxier"` since 1.22, `Using ipvs Proxier.` before.
        let words = line
            .split("Using ")
            .nth(1)
            .and_then(|rest| rest.split_once(" Proxier"));
        if let Some(mode) = words.and_then(|(name, _)| Mode::named(name)) {
            said.mode = Some(mode);
        }
        if let Some((_, rest)) = line.split_once("IPVS scheduler not specified, use ") {
            said.scheduler = rest.split([' ', '"']).next().map(str::to_owned);
        }
    }
    said
}

/// Returns why `log` is not that of a kube-proxy in `mode`; `None` if it is, or does not tell.
pub fn objection(log: &str, mode: Mode) -> Option<String> {
    let other = said(log).mode.filter(|of| *of != mode)?;
    Some(format!(
        "kube-proxy says that it uses mode {other}, not {mode}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_of_every_recorded_log_is_read() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/nodes/");
        for (name, mode) in [
            ("full-iptables", Mode::Iptables),
            ("full-ipvs", Mode::Ipvs),
            ("full-ipvs-v1.30", Mode::Ipvs),
            ("full-nftables", Mode::Nftables),
        ] {
            let log = std::fs::read_to_string(format!("{root}{name}/kube-proxy/kube-proxy.log"));
            assert_eq!(said(&log.unwrap()).mode, Some(mode), "{name}");
        }
        assert_eq!(said("Using rr Proxier"), Said::default());
        let log =
            "I1 \"IPVS scheduler not specified, use rr by default\"\nI1 \"Using ipvs Proxier\"\n";
        assert_eq!(said(log).scheduler.as_deref(), Some("rr"));
        assert_eq!(objection(log, Mode::Ipvs), None);
        assert_eq!(objection("", Mode::Ipvs), None);
        assert!(objection(log, Mode::Nftables).is_some());
    }
}
