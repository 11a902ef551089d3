//! The link kube-ipvs0.

use crate::check::core::MODE;
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, Proof, Prose, Severity, Subject, Text, Verdict,
    When,
};
use kpx_node::backend::Mode;
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::links::Address;
use kpx_node::node::modules::filed;
use kpx_node::owner::chain_owner::is_node_local_dns;

/// From this number on, addresses or virtual servers are many.
const MANY: usize = 5_000;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "DV01",
        name: "dummy-link",
        severity: Severity::Error,
        when: When::Now,
        title: "The link kube-ipvs0 exists in ipvs mode",
        symptom: "No Service answers on this node: connections to Service addresses time out or leave by the default \
              route.",
        why: "IPVS handles a packet only if its destination is local to the kernel. In ipvs mode every Service \
              address is therefore on a dummy link, kube-ipvs0. Without the link, virtual servers exist but packets \
              bypass them.",
        verify: "The link must exist and have kind dummy. State DOWN and flag NOARP are correct for it.",
        commands: &[
            Example::on_node("ip -d link show kube-ipvs0"),
            Example::on_node("ip -br addr show dev kube-ipvs0"),
        ],
        fix: Text::plain(
            "Restart kube-proxy on this node: it creates the link at its first sync. If it does not, run `modprobe \
             dummy` to check whether the kernel can create one.",
        ),
        incidents: &[
            "cloudnativelabs/kube-router#425: the same with kube-dummy-if, seen as \"No route to host\"",
        ],
        needs: &[MODE, &[Item::Links, Item::Addresses, Item::Services]],
        caused_by: &[
            Because::Loss("KM15"),
            Because::Loss("KM01"),
            Because::Outdated,
        ],
        run: link,
    },
    Check {
        id: "DV06",
        name: "link-managed",
        severity: Severity::Warning,
        when: When::Now,
        title: "No network manager manages kube-proxy's link",
        symptom: "Addresses vanish from kube-ipvs0, or the link is set up, so that the node answers ARP for Services.",
        why: "NetworkManager and systemd-networkd manage new links by default. They remove addresses that they did \
              not set.",
        verify: "The link must be unmanaged.",
        commands: &[
            Example::on_node("nmcli device status"),
            Example::on_node("networkctl status kube-ipvs0"),
        ],
        fix: Text::plain(
            "For NetworkManager, add a file to /etc/NetworkManager/conf.d with [keyfile] and \
             unmanaged-devices=interface-name:kube-ipvs0;interface-name:nodelocaldns. For networkd, add a .network \
             file with Unmanaged=yes.",
        ),
        incidents: &[
            "kubernetes-sigs/kubespray#6950",
            "kubernetes-sigs/kubespray#7315",
        ],
        needs: &[
            MODE,
            &[
                Item::Links,
                Item::LinkManagers,
                Item::Addresses,
                Item::Services,
            ],
        ],
        caused_by: &[],
        run: managed,
    },
    Check {
        id: "DV07",
        name: "dummy-no-arp",
        severity: Severity::Warning,
        when: When::Now,
        title: "kube-ipvs0 does not answer ARP",
        symptom: "Neighbours learn Service addresses from the wrong machine.",
        why: "kube-proxy creates the link with the flag NOARP. An operator who manually \"repairs\" its state DOWN, \
              or a network manager, may clear the flag. The state DOWN is correct and needs no repair.",
        verify: "NOARP must be among the flags.",
        commands: &[Example::on_node("ip link show kube-ipvs0")],
        fix: Text::plain(
            "Run `ip link set dev kube-ipvs0 arp off`, and exclude the link from NetworkManager and systemd-networkd.",
        ),
        incidents: &[
            "kubernetes/kubernetes#107662",
            "kubernetes-sigs/kubespray#6950",
        ],
        needs: &[MODE, &[Item::Links]],
        caused_by: &[Because::Same("DV01")],
        run: no_arp,
    },
    Check {
        id: "DV12",
        name: "address-count",
        severity: Severity::Info,
        when: When::Now,
        title: "kube-ipvs0 does not have thousands of addresses",
        symptom: "Agents that list the node's addresses are slow or noisy; `ip addr` takes seconds.",
        why: "kube-ipvs0 has every address of every Service. Node agents read, and report, all of them.",
        verify: "Count the addresses.",
        commands: &[Example::on_node("ip -br addr show dev kube-ipvs0 | wc -w")],
        fix: Text::plain(
            "Exclude the link in the agents' configuration, and plan the switch to the nftables mode.",
        ),
        incidents: &["seen with node exporters and cloud agents"],
        needs: &[&[Item::Addresses]],
        caused_by: &[],
        run: address_count,
    },
];

