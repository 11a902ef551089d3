//! UP: what an upgrade of kube-proxy changes on the node.

use std::collections::BTreeSet;

use super::core::{Collector, MODE, VERSION, kernel_proof};
use super::deprecation::{
    EXTERNAL_IPS_GATE, addresses_proof, is_too_old_for_nftables, removed_flags, with_external_ips,
};
use super::{
    Because, Check, Example, Facts, Finding, Proof, Prose, Severity, Subject, Text, Verdict, When,
    bugs, node_port,
};
use kpx_node::backend::Mode;
use kpx_node::backend::requirements::IPVS_GATE;
use kpx_node::cluster::config::ProxyConfig;
use kpx_node::cluster::release::{
    Change, Goal, NEWEST, RECORDED, RefusedGate, STRICT_ADDRESSES, STRICT_ADDRESSES_ALWAYS,
    planned, refused_gate,
};
use kpx_node::cluster::strict::{self, Refused};
use kpx_node::evidence::{Gap, Item};
use kpx_node::words::listed;

const CONFIG: &str = "kube-proxy's configuration";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "UP01",
        name: "known-release",
        severity: Severity::Warning,
        when: When::Upgrade,
        title: "What the release changes is known from recordings",
        symptom: "The answers of the other checks may be incomplete.",
        why: "Rules are compared with recordings of releases. What newer releases change is known from their source, and \
              what unpublished ones change from announcements (KEPs), which may still change.",
        verify: "Read the release notes of kube-proxy's release.",
        commands: &[Example::kpx(&["explain", "--release", "RELEASE"]).with(&["RELEASE"])],
        fix: Text::with(
            "Read the release notes, and run {} on the first node after the upgrade.",
            &[Example::kpx(&["diff"])],
        ),
        incidents: &["KEP-5343, KEP-5495, KEP-5707: planned changes of 1.40"],
        needs: &[VERSION],
        caused_by: &[],
        run: known_release,
    },
    Check {
        id: "UP02",
        name: "mode-after-upgrade",
        severity: Severity::Error,
        when: When::Upgrade,
        title: "The upgrade does not change the mode",
        symptom: "After the upgrade kube-proxy runs in nftables mode, or does not start.",
        why: "Without a mode in its configuration, kube-proxy uses iptables, and from 1.40 nftables, which needs kernel \
              5.13.",
        verify: "The field mode must not be empty.",
        commands: &[
            Example::anywhere(
                "kubectl -n kube-system get configmap kube-proxy -o yaml | grep '^    mode:'",
            ),
            Example::on_node("uname -r"),
        ],
        fix: Text::plain("Set `mode: iptables` in kube-proxy's configuration before the upgrade."),
        incidents: &["KEP-5343: nftables by default"],
        needs: &[MODE, &[Item::KernelRelease]],
        caused_by: &[],
        run: mode_after,
    },
    Check {
        id: "UP03",
        name: "ipvs-after-upgrade",
        severity: Severity::Error,
        when: When::Upgrade,
        title: "The release supports the ipvs mode if the node uses it",
        symptom: "After the upgrade kube-proxy does not start, and the node's virtual servers become outdated.",
        why: "The ipvs mode needs the feature gate KubeProxyIPVS since 1.37. The gate is on by default, from 1.40 off, and \
              from 1.43 the mode is gone.",
        verify: "Compare the mode with the release.",
        commands: &[Example::on_node("curl -s http://127.0.0.1:10249/proxyMode")],
        fix: Text::with(
            "Switch to another mode before the upgrade: {}.",
            &[Example::kpx(&["migrate", "--to", "nftables"])],
        ),
        incidents: &["KEP-5495", "kubernetes/kubernetes#139397: the gate"],
        needs: &[MODE],
        caused_by: &[],
        run: ipvs_after,
    },
    Check {
        id: "UP04",
        name: "external-ips-after-upgrade",
        severity: Severity::Error,
        when: When::Upgrade,
        title: "The release serves the externalIPs of the cluster's Services",
        symptom: "After the upgrade connections to externalIPs of Services fail.",
        why: "kube-proxy serves externalIPs only with the feature gate AllowServiceExternalIPs, which is off by default \
              from 1.40; from 1.43 they are gone.",
        verify: "List the Services with spec.externalIPs.",
        commands: &[Example::anywhere(
            "kubectl get services -A -o custom-columns=NS:.metadata.namespace,NAME:.metadata.name,IPS:.spec.externalIPs",
        )],
        fix: Text::plain(
            "Before the upgrade, change the Service to type LoadBalancer with a controller that assigns the same \
             address.",
        ),
        incidents: &["KEP-5707"],
        needs: &[MODE, &[Item::Services]],
        caused_by: &[],
        run: external_ips_after,
    },
    Check {
        id: "UP05",
        name: "node-ports-after-upgrade",
        severity: Severity::Error,
        when: When::Upgrade,
        title: "NodePorts answer on the same addresses after the upgrade",
        symptom: "After the upgrade clients of NodePorts on secondary or loopback addresses get no answer.",
        why: "If the upgrade changes the mode to nftables, NodePorts answer only on the node's primary addresses, unless \
              nodePortAddresses is set.",
        verify: "No tracked connection to a NodePort may go to another address of the node.",
        commands: &[Example::on_node("conntrack -L | grep dport=NODEPORT").with(&["NODEPORT"])],
        fix: Text::plain(
            "Before the upgrade, set `mode: iptables`, or nodePortAddresses to the prefixes that clients use.",
        ),
        incidents: &["the announcement of the nftables mode mentions it"],
        needs: &[MODE, VERSION, &[Item::Conntrack, Item::Services]],
        caused_by: &[Because::Node("UP02")],
        run: node_ports_after,
    },
    Check {
        id: "UP06",
        name: "gates-after-upgrade",
        severity: Severity::Error,
        when: When::Upgrade,
        title: "The release knows kube-proxy's flags and feature gates",
        symptom: "After the upgrade kube-proxy exits at once: \"unrecognized feature gate\" or \"unknown flag\".",
        why: "A feature gate is removed some releases after its feature is stable. kube-proxy exits if its configuration \
              sets a gate that it does not know, or its command line has a removed flag.",
        verify: "Compare featureGates and the flags with `kube-proxy --help` of the release.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system get configmap kube-proxy -o yaml | grep -A9 featureGates",
        )],
        fix: Text::plain("Remove the gate or the flag before the upgrade."),
        incidents: &["kubernetes/kubernetes#96034"],
        needs: &[&[
            Item::ProxyConfig,
            Item::ConfigMaps,
            Item::Pods,
            Item::DaemonSets,
            Item::Nodes,
            Item::Addresses,
        ]],
        caused_by: &[],
        run: gates_after,
    },
    Check {
        id: "UP07",
        name: "bugs-after-upgrade",
        severity: Severity::Warning,
        when: When::Upgrade,
        title: "The release adds no known bugs",
        symptom: "See `kpx doctor` after the upgrade.",
        why: "Each release fixes bugs and brings others. The known ones that the running version does not have are listed.",
        verify: "Read the threads that the finding names.",
        commands: &[Example::kpx(&bugs::SHOWS)],
        fix: Text::plain("Read the thread, and upgrade one node first."),
        incidents: &["the threads of KB01"],
        needs: &[MODE, VERSION],
        caused_by: &[],
        run: bugs_after,
    },
    Check {
        id: "UP08",
        name: "addresses-after-upgrade",
        severity: Severity::Error,
        when: When::Upgrade,
        title: "The release accepts the addresses in the cluster's objects",
        symptom: "After the upgrade of the API server, `kubectl apply`, a controller or Helm fails with an invalid address; \
                  endpoints of a slice are no longer updated.",
        why: "Since 1.36 the API server refuses addresses with leading zeros, IPv4 addresses in IPv6 form, and prefixes with bits \
              beyond their length; in 1.36 and 1.37 its feature gate StrictIPCIDRValidation can be off, in 1.38 it is always on. \
              Objects keep such values until the field changes.",
        verify: "Look at the addresses in Services, EndpointSlices, pods, Nodes and NetworkPolicies; the last are not read here.",
        commands: &[Example::anywhere(
            "kubectl get services,endpointslices,networkpolicies -A -o yaml | grep -E '[^0-9]0[0-9]+\\.|::ffff:'",
        )],
        fix: Text::plain(
            "Before the upgrade, change the value wherever it comes from: manifests, Helm values, controllers.",
        ),
        incidents: &["KEP-4858: strict validation of addresses"],
        needs: &[&[
            Item::Services,
            Item::EndpointSlices,
            Item::Pods,
            Item::Nodes,
        ]],
        caused_by: &[],
        run: addresses_after,
    },
];

