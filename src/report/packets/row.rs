//! How a difference becomes a row: the rule that decides, and the meaning of the difference.

use std::net::SocketAddr;
use std::rc::Rc;

use super::{FateRow, Row, RuleRow, Sent, WayRow};
use kpx_judge::proof::difference::{Difference, Harm, Target};
use kpx_judge::proof::{Fate, Proved, Way};
use kpx_judge::trace::{Effect, Entry, Hop, Outcome, Subsystem, Verdict};

impl Row {
    pub(super) fn new(
        proved: &Proved,
        program: &str,
        modes: [&str; 2],
        is_other_mode: bool,
    ) -> Self {
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
            let protocol = witness.proto;
            let mark = mark.map_or_else(String::new, |mark| format!(" --mark {mark:#x}"));
            format!("{program} trace {to} --source {source} --protocol {protocol}{mark}{mode}")
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
            is: FateRow::new([&fates[0], &fates[1]], is),
            should: FateRow::new([&fates[1], &fates[0]], should),
            rule: match harm {
                Harm::Unsure => cause(&stopped(is), should),
                _ => cause(is, should),
            },
            shown_by,
            confirmed: proved.confirmed,
            conditions: conditions(&fates[0], &fates[1]),
        }
    }
}

/// Returns the conditions that decide whether `is` differs from `should`.
fn conditions(is: &Fate, should: &Fate) -> Vec<String> {
    let mut all = Vec::new();
    for when in is.ways.iter().flat_map(|way| &way.when) {
        let condition = when.condition();
        let is_common = should.ways.iter().any(|way| way.when.contains(when));
        if !is_common && !all.contains(&condition) {
            all.push(condition);
        }
    }
    all
}

impl FateRow {
    /// Returns the row of the first of `fates`, compared with the other.
    fn new([fate, other]: [&Fate; 2], trace: &[Outcome]) -> Self {
        let way = |way: &Way| WayRow {
            verdict: way.verdict,
            address: way.address,
            port: way.port,
            masquerade: way.masquerade,
            source: way.source,
            link: way.out.as_ref().map(|(link, _)| link.to_string()),
            gateway: way.out.as_ref().and_then(|(_, gateway)| *gateway),
            expires: way.expires,
            sticky: way.sticky,
            share: way.share,
            when: way.when.iter().map(ToString::to_string).collect(),
        };
        Self {
            text: fate.text_beside(other),
            reason: trace
                .first()
                .map_or(String::new(), |first| first.reason.clone()),
            ways: fate.ways.iter().map(way).collect(),
        }
    }
}

/// Returns the meaning of a difference between modes to the senders of the packets.
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
            "the modes apply the traffic policy to different clients"
        }
        _ => return None,
    })
}

/// Returns the outcomes that stop the packet, or all if none does.
fn stopped(outcomes: &[Outcome]) -> Vec<Outcome> {
    let stops = |outcome: &&Outcome| matches!(outcome.verdict, Verdict::Drop | Verdict::Reject);
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
                (Effect::Balance { server, .. } | Effect::NoServer { server, .. }, _) => {
                    format!("virtual server {server}")
                }
                (_, "") => "the policy of the chain".to_owned(),
                (_, rule) => rule.to_owned(),
            },
        })
    };
    last(&live, &expected, true).or_else(|| last(&expected, &live, false))
}