fn link(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    if mode != Mode::Ipvs {
        return Err(Gap::NotApplicable(format!(
            "the mode is {mode}, which does not use {DUMMY}"
        )));
    }
    if facts.node.services().is_ok_and(Vec::is_empty) {
        return Err(Gap::NotApplicable("there are no Services".to_owned()));
    }
    let seen = |state: &str| {
        [Proof::Link {
            link: DUMMY.to_owned(),
            state: state.to_owned(),
        }]
    };
    let missing = Finding::new(
        Severity::Error,
        Subject::link(DUMMY),
        "the link for Service addresses in ipvs mode does not exist",
    )
    .loss()
    .evidence(seen("missing"));
    let links = match facts.node.links() {
        Ok(links) => links,
        // The list of addresses contains the same links, without their kinds.
        Err(gap) => {
            let addresses = facts.node.addresses().map_err(|_| gap)?;
            let there = addresses.all.iter().any(|address| address.link == DUMMY);
            return Ok(if there { Vec::new() } else { vec![missing] });
        }
    };
    Ok(match links.all.iter().find(|link| link.name == DUMMY) {
        None => vec![missing],
        Some(link) if !link.kind.is_empty() && link.kind != "dummy" => vec![
            Finding::new(
                Severity::Error,
                Subject::link(DUMMY),
                "a link of another kind has the name of kube-proxy's dummy link",
            )
            .evidence(seen(&format!("kind {}", link.kind)))
            .fix("Find out what created the link, delete it with `ip link del kube-ipvs0`, then restart kube-proxy."),
        ],
        Some(_) => Vec::new(),
    })
}

fn managed(facts: &Facts<'_>) -> Verdict {
    let links = facts.node.links()?.all.iter();
    let ours: Vec<_> = links
        .filter(|link| link.name == DUMMY || is_node_local_dns(&link.name))
        .collect();
    if ours.is_empty() {
        return Err(Gap::NotApplicable(format!("the node has no link {DUMMY}")));
    }
    let managers: Vec<_> = filed(facts.node.evidence().text(Item::LinkManagers)?).collect();
    let is_ipvs = facts.current() == Ok(Mode::Ipvs);
    let served: Vec<_> = facts.node.services().into_iter().flatten().collect();
    let mut findings = Vec::new();
    for link in ours {
        let end = format!("/{}", link.index);
        let taken = managers
            .iter()
            .filter(|(file, _)| file.ends_with(&end))
            .find(|(_, line)| {
                matches!(
                    *line,
                    "managed=true" | "ADMIN_STATE=configured" | "ADMIN_STATE=configuring"
                )
            });
        if let Some((file, line)) = taken {
            let is_nm = file.contains("NetworkManager");
            let by = if is_nm {
                "NetworkManager"
            } else {
                "systemd-networkd"
            };
            let emptied = link.name == DUMMY && is_ipvs && is_empty(facts, DUMMY);
            let (severity, message) = if emptied {
                let message = format!(
                    "{by} manages {DUMMY}, and all addresses of Services are gone from it: it removes those that it did not set"
                );
                (Severity::Error, message)
            } else {
                let message = format!("{by} manages the link and may remove its addresses");
                (Severity::Warning, message)
            };
            findings.push(
                Finding::new(severity, Subject::link(&link.name), message)
                    .evidence([Proof::Note(format!("{file}: {line}"))])
                    .services(served.iter().filter(|_| emptied).copied())
                    .fix(unmanaged_fix(&link.name, is_nm, emptied)),
            );
        }
    }
    Ok(findings)
}

/// Returns whether `link` has no address but those of the kernel.
fn is_empty(facts: &Facts<'_>, link: &str) -> bool {
    let addresses = facts.node.addresses();
    let is_its = |address: &Address| address.link == link && address.scope != "link";
    addresses.is_ok_and(|all| !all.all.iter().any(is_its))
}

/// Returns how to make a network manager ignore `link`; if it has `emptied` the link, the command that writes the addresses again
/// comes after that.
fn unmanaged_fix(link: &str, is_nm: bool, emptied: bool) -> Fix {
    let (by, command) = if is_nm {
        let file = format!("/etc/NetworkManager/conf.d/90-{link}.conf");
        let command = format!(
            "printf '[keyfile]\\nunmanaged-devices+=interface-name:{link}\\n' > {file} && systemctl reload NetworkManager"
        );
        ("NetworkManager", command)
    } else {
        let file = format!("/etc/systemd/network/10-{link}.network");
        let command = format!(
            "printf '[Match]\\nName={link}\\n[Link]\\nUnmanaged=yes\\n' > {file} && networkctl reload"
        );
        ("systemd-networkd", command)
    };
    let text = Prose::from(format!("Exclude the link from {by}."));
    let text = if emptied {
        text.and(" Then ")
            .kpx(["reconcile", "--apply"])
            .and(" adds the addresses again.")
    } else {
        text
    };
    Fix::on_node(text, command)
}

fn no_arp(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let links = facts.node.links()?;
    let Some(link) = links.all.iter().find(|link| link.name == DUMMY) else {
        return Err(Gap::NotApplicable(format!("the node has no link {DUMMY}")));
    };
    if link.flags.iter().any(|flag| flag == "NOARP") {
        return Ok(Vec::new());
    }
    Ok(vec![
        Finding::new(
            Severity::Warning,
            Subject::link(DUMMY),
            "the link answers ARP: the flag NOARP is missing",
        )
        .evidence([Proof::Link {
            link: link.name.clone(),
            state: link.flags.join(","),
        }])
        .fix(Fix::on_node(
            "Set the flag again, and exclude the link from network managers.",
            format!("ip link set dev {DUMMY} arp off"),
        )),
    ])
}

fn address_count(facts: &Facts<'_>) -> Verdict {
    let held = facts.node.addresses()?.all.iter();
    let count = held.filter(|at| at.link == DUMMY).count();
    if count <= MANY {
        return Ok(Vec::new());
    }
    let message = "the link has so many addresses that listing them is slow";
    let seen = Proof::Note(format!("{count} addresses"));
    Ok(vec![
        Finding::new(Severity::Info, Subject::link(DUMMY), message).evidence([seen]),
    ])
}
