//! The state of IPVS: real servers, connections and timeouts.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::check::core::{Collector, IPVS_TABLE, MODE, SHORT_IDLE, Served, of_tcp};
use crate::check::{
    Advice, Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict, When,
};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::Timeouts;
use kpx_node::backend::ipvs::print;
use kpx_node::cluster::config::go_duration;
use kpx_node::evidence::Item;
use kpx_node::words::number_of;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "VS06",
        name: "drained-servers",
        severity: Severity::Warning,
        when: When::Now,
        title: "Old connections do not keep drained real servers",
        symptom: "Clients keep sending to an address that no pod has any more, and hang.",
        why: "kube-proxy sets the weight of a TCP endpoint that goes to 0 and removes the real server when its last \
              connection ends. Connections that never end, or whose client reuses the port, keep it forever.",
        verify: "A real server of weight 0 must have no connections, or an endpoint that is still terminating.",
        commands: &[
            Example::on_node("ipvsadm -Ln | grep ' 0 '"),
            Example::on_node("ipvsadm -Lnc | grep ADDRESS").with(&["ADDRESS"]),
        ],
        fix: Text::plain(
            "Wait for the timeout of idle connections, 15 minutes; or delete the real server with `ipvsadm -d`, \
             which resets its connections.",
        ),
        incidents: &[
            "kubernetes/kubernetes#81775",
            "kubernetes/kubernetes#84322: NFS mounts hung",
            "kubernetes/kubernetes#99162",
        ],
        needs: &[
            MODE,
            IPVS_TABLE,
            &[Item::IpvsConnections, Item::EndpointSlices, Item::Services],
        ],
        caused_by: &[],
        run: drained,
    },
    Check {
        id: "VS09",
        name: "ipvs-timeouts",
        severity: Severity::Warning,
        when: When::Now,
        title: "IPVS has the configured timeouts, and idle connections last",
        symptom: "Connections that are idle for a while break with a reset.",
        why: "IPVS forgets an idle TCP connection after 900 seconds unless ipvs.tcpTimeout sets another value. \
              kube-proxy sets the timeouts when it starts; a later `ipvsadm --set` overrides them.",
        verify: "Compare with ipvs.tcpTimeout, tcpFinTimeout and udpTimeout.",
        commands: &[Example::on_node("ipvsadm -L --timeout")],
        fix: Text::plain("Restart kube-proxy on this node, and find out what else sets them."),
        incidents: &["kubelb#539", "terraform-aws-modules/terraform-aws-eks#3367"],
        needs: &[
            MODE,
            IPVS_TABLE,
            &[
                Item::ConfigMaps,
                Item::Pods,
                Item::Nodes,
                Item::Addresses,
                Item::ProxyConfig,
            ],
        ],
        caused_by: &[],
        run: timeouts,
    },
    Check {
        id: "VS10",
        name: "connection-table",
        severity: Severity::Warning,
        when: When::Now,
        title: "The IPVS connection table has enough buckets",
        symptom: "Softirq time grows with the number of connections.",
        why: "IPVS finds a connection in a hash table whose size is fixed when the module is loaded: 4,096 buckets \
              unless the option conn_tab_bits sets another. With many connections each packet searches a long list.",
        verify: "Compare the size with the number of connections.",
        commands: &[
            Example::on_node("head -1 /proc/net/ip_vs"),
            Example::on_node("wc -l < /proc/net/ip_vs_conn"),
        ],
        fix: Text::plain(
            "Add `options ip_vs conn_tab_bits=18` to a file of /etc/modprobe.d and reboot the node.",
        ),
        incidents: &["cloudnativelabs/kube-router#544"],
        needs: &[MODE, IPVS_TABLE, &[Item::IpvsConnections]],
        caused_by: &[],
        run: buckets,
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
    let mut findings = Collector::default();
    findings.add(Ok(Vec::new()));
    let served = Served::new(facts);
    for server in &facts.node.ipvs()?.servers {
        for real in server.reals.iter().filter(|real| real.weight == 0) {
            if known.contains(&real.addr) {
                continue;
            }
            let held = if let Some(held) = real.connections {
                u64::from(held.active) + u64::from(held.inactive)
            } else {
                let Some(all) = findings.read(facts.node.ipvs_connections()) else {
                    continue;
                };
                let all = all.all.iter();
                let at = (real.addr, real.port).into();
                all.filter(|c| c.real == at && c.client.port() != 0).count() as u64
            };
            if held == 0 {
                continue;
            }
            let name = print::name(server.key);
            let message = "connections keep a real server whose endpoint no longer exists";
            let seen = Proof::object(
                "real-server",
                format!(
                    "{}:{} of {name}: {}",
                    real.addr,
                    real.port,
                    number_of(held, "connection")
                ),
            );
            let finding = Finding::new(Severity::Warning, Subject::server(server.key), message)
                .services(served.by(server.key))
                .evidence([seen]);
            findings.push(if server.timeout == 0 {
                finding
            } else {
                finding.fix(format!(
                    "Delete the real server with `ipvsadm -d`, which resets its connections: session affinity keeps its clients for \
                     {} s after their last connection.",
                    server.timeout
                ))
            });
        }
    }
    findings.verdict()
}

