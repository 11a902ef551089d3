//! VS, DV, SY, CT: the size of what IPVS holds, and what its link does to others.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::ask::{if_recorded, recorded, seen};
use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::ipvs::model::DUMMY;
use crate::backend::ipvs::print;
use crate::evidence::{Gap, Item};
use crate::node::desired::NEEDS;

const TABLE: &[Item] = &[
    Item::Ipvs,
    Item::IpvsSave,
    Item::IpvsStats,
    Item::IpvsTimeout,
];

/// So many addresses or virtual servers are many.
const MANY: usize = 5_000;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "VS06",
        name: "drained-servers",
        severity: Severity::Warning,
        when: When::Now,
        title: "No real server on its way out is held by old connections",
        symptom: "Clients keep talking to an address that is no pod's any more, and hang.",
        why: "kube-proxy sets the weight of a TCP endpoint that goes to 0 and removes the real server when its last \
              connection ends. Connections that never end, or whose client reuses the port, hold it for ever.",
        verify: "A real server of weight 0 must have no connections, or an endpoint that is still terminating.",
        commands: &["ipvsadm -Ln | grep ' 0 '", "ipvsadm -Lnc | grep ADDRESS"],
        fix: "Wait for the timeout of idle connections, 15 minutes; or delete the real server with `ipvsadm -d`, which \
              resets its connections.",
        incidents: &[
            "kubernetes/kubernetes#81775",
            "kubernetes/kubernetes#84322: NFS mounts hung",
            "kubernetes/kubernetes#99162",
        ],
        needs: &[MODE, TABLE, &[Item::IpvsConnections, Item::EndpointSlices]],
        caused_by: &["KM01"],
        run: drained,
    },
    Check {
        id: "VS10",
        name: "connection-table",
        severity: Severity::Warning,
        when: When::Now,
        title: "The connection table of IPVS has buckets enough",
        symptom: "Softirq time grows with the number of connections.",
        why: "IPVS finds a connection in a hash table whose size is fixed when the module is loaded: 4,096 buckets unless \
              the option conn_tab_bits says otherwise. With many connections each packet searches a long list.",
        verify: "Compare the size with the number of connections.",
        commands: &["head -1 /proc/net/ip_vs", "wc -l < /proc/net/ip_vs_conn"],
        fix: "Put `options ip_vs conn_tab_bits=18` into a file of /etc/modprobe.d and reboot the node.",
        incidents: &["cloudnativelabs/kube-router#544"],
        needs: &[MODE, TABLE, &[Item::IpvsConnections]],
        caused_by: &["KM01"],
        run: buckets,
    },
    Check {
        id: "SY13",
        name: "run-estimation",
        severity: Severity::Info,
        when: When::Now,
        title: "IPVS does not count rates for thousands of virtual servers",
        symptom: "Every two seconds packets wait for some milliseconds.",
        why: "IPVS works out the rates of every virtual and real server every two seconds, all at once in older kernels. \
              Few people look at them.",
        verify: "With many virtual servers the setting should be 0.",
        commands: &[
            "sysctl net.ipv4.vs.run_estimation",
            "ipvsadm -Ln | grep -cE '^(TCP|UDP|SCTP)'",
        ],
        fix: "Set it to 0 before the virtual servers are made, in a file of /etc/sysctl.d.",
        incidents: &["documented by Alibaba Cloud Linux, which added the setting"],
        needs: &[MODE, TABLE, &[Item::Sysctl]],
        caused_by: &["KM01"],
        run: estimation,
    },
    Check {
        id: "DV10",
        name: "source-address",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Iptables]),
        title: "No leftover of kube-ipvs0 gives the node a Service's address as source",
        symptom: "Processes of the node cannot reach Services, while pods can.",
        why: "For a destination on one of its own links the kernel chooses that same address as source. While kube-ipvs0 \
              holds a Service's address, the node's packets to it have it as source too, and the answer never leaves the \
              endpoint's node. The ipvs mode masquerades such packets; the iptables mode does only if it can tell that \
              they are not a pod's.",
        verify: "In iptables mode either kube-ipvs0 is gone, or clusterCIDR, detectLocalMode or masqueradeAll is set.",
        commands: &[
            "ip route get SERVICE-ADDRESS",
            "kubectl -n kube-system get configmap kube-proxy -o yaml | grep -E 'clusterCIDR|masqueradeAll'",
        ],
        fix: "Set clusterCIDR to the pods' prefixes, or masqueradeAll to true; remove kube-ipvs0 once nothing uses it.",
        incidents: &["aws/containers-roadmap#2826: the way from ipvs to iptables on EKS"],
        needs: &[MODE, NEEDS, &[Item::ConfigMaps]],
        caused_by: &[],
        run: source,
    },
    Check {
        id: "DV11",
        name: "detected-address",
        severity: Severity::Warning,
        when: When::Now,
        title: "No agent took a Service's address for the node's own",
        symptom: "Pods of this node are cut off from those of others: tunnels or routes lead to an address that every \
                  node has.",
        why: "Network plug-ins look for the node's address on its links, and some take the first one they find. On \
              kube-ipvs0 and on NodeLocal DNS's link that is an address all nodes have.",
        verify: "No annotation of the Node may name an address of these links.",
        commands: &[
            "kubectl get node NAME -o yaml | grep -A20 annotations",
            "ip addr show dev kube-ipvs0",
        ],
        fix: "Tell the plug-in which link or prefix to take the address from, and restart its agent.",
        incidents: &["projectcalico/calico#6910", "projectcalico/node#1170"],
        needs: &[&[Item::Addresses, Item::Nodes, Item::ProxyConfig]],
        caused_by: &[],
        run: detected,
    },
    Check {
        id: "DV12",
        name: "address-count",
        severity: Severity::Info,
        when: When::Now,
        title: "kube-ipvs0 does not hold thousands of addresses",
        symptom: "Agents that list the node's addresses are slow or noisy; `ip addr` takes seconds.",
        why: "Each address of a Service is one of kube-ipvs0. Node agents read, and report, all of them.",
        verify: "Count the addresses.",
        commands: &["ip -br addr show dev kube-ipvs0 | wc -w"],
        fix: "Tell agents to leave the link out, and plan the move to the nftables mode.",
        incidents: &["seen with node exporters and cloud agents"],
        needs: &[&[Item::Addresses]],
        caused_by: &[],
        run: address_count,
    },
    Check {
        id: "CT06",
        name: "ipvs-connections",
        severity: Severity::Warning,
        when: When::For(&[Mode::Iptables, Mode::Nftables]),
        title: "No connection needs IPVS any more",
        symptom: "After the move connections that were open before hang or are reset.",
        why: "What conntrack translated outlives a change of mode. A connection of IPVS lives in its table: it ends when the \
              virtual server is removed, which a start in nftables mode does at once.",
        verify: "Count the established connections.",
        commands: &["ipvsadm -Lnc | grep -c ESTABLISHED"],
        fix: "Drain the node first, or move it when few connections are open.",
        incidents: &["measured with a real kube-proxy"],
        needs: &[MODE, &[Item::IpvsConnections]],
        caused_by: &[],
        run: connections,
    },
];

