//! kube-proxy's mode and configuration.

use std::net::IpAddr;

use super::silence::{edit_of, proxy_sets};
use crate::check::core::{
    COPY, Collector, FAMILIES, IDLE, MODE, OBSERVED, REPLACED, REPLACEMENT, Source, VERSION,
    idle_rules, is_proxys, is_replaced, leaves, plain, stores, with_flags,
};
use crate::check::drift::{is_repairable, repair, restart_fix};
use crate::check::iptables_rules::flushes;
use crate::check::{
    Advice, Because, Check, Example, Facts, Finding, Fix, Proof, Prose, Severity, Subject, Text,
    Verdict, When,
};
use kpx_node::backend::Mode;
use kpx_node::backend::requirements::{self, Refusal};
use kpx_node::cluster::config::{go_duration, is_readable, written};
use kpx_node::cluster::{Pod, validate};
use kpx_node::evidence::processes::Processes;
use kpx_node::evidence::proxy_log::Kind;
use kpx_node::evidence::{Gap, Item, Time};
use kpx_node::net::Family;
use kpx_node::node::IptablesBackend;
use kpx_node::words::{listed, number_of};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KP01",
        name: "mode-agrees",
        severity: Severity::Error,
        when: When::Now,
        title: "The configured mode, the reported mode and the kernel's rules agree",
        symptom: "Services are served by rules of an unexpected mode, and the next restart of kube-proxy changes how, \
              or whether, they are served.",
        why: "kube-proxy reads its configuration only when it starts. An edit of the ConfigMap reaches the file on \
              the node but not the running process: the mode changes at the next restart. /proxyMode reports the \
              configuration that the process started with, not the rules in the kernel; releases before 1.26 fell \
              back from ipvs to iptables without changing it.",
        verify: "Compare the mode in the file, the mode that the process reports, and the rules in the kernel.",
        commands: &[
            Example::anywhere(
                "kubectl -n kube-system get configmap kube-proxy -o yaml | grep 'mode:'",
            ),
            Example::on_node("curl -s http://127.0.0.1:10249/proxyMode"),
            Example::on_node(
                "iptables-save | grep -c KUBE-SVC-; ipvsadm -Ln | head; nft list tables | grep kube-proxy",
            ),
        ],
        fix: Text::plain(
            "Decide which mode this node should have. If the file is right, restart kube-proxy on this node when it \
              suits you. If the process is right, restore the file by correcting the ConfigMap.",
        ),
        incidents: &[
            "kubernetes/kubernetes#57144 and #86869: edits are not picked up until a restart",
            "kubernetes/kubernetes#111806 and #55864: silent fallback to iptables before 1.26",
        ],
        needs: &[
            MODE,
            OBSERVED,
            IDLE,
            FAMILIES,
            REPLACEMENT,
            &[
                Item::ProxyLog,
                Item::Metrics,
                Item::Firewalls,
                Item::Processes,
                Item::Pods,
                Item::DaemonSets,
                Item::Addresses,
            ],
        ],
        caused_by: &[
            Because::Absence("KP05"),
            Because::In("IB07"),
            Because::Family("KM01"),
            Because::Family("KM08"),
            Because::Same("KP21"),
            Because::OutdatedBy("KP21"),
        ],
        run: mode,
    },
    Check {
        id: "KP03",
        name: "flags-ignored",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy has no flags that its configuration file overrides",
        symptom: "A flag in the manifest, for example the mode, has no effect.",
        why: "With --config, kube-proxy reads its settings from the file and silently ignores flags for the same \
              settings.",
        verify: "Next to --config, only flags without a field in the file may be used: --hostname-override, -v.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{.spec.template.spec.containers[0].command}'",
        )],
        fix: Text::plain(
            "Move the setting to the file in the ConfigMap, and remove the flag from the manifest.",
        ),
        incidents: &["kubernetes/kubernetes#89126", "aws/containers-roadmap#142"],
        needs: &[&[Item::Pods, Item::DaemonSets, Item::Nodes, Item::Addresses]],
        caused_by: &[],
        run: ignored_flags,
    },
    Check {
        id: "KP04",
        name: "changed-config",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy runs with the settings of its ConfigMap",
        symptom: "A node changes its behaviour when its kube-proxy happens to restart, weeks after an edit.",
        why: "kube-proxy reads its configuration only when it starts. After an edit of the ConfigMap, each node \
              changes when its own kube-proxy restarts next, for any reason.",
        verify: "Compare the ConfigMap with the settings that the process reports.",
        commands: &[
            Example::anywhere("kubectl -n kube-system get configmap kube-proxy -o yaml"),
            Example::on_node("curl -s http://127.0.0.1:10249/configz"),
        ],
        fix: Text::plain(
            "Restart kube-proxy node by node when it suits you, or revert the edit of the ConfigMap.",
        ),
        incidents: &[
            "kubernetes/kubernetes#57144",
            "kubernetes/kubernetes#86869",
            "k0sproject/k0s#7556",
        ],
        needs: &[&[
            Item::ConfigMaps,
            Item::Configz,
            Item::ProxyMode,
            Item::Pods,
            Item::Nodes,
            Item::Addresses,
            Item::ProxyConfig,
            Item::ProxyLog,
        ]],
        caused_by: &[Because::Same("KP01")],
        run: changed_config,
    },
    Check {
        id: "KP22",
        name: "mode-of-release",
        severity: Severity::Error,
        when: When::NowAndFor(&Mode::ALL),
        title: "kube-proxy starts with its mode, feature gates and configuration",
        symptom: "kube-proxy exits whenever it starts, and nothing updates the node's rules.",
        why: "kube-proxy refuses a mode that its release does not have. The nftables mode exists since 1.29, and needs the \
              feature gate NFTablesProxyMode, which is off by default up to 1.30 and cannot be off from 1.33. The ipvs mode \
              needs the gate KubeProxyIPVS since 1.37, which is on by default. It also refuses values of other fields. A running \
              kube-proxy keeps the configuration that it has read.",
        verify: "Compare kube-proxy's version and the gates in its configuration.",
        commands: &[
            Example::anywhere(
                "kubectl -n kube-system get daemonset kube-proxy -o jsonpath='{.spec.template.spec.containers[0].image}'",
            ),
            Example::anywhere(
                "kubectl -n kube-system get configmap kube-proxy -o yaml | grep -A3 featureGates",
            ),
        ],
        fix: Text::plain(
            "Upgrade kube-proxy to a release with the mode, set the feature gate, or choose another mode.",
        ),
        incidents: &[
            "the announcement of the nftables mode: alpha in 1.29, beta in 1.31, stable in 1.33",
            "switches to nftables on 1.28 to 1.30 that ended in a crash loop",
        ],
        needs: &[MODE, VERSION, &[Item::Healthz]],
        caused_by: &[],
        run: accepted,
    },
    Check {
        id: "KP13",
        name: "sync-periods",
        severity: Severity::Info,
        when: When::Now,
        title: "kube-proxy's sync periods do not follow outdated advice",
        symptom: "Changes reach this node later than necessary.",
        why: "Before 1.28 large clusters were advised to set minSyncPeriod to 10 seconds or more. kube-proxy now \
              writes only changes, so such a value only adds delay; a long syncPeriod delays repairs.",
        verify: "The setting minSyncPeriod should be 1s or unset, and syncPeriod not above 5 minutes.",
        commands: &[Example::anywhere(
            "kubectl -n kube-system get configmap kube-proxy -o yaml | grep -i syncPeriod",
        )],
        fix: Text::plain(
            "Remove minSyncPeriod and syncPeriod from the configuration, and restart kube-proxy.",
        ),
        incidents: &["the documentation of virtual IPs advises against the old values"],
        needs: &[MODE],
        caused_by: &[],
        run: periods,
    },
];

