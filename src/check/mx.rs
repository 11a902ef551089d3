//! MX: mixed modes and leftovers.

use super::ask::if_recorded;
use super::facts::MODE;
use super::kernel::LEFTOVERS;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::iptables::model::Target;
use crate::evidence::{Gap, Item};
use crate::net::Family;
use crate::node::Store;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "MX01",
        name: "iptables-leftovers",
        severity: Severity::Error,
        when: When::Now,
        title: "Nothing of the iptables mode is left where another mode runs",
        symptom: "Connections to Services that have endpoints are rejected or dropped, or go to pods that are long gone.",
        why: "kube-proxy never cleans up between the iptables and ipvs modes. After a change to ipvs the chains of the \
              iptables mode stay, with the jumps to them, and nobody updates them again. Their REJECT and DROP rules \
              are made for Services that had no endpoints then; traffic that IPVS would deliver dies there. Their DNAT \
              rules run before IPVS and win, as long as something still leads to them.",
        verify: "In ipvs mode none of these chains may exist. KUBE-SERVICES, KUBE-POSTROUTING and KUBE-MARK-MASQ of \
                 table nat, and KUBE-FORWARD and KUBE-PROXY-FIREWALL of table filter belong to both modes.",
        commands: &[
            "iptables-save | grep -E '^:KUBE-(SVC|SVL|SEP|EXT|FW|XLB|NODEPORTS)'",
            "iptables -t filter -S | grep -E -- '-j (KUBE-SERVICES|KUBE-EXTERNAL-SERVICES|KUBE-NODEPORTS)'",
        ],
        fix: "Nothing removes them by itself. `kpx cleanup --mode iptables` shows what to remove, and with --apply removes \
              it; a reboot after a drain does, too. `kube-proxy --cleanup` is no way: it takes the running mode's rules \
              with it.",
        incidents: &[
            "kubernetes/kubernetes#102314: REJECT rules of the iptables mode broke pods after the change to ipvs",
            "rancher/rancher#29719",
        ],
        needs: &[MODE, LEFTOVERS],
        caused_by: &[],
        run: iptables,
    },
    Check {
        id: "MX02",
        name: "ipvs-leftovers",
        severity: Severity::Error,
        when: When::Now,
        title: "Nothing of the ipvs mode is left where another mode runs",
        symptom: "Services answer from old endpoints, hosts cannot reach new Service addresses, or NodePort rules catch traffic for Service addresses.",
        why: "kube-proxy never cleans up between the iptables and ipvs modes. After a change to iptables the virtual \
              servers stay, and so does kube-ipvs0 with every Service address of that time. The kernel takes those \
              addresses for its own, so what no rule translates ends in IPVS with endpoints that nobody updates, and \
              NodePort rules, which match any local address, match Service addresses as well.",
        verify: "In iptables or nftables mode there may be neither kube-ipvs0 nor virtual servers of Services nor \
                 these chains.",
        commands: &[
            "ip addr show dev kube-ipvs0",
            "ipvsadm -Ln",
            "iptables-save | grep -E '^:KUBE-(NODE-PORT|LOAD-BALANCER|IPVS)'",
            "ipset list -n | grep ^KUBE-",
        ],
        fix: "Nothing removes them by itself. Once no connection uses IPVS any more (`ipvsadm -Lnc`), `kpx cleanup --mode \
              ipvs` shows what to remove, and with --apply removes it; a reboot after a drain does, too. `ipvsadm -C` \
              would also clear virtual servers of others.",
        incidents: &[
            "gardener/gardener#4599",
            "kubernetes/kubernetes#109286",
            "kubernetes/kube-proxy#13",
        ],
        needs: &[MODE, LEFTOVERS],
        caused_by: &[],
        run: ipvs,
    },
    Check {
        id: "MX03",
        name: "nftables-leftovers",
        severity: Severity::Warning,
        when: When::Now,
        title: "Nothing of the nftables mode is left where another mode runs",
        symptom: "Services are translated by rules that nobody keeps up to date, or rejected though they have endpoints.",
        why: "kube-proxy removes its nftables table when it starts in another mode, if its image has nft and the kernel \
              lets it. A table that stays sees every packet beside the rules of the running mode.",
        verify: "There may be no table kube-proxy in iptables or ipvs mode.",
        commands: &["nft list tables | grep kube-proxy"],
        fix: "Delete the table of each family.",
        incidents: &["seen after a change of mode together with a downgrade of the image"],
        needs: &[MODE, &[Item::Nft]],
        caused_by: &[],
        run: nft_leftovers,
    },
    Check {
        id: "MX06",
        name: "unfinished-migration",
        severity: Severity::Warning,
        when: When::Now,
        title: "No migration that kpx began waits to be ended",
        symptom: "Rules of two modes stand beside each other, or kube-proxy is configured for a mode that it does not run in.",
        why: "Its program was ended on the way, or stopped there: what it built stays, and nobody keeps it up to date. If \
              the configuration was changed by then, any restart of kube-proxy leads to the new mode, with nobody to see \
              how it does.",
        verify: "The journal's last line says `ended` once a migration is over.",
        commands: &[
            "tail -n 1 \"$(ls -d /var/lib/kpx/migrate/*/journal.jsonl | tail -n 1)\" | cut -c 1-200",
        ],
        fix: "Look where it stands with `kpx migrate status`; `kpx migrate resume` goes on, and `kpx migrate rollback` goes back.",
        incidents: &["every tool that changes a node in steps may be killed between two of them"],
        needs: &[&[Item::Migration]],
        caused_by: &[],
        run: unfinished,
    },
    Check {
        id: "MX08",
        name: "jumps-of-two-modes",
        severity: Severity::Warning,
        when: When::Now,
        title: "Chains that two modes share are entered by one mode's rules alone",
        symptom: "Firewall rules of load balancers are passed twice, or at another place than they should be.",
        why: "The iptables and ipvs modes both have KUBE-PROXY-FIREWALL, but lead to it by rules with other words and \
              conditions. After a change of mode the old ones stay beside the new ones.",
        verify: "INPUT, FORWARD and OUTPUT may lead to KUBE-PROXY-FIREWALL only by the rule of the running mode.",
        commands: &["iptables-save -t filter | grep -- '-j KUBE-PROXY-FIREWALL'"],
        fix: "Delete the rules with the other mode's comment, with `iptables -D`.",
        incidents: &["both modes use the name since 1.26"],
        needs: &[MODE, &[Item::Iptables4, Item::Iptables6]],
        caused_by: &["MX01", "MX02"],
        run: two_modes,
    },
];

