//! SY: kernel settings that a mode depends on.

use super::ask::{number, recorded, seen, setting};
use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::iptables::model::Target;
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::Store;
use crate::node::modules::Standing;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "SY02",
        name: "ipvs-conntrack",
        severity: Severity::Error,
        when: When::Now,
        title: "IPVS keeps its connections in conntrack",
        symptom: "NodePorts and pods behind their own Service time out: the answers go past this node.",
        why: "kube-proxy masquerades IPVS traffic with iptables, which works only on tracked connections. It sets \
              net.ipv4.vs.conntrack to 1 at its start and does not look again.",
        verify: "The setting must be 1 in ipvs mode.",
        commands: &["sysctl net.ipv4.vs.conntrack"],
        fix: "Set it to 1, and find out what set it back.",
        incidents: &[
            "kube-proxy sets it since the ipvs mode exists: without it masquerading does nothing",
        ],
        needs: &[MODE, &[Item::Sysctl]],
        caused_by: &[],
        run: conntrack,
    },
    Check {
        id: "SY03",
        name: "ipvs-connection-reuse",
        severity: Severity::Warning,
        when: When::Now,
        title: "IPVS treats reused client ports as this kernel needs it",
        symptom: "New connections wait a second now and then (old kernels), or go to pods that are gone (newer ones).",
        why: "A client that uses a port again soon meets an old entry of IPVS. Before kernel 5.9 conn_reuse_mode 1 made \
              such connections wait a second, so kube-proxy sets 0 there; from 5.9 on 1 is right and kube-proxy leaves \
              it alone, but a node image or an agent may still set 0, which sends them to the old pod.",
        verify: "The setting must be 0 before kernel 5.9 and 1 from then on.",
        commands: &["uname -r", "sysctl net.ipv4.vs.conn_reuse_mode"],
        fix: "Set the value that this kernel needs, and take the other one out of /etc/sysctl.d.",
        incidents: &[
            "kubernetes/kubernetes#70747",
            "kubernetes/kubernetes#81775",
            "kubernetes/kubernetes#93297",
        ],
        needs: &[MODE, &[Item::Sysctl, Item::KernelRelease]],
        caused_by: &[],
        run: reuse,
    },
    Check {
        id: "SY04",
        name: "ipvs-expire-nodest",
        severity: Severity::Warning,
        when: When::Now,
        title: "IPVS ends connections to pods that are gone",
        symptom: "Clients hang on connections to a pod that is gone instead of being reset.",
        why: "With net.ipv4.vs.expire_nodest_conn at 0, packets of a connection whose real server was removed vanish \
              until the entry times out. kube-proxy sets it to 1 at its start.",
        verify: "The setting must be 1 in ipvs mode.",
        commands: &["sysctl net.ipv4.vs.expire_nodest_conn"],
        fix: "Set it to 1, and find out what set it back.",
        incidents: &["kubernetes/kubernetes#77903", "kubernetes/kubernetes#81775"],
        needs: &[MODE, &[Item::Sysctl]],
        caused_by: &[],
        run: nodest,
    },
    Check {
        id: "SY05",
        name: "ipvs-expire-template",
        severity: Severity::Warning,
        when: When::Now,
        title: "IPVS forgets client affinity to pods that are gone",
        symptom: "Clients of a Service with sessionAffinity are sent to a pod that is gone, for hours.",
        why: "With net.ipv4.vs.expire_quiescent_template at 0 the entry that ties a client to a real server outlives it. \
              kube-proxy sets it to 1 at its start.",
        verify: "The setting must be 1 in ipvs mode where a Service has sessionAffinity.",
        commands: &["sysctl net.ipv4.vs.expire_quiescent_template"],
        fix: "Set it to 1, and find out what set it back.",
        incidents: &["kubernetes/kubernetes#71834", "kubernetes/kubernetes#81591"],
        needs: &[MODE, &[Item::Sysctl]],
        caused_by: &[],
        run: template,
    },
    Check {
        id: "SY06",
        name: "strict-arp",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "The node does not answer ARP for load-balancer addresses",
        symptom: "A load-balancer address that MetalLB or kube-vip announces answers from the wrong node, or flaps.",
        why: "In ipvs mode every node has every Service address on kube-ipvs0, and the kernel answers ARP for any address \
              it has, on any link. Who announces addresses by ARP needs strictARP, with which kube-proxy sets arp_ignore \
              to 1 and arp_announce to 2.",
        verify: "With strictARP, or with such an announcer on the node, arp_ignore must be 1 and arp_announce 2.",
        commands: &[
            "sysctl net.ipv4.conf.all.arp_ignore net.ipv4.conf.all.arp_announce",
            "arping -I LINK ADDRESS",
        ],
        fix: "Set ipvs.strictARP to true in kube-proxy's configuration and restart it; then see with arping that exactly \
              one machine answers.",
        incidents: &[
            "metallb/metallb#153",
            "kubermatic/kubermatic#7309",
            "kubernetes-sigs/kubespray#5180",
        ],
        needs: &[MODE, &[Item::Sysctl, Item::Pods]],
        caused_by: &[],
        run: strict_arp,
    },
    Check {
        id: "SY08",
        name: "route-localnet",
        severity: Severity::Warning,
        when: When::Now,
        title: "Nobody outside reaches the node's loopback addresses",
        symptom: "None until somebody on the same network uses it: daemons that listen on 127.0.0.1 are within reach.",
        why: "For NodePorts on localhost kube-proxy sets route_localnet, with which the kernel takes packets for 127.0.0.0/8 \
              from outside. A rule in KUBE-FIREWALL drops those that come from elsewhere.",
        verify: "Where route_localnet is 1, KUBE-FIREWALL must drop packets for 127.0.0.0/8 that do not come from there.",
        commands: &[
            "sysctl net.ipv4.conf.all.route_localnet",
            "iptables -S KUBE-FIREWALL",
        ],
        fix: "Set iptables.localhostNodePorts to false and route_localnet to 0, or restart kube-proxy, which writes the rule \
              again.",
        incidents: &[
            "kubernetes/kubernetes#90259: CVE-2020-8558",
            "kubernetes/kubernetes#114470",
        ],
        needs: &[&[Item::Sysctl, Item::Iptables4]],
        caused_by: &["IB07"],
        run: localnet,
    },
    Check {
        id: "SY11",
        name: "keepalive",
        severity: Severity::Info,
        when: When::Now,
        title: "Idle connections stay alive longer than IPVS remembers them",
        symptom: "Connections that are idle for a quarter of an hour (database pools) break with a reset.",
        why: "IPVS forgets a TCP connection that is idle for 900 seconds unless ipvs.tcpTimeout says otherwise. Keepalive \
              packets would prevent that, but by the kernel's default the first comes after 7200 seconds.",
        verify: "The keepalive time must be below the TCP timeout of IPVS.",
        commands: &["sysctl net.ipv4.tcp_keepalive_time", "ipvsadm -L --timeout"],
        fix: "Set tcp_keepalive_time below 900 in the pods (a safe sysctl) or raise ipvs.tcpTimeout.",
        incidents: &[
            "kubernetes/kubernetes#71358",
            "cloudnativelabs/kube-router#521",
            "terraform-aws-modules/terraform-aws-eks#3367: exhausted pools",
        ],
        needs: &[
            MODE,
            &[Item::Sysctl, Item::Ipvs, Item::IpvsSave, Item::IpvsTimeout],
        ],
        caused_by: &[],
        run: keepalive,
    },
    Check {
        id: "SY12",
        name: "local-port-range",
        severity: Severity::Warning,
        when: When::Now,
        title: "The kernel does not give out NodePorts as client ports",
        symptom: "Now and then a connection from the node times out: its answers are taken for NodePort traffic.",
        why: "A client socket gets a port of ip_local_port_range. If that is an allocated NodePort, the answers match the \
              rules for the NodePort. The kernel's default range begins above the NodePorts, but is often widened.",
        verify: "The range must not hold NodePorts, or ip_local_reserved_ports must hold them.",
        commands: &["sysctl net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports"],
        fix: "Reserve the range of NodePorts in ip_local_reserved_ports.",
        incidents: &[
            "kubernetes/kubernetes#111682",
            "kubernetes/kubernetes#111697",
            "awslabs/amazon-eks-ami#1307",
        ],
        needs: &[&[Item::Sysctl, Item::Services]],
        caused_by: &[],
        run: local_ports,
    },
    Check {
        id: "CT01",
        name: "conntrack-table",
        severity: Severity::Error,
        when: When::Now,
        title: "The table of tracked connections has room",
        symptom: "New connections fail at random under load; the kernel log says \"nf_conntrack: table full, dropping packet\".",
        why: "Every connection over a Service takes an entry. When the table is full the kernel drops the first packet of \
              every new connection, Service or not.",
        verify: "Compare the count with the maximum.",
        commands: &[
            "sysctl net.netfilter.nf_conntrack_count net.netfilter.nf_conntrack_max",
            "dmesg | grep 'nf_conntrack: table full'",
        ],
        fix: "Raise conntrack.maxPerCore in kube-proxy's configuration and restart it, and find out who opens so many.",
        incidents: &["kubernetes/kubernetes#18604"],
        needs: &[&[Item::Sysctl]],
        caused_by: &[],
        run: table_full,
    },
    Check {
        id: "CT07",
        name: "conntrack-timeouts",
        severity: Severity::Info,
        when: When::Now,
        title: "Connections are tracked as long as configured",
        symptom: "Idle connections break earlier, or the table grows larger, than the configuration suggests.",
        why: "kube-proxy sets two timeouts of TCP at its start. What writes them later (sysctl.d, tuned, another agent) wins.",
        verify: "Compare with conntrack.tcpEstablishedTimeout and conntrack.tcpCloseWaitTimeout.",
        commands: &["sysctl -a | grep nf_conntrack_tcp_timeout_"],
        fix: "Decide which value is meant, and say so in one place.",
        incidents: &["seen where tuned and kube-proxy both write it"],
        needs: &[&[Item::Sysctl, Item::ProxyConfig]],
        caused_by: &[],
        run: timeouts,
    },
    Check {
        id: "KM12",
        name: "conntrack-available",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "The kernel tracks connections",
        symptom: "kube-proxy restarts over and over with an error about nf_conntrack_max.",
        why: "kube-proxy sets net.netfilter.nf_conntrack_max at its start, and every mode translates addresses by \
              connection tracking. Without the module nf_conntrack there is neither.",
        verify: "The setting must be there.",
        commands: &[
            "cat /proc/sys/net/netfilter/nf_conntrack_max",
            "modprobe nf_conntrack",
        ],
        fix: "Load nf_conntrack before kube-proxy starts, and name it in /etc/modules-load.d.",
        incidents: &["kubernetes/kops#17915"],
        needs: &[&[Item::Sysctl, Item::Modules, Item::ModulesBuiltin]],
        caused_by: &[],
        run: tracking,
    },
];

