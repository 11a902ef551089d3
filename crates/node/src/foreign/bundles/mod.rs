//! Support bundles of other tools: which file is the output of which command, on which node.
//!
//! Sources: the collectors' own scripts and code, as of 2026-11: `eks-log-collector.sh` and the EKS node monitoring agent, Bottlerocket's
//! logdog, Rancher's `rancher2_logs_collector.sh`, sos 4, `oc adm inspect` and must-gather, `troubleshoot.sh`, `kubectl cluster-info
//! dump`, cilium-bugtool and `cilium sysdump`, `calicoctl cluster diags`, Antrea's supportbundle, `microk8s inspect` and k8s-snap's,
//! Retina's capture, `kind export logs`, `minikube logs`.

mod files;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::command::Command;
use super::reader::{ProxyLog, Reader};
use super::{Foreign, PASTE, minikube, split};
use crate::evidence::{Item, Other, is_archive};
use files::What::{Is, Log, Name, Objects, Run, Text, Uname, Version, Weak};
use files::{FILES, Tool, fits, kind_of};

pub use files::is_wanted;

/// Reads the files of an archive or a folder called `name`, or one file.
pub(super) fn read(name: &str, files: Vec<Other>) -> Result<Foreign, Vec<String>> {
    let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let mut reader = Reader::default();
    let Some(kind) = kind_of(&paths) else {
        let is_one = matches!(files.as_slice(), [one] if !one.path.contains('/'));
        let mut is_minikube = false;
        for file in files {
            match file.content {
                Ok(bytes) => {
                    let text = split::decode(&bytes);
                    is_minikube |= minikube::is_of(&text);
                    reader.pasted(&text);
                }
                Err(why) => reader.unread.push(format!("{} ({why})", file.path)),
            }
        }
        let what = if is_minikube {
            "minikube logs".to_owned()
        } else if is_one {
            PASTE.to_owned()
        } else {
            format!("files of {name}")
        };
        return reader.foreign(what);
    };
    reader.bundle(kind, name, files)
}

impl Reader {
    /// Reads a text: with its command if that is known, else by its content.
    fn text(&mut self, text: &str, command: Option<&Command>, host: Option<&str>) {
        for mut section in split::sections(text) {
            section.command = section.command.or_else(|| command.cloned());
            section.host = section.host.or_else(|| host.map(str::to_owned));
            self.section(section);
        }
    }

