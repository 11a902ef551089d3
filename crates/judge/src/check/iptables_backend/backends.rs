//! Which iptables backend is in use, and its tools.

use crate::check::core::{
    Collector, IDLE, MODE, RULES, VERSION, idle_rules, is_proxys, rule_proof, rules_in_use, stores,
    version_in,
};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Line, Proof, Severity, Subject, Text, Verdict, When,
};
use kpx_node::backend::Mode;
use kpx_node::backend::iptables::model::{Chain, Ruleset, Target};
use kpx_node::cluster::release::Change;
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::IptablesBackend;
use kpx_node::words::listed;

const fn name(store: IptablesBackend) -> &'static str {
    match store {
        IptablesBackend::InUse => "the one in use",
        IptablesBackend::Legacy => "legacy",
        IptablesBackend::Nft => "nft",
    }
}

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "IB01",
        name: "one-backend",
        severity: Severity::Error,
        when: When::Now,
        title: "Only one iptables backend contains kube-proxy's rules",
        symptom: "Connections are masqueraded twice, reach pods that no longer exist, or are rejected although the \
              visible rules allow them.",
        why: "iptables has two backends in the kernel, legacy and nft, and a packet passes through both. Rules of one \
              backend are invisible to the tools of the other, so kube-proxy's rules in the backend that it no longer \
              uses are never updated, and still apply.",
        verify: "List both; only one may contain KUBE-SVC, KUBE-SERVICES or KUBE-POSTROUTING rules. Growing counters \
              do not show which one is right: both see the packets.",
        commands: &[
            Example::on_node("iptables --version"),
            Example::on_node(
                "iptables-legacy-save -c | grep -c KUBE-; iptables-nft-save -c | grep -c KUBE-",
            ),
        ],
        fix: Text::plain(
            "Find out which backend kube-proxy's image uses (it follows the chain KUBE-IPTABLES-HINT). Then remove \
             its chains from the other one, jumps first, with that backend's own tools (`iptables-legacy` or \
             `iptables-nft`); or drain and reboot the node.",
        ),
        incidents: &[
            "kubernetes/kubernetes#71305",
            "cilium/cilium#28258: POSTROUTING twice",
        ],
        needs: &[RULES, IDLE, &[Item::Nodes, Item::Pods, Item::ProxyConfig]],
        caused_by: &[],
        run: one_backend,
    },
    Check {
        id: "IB02",
        name: "backend-agrees",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy, the kubelet and the node's tools use one iptables backend",
        symptom: "iptables on the node lists no rule of kube-proxy, although Services work; or rules of the two \
              backends conflict.",
        why: "iptables has two backends with separate rules. kube-proxy's image chooses one by the kubelet's hint, a \
              chain in table mangle, or by the backend that already contains rules. If that differs from the backend \
              of the node's own tools, neither sees the rules of the other. The kubelet writes KUBE-KUBELET-CANARY and \
              KUBE-FIREWALL, up to 1.27 also KUBE-MARK-DROP, KUBE-MARK-MASQ and KUBE-POSTROUTING: packets pass those of both \
              backends, but at its next start kube-proxy follows the hint, and its rules in the other backend stay.",
        verify: "The hint, kube-proxy's chains and the node's tools must use the same backend.",
        commands: &[
            Example::on_node("iptables --version"),
            Example::on_node("iptables-legacy-save | grep -c KUBE-"),
            Example::on_node("iptables-nft-save | grep -c KUBE-"),
        ],
        fix: Text::plain(
            "Set the node's tools to the backend that kube-proxy uses (`update-alternatives --config iptables`), \
             and restart kube-proxy and the kubelet.",
        ),
        incidents: &[
            "kubernetes/kubernetes#71305",
            "Azure/azure-container-networking#3094",
        ],
        needs: &[RULES, IDLE, MODE],
        caused_by: &[],
        run: backends,
    },
    Check {
        id: "IB03",
        name: "iptables-age",
        severity: Severity::Warning,
        when: When::Now,
        title: "The node's iptables is as new as the one in kube-proxy's image",
        symptom: "Rules lose a match: a DROP or ACCEPT without conditions replaces a rule that tested a mark.",
        why: "With the nft backend, 1.8.8 and newer write some matches in a form that older versions cannot read. An \
              old tool that saves and restores the rules drops the match and keeps the rest.",
        verify: "The node's version must be 1.8.8 or newer, like the one in images of kube-proxy since 1.29.",
        commands: &[
            Example::on_node("iptables --version"),
            Example::anywhere("kubectl -n kube-system exec POD -- iptables --version")
                .with(&["POD"]),
        ],
        fix: Text::plain(
            "Upgrade iptables on the node; until then do not save and restore rules there.",
        ),
        incidents: &[
            "kubernetes/kubernetes#112477",
            "cloudnativelabs/kube-router#1588",
        ],
        needs: &[RULES, VERSION, &[Item::IptablesVersion]],
        caused_by: &[],
        run: old_tools,
    },
];

