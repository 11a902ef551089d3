//! Tracked connections to endpoints that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use crate::backend::Mode;
use crate::backend::ipvs::model::DUMMY;
use crate::check::core::{MODE, if_recorded};
use crate::check::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::evidence::{Gap, Item};
use crate::net::Proto;
use crate::node::conntrack::Entry;
use crate::owner::{EndpointState, Owners, Port};
use crate::words::number_of;

const FLOWS: &[Item] = &[
    Item::Conntrack,
    Item::Services,
    Item::EndpointSlices,
    Item::Addresses,
];

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "CT02",
        name: "stale-udp",
        severity: Severity::Error,
        when: When::Now,
        title: "UDP flows to Services go to existing endpoints",
        symptom: "DNS, syslog or another UDP client that never stops sending gets no answers after a pod was replaced.",
        why: "The kernel translates a UDP flow like its first packet, as long as packets keep coming. kube-proxy \
              deletes the entries of endpoints that go; if it misses some, a busy client sends to a dead address \
              forever.",
        verify: "Look for entries whose reply source is not an endpoint.",
        commands: &["conntrack -L -p udp --orig-dst ADDRESS --orig-port-dst PORT"],
        fix: "Delete the entries with `conntrack -D`; the next packet creates a correct one.",
        incidents: &[
            "kubernetes/kubernetes#125467",
            "kubernetes/kubernetes#19029",
            "kubernetes/kubernetes#48370",
        ],
        needs: &[FLOWS],
        caused_by: &[],
        run: stale_udp,
    },
    Check {
        id: "CT03",
        name: "udp-without-endpoints",
        severity: Severity::Error,
        when: When::Now,
        title: "No UDP flow continues to a Service without endpoints",
        symptom: "After a Service lost all its endpoints and got new ones, a UDP client still gets no answers; the \
              node spends its time in softirq.",
        why: "Since 1.32 kube-proxy's clean-up of conntrack skips Services without endpoints, so flows to the last \
              endpoint stay as long as the client keeps sending.",
        verify: "Look for UDP entries to the Service's address.",
        commands: &["conntrack -L -p udp --orig-dst ADDRESS"],
        fix: "Delete the entries with `conntrack -D`: no release since 1.32 deletes them.",
        incidents: &["kubernetes/kubernetes#139628: packets lost for 13 hours"],
        needs: &[FLOWS],
        caused_by: &[],
        run: udp_without_endpoints,
    },
    Check {
        id: "CT04",
        name: "untranslated-udp",
        severity: Severity::Error,
        when: When::Now,
        title: "No UDP flow to a Service is untranslated",
        symptom: "A UDP client that started while kube-proxy was away, or during a switch of the mode, gets no \
              answers.",
        why: "A flow whose first packet matched no rule is tracked unchanged, towards the Service's address itself, \
              as long as packets keep coming.",
        verify: "Look for entries whose reply source is the Service's address.",
        commands: &["conntrack -L -p udp --orig-dst ADDRESS --reply-src ADDRESS"],
        fix: "Delete the entries with `conntrack -D`; the next packet creates a correct one.",
        incidents: &["kubernetes/kubernetes#122740"],
        needs: &[MODE, FLOWS],
        caused_by: &[],
        run: untranslated_udp,
    },
    Check {
        id: "CT06",
        name: "ipvs-connections",
        severity: Severity::Warning,
        when: When::For(&[Mode::Iptables, Mode::Nftables]),
        title: "No connection uses IPVS any more",
        symptom: "After the switch, established connections hang or are reset.",
        why: "Connections that conntrack translated survive a switch of the mode. An IPVS connection lives in its own \
              table: it ends when the virtual server is removed, which kube-proxy does at once when it starts in \
              nftables mode.",
        verify: "Count the established connections.",
        commands: &["ipvsadm -Lnc | grep -c ESTABLISHED"],
        fix: "Drain the node first, or switch it when few connections are open.",
        incidents: &["measured with a real kube-proxy"],
        needs: &[MODE, &[Item::IpvsConnections]],
        caused_by: &[],
        run: connections,
    },
];