/// Returns whether kube-proxy says that it runs in another mode than it should: a restart does not change that.
fn has_fallen_back(facts: &Facts<'_>) -> bool {
    let log = facts.node.proxy_log();
    log.is_ok_and(|log| log.has(&[Kind::Fallback]))
}

fn accepted(facts: &Facts<'_>) -> Verdict {
    let refused = refused(facts);
    match unsupported(facts) {
        Ok(mut found) => {
            found.extend(refused);
            Ok(found)
        }
        Err(_) if !refused.is_empty() => Ok(refused),
        Err(gap) => Err(gap),
    }
}

/// Returns the settings that kube-proxy refuses when it starts. Before a switch, the requirements report them.
fn refused(facts: &Facts<'_>) -> Vec<Finding> {
    if facts.target().is_some() {
        return Vec::new();
    }
    let mode = facts.configured().map_or(Mode::Iptables, |(mode, _)| mode);
    let version = facts.version().ok().map(|version| version.version);
    let (severity, when) = match facts.node.health() {
        Ok(_) => (Severity::Warning, "the next time it starts"),
        Err(_) => (Severity::Error, "when it starts"),
    };
    let fix = |text: String| {
        let edit = Advice::Edit {
            resource: "configmap",
            namespace: "kube-system".to_owned(),
            name: facts.map_name(),
        };
        match facts.source() {
            Source::Unknown => Fix::said(text),
            Source::Map { .. } | Source::Unread(_) => Fix::new(text, edit),
        }
    };
    let finding = |refused: validate::Refused| {
        let message = format!(
            "kube-proxy exits {when}, since it refuses {} {}: {}",
            refused.field, refused.value, refused.allowed
        );
        Finding::new(severity, Subject::setting(&refused.field), message).fix(fix(format!(
            "Correct {} in kube-proxy's configuration, and restart kube-proxy.",
            refused.field
        )))
    };
    let evidence = facts.node.evidence();
    let mut read = evidence.iter();
    // A file that kpx could not read may be readable for kube-proxy.
    if !read.any(|(item, read)| item == Item::ProxyConfig && read.is_ok()) {
        return Vec::new();
    }
    let text = evidence.text(Item::ProxyConfig);
    match text.and_then(|text| validate::refused(text, mode, version)) {
        Err(_) if evidence.shown(Item::ProxyConfig).is_ok_and(is_readable) => Vec::new(),
        Ok(refused) => refused.into_iter().map(finding).collect(),
        Err(Gap::Failed(_, why)) => {
            let message =
                format!("kube-proxy exits {when}, since it cannot read its configuration: {why}");
            let about = Subject::setting("configuration");
            let text = "Correct the configuration, and restart kube-proxy.".to_owned();
            vec![Finding::new(severity, about, message).fix(fix(text))]
        }
        Err(_) => Vec::new(),
    }
}

