//! The result of `kpx diff --packets`.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;

use serde::Serialize;

use super::{CLEAN, FAILED, FOUND, UNKNOWN};
use crate::backend::Mode;
use crate::diff::{Layer, Unknown};
use crate::evidence::Gap;
use crate::net::Proto;
use crate::proof::difference::{Difference, Harm, Target};
use crate::proof::{Fate, Packets, Proved, Way};
use crate::render::{Page, Report, Tone};
use crate::trace::{Effect, Entry, Hop, Outcome, Subsystem, Verdict};
use crate::words::{listed, number_of};

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
    /// What could not be compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Unknown>,
    /// Limits of the comparison, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Packets with two fates.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    /// The harm.
    pub harm: Harm,
    /// What they are sent to, as text.
    pub target: String,
    /// The Services, where several are one row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
    /// What the difference means to those who send such packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub meaning: Option<&'static str>,
    /// The number of connections now whose first packet is one of these; unset if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uses: Option<usize>,
    /// Where they enter: `pod`, `host`, `outside`.
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
    /// The rule, or the effect of what has no rule.
    pub rule: String,
}

impl PacketsReport {
    /// Reports `packets`, compared with `mode`. `options` reach the node.
    pub(crate) fn new(mode: Mode, is_other_mode: bool, packets: &Packets, options: &str) -> Self {
        let expected = format!(" --mode {mode}");
        let modes = if is_other_mode {
            [expected.as_str(), ""]
        } else {
            ["", &expected]
        };
        let row = |of: &Proved| Row::new(of, options, modes, is_other_mode);
        // No option omits the rules of others.
        let foreign = |of: &Proved| Row::new(of, options, ["", ""], false);
        let mut report = Self {
            mode: Some(mode),
            is_other_mode,
            classes: Some(packets.classes),
            differences: packets.differences.iter().map(row).collect(),
            foreign: packets.foreign.iter().map(foreign).collect(),
            unknown: Vec::new(),
            notes: Vec::new(),
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

    /// Reports that packets cannot be compared, and why; `hint` is what to do about it.
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
        }
    }

    /// Adds what could not be compared.
    fn unknown(&self, page: &mut Page) {
        for unknown in &self.unknown {
            page.para("  ", &format!("{}: {}", unknown.what, unknown.gap));
        }
    }

    fn head(&self) -> String {
        let (Some(mode), Some(classes)) = (self.mode, self.classes) else {
            return "inconclusive: no packets were compared".to_owned();
        };
        let classes = number_of(classes, "class");
        let sides = if self.is_other_mode {
            format!("mode {mode} would treat")
        } else {
            "the live rules treat".to_owned()
        };
        match (self.differences.len(), self.foreign.len()) {
            (0, 0) if self.is_other_mode => {
                format!("no difference: mode {mode} would treat every packet as now ({classes})")
            }
            (0, 0) => {
                format!("no difference: every packet is treated as mode {mode} expects ({classes})")
            }
            (0, _) => format!(
                "every packet is treated as mode {mode} expects ({classes}), but rules of other software stop or redirect \
                 packets to Services, or may do so"
            ),
            (count, _) => format!(
                "{}: {sides} some packets differently ({classes})",
                number_of(count, "difference")
            ),
        }
    }
}

impl Row {
    fn new(proved: &Proved, options: &str, modes: [&str; 2], is_other_mode: bool) -> Self {
        let Difference {
            harm,
            target,
            entries,
            services,
            regions,
            witness,
            fates,
        } = &proved.difference;
        let from = |entry: &Entry| match entry {
            Entry::Pod => "pod",
            Entry::Host => "host",
            Entry::Outside => "outside",
        };
        let source = witness
            .source
            .map_or_else(|| "host".to_owned(), |addr| addr.to_string());
        let mark = Some(witness.mark).filter(|mark| *mark != 0);
        let to = SocketAddr::new(witness.destination, witness.port);
        let command = |mode: &str| {
            let options = if options.is_empty() {
                String::new()
            } else {
                format!(" {options}")
            };
            let protocol = witness.proto;
            let mark = mark.map_or_else(String::new, |mark| format!(" --mark {mark:#x}"));
            format!("kpx{options} trace {to} --source {source} --protocol {protocol}{mark}{mode}")
        };
        let mut shown_by: Vec<String> = modes.iter().map(|mode| command(mode)).collect();
        shown_by.dedup();
        let [is, should] = &proved.traces;
        Self {
            harm: *harm,
            target: if services.is_empty() {
                target.to_string()
            } else {
                target.kind()
            },
            services: services.iter().cloned().collect(),
            meaning: meaning(&proved.difference).filter(|_| is_other_mode),
            uses: proved.uses,
            from: entries.iter().map(from).collect(),
            classes: regions.len(),
            packet: Sent {
                source: witness.source,
                destination: witness.destination,
                port: witness.port,
                protocol: witness.proto,
                mark,
            },
            is: FateRow::new(&fates[0], is),
            should: FateRow::new(&fates[1], should),
            rule: match harm {
                Harm::Unsure => cause(&stopped(is), should),
                _ => cause(is, should),
            },
            shown_by,
            confirmed: proved.confirmed,
        }
    }
}

