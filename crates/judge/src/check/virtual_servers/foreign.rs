//! Virtual servers of other software.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::check::core::{Collector, Source};
use crate::check::drift::DRIFT;
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict, When,
};
use crate::diff::Layer;
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::Key;
use kpx_node::backend::ipvs::print;
use kpx_node::evidence::Item;
use kpx_node::net::{Cidr, Family};
use kpx_node::node::desired::NEEDS;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "VS03",
    name: "foreign-virtual-servers",
    severity: Severity::Error,
    when: When::NowAndFor(&[Mode::Ipvs, Mode::Nftables]),
    title: "excludeCIDRs names the virtual servers of other software",
    symptom: "A load balancer next to Kubernetes (keepalived, LVS) loses its virtual servers when kube-proxy syncs, \
          or a deleted Service still answers.",
    why: "kube-proxy deletes every virtual server that no Service needs, unless ipvs.excludeCIDRs contains its \
          address. Its clean-up when the mode changes clears the whole table regardless of that setting.",
    verify: "Each virtual server must belong to a Service, or its address must be in excludeCIDRs.",
    commands: &[
        Example::on_node("ipvsadm -Ln"),
        Example::anywhere(
            "kubectl -n kube-system get configmap kube-proxy -o yaml | grep -A3 excludeCIDRs",
        ),
    ],
    fix: Text::plain(
        "If it belongs to other software, add its address to ipvs.excludeCIDRs and restart kube-proxy. Otherwise it \
          belongs to a deleted Service: restart kube-proxy on this node.",
    ),
    incidents: &[
        "kubernetes/kube-proxy#6",
        "kubernetes/kubernetes#59507",
        "kubernetes/kubernetes#76267",
        "kubernetes/kubernetes#85799",
    ],
    needs: &[NEEDS, DRIFT, &[Item::Modules, Item::Pods, Item::ConfigMaps]],
    caused_by: &[],
    run: |facts| match facts.target() {
        Some(Mode::Ipvs) => unprotected_servers(facts),
        Some(_) => cleared_servers(facts),
        None => of_no_service(facts),
    },
}];

/// Finds virtual servers of no Service that kube-proxy deletes, or leaves as excludeCIDRs contains the range of Services.
fn of_no_service(facts: &Facts<'_>) -> Verdict {
    let found = facts.drifted("VS03", &[Mode::Ipvs], Layer::Ipvs)?;
    let excluded = facts
        .configuration()
        .map_or_else(|_| Vec::new(), |config| config.exclude_cidrs());
    let services = facts.node.services().map_or(&[][..], Vec::as_slice);
    let ips = services.iter().map(|service| &service.spec.cluster_ip);
    let ips: Vec<IpAddr> = ips.filter_map(|ip| ip.parse().ok()).collect();
    let of_services = excluded
        .iter()
        .find(|cidr| !cidr.is_host() && ips.iter().any(|ip| cidr.contains(*ip)));
    let Some(range) = of_services else {
        return Ok(found);
    };
    let fix = |finding: Finding| {
        finding.fix(Fix::kubectl(
            format!(
                "Take {range}, in which Services have their addresses, out of ipvs.excludeCIDRs, and restart kube-proxy: until then, it \
                 leaves the virtual servers of deleted Services there."
            ),
            "kubectl -n kube-system edit configmap kube-proxy",
        ))
    };
    Ok(found.into_iter().map(fix).collect())
}

