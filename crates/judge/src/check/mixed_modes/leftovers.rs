//! Leftovers of another mode.

use crate::check::core::{
    Collector, IDLE, LEFTOVERS, MODE, OBSERVED, REPLACEMENT, RULES, all_rules, left_to, there,
};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, Proof, Prose, Severity, Subject, Text, Verdict,
    When,
};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::Target;
use kpx_node::evidence::{Gap, Item};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "MX01",
        name: "iptables-leftovers",
        severity: Severity::Error,
        when: When::Now,
        title: "No leftovers of the iptables mode on a node in another mode",
        symptom: "Connections to Services that have endpoints are rejected or dropped, or they reach pods that no \
              longer exist.",
        why: "kube-proxy never cleans up when it switches between the iptables and ipvs modes. After a switch to \
              ipvs, the chains of the iptables mode stay, with the jumps to them, and nothing updates them. Their \
              REJECT and DROP rules belong to Services that had no endpoints at that time; they stop traffic that \
              IPVS would deliver. Their DNAT rules run before IPVS and win as long as a jump leads to them.",
        verify: "In ipvs mode none of these chains may exist. Both modes use KUBE-SERVICES, KUBE-POSTROUTING and \
              KUBE-MARK-MASQ of table nat, and KUBE-FORWARD and KUBE-PROXY-FIREWALL of table filter.",
        commands: &[
            Example::on_node("iptables-save | grep -E '^:KUBE-(SVC|SVL|SEP|EXT|FW|XLB|NODEPORTS)'"),
            Example::on_node(
                "iptables -t filter -S | grep -E -- '-j (KUBE-SERVICES|KUBE-EXTERNAL-SERVICES|KUBE-NODEPORTS)'",
            ),
        ],
        fix: Text::with(
            "Run {}: it shows the plan, and asks before it removes anything. Draining and rebooting the node removes them \
             too. Do not use `kube-proxy --cleanup`: it also removes the rules of the running mode.",
            &[Example::kpx(&[
                "reconcile",
                "--cleanup",
                "iptables",
                "--apply",
            ])],
        ),
        incidents: &[
            "kubernetes/kubernetes#102314: REJECT rules of the iptables mode broke pods after the switch to ipvs",
            "rancher/rancher#29719",
        ],
        needs: &[MODE, LEFTOVERS, REPLACEMENT],
        caused_by: &[],
        run: iptables,
    },
    Check {
        id: "MX02",
        name: "ipvs-leftovers",
        severity: Severity::Error,
        when: When::Now,
        title: "No leftovers of the ipvs mode on a node in another mode",
        symptom: "Services answer from old endpoints, the node cannot reach new Service addresses, or NodePort rules \
              catch traffic to Service addresses.",
        why: "kube-proxy never cleans up when it switches between the iptables and ipvs modes. After a switch to \
              iptables, the virtual servers stay, and kube-ipvs0 keeps every Service address of that time. These \
              addresses are local to the kernel, so packets that no rule translates reach IPVS and its outdated \
              endpoints. NodePort rules match any local address, so they match Service addresses as well.",
        verify: "In iptables or nftables mode, kube-ipvs0, virtual servers of Services and these chains may not exist.",
        commands: &[
            Example::on_node("ip addr show dev kube-ipvs0"),
            Example::on_node("ipvsadm -Ln"),
            Example::on_node("iptables-save | grep -E '^:KUBE-(NODE-PORT|LOAD-BALANCER|IPVS)'"),
            Example::on_node("ipset list -n | grep ^KUBE-"),
        ],
        fix: Text::with(
            "Wait until no connection uses IPVS (`ipvsadm -Lnc`). Then run {}: it shows the plan, and asks before it \
             removes anything. Draining and rebooting the node removes them too. Do not use `ipvsadm -C`: it \
             also clears virtual servers of other software.",
            &[Example::kpx(&["reconcile", "--cleanup", "ipvs", "--apply"])],
        ),
        incidents: &[
            "gardener/gardener#4599",
            "kubernetes/kubernetes#109286",
            "kubernetes/kube-proxy#13",
        ],
        needs: &[MODE, LEFTOVERS, REPLACEMENT],
        caused_by: &[],
        run: ipvs,
    },
    Check {
        id: "MX03",
        name: "nftables-leftovers",
        severity: Severity::Warning,
        when: When::Now,
        title: "No leftovers of the nftables mode on a node in another mode",
        symptom: "Services are translated by outdated rules, or rejected although they have endpoints.",
        why: "kube-proxy removes its nftables tables when it starts in another mode, but only if its image contains \
              nft and the kernel allows it. A table that stays handles every packet in addition to the rules of the \
              running mode.",
        verify: "In iptables or ipvs mode there may be no table kube-proxy.",
        commands: &[Example::on_node("nft list tables | grep kube-proxy")],
        fix: Text::plain(
            "Run `nft delete table ip kube-proxy` and `nft delete table ip6 kube-proxy`.",
        ),
        incidents: &["seen after a switch of the mode together with a downgrade of the image"],
        needs: &[MODE, OBSERVED, REPLACEMENT, &[Item::Services]],
        caused_by: &[],
        run: nft_leftovers,
    },
    Check {
        id: "MX11",
        name: "userspace-leftovers",
        severity: Severity::Error,
        when: When::Now,
        title: "No leftovers of the userspace mode on a node in another mode",
        symptom: "Connections to addresses and NodePorts that the running mode does not translate are refused.",
        why: "Up to Kubernetes 1.25, kube-proxy can run in userspace mode: rules called portals lead packets to ports \
              of its process. kube-proxy never removes the portals when it starts in another mode or a newer release. \
              They then lead to closed ports, or to ports that other processes have since opened, and nothing updates \
              them.",
        verify: "In any other mode these chains may not exist.",
        commands: &[Example::on_node(
            "iptables-save | grep -E 'KUBE-(PORTALS|NODEPORT)-(CONTAINER|HOST|NON-LOCAL)'",
        )],
        fix: Text::with(
            "Run {}: it shows the plan, and asks before it removes anything.",
            &[Example::kpx(&[
                "reconcile",
                "--cleanup",
                "userspace",
                "--apply",
            ])],
        ),
        incidents: &["kubernetes/kubernetes#132516: chains of older releases stay"],
        needs: &[MODE, LEFTOVERS, REPLACEMENT],
        caused_by: &[],
        run: userspace,
    },
    Check {
        id: "MX08",
        name: "shared-chain-jumps",
        severity: Severity::Warning,
        when: When::Now,
        title: "Chains that two modes share are entered only by the running mode",
        symptom: "Firewall rules of load balancers apply twice, or at the wrong hook.",
        why: "The iptables and ipvs modes both have KUBE-PROXY-FIREWALL, but their jumps to it have different \
              comments and conditions. After a switch the old jumps stay next to the new ones.",
        verify: "INPUT, FORWARD and OUTPUT may lead to KUBE-PROXY-FIREWALL only by the rule of the running mode.",
        commands: &[Example::on_node(
            "iptables-save -t filter | grep -- '-j KUBE-PROXY-FIREWALL'",
        )],
        fix: Text::plain(
            "Delete the rules that have the other mode's comment, with `iptables -t filter -D CHAIN RULE`.",
        ),
        incidents: &["both modes use the name since 1.26"],
        needs: &[MODE, RULES, IDLE],
        caused_by: &[Because::Same("MX01"), Because::Same("MX02")],
        run: two_modes,
    },
];