/// Returns the version of the planned upgrade.
fn goal(facts: &Facts<'_>) -> Result<Goal, Gap> {
    let none = || Gap::NotApplicable("no upgrade is planned".to_owned());
    facts.question.goal().ok_or_else(none)
}

/// Returns the mode after the upgrade to `goal`: the default one may change.
fn mode_with(config: &ProxyConfig, facts: &Facts<'_>, goal: Goal) -> Result<Mode, Gap> {
    if config.mode.is_empty() && goal.release >= planned::NFTABLES_DEFAULT {
        return Ok(Mode::Nftables);
    }
    facts.current()
}

fn known_release(facts: &Facts<'_>) -> Verdict {
    let goal = goal(facts)?;
    let mut findings = Collector::default();
    let found = findings.read(facts.version());
    let seen = match found {
        Some(found) => Proof::setting(found.source.to_string(), "version", found.version),
        None => Proof::setting("the upgrade", "release", goal.release),
    };
    let finding = |severity, message: String| {
        let about = Subject::Release {
            release: goal.release.to_string(),
        };
        Finding::new(severity, about, message).evidence([seen])
    };
    if found.is_some_and(|found| goal.version() <= found.version) {
        let message = "this is no upgrade: kube-proxy runs this release or a newer one".to_owned();
        let fix = "Name a newer release with --release.";
        return Ok(vec![finding(Severity::Info, message).fix(fix)]);
    }
    let message = match goal.release {
        release if release > planned::LAST => {
            let message = format!(
                "nothing is known of {release}: the last announced changes are those of {}",
                planned::LAST
            );
            findings.push(finding(Severity::Warning, message));
            return findings.verdict();
        }
        release if release > NEWEST => format!(
            "what {release} changes is known from announcements only: {NEWEST} is the newest release with known changes"
        ),
        release if release > RECORDED => format!(
            "what {release} changes is expected from source, not recorded: {RECORDED} is the newest recorded release"
        ),
        _ => return findings.verdict(),
    };
    findings.push(finding(Severity::Info, message));
    findings.verdict()
}