    fn bundle(mut self, kind: Tool, name: &str, files: Vec<Other>) -> Result<Foreign, Vec<String>> {
        let commands = troubleshoot_commands(&files);
        let is_hidden = |file: &Other| {
            let is_summary = file.path.ends_with("summary.txt");
            is_summary
                && file
                    .content
                    .as_ref()
                    .is_ok_and(|text| String::from_utf8_lossy(text).contains("Obfuscate: enabled"))
        };
        if kind == Tool::Rancher && files.iter().any(is_hidden) {
            self.unread.push(
                "rules and addresses (the collector replaced octets of addresses by words)"
                    .to_owned(),
            );
        }
        let hides = !self.unread.is_empty();
        let mut weak: Vec<(Option<String>, Command, String)> = Vec::new();
        let mut had: BTreeSet<(Option<String>, String)> = BTreeSet::new();
        let mut own_name: Option<String> = None;
        let mut by_node: BTreeMap<Option<String>, Vec<(Item, String)>> = BTreeMap::new();
        for file in files {
            let mut of = FILES.iter().filter(|(of, ..)| *of == kind);
            let found = of.find_map(|(_, pattern, what)| Some((fits(&file.path, pattern)?, *what)));
            let bytes = match file.content {
                Ok(bytes) => bytes,
                // Files that are not read are named if kpx would use them, or if they may hide evidence.
                Err(why) => {
                    if found.is_some()
                        || file.path.ends_with('/')
                        || is_archive(&file.path)
                        || file.path.contains(char::REPLACEMENT_CHARACTER)
                    {
                        self.unread.push(format!("{} ({why})", file.path));
                    }
                    continue;
                }
            };
            let Some((node, what)) = found else {
                continue;
            };
            let node = node.map(node_name).filter(|name| !name.is_empty());
            let text = split::decode(&bytes);
            match what {
                Name => own_name = text.split_whitespace().next().map(str::to_owned),
                Uname => {
                    let words: Vec<&str> = text.split_whitespace().collect();
                    if let ["Linux", host, release, ..] = words.as_slice() {
                        own_name = own_name.or_else(|| Some((*host).to_owned()));
                        by_node
                            .entry(node)
                            .or_default()
                            .push((Item::KernelRelease, format!("{release}\n")));
                    }
                }
                Is(item) => by_node.entry(node).or_default().push((item, text)),
                Log => {
                    // kind has a file for each start of a container, in order.
                    let folder =
                        |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned());
                    if kind == Tool::Kind {
                        self.logs
                            .retain(|log| folder(&log.pod) != folder(&file.path));
                    }
                    self.logs.push(ProxyLog {
                        node,
                        pod: file.path.clone(),
                        text: plain_log(&text),
                        is_cut: false,
                    });
                }
                Version => {
                    let node = node.unwrap_or_default();
                    let why =
                        "the file of the version does not show addresses, pod CIDRs and labels";
                    self.cluster.node(&node, text.trim(), &[], why);
                }
                Objects => {
                    let is_log = text.contains("==== START logs for container kube-proxy");
                    let any = if [".yaml", ".yml"].iter().any(|end| file.path.ends_with(end)) {
                        self.cluster.yaml(&text, None).is_ok()
                    } else {
                        self.cluster.json(&text, None).0 > 0
                    };
                    if is_log {
                        self.text(&text, None, None);
                    }
                    if !any && !text.trim().is_empty() {
                        self.unread
                            .push(format!("{} (no objects of the API)", file.path));
                    }
                }
                _ if hides => {}
                Text if kind == Tool::Troubleshoot && file.path.contains("/run-host/") => {
                    if let Some(command) = commands.get(file.path.trim_end_matches(".txt")) {
                        self.text(&text, Some(command), node.as_deref());
                    }
                }
                Text => self.text(&text, None, node.as_deref()),
                Run(line) | Weak(line) => {
                    let Some(command) = Command::parse(line) else {
                        continue;
                    };
                    if matches!(what, Weak(_)) {
                        weak.push((node, command, text));
                    } else {
                        had.insert((node.clone(), subject(&command)));
                        self.text(&text, Some(&command), node.as_deref());
                    }
                }
            }
        }
        for (node, command, text) in weak {
            if !had.contains(&(node.clone(), subject(&command))) {
                self.text(&text, Some(&command), node.as_deref());
            }
        }
        for (node, items) in by_node {
            let draft = self.nodes.entry(node.unwrap_or_default()).or_default();
            for (item, text) in items {
                draft.put(item, (text, None));
            }
        }
        self.cluster.finish(
            kind == Tool::MustGather || kind == Tool::Dump,
            matches!(kind, Tool::Cilium | Tool::Calico | Tool::Troubleshoot),
        );
        if kind == Tool::Cilium {
            self.name_agents();
        }
        let of = identity(kind, name);
        let own_name = own_name.or_else(|| {
            of.clone()
                .filter(|_| matches!(kind, Tool::Eks | Tool::Rancher | Tool::Sos))
        });
        if let Some(own) = own_name
            && let Some(draft) = self.nodes.remove("")
        {
            self.nodes.insert(own, draft);
        }
        let what = match of {
            Some(of) => format!("{} of {of}", kind.name()),
            None => kind.name().to_owned(),
        };
        self.foreign(what)
    }
}

impl Reader {
    /// Names the nodes of Cilium's agents: by their pods, or by the address that one Node has.
    fn name_agents(&mut self) {
        for (agent, draft) in std::mem::take(&mut self.nodes) {
            let addresses = draft.addresses.iter().flat_map(|(all, _)| all);
            let node = self.cluster.node_of(&agent);
            let node = node.or_else(|| self.cluster.node_at(addresses));
            let name = node.filter(|node| !self.nodes.contains_key(node));
            self.nodes.insert(name.unwrap_or(agent), draft);
        }
    }
}

