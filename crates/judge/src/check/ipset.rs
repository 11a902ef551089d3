//! IS: kube-proxy's IP sets.

use crate::check::core::{Collector, DRIFT_NEEDS, MODE, RESTART, tool_version};
use crate::check::{
    Because, Check, Example, Facts, Finding, Fix, Proof, Severity, Subject, Text, Verdict, When,
};
use crate::diff::Layer;
use kpx_node::backend::Mode;
use kpx_node::backend::chain_owner::set_purpose;
use kpx_node::evidence::{Gap, Item};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "IS01",
        name: "set-revisions",
        severity: Severity::Error,
        when: When::Now,
        title: "Every ipset tool in use can read the existing sets",
        symptom: "kube-proxy or a network plugin fails with \"Kernel and userspace incompatible\".",
        why: "Sets have revisions. A newer ipset, on the node or in another image, creates sets that an older ipset \
              cannot list, and the older one then fails for all sets.",
        verify: "Listing the sets must work with the tool of every image.",
        commands: &[
            Example::on_node("ipset list -n"),
            Example::anywhere("kubectl -n kube-system exec POD -- ipset list -n").with(&["POD"]),
        ],
        fix: Text::plain(
            "Upgrade the image, or the node's ipset, whichever is older; the message names the set and its revision.",
        ),
        incidents: &[
            "canonical/microk8s#4585",
            "kubeovn/kube-ovn#4741",
            "projectcalico/calico#9551",
        ],
        needs: &[
            MODE,
            &[
                Item::Ipset,
                Item::Modules,
                Item::ModulesBuiltin,
                Item::ModulesDep,
                Item::ProxyLog,
            ],
        ],
        caused_by: &[],
        run: revisions,
    },
    Check {
        id: "IS02",
        name: "set-types",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy's IP sets have the type that its rules need",
        symptom: "kube-proxy logs that it cannot sync a set, and its Services are not masqueraded or not reached.",
        why: "A set keeps the type it was created with. A release that needs another type cannot change it while \
              rules use it, and fails with every sync.",
        verify: "Compare the types with those of a node that works.",
        commands: &[Example::on_node(
            "ipset list -t | grep -E '^(Name|Type|Header)'",
        )],
        fix: Text::plain(
            "Delete the rules that use the set, then the set (`ipset destroy SET`), and restart kube-proxy on this \
              node.",
        ),
        incidents: &["kubernetes/kubernetes#77265: the sets for SCTP changed type"],
        needs: DRIFT_NEEDS,
        caused_by: &[],
        run: |facts| facts.drifted("IS02", &[Mode::Ipvs], Layer::Ipset),
    },
    Check {
        id: "IS03",
        name: "set-members",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy's IP sets have the right members",
        symptom: "A pod cannot reach itself through its Service, a NodePort is not masqueraded, or source ranges do \
              not apply.",
        why: "In ipvs mode the rules are few and fixed; the sets contain the addresses and ports that they apply to. \
              Without a member, its Service usually lacks the mark for masquerading.",
        verify: "Compare the members with the Services, or run `kpx diff`.",
        commands: &[
            Example::on_node("ipset list KUBE-CLUSTER-IP"),
            Example::kpx(&["diff"]),
        ],
        fix: RESTART,
        incidents: &[
            "kubernetes/kubernetes#134884: an entry of KUBE-LOOP-BACK was missing",
            "kubernetes/kubernetes#85877",
        ],
        needs: DRIFT_NEEDS,
        caused_by: &[
            Because::Node("KM01"),
            Because::Services("KP11"),
            Because::Outdated,
        ],
        run: |facts| facts.drifted("IS03", &[Mode::Ipvs], Layer::Ipset),
    },
    Check {
        id: "IS04",
        name: "set-size",
        severity: Severity::Error,
        when: When::Now,
        title: "kube-proxy's IP sets have room for more members",
        symptom: "New Services have no effect on any node, and kube-proxy logs that an ipset is full.",
        why: "A set has a fixed maximum of members, 65536 by default, and kube-proxy has no option for it. \
              KUBE-LOOP-BACK grows with the endpoints of the node, the others with Service ports.",
        verify: "Compare the number of members with maxelem.",
        commands: &[Example::on_node(
            "ipset list -t | grep -E '^(Name|Header|Number)'",
        )],
        fix: Text::with(
            "Switch to the nftables mode, which has no such limit, with {}; or spread the Services over several \
             clusters.",
            &[Example::kpx(&["migrate", "--to", "nftables"])],
        ),
        incidents: &["kubernetes/kubernetes#129389: new Services silently did nothing"],
        needs: &[MODE, &[Item::Ipset]],
        caused_by: &[],
        run: set_size,
    },
    Check {
        id: "IS05",
        name: "sets-exist",
        severity: Severity::Error,
        when: When::Now,
        title: "Every IP set that kube-proxy's rules use exists",
        symptom: "kube-proxy cannot write its rules: iptables-restore fails with \"Set … doesn't exist\".",
        why: "A rule can refer to a set only if the set exists. Rules and sets that were restored or deleted in the \
              wrong order prevent kube-proxy from syncing.",
        verify: "Each set that a rule refers to must be listed.",
        commands: &[
            Example::on_node("iptables-save | grep -o 'match-set [^ ]*' | sort -u"),
            Example::on_node("ipset list -n"),
        ],
        fix: RESTART,
        incidents: &["kubernetes/kubernetes#67292"],
        needs: DRIFT_NEEDS,
        caused_by: &[Because::Node("KM01"), Because::Outdated],
        run: |facts| facts.drifted("IS05", &[Mode::Ipvs], Layer::Ipset),
    },
    Check {
        id: "IS07",
        name: "ipset-version",
        severity: Severity::Warning,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "The node's ipset can parse the members that kube-proxy writes",
        symptom: "Adding to a set fails with \"Syntax error: cannot parse\".",
        why: "Before 6.30 ipset could not parse members of the form ip,protocol:port,ip.",
        verify: "The version must be 6.30 or newer.",
        commands: &[Example::on_node("ipset --version")],
        fix: Text::plain("Upgrade ipset on the node."),
        incidents: &["kubernetes/kubernetes#67292: v6.29"],
        needs: &[MODE, &[Item::IpsetVersion]],
        caused_by: &[],
        run: ipset_version,
    },
];

