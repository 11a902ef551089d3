//! Connections to a Service as a picture: clients, the addresses they connect to, the stages that their packets pass, and
//! endpoints. A missing object, or one that stops the packets, is one of the stages.

use std::net::SocketAddr;

use kpx_judge::trace::{Effect, Hook, Hop, Outcome, Subsystem, why};
use kpx_judge::verdict::{Cell, Fate, Fault, Missing};
use kpx_judge::why::{Broken, Cause, Degree, EndpointRow};
use kpx_node::owner::EndpointState;
use kpx_node::owner::chain_owner::Maker;

/// Connections to the ports of a Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Picture {
    /// The lines; those that fail come first.
    pub(crate) strands: Vec<Strand>,
}

/// Connections that have the same ways: from some kinds of clients to some addresses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Strand {
    /// Kinds of clients, each with its address if that is known.
    pub(crate) clients: Vec<(String, Option<String>)>,
    /// The Service port, or another target of the connection.
    pub(crate) service: String,
    /// `ADDRESS:PORT/PROTOCOL`, each with the role of the address.
    pub(crate) targets: Vec<(String, &'static str)>,
    pub(crate) fate: Fate,
    pub(crate) ways: Vec<Way>,
}

/// Packets that pass the same stations.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Way {
    /// The share of the packets: 0 to 1.
    pub(crate) share: f64,
    pub(crate) fate: Fate,
    /// In the order in which packets pass them.
    pub(crate) stations: Vec<Station>,
    pub(crate) ends: Vec<End>,
    /// Whether packets get to the ends.
    pub(crate) is_reached: bool,
}

/// A stage of the packets' way.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Stage {
    /// The object and its name.
    Service,
    /// Before the destination is translated.
    Enter,
    /// The translation of the destination.
    Translate,
    /// Routing and filtering.
    Forward,
    /// The translation of the source, and of the reply.
    Leave,
    /// The endpoint itself.
    Endpoint,
}

/// The fate of packets at a stage.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Station {
    pub(crate) stage: Stage,
    pub(crate) state: State,
    /// Its text: what it is or does.
    pub(crate) text: String,
    /// The owner of the rule, if that is not kube-proxy, or if packets end here.
    pub(crate) owner: Option<String>,
    /// The node, if it is another one than the one that is read.
    pub(crate) node: Option<String>,
}

/// Whether packets pass a station.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// They do.
    Passes,
    /// It is unknown.
    Open,
    /// They end here, or their replies do.
    Stops,
    /// They end here because something is missing.
    Missing,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct End {
    /// `ADDRESS:PORT`, or the node itself.
    pub(crate) name: String,
    pub(crate) pod: Option<String>,
    pub(crate) node: Option<String>,
    /// Its state, unless it is ready.
    pub(crate) state: Option<EndpointState>,
    /// The share of the packets: 0 to 1; `None` where none gets there.
    pub(crate) share: Option<f64>,
}

/// Endpoints that are drawn although no packet gets there.
const MOST_UNREACHED: usize = 3;

/// Returns the picture of connections to Service ports; `causes` and `endpoints` are the Service's.
pub(crate) fn of<'c>(
    connections: impl IntoIterator<Item = (String, &'c Cell)>,
    causes: &[Broken],
    endpoints: &[EndpointRow],
) -> Picture {
    let mut strands: Vec<Strand> = Vec::new();
    for (service, cell) in connections {
        let client = (cell.client.name().to_owned(), source(cell));
        let target = (
            format!("{}/{}", cell.to(), cell.flow.proto),
            cell.kind.name(),
        );
        let ways = ways(&service, cell, causes, endpoints);
        let same = |strand: &&mut Strand| {
            strand.service == service
                && strand.fate == cell.fate()
                && strand.targets[0] == target
                && strand.ways == ways
        };
        match strands.iter_mut().find(same) {
            Some(same) if same.clients.contains(&client) => {}
            Some(same) => same.clients.push(client),
            None => strands.push(Strand {
                clients: vec![client],
                service,
                targets: vec![target],
                fate: cell.fate(),
                ways,
            }),
        }
    }
    let mut merged: Vec<Strand> = Vec::new();
    for strand in strands {
        let same = |other: &&mut Strand| {
            (&other.service, &other.clients, other.fate, &other.ways)
                == (&strand.service, &strand.clients, strand.fate, &strand.ways)
        };
        match merged.iter_mut().find(same) {
            Some(same) => same.targets.extend(strand.targets),
            None => merged.push(strand),
        }
    }
    if merged.is_empty() {
        merged.extend(causes.first().map(without_way));
    }
    let mut picture = Picture { strands: merged };
    picture.worst_first();
    picture
}