fn unsupported(facts: &Facts<'_>) -> Verdict {
    let configured = || facts.configured().map(|(mode, _)| mode);
    let mode = facts.target().map_or_else(configured, Ok)?;
    if matches!(mode, Mode::Iptables | Mode::Userspace) {
        return Err(Gap::NotApplicable(format!(
            "every release that kpx knows has mode {mode}"
        )));
    }
    let found = facts.version()?;
    let config = facts.configuration()?;
    let Some(refusal) = requirements::refusal(mode, found.version, &config) else {
        return Ok(Vec::new());
    };
    let version = found.version;
    let (message, fix) = match refusal {
        Refusal::TooOld { on } => (
            format!(
                "kube-proxy {version} does not have mode {mode}: it exits when it starts in it"
            ),
            format!("Upgrade kube-proxy to {on} or newer before it gets mode {mode}."),
        ),
        Refusal::GateOff { gate, on } => (
            format!(
                "kube-proxy {version} refuses mode {mode} without the feature gate {gate}: it exits when it starts in it"
            ),
            match on {
                Some(on) => format!(
                    "Set featureGates.{gate} to true in kube-proxy's configuration, or upgrade kube-proxy to {on} or newer, \
                     before it gets mode {mode}."
                ),
                None => format!("Remove featureGates.{gate} from kube-proxy's configuration."),
            },
        ),
    };
    let seen = [
        Proof::Note(format!("version {version}, by {}", found.source)),
        Proof::Note(format!("mode {mode}")),
    ];
    Ok(vec![
        Finding::new(Severity::Error, mode, message)
            .evidence(seen)
            .fix(fix),
    ])
}