/// Returns the name of a node, of the folder that is named after it: cilium-bugtool's has the pod's and a time, or the time alone.
fn node_name(folder: &str) -> String {
    let words: Vec<&str> = folder.rsplitn(3, '-').collect();
    match words.as_slice() {
        [time, date, rest]
            if time.len() == 6 && date.len() == 8 && date.bytes().all(|c| c.is_ascii_digit()) =>
        {
            (*rest).to_owned()
        }
        [time, date] if time.len() == 6 && date.len() == 8 => String::new(),
        _ => folder.to_owned(),
    }
}

/// Returns the node or the time in the name of an archive.
fn identity(kind: Tool, name: &str) -> Option<String> {
    let plain = [".tar.gz", ".tgz", ".tar.xz", ".tar", ".zip"]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(name);
    match kind {
        Tool::Eks => plain
            .split('_')
            .find(|part| part.starts_with("i-"))
            .map(str::to_owned),
        Tool::Rancher => plain.rsplit_once('-').and_then(|_| {
            let at = plain.find("-20")?;
            Some(plain[..at].to_owned())
        }),
        Tool::Sos => plain
            .strip_prefix("sosreport-")
            .and_then(|rest| rest.split('-').next())
            .map(str::to_owned),
        _ => None,
    }
}

/// Returns the subject of a command, so that a better listing of the same subject replaces it.
fn subject(command: &Command) -> String {
    match command.iptables() {
        Some(of) => {
            let table = of.table.unwrap_or_else(|| "filter".to_owned());
            if of.saves {
                format!("{} all", of.six)
            } else {
                format!("{} {table}", of.six)
            }
        }
        None => match command.program.as_str() {
            "netstat" | "ss" => "sockets".to_owned(),
            program => program.to_owned(),
        },
    }
}

/// Returns the commands of troubleshoot.sh's host collectors, by the path of their outputs: vendors choose the names.
fn troubleshoot_commands(files: &[Other]) -> BTreeMap<String, Command> {
    let mut commands = BTreeMap::new();
    for file in files {
        let (Some(path), Ok(bytes)) = (file.path.strip_suffix("-info.json"), &file.content) else {
            continue;
        };
        let info: Option<Value> = serde_json::from_slice(bytes).ok();
        let line = info
            .as_ref()
            .and_then(|info| info.get("command"))
            .and_then(Value::as_str);
        if let Some(command) = line.and_then(Command::parse) {
            commands.insert(path.to_owned(), command);
        }
    }
    commands
}

/// Removes from each line of a log the prefix of container runtimes and `oc`: a time, and in files of a runtime the
/// stream.
fn plain_log(text: &str) -> String {
    let is_time = |word: &str| {
        word.len() >= 20
            && word.as_bytes()[10] == b'T'
            && word.starts_with(|c: char| c.is_ascii_digit())
    };
    let line = |line: &str| -> String {
        let Some((time, rest)) = line.split_once(' ').filter(|(time, _)| is_time(time)) else {
            return line.to_owned();
        };
        let mut words = rest.splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("stdout" | "stderr"), Some("F" | "P"), Some(rest)) => rest.to_owned(),
            _ if time.is_ascii() => rest.to_owned(),
            _ => line.to_owned(),
        }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_files_and_nodes() {
        assert_eq!(
            fits(
                "x/networking/iptables-save.txt",
                "networking/iptables-save.txt"
            ),
            Some(None)
        );
        assert_eq!(
            fits("d/nodes/w1/ip-addr.txt", "nodes/{node}/ip-addr.txt"),
            Some(Some("w1"))
        );
        assert_eq!(
            fits("k8s-services-20261126.yaml", "k8s-services-*.yaml"),
            Some(None)
        );
        assert_eq!(
            fits(
                "networking/iptables-save.txt.bak",
                "networking/iptables-save.txt"
            ),
            None
        );
        assert_eq!(node_name("cilium-abcde-20261126-192831"), "cilium-abcde");
        assert!(!is_wanted(
            "s/sos_commands/networking/namespaces/cni-1/ip_netns_exec_cni-1_iptables-save"
        ));
    }

    #[test]
    fn every_command_is_known() {
        for (kind, pattern, what) in FILES {
            if let Run(line) | Weak(line) = what {
                assert!(Command::parse(line).is_some(), "{kind:?} {pattern}: {line}");
            }
        }
    }
}