fn iptables(facts: &Facts<'_>) -> Verdict {
    rules_of(facts, Mode::Iptables)
}

fn userspace(facts: &Facts<'_>) -> Verdict {
    rules_of(facts, Mode::Userspace)
}

/// Returns the finding on leftovers of the mode `of`, which has chains and jumps only.
fn rules_of(facts: &Facts<'_>, of: Mode) -> Verdict {
    refuse_in_use(facts, of)?;
    let found = facts.leftovers(of)?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let jumps = count(&found, |p| matches!(p, Proof::Rule { .. }));
    let message = format!(
        "{} and {} are left over, and nothing updates them",
        counted(found.len() - jumps, "chain"),
        counted(jumps, "jump")
    );
    Ok(vec![
        Finding::new(Severity::Error, of, message)
            .called(format!("{of} mode"))
            .evidence(found),
    ])
}

fn ipvs(facts: &Facts<'_>) -> Verdict {
    refuse_in_use(facts, Mode::Ipvs)?;
    let found = facts.leftovers(Mode::Ipvs)?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let object =
        |proof: &Proof, kind: &str| matches!(proof, Proof::Object { what, .. } if *what == kind);
    let sets = count(&found, |p| object(p, "ipset"));
    let addresses = count(&found, |p| matches!(p, Proof::Address { .. }));
    let cleanup = || {
        Prose::from("Run ")
            .kpx(["reconcile", "--cleanup", "ipvs", "--apply"])
            .and(": it shows the plan, and asks before it removes anything.")
    };
    if sets == found.len() {
        let message = format!(
            "{} are left over: they have no effect, but a switch back to ipvs reuses them",
            counted(sets, "IP set")
        );
        return Ok(vec![
            Finding::new(Severity::Warning, Mode::Ipvs, message)
                .called("ipvs mode")
                .evidence(found)
                .fix(cleanup()),
        ]);
    }
    let is_passed = |proof: &Proof| {
        object(proof, "virtual-server") || matches!(proof, Proof::Chain { .. } | Proof::Rule { .. })
    };
    if !found.iter().any(is_passed) {
        let message = format!(
            "{} of kube-ipvs0 are left over: packets to those that no Service has by now end at the node itself",
            counted(addresses, "address")
        );
        return Ok(vec![
            Finding::new(Severity::Warning, Mode::Ipvs, message)
                .called("ipvs mode")
                .evidence(found)
                .fix(cleanup()),
        ]);
    }
    let parts = [
        (
            count(&found, |p| object(p, "virtual-server")),
            "virtual server",
        ),
        (addresses, "address"),
        (count(&found, |p| matches!(p, Proof::Chain { .. })), "chain"),
        (count(&found, |p| matches!(p, Proof::Rule { .. })), "jump"),
        (sets, "IP set"),
    ];
    let parts: Vec<_> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|&(count, what)| counted(count, what))
        .collect();
    let message = format!(
        "{} are left over, and nothing updates them",
        parts.join(", ")
    );
    Ok(vec![
        Finding::new(Severity::Error, Mode::Ipvs, message)
            .called("ipvs mode")
            .evidence(found),
    ])
}