fn mode(facts: &Facts<'_>) -> Verdict {
    let mut all = Collector::default();
    let configured = all.read(facts.configured());
    let reported = facts.reported();
    let replaced = match reported {
        Ok(_) => Ok(false),
        Err(_) => is_replaced(facts),
    };
    // Rules of kube-proxy on a node with another service proxy are leftovers: CN04 reports them.
    if replaced == Ok(true) {
        return Err(Gap::NotApplicable(REPLACED.to_owned()));
    }
    let setting = |source: &str, mode: Mode| Proof::Setting {
        source: source.to_owned(),
        key: "mode".to_owned(),
        value: mode.to_string(),
    };
    let mut seen = Vec::new();
    seen.extend(configured.map(|(mode, source)| setting(source.name(), mode)));
    seen.extend(reported.iter().map(|mode| setting("/proxyMode", *mode)));
    if let (Some((configured, _)), Ok(reported)) = (configured, &reported)
        && *reported != configured
    {
        if let Some(age) = facts.pending_to(*reported) {
            let message = format!(
                "the ConfigMap was set to {reported} {age} s ago, but the file on the node still has {configured}"
            );
            let finding =
                Finding::new(Severity::Info, Subject::setting("mode"), message).evidence(seen);
            return Ok(vec![finding.fix(
                "Wait: the kubelet updates the file within two minutes. If kube-proxy restarts before that, it reads the old file.",
            )]);
        }
        let message = if has_fallen_back(facts) {
            format!("kube-proxy is configured for {configured}, and has fallen back to {reported}")
        } else {
            format!(
                "kube-proxy runs in mode {reported} but is configured for {configured}: its next restart switches the mode"
            )
        };
        let finding =
            Finding::new(Severity::Error, Subject::setting("mode"), message).evidence(seen);
        let decides = || {
            Fix::kpx(
                format!(
                    "Decide which mode this node should have. If it is {configured}, restart kube-proxy when it suits you. If it is \
                     {reported}, correct the ConfigMap."
                ),
                ["doctor", "--to", configured.name()],
            )
        };
        return Ok(vec![if has_fallen_back(facts) {
            finding
        } else {
            finding.fix(decides())
        }]);
    }
    let reported = all.read(reported);
    let expected = configured.map(|(mode, _)| ("is configured for", mode));
    let expected = expected.or_else(|| Some(("runs in mode", reported?)));
    let Some((what, mode)) = expected else {
        return all.verdict();
    };
    let families = all.read(facts.families()).unwrap_or_default();
    let families = match families.as_slice() {
        // Without Services and pods, assume IPv4: every node has rules for it.
        [] => &[Family::V4],
        some => some,
    };
    for &family in families {
        let (held, text) = match held(facts, &mut all, mode, family) {
            Ok(Held::Mode(held)) if held == mode => continue,
            Ok(Held::Mode(held)) => (held.name(), format!("the kernel has rules of mode {held}")),
            Ok(Held::None) => ("none", without_rules(facts, family)),
            Ok(Held::Other(gap)) => {
                all.note(gap);
                ("none", format!("the kernel has no rules of mode {mode}"))
            }
            Err(gap) => {
                all.note(gap);
                continue;
            }
        };
        if let Err(gap) = replaced {
            // An unknown service proxy would explain it.
            all.note(gap);
            break;
        }
        let kernel = Proof::Setting {
            source: format!("kernel, {family}"),
            key: "mode".to_owned(),
            value: held.to_owned(),
        };
        // A sync that ended wrote rules; later failures do not explain why they are gone.
        let by = match synced(facts, family).filter(|_| held == "none") {
            Some(_) => flushes(facts).unwrap_or_default(),
            None => Vec::new(),
        };
        let wrote =
            synced(facts, family).filter(|_| held == "none" && (!by.is_empty() || !fails(facts)));
        let apart = apart(facts).filter(|_| held == "none");
        let gone = match &apart {
            Some(pod) => format!(
                ", as kube-proxy's pod {} has a network of its own, and the rules are there",
                pod.metadata.name
            ),
            None => wrote.map_or_else(String::new, |at| {
                let by = by.iter().map(|finding| format!("; {}", finding.message));
                format!(
                    ": something removed those that kube-proxy wrote at {at}{}",
                    by.collect::<String>()
                )
            }),
        };
        let message = format!("kube-proxy {what} {mode}, but {text}{gone}");
        let finding = Finding::new(Severity::Error, family, message);
        let finding = finding.evidence(seen.iter().cloned()).evidence([kernel]);
        all.push(if apart.is_some() {
            let text = "Set hostNetwork: true in the pod template of its DaemonSet.";
            let set = proxy_sets(facts).next();
            let fix = set.map_or_else(|| Fix::said(text), |set| Fix::new(text, edit_of(set)));
            finding.lost_in([Subject::table(family, "nat")]).fix(fix)
        } else if held == "none" {
            let finding = finding.lost_in([Subject::table(family, "nat")]);
            finding.fix(flushed_fix(facts, wrote.is_some(), by))
        } else {
            finding.fix(
                "Find out in kube-proxy's log why it does not write its rules: `kubectl -n kube-system logs POD`. It may have stopped, or fallen back to another mode.",
            )
        });
        if held != "none" {
            break;
        }
    }
    all.verdict()
}

