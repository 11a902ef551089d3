//! KM, KP, IS, IR, DV, CT, DP: what tools, firewalls, network managers and the kernel's counters tell.

use super::ask::if_recorded;
use super::facts::MODE;
use super::others::numbers;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::ipvs::model::DUMMY;
use crate::evidence::{Gap, Item};
use crate::node::modules::{Standing, filed};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "KM07",
        name: "tools-in-the-image",
        severity: Severity::Error,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "kube-proxy finds the tools that the ipvs mode takes",
        symptom: "kube-proxy gives up with \"can't use the IPVS proxier\", or its syncs fail for want of ipset.",
        why: "In ipvs mode kube-proxy runs ipset for every set and, where ip_vs is not loaded yet, modprobe. Slim images have \
              left out one or the other.",
        verify: "Both must be found in kube-proxy's own file system.",
        commands: &["kubectl -n kube-system exec POD -- sh -c 'command -v ipset modprobe'"],
        fix: "Use an image with the tools, such as registry.k8s.io/kube-proxy; without modprobe, load the modules at boot.",
        incidents: &["k0sproject/k0s#4626", "kubernetes-retired/kube-aws#977"],
        needs: &[
            MODE,
            &[Item::ProxyTools, Item::Modules, Item::ModulesBuiltin],
        ],
        caused_by: &[],
        run: tools,
    },
    Check {
        id: "KP16",
        name: "nft-version",
        severity: Severity::Warning,
        when: When::NowAndFor(&[Mode::Nftables]),
        title: "The node's nft can read what kube-proxy writes",
        symptom: "On the node `nft list ruleset` fails or shows wrong rules, and what it saves cannot be loaded.",
        why: "kube-proxy's rules need nft 1.0.1. An older one on the node, used by an administrator or a firewall service, \
              misreads them, and a save and restore by it destroys them.",
        verify: "The version must be 1.0.1 or newer.",
        commands: &["nft --version"],
        fix: "Update nftables on the node.",
        incidents: &[
            "kubernetes/kubernetes#136786",
            "kubernetes/kubernetes#137501",
        ],
        needs: &[MODE, &[Item::NftVersion]],
        caused_by: &[],
        run: nft_version,
    },
    Check {
        id: "IS01",
        name: "set-revisions",
        severity: Severity::Error,
        when: When::Now,
        title: "Every ipset at work can read the sets that are there",
        symptom: "kube-proxy or a network plug-in fails with \"Kernel and userspace incompatible\".",
        why: "Sets have revisions. A newer ipset, on the node or in another image, makes one that an older ipset cannot list, \
              and the older one gives up on all sets.",
        verify: "Listing the sets must work with the tool of every image.",
        commands: &[
            "ipset list -n",
            "kubectl -n kube-system exec POD -- ipset list -n",
        ],
        fix: "Update the image, or the node's ipset, that is the older; the message names the set and its revision.",
        incidents: &[
            "canonical/microk8s#4585",
            "kubeovn/kube-ovn#4741",
            "projectcalico/calico#9551",
        ],
        needs: &[&[Item::Ipset, Item::ProxyLog]],
        caused_by: &[],
        run: revisions,
    },
    Check {
        id: "IS07",
        name: "ipset-version",
        severity: Severity::Warning,
        when: When::NowAndFor(&[Mode::Ipvs]),
        title: "The node's ipset knows the members that kube-proxy writes",
        symptom: "Adding to a set fails with \"Syntax error: cannot parse\".",
        why: "Before 6.30 ipset could not parse members of the form ip,protocol:port,ip.",
        verify: "The version must be 6.30 or newer.",
        commands: &["ipset --version"],
        fix: "Update ipset on the node.",
        incidents: &["kubernetes/kubernetes#67292: v6.29"],
        needs: &[MODE, &[Item::IpsetVersion]],
        caused_by: &[],
        run: ipset_version,
    },
    Check {
        id: "IR13",
        name: "flush-at-reload",
        severity: Severity::Warning,
        when: When::NowAndFor(&Mode::ALL),
        title: "No firewall service of the node flushes the rules of others",
        symptom: "Services stop for half a minute to a minute whenever the firewall is reloaded; hostPorts for good.",
        why: "A firewalld with FlushAllOnReload, and an nftables.conf that begins with `flush ruleset`, remove every rule there \
              is when the service starts or is reloaded: kube-proxy's as well.",
        verify: "The service must be off, or told to leave others' rules alone.",
        commands: &[
            "systemctl is-enabled firewalld nftables",
            "grep -i FlushAllOnReload /etc/firewalld/firewalld.conf",
            "grep 'flush ruleset' /etc/nftables.conf /etc/sysconfig/nftables.conf",
        ],
        fix: "Set FlushAllOnReload=no; in nftables.conf delete the file's own tables instead of the ruleset.",
        incidents: &["rancher/rke2#10469", "k0sproject/k0s#2908"],
        needs: &[&[Item::Firewalls]],
        caused_by: &[],
        run: flushes,
    },
    Check {
        id: "DV06",
        name: "link-managed",
        severity: Severity::Warning,
        when: When::Now,
        title: "No network manager takes care of kube-proxy's link",
        symptom: "Addresses vanish from kube-ipvs0, or the link is set up, so that the node answers ARP for Services.",
        why: "NetworkManager and systemd-networkd take over links that appear, unless told otherwise. They remove addresses \
              that they did not set.",
        verify: "The link must be unmanaged.",
        commands: &["nmcli device status", "networkctl status kube-ipvs0"],
        fix: "Tell NetworkManager by a file in /etc/NetworkManager/conf.d: [keyfile] and \
              unmanaged-devices=interface-name:kube-ipvs0;interface-name:nodelocaldns. For networkd: a .network file with \
              Unmanaged=yes.",
        incidents: &[
            "kubernetes-sigs/kubespray#6950",
            "kubernetes-sigs/kubespray#7315",
        ],
        needs: &[&[Item::Links, Item::LinkManagers]],
        caused_by: &[],
        run: managed,
    },
    Check {
        id: "CT05",
        name: "lost-entries",
        severity: Severity::Warning,
        when: When::Now,
        title: "Conntrack has not dropped packets",
        symptom: "New connections, and UDP queries above all, are lost now and then.",
        why: "Conntrack counts what it dropped for want of room, and entries it could not insert because another packet of the \
              same flow, or another flow with the same translation, came first.",
        verify: "The counters drop, early_drop and insert_failed must not grow.",
        commands: &["conntrack -S", "cat /proc/net/stat/nf_conntrack"],
        fix: "For drop: raise conntrack.maxPerCore. For insert_failed: see that masquerading is --random-fully, and that DNS \
              clients do not send two queries from one port.",
        incidents: &["kubernetes/kubernetes#117924", "kubeflow/pipelines#13729"],
        needs: &[&[Item::ConntrackStat]],
        caused_by: &["CT01"],
        run: lost_entries,
    },
    Check {
        id: "DP04",
        name: "unmaintained-drivers",
        severity: Severity::Info,
        when: When::Now,
        title: "The distribution maintains the drivers that kube-proxy uses",
        symptom: "The kernel log warns of an unmaintained driver.",
        why: "Enterprise distributions mark parts of their kernels as unmaintained before they remove them: nft_compat, on \
              which iptables-nft rests, and ip_set are among those.",
        verify: "Look for the warning in the kernel log.",
        commands: &["dmesg | grep -i 'unmaintained driver'"],
        fix: "Plan the move to the nftables mode, which needs neither.",
        incidents: &["kubernetes/enhancements#5343: seen on RHEL 9 and 10"],
        needs: &[&[Item::KernelLog]],
        caused_by: &[],
        run: unmaintained,
    },
];