fn one_backend(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    let (used, idle) = stores(facts);
    for (family, rules) in rules_in_use(facts, &mut findings) {
        let in_use = written(rules, family);
        // Only kube-proxy's chains matter; the other backend may contain rules of other software.
        if in_use.is_empty() {
            continue;
        }
        let idle_rules = findings.read(idle_rules(facts, family)).flatten();
        let other = idle_rules.map_or_else(Vec::new, |rules| written(rules, family));
        // IB02 says that the kubelet uses the other backend.
        if other.is_empty() || idle_rules.is_some_and(|rules| is_kubelets(rules, &other)) {
            continue;
        }
        let message = format!(
            "both backends contain kube-proxy's chains: {} in {}, {} in {}",
            in_use.len(),
            name(used),
            other.len(),
            name(idle)
        );
        findings.push(
            Finding::new(Severity::Error, family, message)
                .evidence(other)
                .fix(ask_image(facts)),
        );
    }
    findings.verdict()
}

/// Returns the fix that asks kube-proxy's image which backend it uses.
fn ask_image(facts: &Facts<'_>) -> Fix {
    let ask = |node: &str| {
        let pod = format!(
            "kubectl -n kube-system get pods -l k8s-app=kube-proxy --field-selector spec.nodeName={node} -o name"
        );
        format!("kubectl -n kube-system exec $({pod}) -- iptables --version")
    };
    let line = match facts.node_name() {
        Some(node) => ask(&node).into(),
        None => Line::with(ask("NODE"), &["NODE"]),
    };
    Fix::kubectl(
        "This is the backend that kube-proxy's image uses. Remove its chains from the other one, jumps first, with that \
         backend's own tools (`iptables-legacy` or `iptables-nft`); or drain and reboot the node.",
        line,
    )
}

/// The chains of kube-proxy that the kubelet writes as well, up to 1.27.
const OF_BOTH: [&str; 2] = ["KUBE-MARK-MASQ", "KUBE-POSTROUTING"];

/// Returns whether the kubelet writes to the backend with `rules`.
fn has_kubelets(rules: &Ruleset<'_>) -> bool {
    ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"]
        .iter()
        .any(|name| rules.chain("mangle", name).is_some())
}

/// Returns whether `chains` of `rules` are those of the kubelet alone.
fn is_kubelets(rules: &Ruleset<'_>, chains: &[Proof]) -> bool {
    let is_of_both = |proof: &Proof| matches!(proof, Proof::Chain { chain, .. } if OF_BOTH.contains(&chain.as_str()));
    has_kubelets(rules) && chains.iter().all(is_of_both)
}

/// Returns the chains with rules that only kube-proxy writes.
fn written(rules: &Ruleset<'_>, family: Family) -> Vec<Proof> {
    let proof = |table: &str, chain: &Chain<'_>| Proof::Chain {
        family,
        table: table.to_owned(),
        chain: chain.name.to_string(),
        rules: chain.rules.len(),
    };
    let tables = rules.tables.iter();
    tables
        .flat_map(|table| {
            let chains = table.chains.iter();
            let ours = chains.filter(|c| !c.rules.is_empty() && is_proxys(&c.name));
            ours.map(|chain| proof(&table.name, chain))
        })
        .collect()
}