fn drained(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let slices = facts.node.slices()?;
    let known: BTreeSet<IpAddr> = slices
        .iter()
        .flat_map(|slice| &slice.endpoints)
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|text| text.parse().ok())
        .collect();
    let mut findings = Vec::new();
    for server in &facts.node.ipvs()?.servers {
        for real in server.reals.iter().filter(|real| real.weight == 0) {
            if known.contains(&real.addr) {
                continue;
            }
            let held = if let Some(held) = real.connections {
                u64::from(held.active) + u64::from(held.inactive)
            } else {
                let all = if_recorded(facts.node.ipvs_connections())?.all.iter();
                let at = (real.addr, real.port).into();
                all.filter(|c| c.real == at && c.client.port() != 0).count() as u64
            };
            if held == 0 {
                continue;
            }
            let name = print::name(server.key);
            let message = "connections hold a real server whose endpoint is gone";
            let seen = Proof::object(
                "real-server",
                format!("{}:{} of {name}: {held} connections", real.addr, real.port),
            );
            findings.push(Finding::new(Severity::Warning, name, message).seen([seen]));
        }
    }
    Ok(findings)
}

fn buckets(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let Some(info) = facts.node.ipvs()?.info else {
        let why = "how many buckets the table has is not in what ipvsadm prints";
        return Err(Gap::NotApplicable(why.to_owned()));
    };
    let count = if_recorded(facts.node.ipvs_connections())?.all.len();
    let size = info.conn_tab_size as usize;
    if count <= size.saturating_mul(8) {
        return Ok(Vec::new());
    }
    let message = "there are more than eight connections to a bucket of the table";
    Ok(vec![
        Finding::new(Severity::Warning, "connections", message).seen([Proof::Note(format!(
            "{count} connections in {size} buckets"
        ))]),
    ])
}