fn tools(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let text = if_recorded(facts.node.evidence().text(Item::ProxyTools))?;
    let has = |name: &str| {
        let mut paths = text.lines();
        paths.any(|path| path.rsplit('/').next() == Some(name))
    };
    let missing = |name: &str| Proof::object("tool", format!("{name} is not there"));
    let mut findings = Vec::new();
    if !has("ipset") {
        let message = "kube-proxy does not find ipset, without which the ipvs mode does not work";
        findings.push(Finding::new(Severity::Error, "ipset", message).seen([missing("ipset")]));
    }
    if !has("modprobe") {
        let standing = facts.node.modules()?.standing("ip_vs");
        if !matches!(standing, Standing::Loaded | Standing::BuiltIn) {
            let message = "kube-proxy does not find modprobe, and ip_vs is not loaded";
            findings.push(
                Finding::new(Severity::Error, "modprobe", message).seen([missing("modprobe")]),
            );
        }
    }
    Ok(findings)
}

fn version(facts: &Facts<'_>, item: Item) -> Result<((u16, u16, u16), String), Gap> {
    let text = if_recorded(facts.node.evidence().text(item))?.trim();
    let found = numbers(text);
    let found = found.ok_or_else(|| Gap::Failed(item, format!("{text:?} has no version in it")))?;
    Ok((found, text.to_owned()))
}