fn mode_after(facts: &Facts<'_>) -> Verdict {
    let goal = goal(facts)?;
    let config = facts.configuration()?;
    if !config.mode.is_empty() || goal.release < planned::NFTABLES_DEFAULT {
        return Ok(Vec::new());
    }
    let seen = [Proof::setting(CONFIG, "mode", "not set")];
    let seen = seen.into_iter().chain(kernel_proof(facts));
    let mut findings = Collector::default();
    let is_too_old = findings.read(is_too_old_for_nftables(facts));
    if is_too_old == Some(true) {
        let message = "kube-proxy changes to nftables mode, for which this kernel is too old: it does not start";
        return Ok(vec![
            Finding::new(Severity::Error, Subject::setting("mode"), message).evidence(seen),
        ]);
    }
    let message = "kube-proxy changes from iptables to nftables mode, because no mode is set";
    findings.push(
        Finding::new(Severity::Warning, Subject::setting("mode"), message)
            .evidence(seen)
            .fix(
                Prose::from("Set `mode: iptables` before the upgrade. To use nftables, run ")
                    .kpx(["doctor", "--to", "nftables"])
                    .and(", and switch with ")
                    .kpx(["migrate", "--to", "nftables"])
                    .and(" before the upgrade, which keeps connections."),
            ),
    );
    findings.verdict()
}