fn buckets(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let info = facts.node.ipvs_info()?;
    let count = facts.node.ipvs_connections()?.all.len();
    let size = info.conn_tab_size as usize;
    if count <= size.saturating_mul(8) {
        return Ok(Vec::new());
    }
    let message = "the table of IPVS has more than eight connections per bucket";
    Ok(vec![
        Finding::new(Severity::Warning, Subject::Connections, message).evidence([Proof::Note(
            format!("{count} connections in {size} buckets"),
        )]),
    ])
}

fn timeouts(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let timeouts = facts.node.ipvs_timeouts()?;
    let mut findings = Vec::new();
    let idle = u64::from(timeouts.tcp);
    if idle < SHORT_IDLE {
        let message = format!(
            "connections that are idle for {idle} s break: IPVS forgets them then, and answers their next packet with a reset"
        );
        let wanted = facts.configuration().ok();
        let wanted = wanted.and_then(|config| go_duration(&config.ipvs.tcp_timeout));
        let is_configured = wanted.is_some_and(|time| time.as_secs() == idle);
        let seen = Proof::Setting {
            source: "IPVS".to_owned(),
            key: "tcp".to_owned(),
            value: idle.to_string(),
        };
        findings.push(
            Finding::new(Severity::Warning, Subject::setting("tcpTimeout"), message)
                .evidence([seen])
                .services(of_tcp(facts))
                .fix(if is_configured { Fix::new(
                    "Raise ipvs.tcpTimeout in kube-proxy's configuration, which sets it, and restart kube-proxy.",
                    Advice::Edit {
                        resource: "configmap",
                        namespace: "kube-system".to_owned(),
                        name: facts.map_name(),
                    },
                ) } else { Fix::on_node(
                    "Set ipvs.tcpTimeout in kube-proxy's configuration, which it sets when it starts, and find out what else sets it. \
                     Until then:",
                    format!("ipvsadm --set 900 {} {}", timeouts.tcp_fin.max(120), timeouts.udp.max(300)),
                ) }),
        );
    }
    findings.extend(unlike_configured(facts, timeouts)?);
    Ok(findings)
}

/// Returns the findings of timeouts that differ from kube-proxy's configuration.
fn unlike_configured(facts: &Facts<'_>, timeouts: Timeouts) -> Verdict {
    let config = facts.configuration()?.ipvs;
    let wanted = [
        ("tcpTimeout", &config.tcp_timeout),
        ("tcpFinTimeout", &config.tcp_fin_timeout),
        ("udpTimeout", &config.udp_timeout),
    ];
    let wanted = wanted.map(|(key, text)| (key, go_duration(text).map_or(0, |t| t.as_secs())));
    let have = [timeouts.tcp, timeouts.tcp_fin, timeouts.udp];
    Ok(wanted
        .into_iter()
        .zip(have)
        .filter(|((_, want), have)| *want != 0 && *want != u64::from(*have))
        .map(|((key, want), have)| {
            let message =
                format!("the IPVS timeout is {have} s, but kube-proxy is configured for {want} s");
            Finding::new(Severity::Warning, Subject::setting(key), message).evidence([
                Proof::Setting {
                    source: "IPVS".to_owned(),
                    key: key.to_owned(),
                    value: have.to_string(),
                },
            ])
        })
        .collect())
}