impl Picture {
    /// Puts the connections that fail first.
    pub(crate) fn worst_first(&mut self) {
        self.strands
            .sort_by_key(|strand| std::cmp::Reverse(strand.fate));
    }
}

/// Returns the address that packets are sent from.
fn source(cell: &Cell) -> Option<String> {
    let sent = cell.outcomes.first().map(|outcome| outcome.sent_from);
    let known = cell.flow.source.or(sent)?;
    (!known.is_unspecified()).then(|| known.to_string())
}

/// Returns the strand of a Service without any connection to judge.
fn without_way(broken: &Broken) -> Strand {
    let fate = match broken.degree {
        Degree::Breaks => Fate::Refused,
        Degree::NotServed | Degree::Suspect => Fate::Unknown,
    };
    Strand {
        clients: vec![("any client".to_owned(), None)],
        service: broken.subject.clone(),
        targets: Vec::new(),
        fate,
        ways: vec![Way {
            share: 1.0,
            fate,
            stations: vec![Station {
                stage: stage_of_cause(&broken.cause).unwrap_or(Stage::Service),
                ..by_cause(broken, Stage::Service)
            }],
            ends: Vec::new(),
            is_reached: false,
        }],
    }
}

fn ways(service: &str, cell: &Cell, causes: &[Broken], endpoints: &[EndpointRow]) -> Vec<Way> {
    let target = format!("{}/{}", cell.to(), cell.flow.proto);
    let concerns =
        |broken: &&Broken| broken.from.contains(&cell.client) && broken.to.contains(&target);
    let causes: Vec<&Broken> = causes.iter().filter(concerns).collect();
    let verdict = &cell.verdict;
    let beside = verdict.beside.as_ref();
    let mut ways: Vec<Way> = Vec::new();
    for (outcome, way) in cell.outcomes.iter().zip(&verdict.ways) {
        let fault = way.fault.as_ref();
        let mut stations = passed(outcome, cell.outcomes.len());
        let ended = fault.map(|fault| ended(fault, outcome, &causes));
        if let Some(ended) = ended {
            // The reply comes back from the endpoint.
            let comes_first = |station: &Station| {
                station.stage <= ended.stage && station.stage < Stage::Leave
                    || ended.stage >= Stage::Leave
            };
            stations.retain(comes_first);
            stations.push(ended);
        } else if verdict.fate != Fate::Works {
            let open = outcome.when.iter().map(|when| Station {
                stage: Stage::Translate,
                state: State::Open,
                text: format!("if {when}"),
                owner: None,
                node: None,
            });
            stations.extend(open);
        }
        stations.extend(beside.map(|fault| Station {
            stage: Stage::Enter,
            ..ended_by_fault(fault, outcome)
        }));
        stations.sort_by_key(|station| station.stage);
        let is_reached = !stations.iter().any(|station| {
            station.stage != Stage::Leave && matches!(station.state, State::Stops | State::Missing)
        });
        let is_translated = outcome.destination != (cell.flow.destination, cell.flow.port);
        let at_endpoint = stations
            .iter()
            .any(|station| station.stage == Stage::Endpoint);
        let ends = if is_translated || is_reached {
            vec![end(outcome, way.fault.is_none(), endpoints)]
        } else if at_endpoint {
            Vec::new()
        } else {
            let of_port = endpoints
                .iter()
                .filter(|endpoint| endpoint.service == service);
            let all = of_port.take(MOST_UNREACHED).map(|pair| End {
                share: None,
                ..known(pair.address.to_string(), Some(pair))
            });
            all.collect()
        };
        let next = Way {
            share: outcome.probability,
            fate: way.fate(),
            stations,
            ends,
            is_reached,
        };
        let same = |way: &&mut Way| {
            (way.fate, &way.stations, way.is_reached)
                == (next.fate, &next.stations, next.is_reached)
        };
        match ways.iter_mut().find(same) {
            Some(same) => {
                same.share += next.share;
                for end in next.ends {
                    if !same.ends.contains(&end) {
                        same.ends.push(end);
                    }
                }
            }
            None => ways.push(next),
        }
    }
    ways.sort_by_key(|way| way.fate);
    ways
}