fn nft_leftovers(facts: &Facts<'_>) -> Verdict {
    refuse_in_use(facts, Mode::Nftables)?;
    let mode = facts.only_in(&[Mode::Iptables, Mode::Ipvs, Mode::Userspace])?;
    let tables = facts.node.nft()?.tables.iter();
    let tables = tables.filter(|table| table.name == "kube-proxy" && !table.is_others());
    Ok(tables
        .map(|table| {
            let name = format!("{} {}", table.family, table.name);
            let message = format!("the table is a leftover: the mode is {mode}");
            let command = format!("nft delete table {name}");
            Finding::new(Severity::Warning, Subject::table(None, &*name), message)
                .evidence([Proof::Object {
                    what: "nft-table",
                    name,
                }])
                .fix(Fix::on_node(
                    "Delete the table: the running mode does not use it.",
                    command,
                ))
        })
        .collect())
}

fn two_modes(facts: &Facts<'_>) -> Verdict {
    let mode = facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    let (of, other) = match mode {
        Mode::Ipvs => (Mode::Iptables, "kubernetes load balancer firewall"),
        _ => (Mode::Ipvs, "kube-proxy firewall rules"),
    };
    let mut findings = Collector::default();
    for (family, store, rules) in all_rules(facts, &mut findings) {
        let chains = rules
            .table("filter")
            .into_iter()
            .flat_map(|table| &table.chains);
        let seen: Vec<_> = chains
            .filter(|chain| chain.policy.is_some())
            .flat_map(|chain| chain.rules.iter().map(move |rule| (chain, rule)))
            .filter(|(_, rule)| {
                let to = Target::Jump("KUBE-PROXY-FIREWALL".into());
                rule.target.as_ref() == Some(&to) && rule.comment() == Some(other)
            })
            .map(|(chain, _)| Proof::Rule {
                family,
                table: "filter".to_owned(),
                rule: format!(
                    "{} --comment \"{other}\" -j KUBE-PROXY-FIREWALL",
                    chain.name
                ),
            })
            .collect();
        if !seen.is_empty() {
            let message = format!(
                "rules of another mode still jump to KUBE-PROXY-FIREWALL{}, which mode {mode} uses",
                there(store)
            );
            findings.push(
                Finding::new(Severity::Warning, of, message)
                    .called(family.to_string())
                    .of_family(family)
                    .evidence(seen),
            );
        }
    }
    findings.verdict()
}

/// Fails if the objects of mode `of` are no leftovers: kube-proxy runs in it, or no other rules lead packets to Services, as
/// when kube-proxy does not start in its new mode.
fn refuse_in_use(facts: &Facts<'_>, of: Mode) -> Result<(), Gap> {
    if facts.target().is_none()
        && let Ok(Some(proxy)) = facts.node.served_by_ebpf()
    {
        return Err(Gap::NotApplicable(left_to(proxy)));
    }
    if facts.mode()? == of {
        return Err(Gap::NotApplicable(format!(
            "the mode is {of}: its rules are in use"
        )));
    }
    if facts.node.is_served_by(of) {
        return Err(Gap::NotApplicable(format!(
            "only the rules of mode {of} lead packets to Services: they are in use"
        )));
    }
    Ok(())
}

fn count(found: &[Proof], is: impl Fn(&Proof) -> bool) -> usize {
    found.iter().filter(|proof| is(proof)).count()
}

fn counted(count: usize, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (_, "address") => format!("{count} addresses"),
        _ => format!("{count} {what}s"),
    }
}