fn revisions(facts: &Facts<'_>) -> Verdict {
    if facts.node.has_no_ip_sets() {
        let why = "ip_set is not loaded, so there are no IP sets";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let (mut findings, mut seen) = (Collector::default(), Vec::new());
    match facts.node.evidence().text(Item::Ipset) {
        Err(Gap::Unsupported(_, why)) => {
            seen.push(Proof::Note(format!("the node's ipset: {why}")));
        }
        _ => {
            findings.read(facts.node.ipset_or_none());
        }
    }
    let log = facts.node.proxy_log();
    let log = match facts.mode() {
        // Only in ipvs mode does kube-proxy list sets.
        Ok(mode) if mode != Mode::Ipvs => log.ok(),
        _ => findings.read(log),
    };
    let line = log.and_then(|log| log.newer_sets.clone());
    seen.extend(line.map(Proof::Log));
    if !seen.is_empty() {
        let message = "an ipset in use is too old to read the existing sets";
        findings
            .push(Finding::new(Severity::Error, Subject::tool("ipset"), message).evidence(seen));
    }
    findings.verdict()
}

fn ipset_version(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let (found, text) = match tool_version(facts, Item::IpsetVersion) {
        Err(Gap::Absent(..)) => return Ok(Vec::new()),
        read => read?,
    };
    if found >= (6, 30, 0) {
        return Ok(Vec::new());
    }
    let message = "the node's ipset is too old to parse the members that kube-proxy writes";
    Ok(vec![
        Finding::new(Severity::Warning, Subject::tool("ipset"), message)
            .evidence([Proof::Note(text)]),
    ])
}

/// The default maximum number of members of a set.
const MAXELEM: usize = 65_536;

fn set_size(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let mut findings = Vec::new();
    for set in facts
        .node
        .ipset()?
        .sets
        .iter()
        .filter(|set| set_purpose(&set.name).is_some())
    {
        let most: Option<usize> = set.option("maxelem").and_then(|text| text.parse().ok());
        let (Some(most), count) = (most, set.members.len()) else {
            continue;
        };
        if count * 10 <= most * 8 {
            continue;
        }
        let (severity, message) = if count >= most {
            (
                Severity::Error,
                "the IP set is full: new Services and endpoints have no effect",
            )
        } else {
            (
                Severity::Warning,
                "the IP set is nearly full: soon new Services and endpoints have no effect",
            )
        };
        let seen = Proof::Object {
            what: "ipset",
            name: format!("{}: {count} members of at most {most}", set.name),
        };
        let finding = Finding::new(severity, Subject::set(&*set.name), message)
            .called(&*set.name)
            .evidence([seen]);
        findings.push(if most < MAXELEM {
            finding.fix(Fix::kpx(
                "The set was created too small. The fix of IS02 lets kube-proxy recreate it.",
                ["doctor", "IS02"],
            ))
        } else {
            finding
        });
    }
    Ok(findings)
}
