//! The path of one packet in the kernel, compared with the prediction.

use std::net::SocketAddr;

use serde::Serialize;

use super::steps::{self, place};
use super::{HopRow, SourceTrace};
use crate::render::{Page, Tone};
use kpx_judge::trace::observed::{Comparison, End, Line, Observed, Step};
use kpx_judge::trace::{Hook, Hop, Verdict};
use kpx_node::evidence::traced::Ruling;
use kpx_node::net::Proto;
use kpx_node::words::number_of;

/// The path of one packet of the flow in the kernel.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Observation {
    /// Whether it did what was predicted.
    pub result: Agreement,
    /// The packet; absent if none came by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet: Option<SeenPacket>,
    /// The steps of both paths, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<SeenStep>,
    /// Position of the first step that only one of the paths has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_difference: Option<usize>,
    /// The result in words.
    pub message: String,
    /// The limits of the comparison.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The result of a comparison with the kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Agreement {
    /// The packet went and ended as predicted.
    Agrees,
    /// It did not.
    Differs,
    /// The end of the packet was not predicted.
    Unpredicted,
    /// No such packet came by.
    NotSeen,
}

/// A packet that the kernel traced.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct SeenPacket {
    /// Its source, with the port.
    pub source: SocketAddr,
    /// Its destination, as sent.
    pub destination: SocketAddr,
    /// `tcp`, `udp`, …
    pub protocol: Proto,
    /// The link it came in by; absent for a packet of the node itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// How it ended.
    pub end: SeenEnd,
}

/// How the packet ended.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum SeenEnd {
    /// It left the node.
    Left {
        /// Its source then.
        source: SocketAddr,
        /// Its destination then.
        destination: SocketAddr,
        /// The link.
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// It reached a socket of the node.
    Arrived {
        /// Its source then.
        source: SocketAddr,
        /// Its destination then.
        destination: SocketAddr,
    },
    /// A rule or a policy dropped it, perhaps with an answer.
    Dropped,
    /// The kernel sent no message about it after its last step.
    Vanished,
}

/// A step of one of the paths, or of both.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SeenStep {
    /// The path that has it.
    pub path: Which,
    /// The predicted step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<HopRow>,
    /// The observed step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed: Option<ObservedStep>,
}

/// The paths that have a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Which {
    /// Both.
    Both,
    /// The predicted one.
    Predicted,
    /// The observed one.
    Observed,
    /// The predicted one; the kernel traces no such step.
    Untraced,
}

/// A step that was not predicted.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ObservedStep {
    /// The hook.
    pub hook: Hook,
    /// The table, with its family unless it is one of iptables; `legacy nat` in the legacy back end.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The number of the rule, from 1; 0 for the policy; absent if the rule was gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
    /// Its effect.
    pub effect: String,
}

impl Observation {
    /// Returns the report that no packet was seen, with the reason.
    pub(crate) fn not_seen(message: String) -> Self {
        Self {
            result: Agreement::NotSeen,
            packet: None,
            steps: Vec::new(),
            first_difference: None,
            message,
            notes: Vec::new(),
        }
    }

    /// Returns the report of a packet and its comparison with `trace`; `row` makes the rows of hops, `name` names links.
    pub(crate) fn new(
        packet: &Observed,
        protocol: Proto,
        compared: &Comparison,
        trace: &SourceTrace,
        row: impl Fn(&Hop) -> HopRow,
        name: impl Fn(u32) -> String,
    ) -> Self {
        let end = match packet.end {
            End::Left(now, by) => SeenEnd::Left {
                source: now.source,
                destination: now.destination,
                by: by.map(&name),
            },
            End::Arrived(now) => SeenEnd::Arrived {
                source: now.source,
                destination: now.destination,
            },
            End::Dropped => SeenEnd::Dropped,
            End::Vanished => SeenEnd::Vanished,
        };
        let steps: Vec<_> = compared.lines.iter().map(|line| step(line, &row)).collect();
        let outcome = trace.outcomes.get(compared.outcome);
        let result = match outcome.map(|outcome| outcome.verdict) {
            None | Some(Verdict::Unknown) => Agreement::Unpredicted,
            Some(_) if compared.agrees() => Agreement::Agrees,
            Some(_) => Agreement::Differs,
        };
        let first_difference = compared.first_difference();
        let how = ended(&end);
        let message = match result {
            Agreement::Agrees => {
                let both = |step: &&SeenStep| step.path == Which::Both;
                let traced = steps.iter().filter(both).count();
                format!(
                    "the kernel did as predicted in {}: the packet {how}",
                    number_of(traced, "step")
                )
            }
            Agreement::Unpredicted => format!("the prediction is unknown; the packet {how}"),
            _ => {
                let first = first_difference.and_then(|at| steps.get(at));
                let first = first.map_or_else(
                    || "every step is as predicted, but not the end".to_owned(),
                    |step| format!("THE KERNEL DIFFERS first at {}", step.text("->")),
                );
                let predicted = outcome.map_or_else(String::new, |outcome| {
                    format!(" (predicted: {})", steps::ending(outcome, trace))
                });
                format!("{first}; the packet {how}{predicted}")
            }
        };
        Self {
            result,
            packet: Some(SeenPacket {
                source: packet.sent.source,
                destination: packet.sent.destination,
                protocol,
                input: packet.input.map(name),
                end,
            }),
            steps,
            first_difference,
            message,
            notes: Vec::new(),
        }
    }
}