/// Returns the virtual servers of other software, and notes in `all` the gaps.
fn foreign_servers(facts: &Facts<'_>, all: &mut Collector) -> Vec<Key> {
    if facts.node.has_no_ipvs() {
        all.add(Ok(Vec::new()));
        return Vec::new();
    }
    let Some(table) = all.read(facts.node.ipvs_or_none()) else {
        return Vec::new();
    };
    let is_addressed = |key: &Key| matches!(key, Key::Address { .. });
    let keys = table.servers.iter().map(|server| server.key);
    let (addressed, mut foreign): (Vec<_>, Vec<_>) = keys.partition(is_addressed);
    // Without Services and addresses, kube-proxy's virtual servers cannot be distinguished from others. It creates none by
    // firewall mark.
    if addressed.is_empty()
        || all.read(facts.node.services()).is_some() & all.read(facts.node.addresses()).is_some()
    {
        foreign.extend(addressed.into_iter().filter(|key| match *key {
            Key::Address { addr, port, .. } => !facts.node.owns_server(addr, port),
            Key::Fwmark { .. } => true,
        }));
    }
    foreign
}

/// Finds virtual servers of other software whose addresses excludeCIDRs does not contain.
fn unprotected_servers(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    let foreign = foreign_servers(facts, &mut findings);
    if foreign.is_empty() {
        return findings.verdict();
    }
    let config = facts.configuration()?;
    let excluded = config.exclude_cidrs();
    let mut seen = Vec::new();
    let mut wanted: BTreeSet<String> = config.ipvs.exclude_cidrs.iter().cloned().collect();
    for key in foreign {
        // A virtual server by firewall mark has no address, and kube-proxy ignores it.
        let Key::Address { addr, .. } = key else {
            continue;
        };
        let kept = |cidr: &Cidr| cidr.contains(addr);
        if !excluded.iter().any(kept) {
            wanted.insert(format!("{addr}/{}", Family::of(addr).bits()));
            seen.push(Proof::object("virtual-server", print::name(key)));
        }
    }
    if seen.is_empty() {
        return findings.verdict();
    }
    let list: Vec<_> = wanted.iter().map(String::as_str).collect();
    let list = format!("[{}]", list.join(", "));
    let message = "kube-proxy in ipvs mode deletes virtual servers of other software unless excludeCIDRs contains them";
    let finding = Finding::new(Severity::Warning, Subject::VirtualServers, message).evidence(seen);
    let when = "kube-proxy reads it when it starts in the new mode.";
    findings.push(match command(facts, &list) {
        Some(command) => finding.fix(Fix::kubectl(
            format!("Add their addresses to excludeCIDRs before the switch: {when}"),
            command,
        )),
        None => finding.fix(format!(
            "Set ipvs.excludeCIDRs to {list} in kube-proxy's configuration before the switch: {when}"
        )),
    });
    findings.verdict()
}

/// Returns the command that sets ipvs.excludeCIDRs to `list`, if it is empty as kubeadm writes it.
fn command(facts: &Facts<'_>, list: &str) -> Option<String> {
    const EMPTY: [(&str, &str); 2] = [
        ("excludeCIDRs: null", "excludeCIDRs: null"),
        ("excludeCIDRs: []", r"excludeCIDRs: \[\]"),
    ];
    let (name, text) = match facts.source() {
        Source::Map { map, text } => (map.metadata.name.as_str(), text),
        Source::Unread(_) => return None,
        Source::Unknown => ("kube-proxy", facts.config_map_text().ok()?),
    };
    let lines = |empty: &str| text.lines().filter(|line| line.trim() == empty).count();
    let (_, pattern) = EMPTY.iter().find(|(empty, _)| lines(empty) == 1)?;
    Some(format!(
        "kubectl -n kube-system get configmap {name} -o yaml | sed 's|{pattern}|excludeCIDRs: {list}|' | kubectl replace -f -"
    ))
}

/// Finds virtual servers of other software, which kube-proxy clears when it starts in nftables mode.
fn cleared_servers(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    let foreign = foreign_servers(facts, &mut findings);
    let message =
        "kube-proxy clears this virtual server of other software when it starts in nftables mode";
    findings.extend(foreign.into_iter().map(|key| {
        let name = print::name(key);
        Finding::new(Severity::Error, Subject::server(key), message)
            .evidence([Proof::object("virtual-server", name)])
            .fix("Move the other software's virtual servers to another machine first, or keep this node in its mode.")
    }));
    findings.verdict()
}