/// Returns kube-proxy's pod on this node, if it runs in a network of its own instead of the node's.
fn apart<'f>(facts: &'f Facts<'_>) -> Option<&'f Pod> {
    let pod = facts.node.proxy_pod(facts.node_name().as_deref())?;
    if pod.spec.host_network {
        return None;
    }
    let processes = facts.node.processes();
    let mut proxies = processes.into_iter().flat_map(Processes::kube_proxies);
    let is_apart = if let Some(first) = proxies.next() {
        let mut all = std::iter::once(first).chain(proxies);
        all.all(|process| process.same_network == Some(false))
    } else {
        // Without the processes its address tells: a pod of the node's network has one of the node.
        let own = &facts.node.addresses().ok()?.all;
        let is_others = |addr: IpAddr| own.iter().all(|own| own.addr.addr != addr);
        let mut addresses = pod.addresses().peekable();
        addresses.peek().is_some() && addresses.all(is_others)
    };
    is_apart.then_some(pod)
}

/// Returns when kube-proxy's last sync of `family` ended.
fn synced(facts: &Facts<'_>, family: Family) -> Option<Time> {
    let mut syncs = facts.node.metrics().ok()?.last_sync();
    let (_, at) =
        syncs.find(|(of, at)| of.is_none_or(|sync_family| sync_family == family) && *at > 0.0)?;
    Time::from_epoch(at)
}

/// Returns whether kube-proxy's log says that syncs fail.
fn fails(facts: &Facts<'_>) -> bool {
    let log = facts.node.proxy_log();
    log.is_ok_and(|log| log.has(&[Kind::Sync, Kind::Exit, Kind::Range]))
}

/// Returns how to restore the missing rules; `written` if kube-proxy wrote them. The fix of `by`, the program that flushes them, comes
/// first: it would flush them again.
fn flushed_fix(facts: &Facts<'_>, written: bool, by: Vec<Finding>) -> Fix {
    let is_repairable = is_repairable(facts.node);
    if let Some(mut first) = by.into_iter().find_map(|finding| finding.fix) {
        let text = first.text.and(" Then ");
        first.text = if is_repairable {
            text.kpx(["reconcile", "--apply"])
                .and(" writes the missing rules.")
        } else {
            text.and("restart kube-proxy on this node: it writes all rules when it starts.")
        };
        return first;
    }
    let then = if written {
        "Then find what removed them, or it does so again: a reload of firewalld, iptables-restore without --noflush \
         (netfilter-persistent, iptables.service), or `nft flush ruleset` (nftables.service)."
    } else {
        "Find out in kube-proxy's log why it has not written them."
    };
    if is_repairable {
        let now = Prose::from("Write the missing rules; ")
            .kpx(["reconcile"])
            .and(" shows them. ");
        Fix::new(now.and(then), repair())
    } else {
        let now = "Restart kube-proxy on this node: it writes all rules when it starts. ";
        restart_fix(facts.node, Prose::from(now).and(then))
    }
}

/// Returns the objects of kube-proxy in the kernel, if it has no rules of `family`.
fn without_rules(facts: &Facts<'_>, family: Family) -> String {
    let servers = facts.node.ipvs().map_or(&[][..], |table| &table.servers);
    let addresses = servers.iter().filter_map(|server| server.key.socket());
    match addresses.filter(|at| Family::of(at.ip()) == family).count() {
        0 => "the kernel has no rules of any mode".to_owned(),
        count => format!(
            "the kernel has none of its rules, only {}",
            number_of(count, "virtual server")
        ),
    }
}

/// The rules of kube-proxy in the kernel.
enum Held {
    /// The rules of this mode.
    Mode(Mode),
    /// None.
    None,
    /// No rules of the expected mode; the rules of the others were not read.
    Other(Gap),
}

