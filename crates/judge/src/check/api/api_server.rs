//! The API server's own Service.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::check::core::{MODE, NFT, REPLACED, REPLACEMENT, RULES, is_replaced};
use crate::check::{
    Because, Check, Example, Facts, Finding, Proof, ServiceRef, Severity, Subject, Text, Verdict,
    When,
};
use crate::trace::route::only_for_vrf;
use crate::trace::{Carried, Effect, Entry, Flow, Outcome, Subsystem, Verdict as End, World};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::{Family, Proto};
use kpx_node::node::IptablesBackend;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "AP12",
    name: "api-from-the-host",
    severity: Severity::Error,
    when: When::Now,
    title: "The node's own packets reach the API server's Service",
    symptom: "The node's agents log timeouts for https://10.96.0.1:443, while pods have no trouble; or nothing on the \
          node gets through.",
    why: "Processes in the node's network reach the API server through the Service kubernetes. If the rules do not \
          lead there, network plugins and everything that depends on them stop.",
    verify: "Trace a packet from the host, or request the version.",
    commands: &[
        Example::kpx(&["trace", "default/kubernetes", "--source", "host"]),
        Example::on_node("curl -sk https://10.96.0.1/version"),
    ],
    fix: Text::with(
        "Find the rule where the packet ends with {}, and correct it; if in doubt, restart kube-proxy.",
        &[Example::kpx(&[
            "trace",
            "default/kubernetes",
            "--source",
            "host",
        ])],
    ),
    incidents: &[
        "kubernetes/kubernetes#133773",
        "aws/containers-roadmap#2826",
    ],
    needs: &[
        MODE,
        RULES,
        NFT,
        REPLACEMENT,
        &[
            Item::EndpointSlices,
            Item::Sockets,
            Item::Tcp4,
            Item::Tcp6,
            Item::Udp4,
            Item::Udp6,
            Item::IptablesLegacy4,
            Item::IptablesLegacy6,
            Item::IptablesNft4,
            Item::IptablesNft6,
            Item::Ipset,
            Item::Ipvs,
            Item::IpvsSave,
            Item::IpvsStats,
            Item::IpvsTimeout,
            Item::Addresses,
            Item::Links,
            Item::Routes,
            Item::Rules,
            Item::Sysctl,
            Item::Services,
        ],
    ],
    caused_by: &[
        Because::Node("KM01"),
        Because::Node("DV01"),
        Because::Family("KP01"),
        Because::In("IR01"),
        Because::In("IB04"),
        Because::Services("IR16"),
        Because::Services("SV01"),
        Because::Services("IR03"),
        Because::Services("IR04"),
        Because::Services("NF02"),
        Because::Services("VS01"),
        Because::Services("VS07"),
        Because::Services("DV02"),
        Because::In("DV04"),
        Because::Services("SY16"),
    ],
    run: api,
}];

/// Returns the item with the rules that lead a packet in `mode`.
const fn path_item(mode: Mode, family: Family) -> Item {
    match mode {
        Mode::Nftables => Item::Nft,
        Mode::Iptables | Mode::Ipvs | Mode::Userspace => Item::iptables(family),
    }
}

fn api(facts: &Facts<'_>) -> Verdict {
    if facts.reported().is_err() && is_replaced(facts)? {
        return Err(Gap::NotApplicable(REPLACED.to_owned()));
    }
    let mode = facts.current()?;
    let services = facts.node.services()?.iter();
    let service = services
        .filter(|service| ServiceRef::from(*service).is_of_api())
        .find_map(|service| {
            Some((
                service.spec.cluster_ip.parse::<IpAddr>().ok()?,
                service.spec.ports.first()?.port,
            ))
        });
    let Some((destination, port)) = service else {
        return Err(Gap::NotApplicable(
            "the Service default/kubernetes does not exist".to_owned(),
        ));
    };
    let flow = Flow {
        entry: Entry::Host,
        source: None,
        destination,
        port,
        mark: 0,
        carried: Carried::default(),
        proto: Proto::Tcp,
        established: false,
    };
    let family = Family::of(destination);
    // Without the rules of its mode, the path is unknown.
    match mode {
        Mode::Nftables => {
            facts.node.nft()?;
        }
        Mode::Iptables | Mode::Userspace => {
            facts.node.saved(IptablesBackend::InUse, family)?;
        }
        Mode::Ipvs => {
            facts.node.saved(IptablesBackend::InUse, family)?;
            facts.node.ipvs()?;
        }
    }
    let world = World::whole(facts.node, family);
    let outcomes = world.walk(&flow).map_err(|need| {
        let why = format!("chain {} of table {} is missing", need.chain, need.table);
        Gap::Failed(Item::iptables(family), why)
    })?;
    let is_lost = |outcome: &&Outcome| {
        matches!(
            outcome.verdict,
            End::Reject | End::Drop | End::Unmatched | End::Local
        )
    };
    // A loss under an unknown condition is not certain.
    let (open, certain): (Vec<_>, Vec<_>) = outcomes
        .iter()
        .filter(is_lost)
        .partition(|outcome| !outcome.when.is_empty());
    let unsure = |why: String| {
        let why = format!("the path of the packet is unknown: {why}");
        Err(Gap::Failed(path_item(mode, family), why))
    };
    if let Some(why) = certain
        .iter()
        .find_map(|outcome| only_for_vrf(facts.node, outcome))
    {
        return unsure(why);
    }
    // After the translation, a rule that stops the packet is about its new destination.
    let dropped: Option<Vec<Subject>> = certain
        .iter()
        .map(|outcome| dropping(outcome, family))
        .collect();
    let ends = certain.iter().map(|outcome| outcome.destination.0);
    let ends: BTreeSet<IpAddr> = ends.filter(|end| *end != destination).collect();
    let lost: Vec<_> = certain
        .into_iter()
        .map(|outcome| {
            Proof::Note(format!(
                "{destination}:{port} from the host: {}",
                outcome.reason
            ))
        })
        .collect();
    if lost.is_empty() {
        let mut unknown = outcomes
            .iter()
            .filter(|outcome| outcome.verdict == End::Unknown);
        let why = unknown.next().map(|unknown| unknown.reason.clone());
        let why = why.or_else(|| Some(open.first()?.when.first()?.to_string()));
        return why.map_or_else(|| Ok(Vec::new()), unsure);
    }
    let message = "packets from the node to the API server's Service do not reach an endpoint";
    Ok(vec![
        Finding::new(
            Severity::Error,
            ServiceRef::new("default", "kubernetes"),
            message,
        )
        .of_family(family)
        .through(match dropped {
            Some(chains) => chains,
            None if ends.is_empty() => vec![Subject::chain(None, "nat", "OUTPUT")],
            None => ends.into_iter().map(Subject::from).collect(),
        })
        .evidence(lost),
    ])
}

/// Returns the chain that the kubelet and kube-proxy share, if a rule in it drops the packet of `outcome`: the rule is the fault.
fn dropping(outcome: &Outcome, family: Family) -> Option<Subject> {
    let hop = outcome.hops.last()?;
    let is_end = matches!(hop.effect, Effect::Drop | Effect::Reject { .. });
    let is_shared = hop.subsystem == Subsystem::Iptables && hop.chain == "KUBE-FIREWALL";
    (is_end && is_shared).then(|| Subject::chain(family, &*hop.table, &*hop.chain))
}