fn ipvs_after(facts: &Facts<'_>) -> Verdict {
    let goal = goal(facts)?;
    let mode = facts.current()?;
    if mode != Mode::Ipvs {
        return Err(Gap::NotApplicable(format!("the mode is {mode}")));
    }
    if !goal.version().has(Change::IpvsGate) {
        return Ok(Vec::new());
    }
    let mut findings = Collector::default();
    let gates = findings.read(facts.configuration());
    let gates = gates.map(|config| config.feature_gates);
    let gate = gates.as_ref().and_then(|all| all.get(IPVS_GATE).copied());
    let removed = planned::IPVS_REMOVED;
    let (severity, message) = if goal.release >= removed {
        (
            Severity::Error,
            format!("kube-proxy does not start: the ipvs mode is removed in {removed}"),
        )
    } else if gate == Some(false) {
        let message =
            format!("kube-proxy does not start: the gate {IPVS_GATE} of the ipvs mode is off");
        (Severity::Error, message)
    } else if goal.release < planned::IPVS_OFF {
        let message = format!(
            "the ipvs mode still works; it is off by default in {} and removed in {removed}",
            planned::IPVS_OFF
        );
        (Severity::Info, message)
    } else if gate == Some(true) {
        let message =
            format!("the ipvs mode works only because its gate is on, and is removed in {removed}");
        (Severity::Warning, message)
    } else if gates.is_none() {
        return findings.verdict();
    } else {
        let message = format!(
            "kube-proxy does not start: the gate {IPVS_GATE} of the ipvs mode is off by default"
        );
        (Severity::Error, message)
    };
    let gate = gate.map_or_else(|| "not set".to_owned(), |on| on.to_string());
    let seen = match gates {
        Some(_) => Proof::setting(CONFIG, format!("featureGates.{IPVS_GATE}"), gate),
        None => Proof::setting("the upgrade", "release", goal.release),
    };
    findings.push(Finding::new(severity, Mode::Ipvs, message).evidence([seen]));
    findings.verdict()
}

fn external_ips_after(facts: &Facts<'_>) -> Verdict {
    let goal = goal(facts)?;
    let with = with_external_ips(facts)?;
    if goal.release < planned::EXTERNAL_IPS_OFF || with.is_empty() {
        return Ok(Vec::new());
    }
    let mut findings = Collector::default();
    let removed = planned::EXTERNAL_IPS_REMOVED;
    let config = findings.read(facts.configuration());
    if config.is_none() && goal.release < removed {
        return findings.verdict();
    }
    let gate = config.and_then(|config| config.feature_gates.get(EXTERNAL_IPS_GATE).copied());
    let (severity, message) = match gate {
        Some(true) if goal.release < removed => (
            Severity::Warning,
            format!(
                "kube-proxy serves externalIPs only because their gate is on; they are removed in {removed}"
            ),
        ),
        _ => (
            Severity::Error,
            "kube-proxy no longer serves the Service's externalIPs".to_owned(),
        ),
    };
    findings.extend(with.into_iter().map(|service| {
        Finding::new(severity, service, message.clone()).evidence([addresses_proof(service)])
    }));
    findings.verdict()
}

fn node_ports_after(facts: &Facts<'_>) -> Verdict {
    let goal = goal(facts)?;
    let after = mode_with(&facts.configuration()?, facts, goal)?;
    let before = facts.current()?;
    if after == before || after != Mode::Nftables {
        let why = format!("the mode stays {before}");
        return Err(Gap::NotApplicable(why));
    }
    let switch = Facts::new(facts.node, facts.now).before(Some(after));
    let mut findings = Collector::default();
    findings.add(node_port::localhost(&switch));
    findings.add(node_port::secondary(&switch));
    findings.verdict()
}

fn gates_after(facts: &Facts<'_>) -> Verdict {
    let goal = goal(facts)?;
    let mut findings = Collector::default();
    let config = findings.read(facts.configuration());
    let gates = config
        .map(|config| config.feature_gates)
        .unwrap_or_default();
    let gone = gates.iter().filter_map(|(name, value)| {
        let why = match refused_gate(name, *value, goal.release)? {
            RefusedGate::Unknown(release) => format!("{release} does not know this feature gate"),
            RefusedGate::Locked(release) => {
                format!("from {release} on this feature gate cannot be off")
            }
        };
        let message = format!("kube-proxy does not start: {why}");
        let seen = Proof::setting(CONFIG, format!("featureGates.{name}"), value);
        Some(Finding::new(Severity::Error, Subject::setting(name), message).evidence([seen]))
    });
    findings.extend(gone);
    findings.add(removed_flags(facts));
    findings.verdict()
}

/// The changes of an object that the API server refuses because of an address.
const NEW_VALUES: &str = "new objects with this value and changes of the field";