impl FateRow {
    fn new(fate: &Fate, trace: &[Outcome]) -> Self {
        let way = |way: &Way| WayRow {
            verdict: way.verdict,
            address: way.address,
            port: way.port,
            masquerade: way.masquerade,
            sticky: way.sticky,
            share: way.share,
            when: way.when.iter().map(ToString::to_string).collect(),
        };
        Self {
            text: fate.to_string(),
            reason: trace
                .first()
                .map_or(String::new(), |first| first.reason.clone()),
            ways: fate.ways.iter().map(way).collect(),
        }
    }
}

impl FateRow {
    /// Returns the text that says most: if every packet is stopped, by what.
    fn shown(&self) -> &str {
        match self.ways.as_slice() {
            [
                WayRow {
                    verdict: Verdict::Drop | Verdict::Reject,
                    when,
                    ..
                },
            ] if when.is_empty() => &self.reason,
            _ => &self.text,
        }
    }
}

/// Returns what a difference between modes means to those who send the packets.
fn meaning(difference: &Difference) -> Option<&'static str> {
    let outside = difference
        .entries
        .iter()
        .all(|entry| *entry == Entry::Outside);
    Some(match (&difference.target, difference.harm) {
        (_, Harm::Source) => {
            "the backend sees another source address; where the source is kept, replies must come back through this node"
        }
        (Target::LocalNodePort(_), _) if outside => {
            "packets to loopback addresses from outside are an attack"
        }
        (Target::LocalNodePort(_), _) => {
            "programs that connect to a NodePort at 127.0.0.1 have to use an address of the node"
        }
        (Target::Ping(_), _) => {
            "whether a cluster IP answers a ping depends on the mode, and says nothing about the Service"
        }
        (Target::OtherPort(_), Harm::Ends) => {
            "a connection to a port that no Service has fails in every mode, but in another way"
        }
        (Target::NodePort(_) | Target::NodePortElsewhere(_), Harm::Lost | Harm::Open) => {
            "the mode accepts NodePorts at other addresses, see nodePortAddresses"
        }
        (Target::Service(..) | Target::NodePort(_), Harm::Misled) => {
            "the mode applies the traffic policy to other clients"
        }
        _ => return None,
    })
}

/// Returns those of `outcomes` that stop the packet, or all if none does.
fn stopped(outcomes: &[Outcome]) -> Vec<Outcome> {
    let stops = |of: &&Outcome| matches!(of.verdict, Verdict::Drop | Verdict::Reject);
    let found: Vec<_> = outcomes.iter().filter(stops).cloned().collect();
    if found.is_empty() {
        outcomes.to_vec()
    } else {
        found
    }
}

/// Returns the last rule that decides on the packet on one side only: the live one, else the expected one.
fn cause(is: &[Outcome], should: &[Outcome]) -> Option<RuleRow> {
    let deciding = |trace: &[Outcome]| -> Vec<Rc<Hop>> {
        let hops = trace.iter().flat_map(|outcome| &outcome.hops);
        let decides = |hop: &&Rc<Hop>| {
            let passes = matches!(
                hop.effect,
                Effect::Jump { .. } | Effect::Goto { .. } | Effect::Return | Effect::Other { .. }
            );
            hop.subsystem != Subsystem::Routing && !passes
        };
        hops.filter(decides).cloned().collect()
    };
    let (live, expected) = (deciding(is), deciding(should));
    let same = |a: &Hop, b: &Hop| {
        let key = |hop: &Hop| {
            (
                hop.hook,
                hop.table.clone(),
                hop.chain.clone(),
                hop.rule.clone(),
            )
        };
        key(a) == key(b) && a.effect == b.effect
    };
    let last = |mine: &[Rc<Hop>], theirs: &[Rc<Hop>], is_live| {
        let found = mine
            .iter()
            .rfind(|hop| !theirs.iter().any(|other| same(hop, other)));
        found.map(|hop| RuleRow {
            is_live,
            table: hop.table.clone(),
            chain: hop.chain.clone(),
            rule: match (&hop.effect, hop.rule.as_str()) {
                (Effect::Balance { server, .. } | Effect::NoServer { server }, _) => {
                    format!("virtual server {server}")
                }
                (_, "") => "the policy of the chain".to_owned(),
                (_, rule) => rule.to_owned(),
            },
        })
    };
    last(&live, &expected, true).or_else(|| last(&expected, &live, false))
}

/// The number of differences shown without `-v`.
const SHOWN: usize = 20;

impl Harm {
    const fn word(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Misled => "misled",
            Self::Open => "open",
            Self::Source => "source",
            Self::Affinity => "affinity",
            Self::Uneven => "uneven",
            Self::Ends => "ends",
            Self::Unsure => "unsure",
        }
    }
}