/// Returns the rules of `family` in the kernel, where those of `mode` are expected, and notes in `all` a backend that was not read.
fn held(facts: &Facts<'_>, all: &mut Collector, mode: Mode, family: Family) -> Result<Held, Gap> {
    let observed = facts.observed(family);
    if let Ok(Some(held)) = observed {
        return Ok(Held::Mode(held));
    }
    let uses_iptables = mode != Mode::Nftables;
    // A kube-proxy that has no chain in the backend of the node's tools may write to the other one.
    if uses_iptables && !writes_to_backend_in_use(facts) {
        all.read(idle_rules(facts, family));
        let (_, idle) = stores(facts);
        if let Some(held) = facts.node.dispatching(idle, family).first() {
            return Ok(Held::Mode(*held));
        }
    }
    let Err(gap) = observed else {
        return Ok(Held::None);
    };
    if uses_iptables {
        facts.node.iptables(IptablesBackend::InUse, family)?;
    } else {
        facts.node.nft()?;
    }
    Ok(Held::Other(gap))
}

/// Returns whether the iptables backend of the node's tools has a chain of kube-proxy, of either family.
fn writes_to_backend_in_use(facts: &Facts<'_>) -> bool {
    Family::BOTH.into_iter().any(|family| {
        let rules = facts.node.iptables(IptablesBackend::InUse, family);
        let tables = rules.into_iter().flat_map(|rules| &rules.tables);
        let mut chains = tables.flat_map(|table| &table.chains);
        chains.any(|chain| is_proxys(&chain.name))
    })
}

fn ignored_flags(facts: &Facts<'_>) -> Verdict {
    const FLAGS: [&str; 12] = [
        "bind-address",
        "cluster-cidr",
        "conntrack-max-per-core",
        "detect-local-mode",
        "healthz-bind-address",
        "ipvs-scheduler",
        "ipvs-strict-arp",
        "ipvs-exclude-cidrs",
        "masquerade-all",
        "metrics-bind-address",
        "nodeport-addresses",
        "proxy-mode",
    ];
    let message = "the flag has no effect: --config is set";
    with_flags(facts, &FLAGS, message, |flags| {
        flags.value("config").is_some()
    })
}

fn periods(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    let config = facts.configuration()?;
    let (least, period) = config.periods_of(mode);
    let mut findings = Vec::new();
    for (key, text, most, message) in [
        (
            "minSyncPeriod",
            least,
            5,
            "the minimum time between two syncs delays every change",
        ),
        (
            "syncPeriod",
            period,
            300,
            "the time between two full syncs delays repairs",
        ),
    ] {
        if go_duration(text).is_some_and(|time| time.as_secs() > most) {
            findings.push(
                Finding::new(Severity::Info, Subject::setting(key), message).evidence([
                    Proof::Setting {
                        source: "kube-proxy's configuration".to_owned(),
                        key: format!("{}.{key}", mode.section()),
                        value: text.to_owned(),
                    },
                ]),
            );
        }
    }
    Ok(findings)
}

/// Returns the settings that the running kube-proxy reports. If these are missing: its mode alone, and the gap.
fn running(facts: &Facts<'_>) -> Result<(serde_json::Value, Option<Gap>), Gap> {
    let text = match facts.node.evidence().text(Item::Configz) {
        Ok(text) => text,
        Err(gap) => {
            return match facts.reported() {
                Ok(mode) => Ok((serde_json::json!({ "mode": mode.name() }), Some(gap))),
                Err(_) => Err(gap),
            };
        }
    };
    let bad = |why: String| Gap::Failed(Item::Configz, why);
    let mut running: serde_json::Value =
        serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
    match running.get_mut("kubeproxy.config.k8s.io") {
        Some(config) => Ok((config.take(), None)),
        None => Err(bad("it has no field kubeproxy.config.k8s.io".to_owned())),
    }
}

