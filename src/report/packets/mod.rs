//! The result of `kpx diff --packets`.

mod page;
mod row;

use std::net::IpAddr;

use serde::Serialize;

use kpx_judge::diff::{Layer, Unknown};
use kpx_judge::proof::difference::Harm;
use kpx_judge::proof::{Packets, Proved};
use kpx_judge::trace::Verdict;
use kpx_node::backend::Mode;
use kpx_node::evidence::Gap;
use kpx_node::net::Proto;
use kpx_node::words::number_of;

/// The outcome of `kpx diff --packets`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct PacketsReport {
    /// The mode compared with, if known.
    pub mode: Option<Mode>,
    /// Whether it is another mode than the configured one.
    pub is_other_mode: bool,
    /// The number of classes into which the packets were divided; `None` if they could not be.
    pub classes: Option<usize>,
    /// Packets that the live rules treat differently from the expected ones.
    pub differences: Vec<Row>,
    /// Packets to Services that rules of other software stop or send elsewhere.
    pub foreign: Vec<Row>,
    /// The parts that could not be compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Unknown>,
    /// Limits of the comparison, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The command that decides about the differences.
    #[serde(skip)]
    pub next: Option<String>,
}

/// Packets with two fates.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// The harm.
    pub harm: Harm,
    /// Their destination, as text.
    pub target: String,
    /// The Services, where several are one row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// The meaning of the difference for the senders of such packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meaning: Option<&'static str>,
    /// The number of connections now whose first packet is one of these; unset if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uses: Option<usize>,
    /// The place where they enter: `pod`, `host`, `outside`.
    pub from: Vec<&'static str>,
    /// The number of classes.
    pub classes: usize,
    /// One of them.
    pub packet: Sent,
    /// Their fate.
    pub is: FateRow,
    /// Their expected fate.
    pub should: FateRow,
    /// The rule that decides on the packet, or the rule that should.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleRow>,
    /// The commands that trace the packet on both sides.
    pub shown_by: Vec<String>,
    /// Whether a trace confirms both fates. If not, that is a bug in kpx.
    pub confirmed: bool,
    /// The conditions that decide whether the fates differ.
    #[serde(skip)]
    pub conditions: Vec<String>,
}

/// A packet as it is sent.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Sent {
    /// The source address; unset if the node chooses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// The destination address.
    pub destination: IpAddr,
    /// The destination port.
    pub port: u16,
    /// The protocol.
    pub protocol: Proto,
    /// The mark that it enters with; unset if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark: Option<u32>,
}

/// A fate.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FateRow {
    /// As text.
    pub text: String,
    /// Why it ends so.
    pub reason: String,
    /// The ways it may go.
    pub ways: Vec<WayRow>,
}

/// A way that a packet may go.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct WayRow {
    /// How it ends.
    pub verdict: Verdict,
    /// The new destination address, if it is translated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The new destination port, if it is translated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Whether its source is rewritten.
    pub masquerade: bool,
    /// The new source address, if it is rewritten and known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// The link by which it leaves for its backend, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// The gateway of that way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Whether its time to live (hop limit) ends at the gateway.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub expires: bool,
    /// Whether the client is bound to the backend from now on.
    pub sticky: bool,
    /// The probability, 0 to 1.
    pub share: f64,
    /// Conditions that the state does not determine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub when: Vec<String>,
}

/// A rule.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleRow {
    /// Whether the node has the rule; else it should have.
    pub is_live: bool,
    /// The table; empty for IPVS.
    pub table: String,
    /// The chain; empty for IPVS.
    pub chain: String,
    /// The rule, or the effect of a step without a rule.
    pub rule: String,
}

impl PacketsReport {
    /// Reports `packets`, compared with `mode`. `program` is kpx with the options that reach the node.
    pub(crate) fn new(mode: Mode, is_other_mode: bool, packets: &Packets, program: &str) -> Self {
        let expected = format!(" --mode {mode}");
        let modes = if is_other_mode {
            [expected.as_str(), ""]
        } else {
            ["", &expected]
        };
        let row = |proved: &Proved| Row::new(proved, program, modes, is_other_mode);
        // No option omits the rules of others.
        let foreign = |proved: &Proved| Row::new(proved, program, ["", ""], false);
        let mut report = Self {
            mode: Some(mode),
            is_other_mode,
            classes: Some(packets.classes),
            differences: packets.differences.iter().map(row).collect(),
            foreign: packets.foreign.iter().map(foreign).collect(),
            unknown: Vec::new(),
            notes: Vec::new(),
            next: None,
        };
        let all = report.differences.iter().chain(&report.foreign);
        let wrong = all.filter(|row| !row.confirmed).count();
        if wrong > 0 {
            report.notes.push(format!(
                "internal error: a trace does not confirm {} marked below; please report this with the output of `kpx snapshot`",
                number_of(wrong, "difference")
            ));
        }
        if packets.without_ranges {
            let note = "the ranges of Services are unknown, because the ServiceCIDR objects were not read: packets to addresses \
                        in them that no Service has are taken for any others, and kube-proxy would drop them in mode nftables";
            report.notes.push(note.to_owned());
        }
        report
    }

    /// Reports that packets cannot be compared, and why; `hint` is the advice.
    pub(crate) fn nothing(mode: Option<Mode>, gap: Gap, hint: &str) -> Self {
        let what = mode.map_or_else(
            || "the mode".to_owned(),
            |mode| format!("packets in mode {mode}"),
        );
        let unknown = Unknown {
            what,
            layers: &Layer::ALL,
            gap,
        };
        Self {
            mode,
            is_other_mode: false,
            classes: None,
            differences: Vec::new(),
            foreign: Vec::new(),
            unknown: vec![unknown],
            notes: vec![hint.to_owned()],
            next: None,
        }
    }
}
