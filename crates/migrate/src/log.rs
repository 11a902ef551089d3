//! The start of kube-proxy in its log.

use kpx_node::backend::Mode;
use kpx_node::cluster::edit::Fields;
use kpx_node::evidence::proxy_log;

/// The messages of kube-proxy at its start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Said {
    /// Its mode.
    pub mode: Option<Mode>,
    /// The scheduler of its virtual servers: logged only if the configuration sets none.
    pub scheduler: Option<String>,
}

/// Reads kube-proxy's log; the last start counts.
pub fn said(log: &str) -> Said {
    let started = proxy_log::started(log);
    Said {
        mode: started.mode.and_then(|name| Mode::named(&name)),
        scheduler: started.scheduler,
    }
}

/// Returns how the log contradicts the fields that were set; `None` if it does not.
pub fn objection(said: &Said, set: &Fields) -> Option<String> {
    let mode = set.mode;
    if let Some(other) = said.mode.filter(|logged_mode| *logged_mode != mode) {
        return Some(format!("kube-proxy logged mode {other}, not {mode}"));
    }
    let wanted = set.scheduler.as_deref().filter(|_| mode == Mode::Ipvs)?;
    // It logs its default only.
    let taken = said.scheduler.as_deref()?;
    let same = wanted.is_empty() || taken == wanted;
    (!same).then(|| format!("kube-proxy logged scheduler {taken}, not {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mode_of_every_recorded_log_is_read() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/nodes/");
        for (name, mode) in [
            ("full-iptables", Mode::Iptables),
            ("full-ipvs", Mode::Ipvs),
            ("full-ipvs-v1.30", Mode::Ipvs),
            ("full-nftables", Mode::Nftables),
            ("userspace-1.25", Mode::Userspace),
        ] {
            let log = std::fs::read_to_string(format!("{root}{name}/kube-proxy/kube-proxy.log"));
            assert_eq!(said(&log.unwrap()).mode, Some(mode), "{name}");
        }
        assert_eq!(said("Using rr Proxier"), Said::default());
        let log =
            "I1 \"Using ipvs Proxier\"\nI1 \"IPVS scheduler not specified, use rr by default\"\n";
        assert_eq!(said(log).scheduler.as_deref(), Some("rr"));
        let again = format!("{log}I1 \"Using ipvs Proxier\"\n");
        assert_eq!(said(&again).scheduler, None);
    }

    #[test]
    fn a_log_is_compared_with_the_fields_that_were_set() {
        let set = |mode, scheduler: Option<&str>| Fields {
            mode,
            scheduler: scheduler.map(str::to_owned),
            strict_arp: None,
        };
        let said = Said {
            mode: Some(Mode::Ipvs),
            scheduler: Some("rr".to_owned()),
        };
        for scheduler in [None, Some(""), Some("rr")] {
            assert_eq!(objection(&said, &set(Mode::Ipvs, scheduler)), None);
        }
        let why = objection(&said, &set(Mode::Ipvs, Some("lc"))).unwrap();
        assert!(why.contains("scheduler rr, not lc"), "{why}");
        let why = objection(&said, &set(Mode::Nftables, None)).unwrap();
        assert!(why.contains("mode ipvs, not nftables"), "{why}");
        assert_eq!(objection(&Said::default(), &set(Mode::Ipvs, None)), None);
    }
}