/// Returns the end of a packet.
fn end(outcome: &Outcome, works: bool, endpoints: &[EndpointRow]) -> End {
    let (address, port) = outcome.destination;
    let at = SocketAddr::new(address, port);
    let row = endpoints.iter().find(|endpoint| endpoint.address == at);
    End {
        share: works.then_some(outcome.probability),
        ..known(at.to_string(), row)
    }
}

fn known(name: String, row: Option<&EndpointRow>) -> End {
    let state = row.and_then(|row| row.state);
    End {
        name,
        pod: row.and_then(|row| row.pod.clone()),
        node: row.and_then(|row| row.node.clone()),
        state: state.filter(|state| *state != EndpointState::Ready),
        share: None,
    }
}

/// Returns the stations that translate the packet, and the stations of other software that decide about it.
fn passed(outcome: &Outcome, outcomes: usize) -> Vec<Station> {
    let mut stations: Vec<Station> = Vec::new();
    for hop in &outcome.hops {
        let choice = match outcomes {
            1 => String::new(),
            count => format!(": 1 of {count}"),
        };
        let by = owner(hop);
        let (stage, text) = match &hop.effect {
            Effect::Dnat { .. } if by.is_some() => (Stage::Translate, place(hop)),
            Effect::Dnat { .. } => (Stage::Translate, format!("{}{choice}", mechanism(hop))),
            Effect::Balance { scheduler, .. } => {
                (Stage::Translate, format!("ipvs {scheduler}{choice}"))
            }
            Effect::Relay { .. } => (Stage::Translate, format!("kube-proxy{choice}")),
            Effect::Snat { address } | Effect::Masquerade { address } => {
                let to = address.map_or("unknown".to_owned(), |to| to.to_string());
                (Stage::Leave, format!("source: {to}"))
            }
            _ => continue,
        };
        let station = Station {
            stage,
            state: State::Passes,
            text,
            owner: by,
            node: None,
        };
        if !stations.contains(&station) {
            stations.push(station);
        }
    }
    stations
}

/// Returns what translates the packet.
const fn mechanism(hop: &Hop) -> &'static str {
    match hop.subsystem {
        Subsystem::Iptables => "iptables",
        Subsystem::IptablesOther => "other iptables",
        Subsystem::Nftables => "nftables",
        Subsystem::Arptables => "arptables",
        Subsystem::Ipvs => "ipvs",
        Subsystem::Routing => "route",
        Subsystem::Process => "kube-proxy",
    }
}

/// Returns the place of a rule.
fn place(hop: &Hop) -> String {
    match hop.number {
        _ if hop.chain.is_empty() => mechanism(hop).to_owned(),
        0 => format!("{} {} policy", hop.table, hop.chain),
        number => format!("{} {} rule {number}", hop.table, hop.chain),
    }
}

/// Returns the owner of a rule, unless that is kube-proxy or the kernel.
fn owner(hop: &Hop) -> Option<String> {
    if matches!(hop.subsystem, Subsystem::Ipvs | Subsystem::Routing) {
        return None;
    }
    match why::maker(hop) {
        Maker::Other(who) => Some(who.to_owned()),
        Maker::Kubelet => Some("the kubelet".to_owned()),
        Maker::Unknown => Some("not kube-proxy".to_owned()),
        Maker::KubeProxy | Maker::Both | Maker::Kernel => None,
    }
}

/// Returns the station at which packets end, for a known cause or else for the fault itself.
fn ended(fault: &Fault, outcome: &Outcome, causes: &[&Broken]) -> Station {
    let by_fault = ended_by_fault(fault, outcome);
    let stop = match fault {
        Fault::Stopped { hop, .. } => outcome.hops.get(*hop),
        _ => None,
    };
    // Of several causes, the one with the rule at which these packets end applies.
    let is_stop = |broken: &&&Broken| match (&broken.cause, stop) {
        (
            Cause::ForeignRule {
                table,
                chain,
                number,
                ..
            },
            Some(hop),
        ) => (table, chain, *number) == (&hop.table, &hop.chain, hop.number),
        _ => false,
    };
    let cause = causes.iter().find(is_stop).or(causes.first());
    match cause {
        Some(broken) if fault.fate().fails() => by_cause(broken, by_fault.stage),
        _ => by_fault,
    }
}

/// Returns the station of a cause, where packets end at the stage `at`.
fn by_cause(broken: &Broken, at: Stage) -> Station {
    Station {
        stage: stage_of_cause(&broken.cause).unwrap_or(at),
        state: match broken.degree {
            Degree::Breaks if broken.cause.is_absence() => State::Missing,
            Degree::Breaks => State::Stops,
            Degree::NotServed | Degree::Suspect => State::Open,
        },
        text: broken.cause.brief(),
        owner: broken.owner.clone(),
        node: broken.node.clone(),
    }
}