fn addresses_after(facts: &Facts<'_>) -> Verdict {
    let goal = goal(facts)?;
    if goal.release < STRICT_ADDRESSES {
        return Ok(Vec::new());
    }
    let mut findings = Collector::default();
    let node = facts.node;
    for of in findings.read(node.services()).into_iter().flatten() {
        let found = refused(
            goal,
            Severity::Warning,
            of.into(),
            &strict::of_service(of),
            NEW_VALUES,
        );
        findings.extend(found);
    }
    for of in findings.read(node.slices()).into_iter().flatten() {
        let about = Subject::object("EndpointSlice", &of.metadata.namespace, &of.metadata.name);
        let what = "every change of the endpoints";
        findings.extend(refused(
            goal,
            Severity::Error,
            about,
            &strict::of_slice(of),
            what,
        ));
    }
    for of in findings.read(node.pods()).into_iter().flatten() {
        let about = Subject::object("Pod", &of.metadata.namespace, &of.metadata.name);
        let what = "new pods with this value";
        findings.extend(refused(
            goal,
            Severity::Error,
            about,
            &strict::of_pod(of),
            what,
        ));
    }
    for of in findings.read(node.nodes()).into_iter().flatten() {
        let name = Some(of.metadata.name.clone());
        let found = refused(
            goal,
            Severity::Warning,
            Subject::Node { name },
            &strict::of_node(of),
            NEW_VALUES,
        );
        findings.extend(found);
    }
    findings.verdict()
}

/// Returns the finding about an object with values `refused`; because of them, the API server refuses `what`.
fn refused(
    goal: Goal,
    severity: Severity,
    about: Subject,
    refused: &[Refused],
    what: &str,
) -> Option<Finding> {
    if refused.is_empty() {
        return None;
    }
    let fields = refused
        .iter()
        .map(|refused| format!("{} has {}", refused.field, refused.why));
    let fields: BTreeSet<_> = fields.collect();
    let fields: Vec<_> = fields.into_iter().collect();
    let message = format!("the API server refuses {what}: {}", listed(&fields));
    let accepted = |refused: &Refused| {
        Some(format!(
            "{} as {}",
            refused.value,
            strict::accepted(&refused.value)?
        ))
    };
    let wanted: BTreeSet<_> = refused.iter().filter_map(accepted).collect();
    let wanted: Vec<_> = wanted.into_iter().collect();
    let mut fix = format!(
        "Before the upgrade, write {} where the value comes from.",
        listed(&wanted)
    );
    if goal.release < STRICT_ADDRESSES_ALWAYS {
        fix.push_str(
            " Until 1.38 the API server's feature gate StrictIPCIDRValidation can be off instead.",
        );
    }
    let seen = refused
        .iter()
        .map(|refused| Proof::setting("the object", refused.field, &refused.value));
    Some(
        Finding::new(severity, about, message)
            .evidence(seen)
            .fix(fix),
    )
}

fn bugs_after(facts: &Facts<'_>) -> Verdict {
    let goal = goal(facts)?;
    let running = facts.version()?.version;
    let (before, config) = (facts.current()?, facts.configuration()?);
    let after = mode_with(&config, facts, goal)?;
    let seen = |bug: &bugs::Bug| {
        let versions = Proof::setting("known bug", bug.key, bug.versions);
        [versions].into_iter().chain(bug.thread())
    };
    let brought = bugs::after(goal, after).filter(|bug| !bug.is_in(running, before));
    let mut findings: Vec<_> = brought
        .map(|bug| {
            let message = format!("the upgrade brings a known bug: {}", bug.what);
            Finding::new(Severity::Warning, Subject::bug(bug.key), message)
                .evidence(seen(bug))
                .fix(bug.workaround)
        })
        .collect();
    let fixed = bugs::here(facts)?.filter(|bug| !bug.is_in(goal.version(), after));
    findings.extend(fixed.map(|bug| {
        let message = format!("the upgrade fixes a known bug: {}", bug.what);
        Finding::new(Severity::Info, Subject::bug(bug.key), message)
            .evidence(seen(bug))
            .fix(
                Prose::default()
                    .kpx(bugs::SHOWS)
                    .and(" tells whether the node shows it now."),
            )
    }));
    Ok(findings)
}
