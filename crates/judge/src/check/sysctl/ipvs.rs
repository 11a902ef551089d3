//! Sysctls of the ipvs mode.

use crate::check::core::{IPVS_TABLE, MODE, number, setting, sysctl_proof};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict, When,
};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::requirements::conn_reuse_mode;
use kpx_node::backend::requirements::By;
use kpx_node::evidence::{Gap, Item};

/// From this number on, addresses or virtual servers are many.
const MANY: usize = 5_000;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "SY02",
        name: "ipvs-conntrack",
        severity: Severity::Error,
        when: When::Now,
        title: "IPVS connections are tracked by conntrack",
        symptom: "NodePorts, and pods that connect to their own Service, time out: replies bypass this node.",
        why: "kube-proxy masquerades IPVS traffic with iptables, which needs tracked connections. It sets \
              net.ipv4.vs.conntrack to 1 when it starts and does not check it again.",
        verify: "The sysctl must be 1 in ipvs mode.",
        commands: &[Example::on_node("sysctl net.ipv4.vs.conntrack")],
        fix: Text::plain("Run `sysctl -w net.ipv4.vs.conntrack=1`, and find out what changed it."),
        incidents: &[
            "kube-proxy has set it since the ipvs mode exists: without it masquerading has no effect",
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
        title: "conn_reuse_mode is right for this kernel",
        symptom: "New connections sometimes wait a second (old kernels), or reach pods that no longer exist (newer \
              ones).",
        why: "A client that soon reuses a port meets an old entry of IPVS. Before kernel 5.9, conn_reuse_mode 1 \
              delayed such connections by a second, so kube-proxy sets 0 there. Since 5.9 the value 1 is right and \
              kube-proxy leaves it alone, but a node image or an agent may still set 0, which sends them to the old \
              pod.",
        verify: "The sysctl must be 0 before kernel 5.9 and 1 since then.",
        commands: &[
            Example::on_node("uname -r"),
            Example::on_node("sysctl net.ipv4.vs.conn_reuse_mode"),
        ],
        fix: Text::plain(
            "Set the value that this kernel needs, and remove the other one from /etc/sysctl.d.",
        ),
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
        title: "IPVS ends connections to pods that no longer exist",
        symptom: "Clients hang on connections to a pod that no longer exists instead of being reset.",
        why: "If net.ipv4.vs.expire_nodest_conn is 0, packets of a connection whose real server was removed are lost \
              until the entry times out. kube-proxy sets it to 1 when it starts.",
        verify: "The sysctl must be 1 in ipvs mode.",
        commands: &[Example::on_node("sysctl net.ipv4.vs.expire_nodest_conn")],
        fix: Text::plain(
            "Run `sysctl -w net.ipv4.vs.expire_nodest_conn=1`, and find out what changed it.",
        ),
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
        title: "IPVS drops client affinity to pods that no longer exist",
        symptom: "Clients of a Service with sessionAffinity are sent to a pod that no longer exists, for hours.",
        why: "If net.ipv4.vs.expire_quiescent_template is 0, the entry that binds a client to a real server outlives \
              the real server. kube-proxy sets it to 1 when it starts.",
        verify: "The sysctl must be 1 in ipvs mode if a Service has sessionAffinity.",
        commands: &[Example::on_node(
            "sysctl net.ipv4.vs.expire_quiescent_template",
        )],
        fix: Text::plain(
            "Run `sysctl -w net.ipv4.vs.expire_quiescent_template=1`, and find out what changed it.",
        ),
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
        title: "The node does not answer ARP for load balancer addresses",
        symptom: "A load balancer address that MetalLB or kube-vip announces answers from the wrong node, or flaps.",
        why: "In ipvs mode every node has every Service address on kube-ipvs0, and the kernel answers ARP for any of \
              its addresses on any link. Software that announces addresses by ARP needs strictARP, with which \
              kube-proxy sets arp_ignore to 1 and arp_announce to 2.",
        verify: "With strictARP, or with such software on the node, arp_ignore must be 1 and arp_announce 2.",
        commands: &[
            Example::on_node("sysctl net.ipv4.conf.all.arp_ignore net.ipv4.conf.all.arp_announce"),
            Example::on_node("arping -I LINK ADDRESS").with(&["LINK", "ADDRESS"]),
        ],
        fix: Text::plain(
            "Set ipvs.strictARP to true in kube-proxy's configuration and restart it; then check with `arping -I \
             LINK ADDRESS` that exactly one machine answers.",
        ),
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
        id: "SY11",
        name: "keepalive",
        severity: Severity::Info,
        when: When::Now,
        title: "Keepalive packets arrive before IPVS forgets idle connections",
        symptom: "Connections that are idle for a quarter of an hour, for example of database pools, break with a \
              reset.",
        why: "IPVS forgets a TCP connection that is idle for 900 seconds unless ipvs.tcpTimeout sets another value. \
              Keepalive packets would prevent that, but by default the kernel sends the first one after 7200 seconds.",
        verify: "The keepalive time must be below the TCP timeout of IPVS.",
        commands: &[
            Example::on_node("sysctl net.ipv4.tcp_keepalive_time"),
            Example::on_node("ipvsadm -L --timeout"),
        ],
        fix: Text::plain(
            "Set net.ipv4.tcp_keepalive_time below 900 in the pods (a safe sysctl), or raise ipvs.tcpTimeout.",
        ),
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
        id: "SY13",
        name: "run-estimation",
        severity: Severity::Info,
        when: When::Now,
        title: "IPVS does not estimate rates of thousands of virtual servers",
        symptom: "Every two seconds packets are delayed by some milliseconds.",
        why: "IPVS estimates the rates of every virtual and real server every two seconds, all at once in older \
              kernels. The rates are rarely used.",
        verify: "With many virtual servers the sysctl should be 0.",
        commands: &[
            Example::on_node("sysctl net.ipv4.vs.run_estimation"),
            Example::on_node("ipvsadm -Ln | grep -cE '^(TCP|UDP|SCTP)'"),
        ],
        fix: Text::plain(
            "Set net.ipv4.vs.run_estimation to 0 in a file of /etc/sysctl.d, before the virtual servers are created.",
        ),
        incidents: &["documented by Alibaba Cloud Linux, which added the setting"],
        needs: &[MODE, IPVS_TABLE, &[Item::Sysctl]],
        caused_by: &[],
        run: estimation,
    },
];