fn nft_version(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Nftables])?;
    let (found, text) = match version(facts, Item::NftVersion) {
        // Without nft on the node nobody there misreads anything.
        Err(Gap::Absent(..)) => return Ok(Vec::new()),
        read => read?,
    };
    if found >= (1, 0, 1) {
        return Ok(Vec::new());
    }
    let message = "the node's nft is too old to read what kube-proxy writes";
    Ok(vec![
        Finding::new(Severity::Warning, "nft", message).seen([Proof::Note(text)]),
    ])
}

fn ipset_version(facts: &Facts<'_>) -> Verdict {
    facts.only_in(&[Mode::Ipvs])?;
    let (found, text) = match version(facts, Item::IpsetVersion) {
        Err(Gap::Absent(..)) => return Ok(Vec::new()),
        read => read?,
    };
    if found >= (6, 30, 0) {
        return Ok(Vec::new());
    }
    let message = "the node's ipset is too old for the members that kube-proxy writes";
    Ok(vec![
        Finding::new(Severity::Warning, "ipset", message).seen([Proof::Note(text)]),
    ])
}

fn revisions(facts: &Facts<'_>) -> Verdict {
    const SIGN: &str = "not supported by userspace";
    let mut seen = Vec::new();
    let sets = facts.node.evidence().text(Item::Ipset);
    if let Err(Gap::Failed(_, why)) = &sets
        && why.contains(SIGN)
    {
        seen.push(Proof::Note(format!("the node's ipset: {why}")));
    }
    let log = facts.node.evidence().text(Item::ProxyLog);
    let line = log
        .as_ref()
        .ok()
        .and_then(|log| log.lines().rfind(|line| line.contains(SIGN)));
    seen.extend(line.map(|line| Proof::Log(line.trim().to_owned())));
    if seen.is_empty() {
        return match (sets, log) {
            (Err(gap @ Gap::NotCollected(_)), Err(_)) => if_recorded(Err(gap)),
            (Err(gap), Err(_)) => Err(gap),
            _ => Ok(Vec::new()),
        };
    }
    let message = "an ipset at work is too old to read the sets that are there";
    Ok(vec![
        Finding::new(Severity::Error, "ipset", message).seen(seen),
    ])
}