impl Row {
    /// Returns which packets they are.
    fn what(&self) -> String {
        let from = self.from.iter().map(|from| match *from {
            "pod" => "pods",
            "host" => "the host",
            _ => "outside",
        });
        let from: Vec<_> = from.collect();
        let services = match self.services.as_slice() {
            [] => String::new(),
            [one] => format!(" ({one})"),
            [first, rest @ ..] => format!(" ({first} and {} more)", rest.len()),
        };
        format!("{}{services}: from {}", self.target, listed(&from))
    }

    /// Returns the conditions that decide whether the fates differ.
    fn conditions(&self) -> Vec<&str> {
        let ways = self.should.ways.iter();
        let always: Vec<&String> = ways.flat_map(|way| &way.when).collect();
        let mut all: Vec<&str> = Vec::new();
        for of in self.is.ways.iter().flat_map(|way| &way.when) {
            let question = of
                .rsplit_once(": ")
                .map_or(of.as_str(), |(question, _)| question);
            if !always.contains(&of) && !all.contains(&question) {
                all.push(question);
            }
        }
        all
    }

    /// Adds rows; `labels` are for the two fates.
    fn page(page: &mut Page, rows: &[Self], labels: [&str; 2]) {
        let all = page.style().verbose > 0 || page.style().wide;
        let shown = if all { rows.len() } else { SHOWN };
        for row in rows.iter().take(shown) {
            page.line("");
            let lead = format!("{:<8} ", row.harm.word());
            page.hang(&lead, "         ", &row.what());
            for (label, fate) in labels.iter().zip([&row.is, &row.should]) {
                page.hang(&format!("  {label:<6} "), "         ", fate.shown());
            }
            if row.harm == Harm::Unsure {
                let conditions = row.conditions().join("; ");
                page.hang("  if     ", "         ", &conditions);
            }
            if let Some(uses) = row.uses {
                let uses = number_of(uses, "connection");
                page.hang("  in use ", "         ", &format!("{uses} now"));
            }
            if let Some(meaning) = row.meaning {
                page.hang("  means  ", "         ", meaning);
            }
            if let Some(rule) = &row.rule {
                let label = if rule.is_live { "rule" } else { "misses" };
                let place = match rule.chain.as_str() {
                    "" => rule.rule.clone(),
                    chain => format!("{} {chain}: {}", rule.table, rule.rule),
                };
                page.hang(&format!("  {label:<6} "), "         ", &place);
            }
            for command in &row.shown_by {
                page.hang("  try    ", "         ", command);
            }
            if !row.confirmed {
                page.hang(
                    "  ERROR  ",
                    "         ",
                    "internal error: a trace does not confirm this",
                );
            }
        }
        let rest = rows.len().saturating_sub(shown);
        if rest > 0 {
            page.line("");
            page.line(&format!("and {rest} more; -v shows all"));
        }
    }
}

impl PacketsReport {
    /// Adds a paragraph for each difference, without packets and rules.
    pub(crate) fn summary(&self, page: &mut Page) {
        page.para("packets: ", &self.head());
        for row in &self.differences {
            let uses = row.uses.map_or(String::new(), |uses| {
                format!("; {} now", number_of(uses, "connection"))
            });
            let meaning = row
                .meaning
                .map_or(String::new(), |text| format!(": {text}"));
            let lead = format!("  {:<8} ", row.harm.word());
            page.para(&lead, &format!("{}{uses}{meaning}", row.what()));
        }
        self.unknown(page);
        if let (Some(mode), false) = (self.mode, self.differences.is_empty()) {
            let text =
                format!("`kpx diff --packets --mode {mode}` shows a packet and the rule for each");
            page.para("  ", &text);
        }
    }
}

impl Report for PacketsReport {
    const KIND: &'static str = "PacketsReport";

    fn page(&self, page: &mut Page) {
        let tone = match self.exit() {
            CLEAN => Tone::Good,
            UNKNOWN => Tone::Unclear,
            _ => Tone::Bad,
        };
        page.line(&page.paint(tone, &self.head()));
        let labels = if self.is_other_mode {
            ["then", "now"]
        } else {
            ["is", "should"]
        };
        Row::page(page, &self.differences, labels);
        if !self.foreign.is_empty() {
            page.line("");
            let title = "rules of other software that stop or redirect packets to Services";
            page.line(&page.paint(Tone::Strong, title));
            Row::page(page, &self.foreign, ["with", "else"]);
        }
        if !self.unknown.is_empty() {
            page.line("");
            self.unknown(page);
        }
        for note in &self.notes {
            page.line("");
            page.para("note: ", note);
        }
    }

    fn exit(&self) -> u8 {
        let mut all = self.differences.iter().chain(&self.foreign);
        if all.any(|row| !row.confirmed) {
            return FAILED;
        }
        match (
            self.differences.is_empty() && self.foreign.is_empty(),
            self.unknown.is_empty(),
        ) {
            (false, _) => FOUND,
            (true, false) => UNKNOWN,
            (true, true) => CLEAN,
        }
    }
}
