//! The losses that an operator accepts: `--accept-loss`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use kpx_judge::check::{Outcome, Severity, Subject};
use kpx_judge::verdict::LossClass;
use kpx_node::backend::Mode;

/// The value that stands for connections that do not drain in time.
pub const CONNECTIONS: &str = "connections";

/// A loss that an operator accepts.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum AcceptedLoss {
    /// Connections that do not drain in time.
    Connections,
    /// Packets of this class, in the new mode.
    Class(LossClass),
}

impl FromStr for AcceptedLoss {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        if word == CONNECTIONS {
            return Ok(Self::Connections);
        }
        word.parse().map(Self::Class)
    }
}

impl fmt::Display for AcceptedLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connections => f.write_str(CONNECTIONS),
            Self::Class(class) => class.fmt(f),
        }
    }
}

/// Returns the classes of packets among `accepted`, without duplicates.
pub fn classes(accepted: &[AcceptedLoss]) -> Vec<LossClass> {
    let classes = accepted.iter().filter_map(|loss| match loss {
        AcceptedLoss::Class(class) => Some(*class),
        AcceptedLoss::Connections => None,
    });
    let classes: BTreeSet<LossClass> = classes.collect();
    classes.into_iter().collect()
}

/// Turns errors in `outcomes` about lost packets of the `accepted` classes into warnings.
pub fn accept<'o>(outcomes: impl IntoIterator<Item = &'o mut Outcome>, accepted: &[LossClass]) {
    let findings = outcomes.into_iter().filter_map(|outcome| match outcome {
        Outcome::Fail(findings) => Some(findings),
        _ => None,
    });
    for finding in findings.flatten() {
        if matches!(finding.about, Subject::Packets { class } if accepted.contains(&class)) {
            finding.severity = Severity::Warning;
            finding.message.push_str("; accepted");
        }
    }
}

/// Returns a note for each of the `accepted` classes of which mode `to` loses no packets: all except those `found`.
pub fn unused(accepted: &[LossClass], found: &[LossClass], to: Mode) -> Option<String> {
    let unused = accepted.iter().filter(|class| !found.contains(class));
    let unused: Vec<String> = unused.map(ToString::to_string).collect();
    (!unused.is_empty()).then(|| {
        format!(
            "--accept-loss {} has no effect: mode {to} loses no such packets on this node",
            unused.join(",")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_classes_are_told_apart() {
        let all = ["pod-to-node-port", "connections", "pod-to-cluster-ip"];
        let all = all.map(|word| word.parse::<AcceptedLoss>().unwrap());
        assert_eq!(all.map(|loss| loss.to_string())[1], "connections");
        let classes: Vec<String> = classes(&all).iter().map(ToString::to_string).collect();
        assert_eq!(classes, ["pod-to-cluster-ip", "pod-to-node-port"]);
        assert!("pods".parse::<AcceptedLoss>().is_err());
    }

    #[test]
    fn a_class_that_does_not_occur_is_named() {
        let of = |word: &str| word.parse::<LossClass>().unwrap();
        let (pods, host) = (of("pod-to-cluster-ip"), of("host-to-cluster-ip"));
        assert_eq!(unused(&[pods], &[pods, host], Mode::Ipvs), None);
        let said = unused(&[pods, host], &[host], Mode::Ipvs).unwrap();
        assert!(
            said.starts_with("--accept-loss pod-to-cluster-ip has"),
            "{said}"
        );
    }
}