/// Returns the stage of a cause that is elsewhere than where the packets end.
const fn stage_of_cause(cause: &Cause) -> Option<Stage> {
    Some(match cause {
        Cause::NoService { .. }
        | Cause::Dns { .. }
        | Cause::DnsFails { .. }
        | Cause::NodeResolver { .. }
        | Cause::NoAddress { .. }
        | Cause::OfNode { .. }
        | Cause::NoNodePort { .. }
        | Cause::NoPort { .. }
        | Cause::ExternalName { .. }
        | Cause::OtherProxy { .. }
        | Cause::HeadlessLabel
        | Cause::NoClusterIp => Stage::Service,
        Cause::NoEndpoints { .. } | Cause::NoLocalEndpoints { .. } => Stage::Endpoint,
        _ => return None,
    })
}

/// Returns the station at which `fault` ends packets.
fn ended_by_fault(fault: &Fault, outcome: &Outcome) -> Station {
    if let Fault::There { node, fault, .. } = fault {
        return Station {
            node: Some(node.clone()),
            ..ended_by_fault(fault, outcome)
        };
    }
    let hop = match fault {
        Fault::Stopped { hop, .. } => outcome.hops.get(*hop),
        _ => None,
    };
    let state = match fault {
        Fault::Unknown(_) => State::Open,
        Fault::NoRoute { .. } | Fault::Untranslated { again: false, .. } => State::Missing,
        _ => State::Stops,
    };
    let text = match (fault, hop) {
        (_, Some(hop)) => match &hop.effect {
            Effect::Drop | Effect::Reject { .. } => {
                format!("{} {}", place(hop), hop.effect.verb())
            }
            Effect::NoServer { server, idle: 0 } => format!("{server} has no real server"),
            Effect::NoServer { server, .. } => {
                format!("{server}: no real server takes connections")
            }
            _ => fault.to_string(),
        },
        (Fault::Untranslated { again: false, .. }, None) => "no rule translates it".to_owned(),
        _ => fault.to_string(),
    };
    Station {
        stage: stage_of(fault, hop.map(AsRef::as_ref)),
        state,
        text,
        owner: hop.and_then(|hop| owner(hop)),
        node: None,
    }
}

/// Returns the stage at which packets with `fault` end.
fn stage_of(fault: &Fault, hop: Option<&Hop>) -> Stage {
    match fault {
        Fault::Stopped { .. } => hop.map_or(Stage::Forward, stage_of_hop),
        Fault::Stale { .. } | Fault::TableFull { .. } => Stage::Enter,
        Fault::NoBackend { .. }
        | Fault::NoEndpoints
        | Fault::Untranslated { .. }
        | Fault::NothingListens { .. }
        | Fault::NotOnLoopback { .. }
        | Fault::OtherProgram { .. } => Stage::Translate,
        Fault::NoRoute { .. }
        | Fault::NotForwarded { .. }
        | Fault::WrongWay { .. }
        | Fault::There { .. } => Stage::Forward,
        Fault::NoPod { .. }
        | Fault::NoLocalDns { .. }
        | Fault::NoEndpoint { .. }
        | Fault::Leftover { .. }
        | Fault::NotReady { .. } => Stage::Endpoint,
        Fault::Hairpin { .. }
        | Fault::HairpinPort { .. }
        | Fault::BypassedReply { .. }
        | Fault::DirectReply { .. }
        | Fault::SharedSource { .. }
        | Fault::ForeignSource { .. }
        | Fault::OtherLink { .. } => Stage::Leave,
        Fault::Obstacle(what) => match what.stage() {
            0..=3 => Stage::Enter,
            12.. => Stage::Endpoint,
            _ => Stage::Forward,
        },
        Fault::Unknown(missing) => match missing {
            Missing::Gap { .. } | Missing::Unmodelled(_) | Missing::Other(_) => Stage::Translate,
            Missing::Beyond { .. }
            | Missing::PodRoute { .. }
            | Missing::Queued { .. }
            | Missing::Thinned { .. } => Stage::Forward,
            Missing::Unannounced { .. } => Stage::Enter,
            Missing::WayBack { .. } => Stage::Leave,
            Missing::OtherMachine(_)
            | Missing::Vacant { .. }
            | Missing::External { .. }
            | Missing::Undeclared(_)
            | Missing::Unready { .. }
            | Missing::Waiting { .. }
            | Missing::Unread { .. }
            | Missing::Silent { .. } => Stage::Endpoint,
        },
    }
}