/// Fails where `key` is not `want`.
fn must_be(facts: &Facts<'_>, severity: Severity, key: &str, want: &str, why: &str) -> Verdict {
    let value = setting(facts, key)?;
    if value == want {
        return Ok(Vec::new());
    }
    Ok(vec![
        Finding::new(severity, key, why)
            .seen([seen(key, value)])
            .mend_by(
                "Set it, and find out what set it back: kube-proxy sets it only at its start.",
                format!("sysctl -w {key}={want}"),
            ),
    ])
}

fn conntrack(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let why = "IPVS connections are not tracked: what needs masquerading gets no answers";
    must_be(facts, Severity::Error, "net.ipv4.vs.conntrack", "1", why)
}

fn reuse(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let (want, why) = if facts.kernel()? >= (5, 9) {
        ("1", "reused client ports stick to pods that are gone")
    } else {
        (
            "0",
            "on this kernel connections from reused client ports wait a second",
        )
    };
    must_be(
        facts,
        Severity::Warning,
        "net.ipv4.vs.conn_reuse_mode",
        want,
        why,
    )
}

fn nodest(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let why = "connections to pods that are gone hang instead of ending";
    must_be(
        facts,
        Severity::Warning,
        "net.ipv4.vs.expire_nodest_conn",
        "1",
        why,
    )
}