fn backends(facts: &Facts<'_>) -> Verdict {
    if facts.mode() == Ok(Mode::Nftables) {
        let why = "kube-proxy writes no rules by iptables in mode nftables";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let version = facts.node.evidence().text(Item::IptablesVersion)?.trim();
    let nft = version.contains("nf_tables");
    let (used, idle) = if nft {
        ("nft", "legacy")
    } else {
        ("legacy", "nft")
    };
    let has = |rules: &Ruleset<'_>, table: &str, name: &str| rules.chain(table, name).is_some();
    let tools = Proof::Note(format!("the node's tools: {version}"));
    let mut findings = Collector::default();
    for (family, in_use) in rules_in_use(facts, &mut findings) {
        let other = findings.read(idle_rules(facts, family)).flatten();
        let ours = has(in_use, "nat", "KUBE-SERVICES");
        let hint = has_kubelets(in_use);
        let there = other.is_some_and(|rules| has(rules, "nat", "KUBE-SERVICES"));
        let hint_there = other.is_some_and(has_kubelets);
        if there && !ours {
            let message = format!(
                "kube-proxy writes its {family} rules to the {idle} backend, but the node's tools use {used}"
            );
            let seen = Proof::Note(format!("KUBE-SERVICES is in {idle}, not in {used}"));
            findings.push(
                Finding::new(Severity::Error, Subject::tool("iptables"), message)
                    .of_family(family)
                    .evidence([tools.clone(), seen])
                    .fix(set_tools(idle)),
            );
        }
        if (hint_there && !hint && ours) || (hint && !hint_there && there && !ours) {
            let (kubelet, proxy) = if hint_there {
                (idle, used)
            } else {
                (used, idle)
            };
            let message = format!(
                "the kubelet uses the {kubelet} backend for {family}, but kube-proxy uses {proxy}"
            );
            let from = if hint { Some(in_use) } else { other };
            let all = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];
            let all = all.map(|name| ("mangle", name)).into_iter();
            let all = all.chain([("filter", "KUBE-FIREWALL"), ("nat", "KUBE-MARK-DROP")]);
            let all = all.filter(|(table, name)| from.is_some_and(|rules| has(rules, table, name)));
            let all: Vec<&str> = all.map(|(_, name)| name).collect();
            let seen = Proof::Note(format!(
                "the kubelet's chains are in {kubelet}: {}",
                listed(&all)
            ));
            let finding = Finding::new(Severity::Error, Subject::software("kubelet"), message)
                .of_family(family)
                .evidence([tools.clone(), seen]);
            findings.push(if proxy == idle {
                finding.fix(set_tools(idle))
            } else {
                finding
            });
        }
    }
    findings.verdict()
}

/// Returns the fix that sets the node's tools to `backend`, in which kube-proxy writes.
fn set_tools(backend: &str) -> Fix {
    let set = |tool: &str| format!("update-alternatives --set {tool} /usr/sbin/{tool}-{backend}");
    Fix::on_node(
        "Set the node's tools to the backend that kube-proxy uses, and restart the kubelet.",
        format!("{} && {}", set("iptables"), set("ip6tables")),
    )
}

fn old_tools(facts: &Facts<'_>) -> Verdict {
    let mut all = Collector::default();
    for (family, rules) in rules_in_use(facts, &mut all) {
        let chains = rules
            .tables
            .iter()
            .flat_map(|table| table.chains.iter().map(move |chain| (table, chain)));
        let mut each = chains
            .flat_map(|(table, chain)| chain.rules.iter().map(move |rule| (table, chain, rule)));
        let is_unreadable = |target: &Target<'_>| target.is_unreadable();
        let unread = each.find(|(.., rule)| rule.target.as_ref().is_some_and(is_unreadable));
        if let Some((table, chain, rule)) = unread {
            let message = "the node's iptables is too old to read the rules of kube-proxy's image: they are right, and cannot be compared";
            let tool = facts.node.evidence().text(Item::IptablesVersion);
            return Ok(vec![
                Finding::new(Severity::Warning, Subject::tool("iptables"), message)
                    .evidence(tool.ok().map(|text| Proof::Note(text.trim().to_owned())))
                    .evidence([rule_proof(family, table, chain, rule)]),
            ]);
        }
    }
    match (old_version(facts), all.verdict()) {
        // Rules that were not read may be unreadable.
        (Ok(found), Err(gap)) if found.is_empty() => Err(gap),
        (verdict, _) => verdict,
    }
}

fn old_version(facts: &Facts<'_>) -> Verdict {
    let version = facts.node.evidence().text(Item::IptablesVersion)?.trim();
    let here = version_in(version)
        .ok_or_else(|| Gap::Failed(Item::IptablesVersion, format!("no version in {version:?}")))?;
    if !version.contains("nf_tables") {
        let why = "iptables uses the legacy backend, which is not affected";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    if here >= (1, 8, 8) {
        return Ok(Vec::new());
    }
    let proxy = facts.version()?;
    if !proxy.version.has(Change::NewIptables) {
        return Ok(Vec::new());
    }
    let message = "the node's iptables is too old to read the rules of kube-proxy's image";
    Ok(vec![
        Finding::new(Severity::Warning, Subject::tool("iptables"), message).evidence([
            Proof::Note(version.to_owned()),
            Proof::setting(proxy.source.to_string(), "kube-proxy", proxy.version),
        ]),
    ])
}