fn estimation(facts: &Facts<'_>) -> Verdict {
    const KEY: &str = "net.ipv4.vs.run_estimation";
    facts.only_in(&[Mode::Ipvs])?;
    let count = facts.node.ipvs()?.servers.len();
    if count <= MANY || recorded(facts, KEY)? == "0" {
        return Ok(Vec::new());
    }
    let message = "IPVS works out rates for thousands of virtual servers every two seconds";
    Ok(vec![Finding::new(Severity::Info, KEY, message).seen([
        seen(KEY, 1),
        Proof::Note(format!("{count} virtual servers")),
    ])])
}

fn source(facts: &Facts<'_>) -> Verdict {
    let mode = facts.only_in(&[Mode::Iptables, Mode::Nftables])?;
    let held = facts.node.addresses()?.all.iter();
    let held = held.filter(|at| at.link == DUMMY && at.scope != "link");
    let mut held: Vec<_> = held.map(|at| at.addr.addr).collect();
    held.sort_unstable();
    if held.is_empty() {
        return Ok(Vec::new());
    }
    let desired = facts.node.desired(mode)?;
    if desired.masquerade_all {
        return Ok(Vec::new());
    }
    let blind = desired
        .families
        .iter()
        .filter(|state| state.detector.is_none());
    Ok(blind
        .filter_map(|state| {
            let ours: Vec<_> = held
                .iter()
                .filter(|ip| ip.is_ipv4() == state.node_ip.is_ipv4())
                .take(3)
                .map(|address| Proof::Address {
                    link: DUMMY.to_owned(),
                    address: *address,
                })
                .collect();
            // The move itself removes the link, later.
            let severity = match facts.target {
                Some(_) => Severity::Warning,
                None => Severity::Error,
            };
            let message = "the node's own packets to Services get a Service's address as source, and nothing masquerades them";
            (!ours.is_empty()).then(|| {
                Finding::new(severity, state.family.to_string(), message).seen(ours)
            })
        })
        .collect())
}

fn detected(facts: &Facts<'_>) -> Verdict {
    let links = facts.node.addresses()?.all.iter();
    let shared: BTreeMap<IpAddr, &str> = links
        .filter(|at| at.link == DUMMY || super::dummy::is_dns(&at.link))
        .map(|at| (at.addr.addr, at.link.as_str()))
        .collect();
    let node = facts.this_node()?;
    let mut findings = Vec::new();
    for (key, value) in &node.metadata.annotations {
        let address = value.split('/').next().unwrap_or(value);
        let Some((ip, link)) = address
            .parse()
            .ok()
            .and_then(|ip| shared.get_key_value(&ip))
        else {
            continue;
        };
        let message = "an agent took an address that all nodes have for this node's own";
        findings.push(Finding::new(Severity::Warning, key.clone(), message).seen([
            Proof::setting("the Node", key, value),
            Proof::Address {
                link: (*link).to_owned(),
                address: *ip,
            },
        ]));
    }
    Ok(findings)
}

fn address_count(facts: &Facts<'_>) -> Verdict {
    let held = facts.node.addresses()?.all.iter();
    let count = held.filter(|at| at.link == DUMMY).count();
    if count <= MANY {
        return Ok(Vec::new());
    }
    let message = "the link holds so many addresses that listing them is slow";
    let seen = Proof::Note(format!("{count} addresses"));
    Ok(vec![
        Finding::new(Severity::Info, DUMMY, message).seen([seen]),
    ])
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
        Some(Mode::Nftables) => "the start in nftables mode ends these connections at once",
        _ => {
            "these connections end with the virtual servers, which the move itself leaves in place"
        }
    };
    let seen = open.iter().map(|of| {
        Proof::Connection(format!(
            "{} {} to {}, served by {}",
            of.proto, of.client, of.server, of.real
        ))
    });
    let count = open.len();
    let s = if count == 1 { "" } else { "s" };
    Ok(vec![
        Finding::new(Severity::Warning, format!("{count} connection{s}"), message).seen(seen),
    ])
}