fn step(line: &Line, row: &impl Fn(&Hop) -> HopRow) -> SeenStep {
    let predicted = |path, hop| SeenStep {
        path,
        predicted: Some(row(hop)),
        observed: None,
    };
    match line {
        Line::Both(hop) => predicted(Which::Both, hop),
        Line::Predicted(hop) => predicted(Which::Predicted, hop),
        Line::Untraced(hop) => predicted(Which::Untraced, hop),
        Line::Observed(step) => SeenStep {
            path: Which::Observed,
            predicted: None,
            observed: Some(ObservedStep {
                hook: step.hook,
                table: of_iptables(&step.table).unwrap_or(&step.table).to_owned(),
                chain: step.chain.clone(),
                number: step.number,
                effect: did(step),
            }),
        },
    }
}

/// Returns the name that iptables has for a table of the nft back end.
fn of_iptables(table: &str) -> Option<&str> {
    let name = table.strip_prefix("ip ").or(table.strip_prefix("ip6 "))?;
    matches!(name, "raw" | "mangle" | "nat" | "filter" | "security").then_some(name)
}

/// Returns what a step did, in words.
fn did(step: &Step) -> String {
    match &step.ruling {
        Ruling::Continue => "matches".to_owned(),
        Ruling::Jump(to) | Ruling::Goto(to) => format!("goes to {to}"),
        Ruling::Return => "returns".to_owned(),
        Ruling::Accept => "accepts or translates".to_owned(),
        Ruling::Drop => "drops or rejects".to_owned(),
        Ruling::Taken => "takes it out of the rules".to_owned(),
    }
}

/// Returns how the packet ended, as a predicate.
fn ended(end: &SeenEnd) -> String {
    match end {
        SeenEnd::Left {
            source,
            destination,
            by,
        } => {
            let by = by.as_ref().map_or(String::new(), |by| format!(" by {by}"));
            format!("left{by} to {destination} from {source}")
        }
        SeenEnd::Arrived {
            source,
            destination,
        } => format!("reached {destination} on this node from {source}"),
        SeenEnd::Dropped => "was dropped or rejected".to_owned(),
        SeenEnd::Vanished => {
            "was not seen behind its last step: routing, or software other than the rules, took it"
                .to_owned()
        }
    }
}

impl SeenStep {
    const fn hook(&self) -> Hook {
        match (&self.predicted, &self.observed) {
            (Some(hop), _) => hop.hook,
            (None, Some(step)) => step.hook,
            (None, None) => Hook::Prerouting,
        }
    }

    fn text(&self, arrow: &str) -> String {
        let predicted = self.predicted.as_ref();
        let predicted =
            predicted.map(|hop| format!("{} {}", place(hop), steps::effect(hop, arrow)));
        let observed = self.observed.as_ref().map(|step| {
            let ObservedStep { table, chain, .. } = step;
            let at = match step.number {
                Some(0) => " policy".to_owned(),
                Some(number) => format!(":{number}"),
                None => ", in a rule that is gone,".to_owned(),
            };
            format!("{table} {chain}{at} {}", step.effect)
        });
        predicted.or(observed).unwrap_or_default()
    }
}

/// Adds both paths to the page.
pub(super) fn page(live: &Observation, page: &mut Page) {
    let arrow = if page.style().ascii { "->" } else { "→" };
    page.line("");
    if let Some(packet) = &live.packet {
        let by = match &packet.input {
            Some(link) => format!(", in by {link}"),
            None => ", from this node".to_owned(),
        };
        let SeenPacket {
            source,
            destination,
            protocol,
            ..
        } = packet;
        page.para(
            "Packet: ",
            &format!("{source} to {destination}/{protocol}{by}"),
        );
    }
    let tone = match live.result {
        Agreement::Agrees => Tone::Good,
        Agreement::Differs => Tone::Bad,
        Agreement::Unpredicted | Agreement::NotSeen => Tone::Unclear,
    };
    page.para(&page.paint(tone, "Kernel: "), &live.message);
    if !live.steps.is_empty() {
        page.line("");
        page.line(
            "  = both paths   - predicted only   + observed only   ~ not traced by the kernel",
        );
    }
    let mut last = None;
    for (at, step) in live.steps.iter().enumerate() {
        let sign = match step.path {
            Which::Both => '=',
            Which::Predicted => '-',
            Which::Observed => '+',
            Which::Untraced => '~',
        };
        let first = live.first_difference == Some(at);
        let hook = if last == Some(step.hook()) {
            ""
        } else {
            step.hook().name()
        };
        last = Some(step.hook());
        let lead = format!("{} {sign} {hook:<12} ", if first { '>' } else { ' ' });
        let text = step.text(arrow);
        if first {
            page.para(&lead, &page.paint(Tone::Bad, &text));
        } else {
            page.hang(&lead, &format!("{:19}", ""), &text);
        }
    }
    for note in &live.notes {
        page.para("! ", note);
    }
}