fn template(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let why = "clients with affinity stick to pods that are gone";
    must_be(
        facts,
        Severity::Warning,
        "net.ipv4.vs.expire_quiescent_template",
        "1",
        why,
    )
}

fn strict_arp(facts: &Facts<'_>) -> Verdict {
    // Pods whose names begin like this announce addresses by ARP.
    const ANNOUNCERS: [&str; 3] = ["speaker-", "metallb-speaker-", "kube-vip-"];
    facts.only_in(&[Mode::Ipvs])?;
    let strict = facts.configuration()?.ipvs.strict_arp;
    let pods = facts.node.pods();
    let announcer = pods.iter().flat_map(|pods| pods.iter()).find(|pod| {
        let name = &pod.metadata.name;
        ANNOUNCERS.iter().any(|prefix| name.starts_with(prefix))
    });
    if !strict && announcer.is_none() {
        let why = "strictARP is off, and no pod is known to announce addresses by ARP";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    if strict && facts.target.is_some() {
        // kube-proxy sets them when it starts in that mode.
        return Ok(Vec::new());
    }
    let mut wrong = Vec::new();
    for (key, want) in [
        ("net.ipv4.conf.all.arp_ignore", "1"),
        ("net.ipv4.conf.all.arp_announce", "2"),
    ] {
        let value = setting(facts, key)?;
        if value != want {
            wrong.push(seen(key, value));
        }
    }
    if wrong.is_empty() {
        return Ok(Vec::new());
    }
    let note = announcer.map(|pod| Proof::Note(format!("pod {} runs here", pod.metadata.name)));
    let message = "the node answers ARP for every Service address, though others announce them";
    Ok(vec![
        Finding::new(Severity::Error, "ARP", message)
            .seen(wrong)
            .seen(note),
    ])
}

fn localnet(facts: &Facts<'_>) -> Verdict {
    let key = "net.ipv4.conf.all.route_localnet";
    if setting(facts, key)? != "1" {
        return Ok(Vec::new());
    }
    let rules = facts.node.iptables(Store::InUse, Family::V4)?;
    let chain = rules.chain("filter", "KUBE-FIREWALL");
    let drops = chain.is_some_and(|chain| {
        chain.rules.iter().any(|rule| {
            let text = rule.to_string();
            rule.target == Some(Target::Drop) && text.contains("-d 127.0.0.0/8")
        })
    });
    if drops {
        return Ok(Vec::new());
    }
    let message = "packets for 127.0.0.0/8 from outside are let in: no rule drops them";
    Ok(vec![Finding::new(Severity::Warning, key, message).seen([
        seen(key, 1),
        Proof::Chain {
            family: Family::V4,
            table: "filter".to_owned(),
            chain: "KUBE-FIREWALL".to_owned(),
            rules: chain.map_or(0, |chain| chain.rules.len()),
        },
    ])])
}

fn table_full(facts: &Facts<'_>) -> Verdict {
    const COUNT: &str = "net.netfilter.nf_conntrack_count";
    const MOST: &str = "net.netfilter.nf_conntrack_max";
    if facts.node.sysctl()?.get(MOST).is_none() {
        return Err(Gap::NotApplicable("connections are not tracked".to_owned()));
    }
    let (count, most) = (number(facts, COUNT)?, number(facts, MOST)?);
    // Unlimited.
    if most == 0 || count * 10 <= most * 8 {
        return Ok(Vec::new());
    }
    let percent = count * 100 / most;
    let (severity, message) = if percent >= 95 {
        (
            Severity::Error,
            "the table is full, or as good as: new connections are dropped",
        )
    } else {
        (
            Severity::Warning,
            "the table of tracked connections is filling up",
        )
    };
    Ok(vec![
        Finding::new(severity, format!("conntrack {percent} %"), message)
            .seen([seen(COUNT, count), seen(MOST, most)])
            .mend_by(
                "Make room now, then raise conntrack.maxPerCore in kube-proxy's configuration.",
                format!("sysctl -w {MOST}={}", most * 2),
            ),
    ])
}

fn timeouts(facts: &Facts<'_>) -> Verdict {
    let config = &facts.node.proxy_config()?.conntrack;
    if facts
        .node
        .sysctl()?
        .get("net.netfilter.nf_conntrack_max")
        .is_none()
    {
        return Err(Gap::NotApplicable("connections are not tracked".to_owned()));
    }
    let mut findings = Vec::new();
    for (key, configured, default) in [
        (
            "net.netfilter.nf_conntrack_tcp_timeout_established",
            &config.tcp_established_timeout,
            86_400,
        ),
        (
            "net.netfilter.nf_conntrack_tcp_timeout_close_wait",
            &config.tcp_close_wait_timeout,
            3_600,
        ),
    ] {
        let want = match configured.as_deref().map(str::trim) {
            None | Some("") => default,
            Some(text) => match crate::cluster::config::go_duration(text) {
                Some(time) => time.as_secs(),
                None => continue,
            },
        };
        let have = number(facts, key)?;
        // Zero leaves the kernel's.
        if want != 0 && have != want {
            let message = format!("it is {have} s, while kube-proxy is configured for {want} s");
            findings.push(Finding::new(Severity::Info, key, message).seen([seen(key, have)]));
        }
    }
    Ok(findings)
}

fn tracking(facts: &Facts<'_>) -> Verdict {
    let key = "net.netfilter.nf_conntrack_max";
    let sysctl = facts.node.sysctl()?;
    if sysctl.get(key).is_some() || sysctl.get("net.nf_conntrack_max").is_some() {
        return Ok(Vec::new());
    }
    // A list of settings may be a part of what there is; the list of modules is whole.
    let modules = facts.node.modules()?;
    match (&modules.loaded, modules.standing("nf_conntrack")) {
        (None, _) | (_, Standing::Loaded | Standing::BuiltIn) => {
            return Err(Gap::Absent(Item::Sysctl, format!("{key} is not in it")));
        }
        _ => {}
    }
    let message = "the kernel does not track connections, which every mode needs";
    Ok(vec![
        Finding::new(Severity::Error, "nf_conntrack", message)
            .seen([seen(key, "missing")])
            .mend_by(
                "Load the module, and name it in /etc/modules-load.d so that it is there before kube-proxy.",
                "modprobe nf_conntrack",
            ),
    ])
}

fn keepalive(facts: &Facts<'_>) -> Verdict {
    const KEY: &str = "net.ipv4.tcp_keepalive_time";
    facts.only_in(&[Mode::Ipvs])?;
    recorded(facts, KEY)?;
    let idle = number(facts, KEY)?;
    let timeouts = facts
        .node
        .ipvs()?
        .timeouts
        .ok_or(Gap::NotCollected(Item::IpvsTimeout))?;
    if idle < u64::from(timeouts.tcp) {
        return Ok(Vec::new());
    }
    let message = format!(
        "idle connections break after {} s, before the first keepalive",
        timeouts.tcp
    );
    Ok(vec![
        Finding::new(Severity::Info, KEY, message).seen([seen(KEY, idle)]),
    ])
}

fn local_ports(facts: &Facts<'_>) -> Verdict {
    const RANGE: &str = "net.ipv4.ip_local_port_range";
    const RESERVED: &str = "net.ipv4.ip_local_reserved_ports";
    let services = facts.node.services()?;
    let mut ports: Vec<u16> = services
        .iter()
        .flat_map(|service| &service.spec.ports)
        .filter_map(|port| port.node_port)
        .collect();
    if ports.is_empty() {
        return Err(Gap::NotApplicable("no Service has a NodePort".to_owned()));
    }
    let text = recorded(facts, RANGE)?;
    let bad = || Gap::Failed(Item::Sysctl, format!("{RANGE} = {text:?} is not a range"));
    let mut words = text.split_ascii_whitespace().map(str::parse::<u16>);
    let (Some(Ok(first)), Some(Ok(last))) = (words.next(), words.next()) else {
        return Err(bad());
    };
    let reserved = setting(facts, RESERVED)?;
    let is_reserved = |port: u16| {
        reserved
            .split(',')
            .filter(|part| !part.is_empty())
            .any(|part| {
                let (from, to) = part.split_once('-').unwrap_or((part, part));
                let bounds = from
                    .trim()
                    .parse::<u16>()
                    .ok()
                    .zip(to.trim().parse::<u16>().ok());
                bounds.is_some_and(|(from, to)| (from..=to).contains(&port))
            })
    };
    ports.retain(|&port| (first..=last).contains(&port) && !is_reserved(port));
    ports.sort_unstable();
    ports.dedup();
    if ports.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<_> = ports.iter().take(5).map(ToString::to_string).collect();
    let message = "client sockets of the node may get the number of an allocated NodePort";
    Ok(vec![
        Finding::new(Severity::Warning, RANGE, message)
            .seen([
                seen(RANGE, text),
                seen(RESERVED, reserved),
                Proof::Note(format!("{} NodePorts, {} among them", ports.len(), names.join(", "))),
            ])
            .mend_by(
                "Reserve the range of NodePorts, and write the same to a file of /etc/sysctl.d so that it lasts.",
                format!("sysctl -w {RESERVED}=30000-32767"),
            ),
    ])
}