fn changed_config(facts: &Facts<'_>) -> Verdict {
    // Fields of the single node, or of the file itself.
    const OWN: [&str; 5] = [
        "apiVersion",
        "kind",
        "hostnameOverride",
        "nodeIPOverride",
        "clientConnection",
    ];
    let (running, rest) = running(facts)?;
    let source = facts.source();
    // The file on the node is a copy of a ConfigMap that was not collected.
    let (map_name, source_name, text) = match &source {
        Source::Map { map, text } => {
            let name = map.metadata.name.as_str();
            (name, format!("ConfigMap {name}"), *text)
        }
        Source::Unread(name) => {
            let unread = || {
                let why =
                    format!("ConfigMap {name}, which kube-proxy mounts here, was not collected");
                Gap::Absent(Item::ConfigMaps, why)
            };
            let file = facts.file().ok_or_else(unread)?;
            (
                name.as_str(),
                format!("the node's file from ConfigMap {name}"),
                file,
            )
        }
        Source::Unknown => (
            "kube-proxy",
            "ConfigMap kube-proxy".to_owned(),
            facts.config_map_text()?,
        ),
    };
    let wanted = written(text).map_err(|gap| gap.about(Item::ConfigMaps))?;
    // kube-proxy reports other modes' periods as 0.
    let mode = running["mode"].as_str().unwrap_or_default();
    let section = Mode::named(mode).unwrap_or(Mode::Iptables).section();
    let is_of_other = |name: &str| {
        name.split_once('.').is_some_and(|(of, field)| {
            of != section && ["syncPeriod", "minSyncPeriod"].contains(&field)
        })
    };
    let mut seen = Vec::new();
    leaves(&wanted, "", &mut |name, value| {
        let first = name.split('.').next().unwrap_or_default();
        if OWN.contains(&first) || is_of_other(name) {
            return;
        }
        let have = name.split('.').try_fold(&running, |at, key| at.get(key));
        // A field that the running release does not report is unknown to it.
        if let Some(have) = have
            && plain(have) != plain(value)
        {
            seen.push(Proof::setting(
                source_name.as_str(),
                name,
                format_args!("{}, but {} is in use", plain(value), plain(have)),
            ));
        }
    });
    // Without a mode, kube-proxy starts in mode iptables.
    let is_unset = |config: &serde_json::Value| config["mode"].as_str().unwrap_or("").is_empty();
    let other = running["mode"].as_str().and_then(Mode::named);
    let other = other.filter(|mode| is_unset(&wanted) && *mode != Mode::Iptables);
    seen.extend(other.map(|mode| {
        let value = format!("\"\", which is iptables, but {mode} is in use");
        Proof::setting(source_name.as_str(), "mode", value)
    }));
    if seen.is_empty() {
        return rest.map_or_else(|| Ok(Vec::new()), Err);
    }
    let is_mode = |proof: &Proof| matches!(proof, Proof::Setting { key, .. } if key == "mode");
    let is_mode = seen.iter().all(is_mode);
    let about = if is_mode {
        Subject::setting("mode")
    } else {
        Subject::Proxy
    };
    if let Source::Map { map, text } = source
        && let Some(age) = facts.pending(map, text)
    {
        let message = format!(
            "the ConfigMap was edited {age} s ago, and the kubelet has not written the edit to the node yet"
        );
        let finding = Finding::new(Severity::Info, about, message)
            .called("kube-proxy")
            .evidence(seen);
        return Ok(vec![finding.fix(
            "Wait: the kubelet updates the file within two minutes. If kube-proxy restarts before that, it reads the old file.",
        )]);
    }
    if is_mode && has_fallen_back(facts) {
        // kube-proxy has read the setting, and cannot follow it.
        return rest.map_or_else(|| Ok(Vec::new()), Err);
    }
    let names = seen.iter().filter_map(|proof| match proof {
        Proof::Setting { key, .. } => Some(key.as_str()),
        _ => None,
    });
    let names: Vec<&str> = names.collect();
    let message = format!(
        "the ConfigMap changed after kube-proxy started: its next restart applies the new values of {}",
        listed(&names)
    );
    let finding = Finding::new(Severity::Warning, about, message)
        .called("kube-proxy")
        .evidence(seen);
    Ok(vec![if map_name.starts_with(COPY) {
        finding.fix(
            Prose::from("kpx made this copy for a migration: finish it with ")
                .kpx(["migrate", "resume"])
                .and(", or undo it with ")
                .kpx(["migrate", "rollback"])
                .and("."),
        )
    } else {
        finding
    }])
}