fn stage_of_hop(hop: &Hop) -> Stage {
    let is_kube_proxy = matches!(why::maker(hop), Maker::KubeProxy | Maker::Both);
    match hop.hook {
        _ if matches!(hop.effect, Effect::NoServer { .. }) || hop.table == "nat" => {
            Stage::Translate
        }
        Hook::Prerouting | Hook::Output if is_kube_proxy => Stage::Translate,
        Hook::Prerouting | Hook::Output => Stage::Enter,
        Hook::Input | Hook::Forward => Stage::Forward,
        Hook::Postrouting => Stage::Leave,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use kpx_judge::why::{Asked, Look};
    use kpx_node::evidence::{self, ITEMS};
    use kpx_node::net::Family;
    use kpx_node::node::NodeSnapshot;

    use super::*;
    use kpx_judge::verdict::Client;

    /// Recordings with every mode, rules of other software, missing rules, and Services that work.
    const RECORDINGS: [&str; 6] = [
        "faults-iptables",
        "faults-ipvs",
        "full-nftables",
        "ir03-missing-rule",
        "ir16-foreign-drops",
        "sy16-obstacles",
    ];

    /// Calls `each` with the picture of every Service of every recording.
    fn pictures(mut each: impl FnMut(&str, &Picture)) {
        for recording in RECORDINGS {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes");
            let evidence = evidence::load(&path.join(recording), ITEMS).unwrap();
            let node = NodeSnapshot::new(&evidence);
            let look = Look::new(&node, &Family::BOTH, &[]).unwrap();
            for service in node.services().unwrap() {
                let of = &service.metadata;
                let what = format!("{recording} {}/{}", of.namespace, of.name);
                let asked = Asked::parse(&format!("{}/{}", of.namespace, of.name)).unwrap();
                let answer = look.why(&asked, None).unwrap();
                let paths = answer.paths.iter();
                let picture = super::of(
                    paths.map(|path| (path.service.clone(), &path.cell)),
                    &answer.causes,
                    &answer.endpoints,
                );
                each(&what, &picture);
            }
        }
    }

    fn is_end(station: &Station) -> bool {
        matches!(station.state, State::Stops | State::Missing)
    }

    #[test]
    fn a_way_that_fails_has_a_station_that_says_so_and_one_that_works_has_none() {
        let (mut failing, mut working) = (0, 0);
        pictures(|what, picture| {
            for way in picture.strands.iter().flat_map(|strand| &strand.ways) {
                let ends: Vec<_> = way
                    .stations
                    .iter()
                    .filter(|station| is_end(station))
                    .collect();
                match way.fate {
                    Fate::Works => {
                        working += 1;
                        assert!(way.is_reached && !way.ends.is_empty(), "{what}: {way:?}");
                        assert!(ends.is_empty(), "{what}: {way:?}");
                    }
                    Fate::Unknown => {}
                    _ => {
                        failing += 1;
                        assert!(!ends.is_empty(), "{what}: {way:?}");
                        assert!(
                            ends.iter().all(|end| !end.text.is_empty()),
                            "{what}: {way:?}"
                        );
                    }
                }
            }
        });
        assert!(failing > 20 && working > 20, "{failing} {working}");
    }

    #[test]
    fn nothing_from_outside_passes_the_hook_of_the_node_itself() {
        let mut outside = 0;
        pictures(|what, picture| {
            for strand in &picture.strands {
                let is_outside = |(name, _): &(String, _)| name == Client::Outside.name();
                if !strand.clients.iter().any(is_outside) {
                    continue;
                }
                outside += 1;
                for station in strand.ways.iter().flat_map(|way| &way.stations) {
                    let text = station.text.to_lowercase();
                    assert!(!text.contains("output"), "{what}: {strand:?}");
                }
            }
        });
        assert!(outside > 5, "{outside}");
    }

    #[test]
    fn stations_are_in_the_order_of_the_way() {
        pictures(|what, picture| {
            for way in picture.strands.iter().flat_map(|strand| &strand.ways) {
                assert!(
                    way.stations.is_sorted_by_key(|station| station.stage),
                    "{what}: {way:?}"
                );
                let shares = way.ends.iter().filter_map(|end| end.share);
                assert!(shares.sum::<f64>() <= way.share + 1e-9, "{what}: {way:?}");
            }
        });
    }
}