/// Calls `each` with every UDP flow to a Service, its Service port, and the source of its replies.
fn udp_flows(
    facts: &Facts<'_>,
    mut each: impl FnMut(&Entry, &Port, SocketAddr),
) -> Result<(), Gap> {
    let flows = facts.node.conntrack()?;
    // Without these, every endpoint would seem to be missing.
    facts.node.services()?;
    facts.node.slices()?;
    let addresses = facts.node.addresses()?;
    let local: BTreeSet<IpAddr> = addresses.all.iter().map(|at| at.addr.addr).collect();
    let owners = Owners::new(facts.node);
    for entry in flows
        .entries
        .iter()
        .filter(|entry| entry.proto == Proto::Udp)
    {
        let to = entry.original.destination;
        let at = owners
            .at(to.ip(), to.port(), Proto::Udp)
            .map(|(port, _)| port);
        let at = at.or_else(|| {
            let ours = local.contains(&to.ip());
            ours.then(|| owners.node_port(to.port(), Proto::Udp))
                .flatten()
        });
        if let Some(port) = at.filter(|port| port.left_to.is_none()) {
            each(entry, port, entry.reply.source);
        }
    }
    Ok(())
}

fn serves(port: &Port, addr: SocketAddr) -> bool {
    let mut all = port.endpoints.iter();
    all.any(|e| e.addr == addr && takes(e.state))
}

fn takes(state: Option<EndpointState>) -> bool {
    // Assume that an endpoint in an unknown state serves.
    !matches!(
        state,
        Some(EndpointState::NotReady | EndpointState::Terminating)
    )
}

fn connection(entry: &Entry) -> Proof {
    Proof::Connection(format!(
        "udp {} to {}, replies from {}",
        entry.original.source, entry.original.destination, entry.reply.source
    ))
}

/// Returns a finding for each Service port with flows that `wrong` selects.
fn flows(
    facts: &Facts<'_>,
    message: &str,
    wrong: impl Fn(&Port, SocketAddr, &Entry) -> bool,
) -> Verdict {
    let mut by_port: BTreeMap<(String, SocketAddr), Vec<Proof>> = BTreeMap::new();
    udp_flows(facts, |entry, port, from| {
        if wrong(port, from, entry) {
            let name = format!("{}/{}", port.name.namespace, port.name.name);
            let to = entry.original.destination;
            by_port
                .entry((name, to))
                .or_default()
                .push(connection(entry));
        }
    })?;
    Ok(by_port
        .into_iter()
        .map(|((name, to), seen)| {
            let command = format!(
                "conntrack -D -p udp --orig-dst {} --orig-port-dst {}",
                to.ip(),
                to.port()
            );
            Finding::new(Severity::Error, format!("{name} {to}"), message)
                .evidence(seen)
                .fix_with(
                    "Delete the entries; the next packet creates correct ones.",
                    command,
                )
        })
        .collect())
}

fn stale_udp(facts: &Facts<'_>) -> Verdict {
    let message = "UDP flows go to an endpoint that no longer exists";
    flows(facts, message, |port, from, entry| {
        let any = port.endpoints.iter().any(|e| takes(e.state));
        any && from != entry.original.destination && !serves(port, from)
    })
}

fn udp_without_endpoints(facts: &Facts<'_>) -> Verdict {
    let message = "UDP flows continue, although the Service has no endpoints";
    flows(facts, message, |port, from, entry| {
        let any = port.endpoints.iter().any(|e| takes(e.state));
        !any && from != entry.original.destination
    })
}

fn untranslated_udp(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let addresses = facts.node.addresses()?;
    // The node itself answers: NodeLocal DNS, or a process that listens on a NodePort.
    let answered: BTreeSet<IpAddr> = addresses
        .all
        .iter()
        .filter(|at| at.link != DUMMY || mode != Mode::Ipvs)
        .map(|at| at.addr.addr)
        .collect();
    let message = "UDP flows to the Service's address are not translated";
    flows(facts, message, |port, from, entry| {
        let any = port.endpoints.iter().any(|e| takes(e.state));
        any && from == entry.original.destination
            && !serves(port, from)
            && !answered.contains(&from.ip())
    })
}

fn connections(facts: &Facts<'_>) -> Verdict {
    let current = facts.current()?;
    if current != Mode::Ipvs {
        return Err(Gap::NotApplicable(format!("the mode is {current} now")));
    }
    let open = if_recorded(facts.node.ipvs_connections())?.all.iter();
    let open: Vec<_> = open.filter(|of| of.state == "ESTABLISHED").collect();
    if open.is_empty() {
        return Ok(Vec::new());
    }
    let message = match facts.target {
        Some(Mode::Nftables) => {
            "kube-proxy ends these IPVS connections at once when it starts in nftables mode"
        }
        _ => {
            "these IPVS connections end when the virtual servers are removed; the switch itself keeps them"
        }
    };
    let seen = open.iter().map(|of| {
        Proof::Connection(format!(
            "{} {} to {}, served by {}",
            of.proto, of.client, of.server, of.real
        ))
    });
    let count = number_of(open.len(), "connection");
    Ok(vec![
        Finding::new(Severity::Warning, count, message).evidence(seen),
    ])
}