fn iptables(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    if mode == Mode::Iptables {
        return Err(own(mode));
    }
    let found = facts.leftovers(Mode::Iptables)?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let jumps = count(&found, |p| matches!(p, Proof::Rule { .. }));
    let message = format!(
        "{} and {} of it are still in place, and nobody keeps them up to date",
        many(found.len() - jumps, "chain"),
        many(jumps, "jump")
    );
    Ok(vec![
        Finding::new(Severity::Error, "iptables mode", message).seen(found),
    ])
}

fn ipvs(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    if mode == Mode::Ipvs {
        return Err(own(mode));
    }
    let found = facts.leftovers(Mode::Ipvs)?;
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let object =
        |proof: &Proof, kind: &str| matches!(proof, Proof::Object { what, .. } if *what == kind);
    let sets = count(&found, |p| object(p, "ipset"));
    if sets == found.len() {
        let message = format!(
            "{} of it are left; they do nothing, but a change back to ipvs starts from them",
            many(sets, "IP set")
        );
        return Ok(vec![
            Finding::new(Severity::Warning, "ipvs mode", message)
                .seen(found)
                .mend("`kpx cleanup --mode ipvs --apply` removes them, after a look at the plan."),
        ]);
    }
    let parts = [
        (
            count(&found, |p| object(p, "virtual-server")),
            "virtual server",
        ),
        (
            count(&found, |p| matches!(p, Proof::Address { .. })),
            "address",
        ),
        (count(&found, |p| matches!(p, Proof::Chain { .. })), "chain"),
        (count(&found, |p| matches!(p, Proof::Rule { .. })), "jump"),
        (sets, "IP set"),
    ];
    let parts: Vec<_> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|&(count, what)| many(count, what))
        .collect();
    let message = format!(
        "{} of it are still in place, and nobody keeps them up to date",
        parts.join(", ")
    );
    Ok(vec![
        Finding::new(Severity::Error, "ipvs mode", message).seen(found),
    ])
}

fn nft_leftovers(facts: &Facts<'_>) -> Verdict {
    let mode = facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    let tables = facts.node.nft()?.tables.iter();
    let tables = tables.filter(|table| table.name == "kube-proxy");
    Ok(tables
        .map(|table| {
            let name = format!("{} {}", table.family, table.name);
            let message = format!("the table is left, though the mode is {mode}");
            let command = format!("nft delete table {name}");
            Finding::new(Severity::Warning, format!("table {name}"), message)
                .seen([Proof::Object {
                    what: "nft-table",
                    name,
                }])
                .mend_by(
                    "Delete the table: nothing of the running mode is in it.",
                    command,
                )
        })
        .collect())
}

fn two_modes(facts: &Facts<'_>) -> Verdict {
    let mode = facts.only_in(&[Mode::Iptables, Mode::Ipvs])?;
    let other = match mode {
        Mode::Ipvs => "kubernetes load balancer firewall",
        _ => "kube-proxy firewall rules",
    };
    let mut findings = Vec::new();
    for family in Family::BOTH {
        let rules = match facts.node.iptables(Store::InUse, family) {
            Ok(rules) => rules,
            Err(Gap::Absent(..)) if family == Family::V6 => continue,
            Err(gap) => return Err(gap),
        };
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
            let message =
                format!("rules of another mode than {mode} lead to a chain that both use");
            findings.push(Finding::new(Severity::Warning, family.to_string(), message).seen(seen));
        }
    }
    Ok(findings)
}

fn unfinished(facts: &Facts<'_>) -> Verdict {
    let migration = match facts.node.migration() {
        Err(Gap::Absent(..)) => return Ok(Vec::new()),
        read => if_recorded(read)?,
    };
    if migration.ended {
        return Ok(Vec::new());
    }
    let (from, to) = (migration.from, migration.to);
    let at = match &migration.stage {
        Some(stage) => format!("the last that was begun of it is {stage}"),
        None => "nothing of it was begun".to_owned(),
    };
    let message = format!("it goes from mode {from} to mode {to}, and is not over: {at}");
    let subject = format!("the migration of {}", migration.began);
    let seen = Proof::Object {
        what: "migration",
        name: migration.id.clone(),
    };
    let fix = "Go on with it, or take it back with `kpx migrate rollback`.";
    Ok(vec![
        Finding::new(Severity::Warning, subject, message)
            .seen([seen])
            .mend_by(fix, "kpx migrate resume".to_owned()),
    ])
}

fn own(mode: Mode) -> Gap {
    Gap::NotApplicable(format!("the mode is {mode}: what is there is in use"))
}

fn count(found: &[Proof], is: impl Fn(&Proof) -> bool) -> usize {
    found.iter().filter(|proof| is(proof)).count()
}

fn many(count: usize, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (_, "address") => format!("{count} addresses"),
        _ => format!("{count} {what}s"),
    }
}