/// Finds a sysctl `key` whose value is not `want`.
fn must_be(facts: &Facts<'_>, severity: Severity, key: &str, want: &str, why: &str) -> Verdict {
    let value = setting(facts, key)?;
    if value == want {
        return Ok(Vec::new());
    }
    Ok(vec![
        Finding::new(severity, Subject::sysctl(key), why)
            .evidence([sysctl_proof(key, value)])
            .fix(Fix::on_node(
                "Set the sysctl, and find out what changed it: kube-proxy sets it only when it starts.",
                format!("sysctl -w {key}={want}"),
            )),
    ])
}

fn conntrack(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let why = "IPVS connections are not tracked: masqueraded connections get no replies";
    must_be(facts, Severity::Error, "net.ipv4.vs.conntrack", "1", why)
}

fn reuse(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let kernel = facts.node.kernel()?;
    let Some(wanted) = conn_reuse_mode(kernel) else {
        let why = format!("kernel {kernel} is older than the ipvs mode needs");
        return Err(Gap::NotApplicable(why));
    };
    let why = if wanted.want.is_met(0) {
        "on this kernel, connections from reused client ports are delayed by a second"
    } else {
        "connections from reused client ports go to pods that no longer exist"
    };
    let want = wanted.want.to_string();
    let mut findings = must_be(facts, Severity::Warning, wanted.key, &want, why)?;
    if wanted.by != By::KubeProxy {
        let text = "Set the sysctl, and find out what changed it: kube-proxy does not set it on this kernel.";
        let fixes = findings
            .iter_mut()
            .filter_map(|finding| finding.fix.as_mut());
        fixes.for_each(|fix| fix.text = text.into());
    }
    Ok(findings)
}

fn nodest(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let why = "connections to pods that no longer exist hang instead of ending";
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
    let why = "clients with affinity are sent to pods that no longer exist";
    must_be(
        facts,
        Severity::Warning,
        "net.ipv4.vs.expire_quiescent_template",
        "1",
        why,
    )
}

fn strict_arp(facts: &Facts<'_>) -> Verdict {
    // Prefixes of pods that announce addresses by ARP.
    const ANNOUNCERS: [&str; 3] = ["speaker-", "metallb-speaker-", "kube-vip-"];
    facts.only_in(&[Mode::Ipvs])?;
    let strict = facts.configuration()?.ipvs.strict_arp;
    let pods = facts.node.pods();
    let announcer = pods.iter().flat_map(|pods| pods.iter()).find(|pod| {
        let name = &pod.metadata.name;
        ANNOUNCERS.iter().any(|prefix| name.starts_with(prefix))
    });
    if !strict && announcer.is_none() {
        pods?;
        let why = "strictARP is off, and no known pod announces addresses by ARP";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    if strict && facts.target().is_some() {
        // kube-proxy sets the sysctls when it starts in that mode.
        return Ok(Vec::new());
    }
    let mut wrong = Vec::new();
    for (key, want) in [
        ("net.ipv4.conf.all.arp_ignore", "1"),
        ("net.ipv4.conf.all.arp_announce", "2"),
    ] {
        let value = setting(facts, key)?;
        if value != want {
            wrong.push(sysctl_proof(key, value));
        }
    }
    if wrong.is_empty() {
        return Ok(Vec::new());
    }
    let note = announcer.map(|pod| {
        Proof::Note(format!(
            "pod {} runs here and announces addresses",
            pod.metadata.name
        ))
    });
    let message =
        "the node answers ARP for every Service address, although other software announces them";
    Ok(vec![
        Finding::new(Severity::Error, Subject::setting("ipvs.strictARP"), message)
            .called("ARP")
            .evidence(wrong)
            .evidence(note),
    ])
}

fn keepalive(facts: &Facts<'_>) -> Verdict {
    const KEY: &str = "net.ipv4.tcp_keepalive_time";
    facts.only_in(&[Mode::Ipvs])?;
    setting(facts, KEY)?;
    let idle = number(facts, KEY)?;
    let timeouts = facts.node.ipvs_timeouts()?;
    if idle < u64::from(timeouts.tcp) {
        return Ok(Vec::new());
    }
    let message = format!(
        "idle connections break after {} s, before the first keepalive packet",
        timeouts.tcp
    );
    Ok(vec![
        Finding::new(Severity::Info, Subject::sysctl(KEY), message)
            .evidence([sysctl_proof(KEY, idle)]),
    ])
}

fn estimation(facts: &Facts<'_>) -> Verdict {
    const KEY: &str = "net.ipv4.vs.run_estimation";
    facts.only_in(&[Mode::Ipvs])?;
    let count = facts.node.ipvs()?.servers.len();
    if count <= MANY || setting(facts, KEY)? == "0" {
        return Ok(Vec::new());
    }
    let message = "IPVS estimates rates of thousands of virtual servers every two seconds";
    Ok(vec![
        Finding::new(Severity::Info, Subject::sysctl(KEY), message).evidence([
            sysctl_proof(KEY, 1),
            Proof::Note(format!("{count} virtual servers")),
        ]),
    ])
}