fn flushes(facts: &Facts<'_>) -> Verdict {
    let lines: Vec<_> = filed(if_recorded(facts.node.evidence().text(Item::Firewalls))?).collect();
    let enabled = |service: &str| {
        let mut units = lines.iter().filter(|(_, line)| *line == "enabled");
        units.any(|(file, _)| file.ends_with(&format!("/{service}.service")))
    };
    let mut findings = Vec::new();
    let setting = lines.iter().find_map(|(file, line)| {
        let value = line.strip_prefix("FlushAllOnReload=")?;
        Some((*file, value.trim()))
    });
    // It is on unless the file says otherwise.
    if enabled("firewalld") && setting.is_none_or(|(_, value)| !value.eq_ignore_ascii_case("no")) {
        let (file, value) = setting.unwrap_or(("/etc/firewalld/firewalld.conf", "yes, by default"));
        let message = "a reload of firewalld flushes kube-proxy's rules with its own";
        findings.push(
            Finding::new(Severity::Warning, "firewalld", message).seen([Proof::setting(
                file,
                "FlushAllOnReload",
                value,
            )]),
        );
    }
    let flush = lines.iter().find(|(_, line)| *line == "flush ruleset");
    if let Some((file, line)) = flush.filter(|_| enabled("nftables")) {
        let message = "a start of the service nftables flushes kube-proxy's rules as well";
        findings.push(
            Finding::new(Severity::Warning, "nftables", message)
                .seen([Proof::Note(format!("{file}: {line}"))]),
        );
    }
    Ok(findings)
}

fn managed(facts: &Facts<'_>) -> Verdict {
    let links = facts.node.links()?.all.iter();
    let ours: Vec<_> = links
        .filter(|link| link.name == DUMMY || super::dummy::is_dns(&link.name))
        .collect();
    if ours.is_empty() {
        return Err(Gap::NotApplicable(format!("there is no {DUMMY}")));
    }
    let told: Vec<_> =
        filed(if_recorded(facts.node.evidence().text(Item::LinkManagers))?).collect();
    let mut findings = Vec::new();
    for link in ours {
        let end = format!("/{}", link.index);
        let taken = told
            .iter()
            .filter(|(file, _)| file.ends_with(&end))
            .find(|(_, line)| {
                matches!(
                    *line,
                    "managed=true" | "ADMIN_STATE=configured" | "ADMIN_STATE=configuring"
                )
            });
        if let Some((file, line)) = taken {
            let by = if file.contains("NetworkManager") {
                "NetworkManager"
            } else {
                "systemd-networkd"
            };
            let message = format!("{by} takes care of the link, and may take its addresses away");
            findings.push(
                Finding::new(Severity::Warning, link.name.clone(), message)
                    .seen([Proof::Note(format!("{file}: {line}"))]),
            );
        }
    }
    Ok(findings)
}

fn lost_entries(facts: &Facts<'_>) -> Verdict {
    /// Races of this kind are a part of any busy node's life.
    const FEW: u64 = 1_000;
    let stat = if_recorded(facts.node.conntrack_stat())?;
    let mut findings = Vec::new();
    for (names, most, message) in [
        (
            &["drop", "early_drop"][..],
            0,
            "connections were dropped since boot because the table was full",
        ),
        (
            &["insert_failed"][..],
            FEW,
            "many packets were dropped since boot because another was first with the same translation",
        ),
    ] {
        let counted = names.iter().map(|name| (*name, stat.sum(name)));
        let seen: Vec<_> = counted
            .filter(|(_, count)| *count > most)
            .map(|(name, count)| Proof::setting("/proc/net/stat/nf_conntrack", name, count))
            .collect();
        if !seen.is_empty() {
            findings.push(Finding::new(Severity::Warning, names[0], message).seen(seen));
        }
    }
    Ok(findings)
}

fn unmaintained(facts: &Facts<'_>) -> Verdict {
    const DRIVERS: [&str; 3] = ["nft_compat", "ip_set", "ip_tables"];
    let log = if_recorded(facts.node.evidence().text(Item::KernelLog))?;
    let seen: Vec<_> = log
        .lines()
        .filter(|line| line.to_lowercase().contains("unmaintained driver"))
        .filter(|line| DRIVERS.iter().any(|driver| line.contains(driver)))
        .map(|line| Proof::Log(line.trim().to_owned()))
        .collect();
    if seen.is_empty() {
        return Ok(Vec::new());
    }
    let message = "the distribution calls drivers that kube-proxy's rules rest on unmaintained";
    Ok(vec![
        Finding::new(Severity::Info, "kernel", message).seen(seen),
    ])
}
