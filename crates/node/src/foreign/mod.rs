//! What people have of a node without kpx: pasted outputs of commands, files of them, and support bundles of other tools, as the
//! items of kpx's own bundle.
//!
//! A text shows a part, and says which: a table that was not pasted is unknown, not empty, and so is what was cut. Items of which
//! only a part is shown are [`Gap::Partial`] for what needs all of them.

mod bundles;
mod command;
mod extras;
mod ipvs;
mod kubectl;
mod links;
mod lists;
mod rules;
mod services;
mod sets;
mod split;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::evidence::{Evidence, Gap, Item, Manifest, Other};
use crate::net::Family;
use crate::words::{listed, number_of};
use command::{Command, Iptables};
use split::Section;

pub use bundles::is_wanted;
pub use rules::is_target;

/// What was recognised in foreign input.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    /// What it is: `EKS log collector of i-0abc`, `pasted text`.
    pub what: String,
    /// The nodes, those with the most evidence first. A cluster without nodes has one without a name.
    pub nodes: Vec<ForeignNode>,
    /// What could not be read of it.
    pub unread: Vec<String>,
}

/// A node of foreign input.
#[derive(Clone, Debug, Default)]
pub struct ForeignNode {
    /// Its name; empty if it is not shown.
    pub name: String,
    /// The evidence, and that of the cluster.
    pub evidence: Evidence,
    /// What is known of it, in words: `rules (nat), 3 Services`.
    pub has: Vec<String>,
}

impl Foreign {
    /// Returns the node `name`; without a name, the one with the most evidence.
    pub fn node(&self, name: Option<&str>) -> Option<&ForeignNode> {
        match name {
            None => self.nodes.first(),
            Some(name) => self
                .nodes
                .iter()
                .find(|node| node.name == name)
                .or_else(|| {
                    // One node without a name may be any.
                    self.nodes
                        .first()
                        .filter(|node| self.nodes.len() == 1 && node.name.is_empty())
                }),
        }
    }

    /// Returns what was recognised, in one line: what it is, what it has, and what it lacks.
    pub fn summary(&self, chosen: &ForeignNode) -> String {
        let mut line = self.what.clone();
        if !chosen.name.is_empty() {
            line = format!("{line}, node {}", chosen.name);
        }
        let has = if chosen.has.is_empty() {
            "nothing of a node".to_owned()
        } else {
            chosen.has.join(", ")
        };
        line = format!("{line}: {has}");
        let lacks = [(Item::Services, "Services"), (Item::Routes, "routes")];
        let lacks = lacks.into_iter().filter(|(item, _)| {
            !chosen.evidence.has(*item)
                || chosen
                    .evidence
                    .iter()
                    .any(|(of, read)| of == *item && read.is_err())
        });
        let lacks: Vec<&str> = lacks.map(|(_, name)| name).collect();
        if !lacks.is_empty() {
            line = format!("{line}; no {}", lacks.join(", no "));
        }
        let others: Vec<&str> = self
            .nodes
            .iter()
            .map(|node| node.name.as_str())
            .filter(|name| *name != chosen.name && !name.is_empty())
            .collect();
        if !others.is_empty() {
            line = format!(
                "{line}; choose another node with --node: {}",
                listed(&others)
            );
        }
        if !self.unread.is_empty() {
            line = format!("{line}; not read: {}", listed(&self.unread));
        }
        line
    }

    /// Adds the nodes of `other`: those of the same name, or of no name, become one.
    #[must_use]
    pub fn join(mut self, other: Self) -> Self {
        self.what = format!("{} and {}", self.what, other.what);
        self.unread.extend(other.unread);
        let lone = other.nodes.len() == 1 && self.nodes.len() == 1;
        for node in other.nodes {
            let is_same = |of: &&mut ForeignNode| {
                of.name == node.name || lone && (of.name.is_empty() || node.name.is_empty())
            };
            if let Some(of) = self.nodes.iter_mut().find(is_same) {
                // What both have counts as the first has it, unless it has only a part.
                let mut joined = node.evidence.clone();
                let better = |item: Item| {
                    of.evidence.missing_part(item).is_none() || joined.missing_part(item).is_some()
                };
                let items: Vec<Item> = of
                    .evidence
                    .iter()
                    .filter(|(item, read)| {
                        read.is_ok() && (better(*item) || joined.text(*item).is_err())
                    })
                    .map(|(item, _)| item)
                    .collect();
                joined.extend(of.evidence.only(&items));
                joined.manifest_of(&of.evidence);
                of.evidence = joined;
                of.has.extend(node.has);
                if of.name.is_empty() {
                    of.name = node.name;
                }
            } else {
                let shared: Vec<Item> = kubectl::items().collect();
                let of_cluster = self.nodes.first().map(|first| first.evidence.only(&shared));
                let mut node = node;
                if let Some(cluster) = of_cluster {
                    let mut all = cluster;
                    all.extend(node.evidence);
                    node.evidence = all;
                }
                self.nodes.push(node);
            }
        }
        self
    }
}

/// Reads a pasted text, or a file with outputs of commands. `None` if nothing in it is known.
pub fn paste(bytes: &[u8]) -> Option<Foreign> {
    let text = split::decode(bytes);
    let mut reader = Reader::default();
    for section in split::sections(&text) {
        reader.section(section);
    }
    reader.foreign("pasted text".to_owned())
}

/// Reads the files of an archive or a folder; `name` is that of the archive. `None` if nothing in it is known.
pub fn files(name: &str, files: Vec<Other>) -> Option<Foreign> {
    bundles::read(name, files)
}

/// What is read so far, by node.
#[derive(Debug, Default)]
struct Reader {
    nodes: BTreeMap<String, Draft>,
    cluster: kubectl::Objects,
    proxy_log: Option<(String, bool)>,
    unread: Vec<String>,
}

/// What is read of one node so far.
#[derive(Debug, Default)]
struct Draft {
    rules: BTreeMap<(&'static str, Family), rules::Rules>,
    servers: ipvs::Servers,
    sets: sets::Sets,
    texts: BTreeMap<Item, (String, Option<String>)>,
    gaps: BTreeMap<Item, Gap>,
    /// Addresses and links, and why they are a part.
    addresses: Option<(Vec<Value>, Option<String>)>,
    links: Option<(Vec<Value>, Option<String>)>,
    routes: Option<([Vec<Value>; 2], Option<String>)>,
    policy: [Option<Vec<Value>>; 2],
}

/// The form of a block of lines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Form {
    Listing,
    Save,
    Servers,
    Sets,
    Links,
    Brief,
    Routes,
    Rules,
    Ifconfig,
    RouteTable,
    Sockets,
    Modules,
    Settings,
    Tracked,
    Counters,
    Nft,
    Table,
    Description,
    Yaml,
    Version,
}

/// Returns the form that begins with the first of `lines`.
fn begins(lines: &[String]) -> Option<Form> {
    let (line, rest) = lines.split_first()?;
    let text = line.trim();
    let next = rest.first().map(String::as_str);
    let form = match () {
        () if rules::is_chain_line(line) => Form::Listing,
        () if text.starts_with("iptables v")
            || text.starts_with("ip6tables v")
            || text.starts_with("nftables v")
            || text.starts_with("ipset v") =>
        {
            Form::Version
        }
        () if rules::is_of_save(line) => Form::Save,
        () if sets::begins(line, next) => Form::Sets,
        () if kubectl::is_description(line, rest) => Form::Description,
        () if kubectl::is_title(text) => Form::Table,
        () if ipvs::begins(line) => Form::Servers,
        () if links::is_link(line) => Form::Links,
        () if links::is_ifconfig(line) => Form::Ifconfig,
        () if links::is_rule(line) => Form::Rules,
        () if links::is_route_title(line) => Form::RouteTable,
        () if links::is_brief(line) => Form::Brief,
        () if lists::is_tracked(line) => Form::Tracked,
        () if lists::is_counter(line) => Form::Counters,
        () if lists::is_table(line) => Form::Nft,
        () if lists::is_socket(line) => Form::Sockets,
        () if kubectl::is_yaml(line) => Form::Yaml,
        () if lists::is_setting(line) => Form::Settings,
        () if lists::is_module(line) => Form::Modules,
        () if links::is_route(line) => Form::Routes,
        () if rules::is_of_listing(line) => Form::Listing,
        () => return None,
    };
    Some(form)
}

impl Form {
    /// Returns whether `line` goes on in a block of this form. Blank lines do not end most.
    fn goes_on(self, line: &str, depth: i64) -> bool {
        let is_blank = line.trim().is_empty();
        if rules::is_cut(line) {
            return true;
        }
        match self {
            Self::Listing => {
                is_blank
                    || rules::is_of_listing(line)
                    || line.starts_with("# Warning")
                    || line.starts_with("====")
                    || line.starts_with("Total Number")
            }
            Self::Save => is_blank || rules::is_of_save(line) || line.starts_with("# "),
            Self::Servers => is_blank || ipvs::goes_on(line),
            Self::Sets => sets::goes_on(line),
            Self::Links => links::is_of_links(line),
            Self::Brief => links::is_brief(line),
            Self::Routes => links::is_of_routes(line),
            Self::Rules => links::is_rule(line),
            Self::Ifconfig => {
                is_blank || links::is_ifconfig(line) || line.starts_with(char::is_whitespace)
            }
            Self::RouteTable => links::is_route_row(line),
            Self::Sockets => lists::is_socket(line) || line.starts_with('\t'),
            Self::Modules => lists::is_module(line),
            Self::Settings => lists::is_setting(line),
            Self::Tracked => lists::is_tracked(line),
            Self::Counters => lists::is_counter(line),
            Self::Nft => depth > 0 || is_blank || lists::is_table(line) || line.starts_with('#'),
            Self::Table => !is_blank && !kubectl::is_title(line.trim()),
            Self::Description => !line.starts_with("Name:"),
            Self::Yaml => kubectl::is_of_yaml(line),
            Self::Version => false,
        }
    }
}

impl Reader {
    /// Reads the output of one command.
    fn section(&mut self, section: Section) {
        let Section {
            host,
            command,
            lines,
        } = section;
        if command.as_ref().is_some_and(|command| command.is_elsewhere) {
            return;
        }
        let host = host.unwrap_or_default();
        let command = command.as_ref();
        if let Some(of) =
            command.filter(|of| ["kubectl", "oc"].contains(&of.program.as_str()) && of.has("logs"))
        {
            if of.args.iter().any(|arg| arg.contains("kube-proxy")) {
                let is_cut = lines.iter().any(|line| rules::is_cut(line)) || of.fragment.is_some();
                let lines: Vec<&str> = lines
                    .iter()
                    .map(String::as_str)
                    .filter(|line| !rules::is_cut(line))
                    .collect();
                self.proxy_log = Some((lines.join("\n") + "\n", is_cut));
            }
            return;
        }
        if let Some((item, why)) = command.and_then(|command| refused(command, &lines)) {
            let draft = self.nodes.entry(host).or_default();
            draft.gaps.insert(item, Gap::Failed(item, why));
            return;
        }
        let mut at = 0;
        while at < lines.len() {
            let line = lines[at].trim();
            if line.starts_with('{') || line.starts_with("[{") || line == "[" {
                let text = lines[at..].join("\n");
                let (end, others) = self.cluster.json(&text, command);
                for other in others {
                    self.other_json(&host, &other, command);
                }
                at += text[..end].matches('\n').count() + 1;
                continue;
            }
            if line.starts_with("==== START logs for container kube-proxy") {
                let log: Vec<&str> = lines[at + 1..]
                    .iter()
                    .map(String::as_str)
                    .take_while(|line| !line.starts_with("==== END logs"))
                    .collect();
                at += log.len() + 2;
                self.proxy_log = Some((log.join("\n") + "\n", false));
                continue;
            }
            let Some(form) = begins(&lines[at..]) else {
                at += 1;
                continue;
            };
            let start = at;
            let mut depth = braces(&lines[at]);
            at += 1;
            while at < lines.len() && form.goes_on(&lines[at], depth) {
                // Another list of the same form is one of its own.
                if form == Form::Save
                    && lines[at].trim_start().starts_with("# Generated by")
                    && lines[start..at].iter().any(|line| line.trim() == "COMMIT")
                {
                    break;
                }
                depth += braces(&lines[at]);
                at += 1;
            }
            let mut block = lines[start..at].to_vec();
            // A row that was cut at the end.
            if form == Form::Listing
                && at + 1 == lines.len()
                && !lines[at].trim().is_empty()
                && lines[at].split_whitespace().count() > 2
                && begins(&lines[at..]).is_none()
                && command.is_none_or(|of| of.iptables().is_some())
                && lines[at]
                    .trim_start()
                    .starts_with(|c: char| c.is_ascii_digit())
            {
                block.push(lines[at].clone());
                at += 1;
            }
            self.block(&host, form, &block, command);
        }
    }

    fn block(&mut self, host: &str, form: Form, lines: &[String], command: Option<&Command>) {
        let fragment = command.and_then(|command| command.fragment.as_deref());
        let partial = fragment.map(str::to_owned);
        match form {
            Form::Table => return self.cluster.table(lines, command),
            Form::Description => return self.cluster.describe(lines),
            Form::Yaml => {
                self.cluster.yaml(&lines.join("\n"), command);
                return;
            }
            _ => {}
        }
        let draft = self.nodes.entry(host.to_owned()).or_default();
        match form {
            Form::Listing | Form::Save => draft.rules(form, lines, command, fragment),
            Form::Servers => draft.servers.read(lines, command),
            Form::Sets => draft.sets.read(lines, command),
            Form::Links => {
                let all = links::addresses(lines);
                let has_addresses = all.iter().any(|link| {
                    link.get("addr_info")
                        .and_then(Value::as_array)
                        .is_some_and(|all| !all.is_empty())
                });
                let is_detailed = all.iter().all(|link| link.get("detailed").is_some());
                let is_all = command.is_none_or(|command| {
                    !["dev", "up", "type"].iter().any(|word| command.has(word))
                        && command
                            .args
                            .iter()
                            .filter(|arg| !arg.starts_with('-'))
                            .count()
                            <= 2
                });
                let of_one = (!is_all).then(|| "only some links are shown".to_owned());
                let has_links = all.iter().all(|link| link.get("flags").is_some());
                let missing = partial.or(of_one);
                if has_addresses {
                    draft.addresses = Some((all.clone(), missing.clone()));
                }
                if has_links {
                    let kinds = (!is_detailed).then(|| {
                        "the kinds of links are not shown (`ip -d link` shows them)".to_owned()
                    });
                    let new = (all, missing.or(kinds));
                    if draft.links.as_ref().is_none_or(|(_, old)| old.is_some()) {
                        draft.links = Some(new);
                    }
                }
            }
            Form::Brief => draft.addresses = Some((links::brief(lines), partial)),
            Form::Ifconfig => {
                if draft.addresses.is_none() {
                    let why = "ifconfig shows one IPv4 address of each link".to_owned();
                    draft.addresses = Some((links::ifconfig(lines), Some(why)));
                }
            }
            Form::Routes => draft.routes(links::routes(lines), command, partial),
            Form::RouteTable => {
                if draft.routes.is_none() {
                    let why = "`route` shows table main alone".to_owned();
                    draft.routes = Some(([links::route_table(lines), Vec::new()], Some(why)));
                }
            }
            Form::Rules => {
                let six = command.and_then(Command::family) == Some(Family::V6);
                if partial.is_none() {
                    draft.policy[usize::from(six)] = Some(links::rules(lines));
                }
            }
            Form::Sockets => draft.put(Item::Sockets, lists::sockets(lines, command)),
            Form::Modules => draft.put(Item::Modules, lists::modules(lines, command)),
            Form::Settings => draft.put(Item::Sysctl, lists::settings(lines, command)),
            Form::Tracked => draft.put(Item::Conntrack, lists::tracked(lines, command)),
            Form::Counters => draft.put(Item::ConntrackStat, (lists::counters(lines), None)),
            Form::Nft => match lists::nft(lines, command) {
                Ok(text) => draft.put(Item::NftText, (text, None)),
                Err(why) => drop(
                    draft
                        .gaps
                        .insert(Item::NftText, Gap::Partial(Item::NftText, why)),
                ),
            },
            Form::Version => {
                let text = lines[0].trim();
                let item = match text.split_whitespace().next() {
                    Some("iptables" | "ip6tables") if text.split_whitespace().count() <= 3 => {
                        Item::IptablesVersion
                    }
                    Some("nftables") => Item::NftVersion,
                    Some("ipset") => Item::IpsetVersion,
                    _ => return,
                };
                draft.put(item, (format!("{text}\n"), None));
            }
            Form::Table | Form::Description | Form::Yaml => {}
        }
    }

    /// Reads JSON that is no object of the API: what `ip -j` and `nft -j` print, or a map of settings.
    fn other_json(&mut self, host: &str, value: &Value, command: Option<&Command>) {
        let draft = self.nodes.entry(host.to_owned()).or_default();
        match value {
            Value::Object(map) if map.contains_key("nftables") => {
                draft.put(Item::Nft, (value.to_string(), None));
            }
            Value::Object(map) => {
                if let Some(read) = lists::settings_of(map) {
                    draft.put(Item::Sysctl, read);
                }
            }
            Value::Array(all) => {
                let has = |key: &str| all.first().is_some_and(|first| first.get(key).is_some());
                if has("ifname") && has("addr_info") {
                    draft.addresses = Some((all.clone(), None));
                } else if has("ifname") {
                    let is_detailed = has("linkinfo")
                        || command.is_some_and(|command| command.flag('d', "-details"))
                        || all.iter().any(|link| link.get("linkinfo").is_some());
                    let kinds =
                        (!is_detailed).then(|| "the kinds of links are not shown".to_owned());
                    draft.links = Some((all.clone(), kinds));
                } else if has("priority") {
                    let six = command.and_then(Command::family) == Some(Family::V6);
                    draft.policy[usize::from(six)] = Some(all.clone());
                } else if has("dst") {
                    let is_all = command.is_none_or(|command| command.has("all"));
                    let missing = (!is_all).then(|| "only table main is shown".to_owned());
                    draft.routes = Some(([all.clone(), Vec::new()], missing));
                }
            }
            _ => {}
        }
    }

    /// Returns everything as evidence; `None` if there is none.
    fn foreign(mut self, what: String) -> Option<Foreign> {
        let candidates = {
            let mut all = self.cluster.endpoints();
            for rules in self.nodes.values().flat_map(|draft| draft.rules.values()) {
                all.extend(rules.targets());
            }
            all
        };
        let mut nodes: Vec<ForeignNode> = Vec::new();
        if self.nodes.values().all(Draft::is_empty) {
            self.nodes.clear();
            if self.cluster.is_empty() && self.proxy_log.is_none() {
                return None;
            }
            self.nodes.insert(String::new(), Draft::default());
        }
        for (name, draft) in self.nodes {
            if draft.is_empty() && (!self.cluster.is_empty() && !nodes.is_empty()) {
                continue;
            }
            let (mut evidence, mut has) = draft.evidence(&candidates);
            if let Some((log, is_cut)) = &self.proxy_log {
                if *is_cut {
                    evidence.insert_part(Item::ProxyLog, log.clone(), "the log is cut".to_owned());
                } else {
                    evidence.insert(Item::ProxyLog, Ok(log.clone()));
                }
                has.push("kube-proxy's log".to_owned());
            }
            self.cluster.put(&mut evidence);
            for (item, noun) in [
                (Item::Services, "Service"),
                (Item::EndpointSlices, "EndpointSlice"),
                (Item::Nodes, "Node"),
                (Item::Pods, "Pod"),
            ] {
                let count = self.cluster.len(item);
                if count > 0 {
                    has.push(number_of(count as u64, noun));
                }
            }
            let node = (!name.is_empty()).then(|| name.clone());
            evidence.set_manifest(Manifest::untimed(&evidence, node));
            nodes.push(ForeignNode {
                name,
                evidence,
                has,
            });
        }
        // A node with rules says more than one with sockets.
        let weight = |node: &ForeignNode| {
            let items = [Item::Iptables4, Item::IpvsSave, Item::NftText, Item::Nft];
            let has = |item: Item| {
                node.evidence
                    .iter()
                    .any(|(of, read)| of == item && read.is_ok())
            };
            let main = items.into_iter().filter(|item| has(*item)).count();
            let all = node
                .evidence
                .iter()
                .filter(|(_, read)| read.is_ok())
                .count();
            (main, all)
        };
        nodes.sort_by_key(|node| std::cmp::Reverse(weight(node)));
        Some(Foreign {
            what,
            nodes,
            unread: self.unread,
        })
    }
}

fn braces(line: &str) -> i64 {
    let count = |c: char| i64::try_from(line.matches(c).count()).unwrap_or(0);
    count('{') - count('}')
}

/// Returns why a command has no output, if it reports an error.
fn refused(command: &Command, lines: &[String]) -> Option<(Item, String)> {
    let first = lines
        .iter()
        .map(|line| line.trim())
        .find(|line| !line.is_empty())?;
    let is_error = [
        "command not found",
        "Permission denied",
        "you must be root",
        "can't initialize",
        "is incompatible, use 'nft'",
        "No such file",
        "Operation not permitted",
        "not installed",
    ]
    .iter()
    .any(|part| first.contains(part));
    // A warning may precede the output.
    if !is_error || lines.iter().any(|line| rules::is_chain_line(line)) {
        return None;
    }
    let item = match command.program.as_str() {
        _ if command.iptables().is_some() => Item::iptables(command.family().unwrap_or(Family::V4)),
        "ipvsadm" => Item::IpvsSave,
        "ipset" => Item::Ipset,
        "nft" => Item::NftText,
        "ss" | "netstat" => Item::Sockets,
        "conntrack" => Item::Conntrack,
        "sysctl" => Item::Sysctl,
        "lsmod" => Item::Modules,
        _ => return None,
    };
    Some((item, first.to_owned()))
}

impl Draft {
    fn is_empty(&self) -> bool {
        self.rules.values().all(rules::Rules::is_empty)
            && self.servers.is_empty()
            && self.servers.connections.is_none()
            && self.servers.timeout.is_none()
            && self.servers.lost().is_none()
            && self.sets.is_empty()
            && self.texts.is_empty()
            && self.gaps.is_empty()
            && self.addresses.is_none()
            && self.links.is_none()
            && self.routes.is_none()
            && self.policy.iter().all(Option::is_none)
    }

    /// Keeps what is read of `item`: all of it before a part of it, and the parts of lists together.
    fn put(&mut self, item: Item, (text, missing): (String, Option<String>)) {
        if text.trim().is_empty() && missing.is_some() {
            return;
        }
        match self.texts.get_mut(&item) {
            Some((_, None)) if missing.is_some() => {}
            Some((old, Some(_))) if missing.is_some() => {
                for line in text.lines().filter(|line| !line.is_empty()) {
                    if !old.lines().any(|of| of == line) {
                        old.push_str(line);
                        old.push('\n');
                    }
                }
            }
            _ => drop(self.texts.insert(item, (text, missing))),
        }
    }

    fn rules(
        &mut self,
        form: Form,
        lines: &[String],
        command: Option<&Command>,
        fragment: Option<&str>,
    ) {
        let of: Option<Iptables> = command.and_then(Command::iptables);
        let family = match &of {
            Some(of) if of.six => Family::V6,
            Some(_) => Family::V4,
            None => rules::family_of(lines),
        };
        // The header of a save names the back end.
        let header = lines.iter().find(|line| line.starts_with("# Generated by"));
        let backend = of.as_ref().and_then(|of| of.backend).or_else(|| {
            header.and_then(|line| {
                if line.contains("legacy-save") {
                    Some("legacy")
                } else {
                    None
                }
            })
        });
        let rules = self
            .rules
            .entry((backend.unwrap_or_default(), family))
            .or_default();
        if form == Form::Listing {
            rules.listing(lines, of.as_ref(), fragment);
        } else {
            rules.saved(lines, of.as_ref(), fragment);
        }
    }

    fn routes(
        &mut self,
        (split, odd): ([Vec<Value>; 2], usize),
        command: Option<&Command>,
        partial: Option<String>,
    ) {
        let is_get = command.is_some_and(|command| command.has("get"));
        if is_get {
            return;
        }
        let is_all = command.map_or_else(
            || {
                split
                    .iter()
                    .flatten()
                    .any(|route| route.get("table").and_then(Value::as_str) == Some("local"))
            },
            |command| command.has("all"),
        );
        let [four, six] = split;
        let mut missing = partial;
        if !is_all {
            missing = missing.or_else(|| Some("only table main is shown".to_owned()));
        }
        if odd > 0 {
            missing =
                missing.or_else(|| Some(format!("{} not read", number_of(odd as u64, "line"))));
        }
        match &mut self.routes {
            // The other family.
            Some((all, old))
                if all[0].is_empty() != four.is_empty() || all[1].is_empty() != six.is_empty() =>
            {
                if all[0].is_empty() {
                    all[0] = four;
                }
                if all[1].is_empty() {
                    all[1] = six;
                }
                *old = old.take().or(missing);
            }
            Some((_, None)) => {}
            _ => self.routes = Some(([four, six], missing)),
        }
    }

    /// Returns the evidence, and what there is in words.
    fn evidence(mut self, candidates: &BTreeSet<std::net::SocketAddr>) -> (Evidence, Vec<String>) {
        let mut evidence = Evidence::default();
        let mut has = Vec::new();
        for (item, gap) in std::mem::take(&mut self.gaps) {
            evidence.insert(item, Err(gap));
        }
        let has_rules = self.rules.values().any(|rules| !rules.is_empty());
        self.put_rules(&mut evidence, &mut has, candidates);
        self.servers.pair();
        if self.servers.has_any() {
            has.push(number_of(self.servers.len() as u64, "virtual server"));
            insert(&mut evidence, Item::IpvsSave, self.servers.text());
            if let Some(stats) = self.servers.stats.take() {
                evidence.insert(Item::IpvsStats, Ok(stats));
            }
        } else if let Some(why) = self.servers.lost() {
            evidence.insert(Item::IpvsSave, Err(Gap::Partial(Item::IpvsSave, why)));
        }
        if let Some(text) = self.servers.timeout.take() {
            evidence.insert(Item::IpvsTimeout, Ok(text));
        }
        if let Some((text, is_whole)) = self.servers.connections.take() {
            let head =
                "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n";
            let missing = (!is_whole).then(|| "only some connections are shown".to_owned());
            insert(
                &mut evidence,
                Item::IpvsConnections,
                (format!("{head}{text}"), missing),
            );
            has.push("connections of IPVS".to_owned());
        }
        if !self.sets.is_empty() {
            has.push(number_of(self.sets.len() as u64, "IP set"));
            insert(&mut evidence, Item::Ipset, self.sets.text());
        }
        self.put_network(&mut evidence, &mut has);
        let nft = self
            .texts
            .get(&Item::NftText)
            .map(|(text, _)| text.as_str());
        let is_opaque = |text: &str| text.contains("chain KUBE-") && !text.contains("kube-proxy {");
        if nft.is_some_and(is_opaque) && !has_rules {
            self.texts.remove(&Item::NftText);
            let why = "rules of iptables-nft, of which nft does not show all matches and targets: use `iptables-save`".to_owned();
            evidence.insert(Item::NftText, Err(Gap::Partial(Item::NftText, why)));
        }
        for (item, read) in std::mem::take(&mut self.texts) {
            has.push(
                match item {
                    Item::Sockets => "sockets",
                    Item::Modules => "modules",
                    Item::Sysctl => "sysctls",
                    Item::Conntrack => "conntrack",
                    Item::ConntrackStat => "counters of conntrack",
                    Item::Nft | Item::NftText => "nftables",
                    Item::KernelLog => "kernel log",
                    Item::KernelRelease => "kernel",
                    _ => item.file(),
                }
                .to_owned(),
            );
            insert(&mut evidence, item, read);
        }
        (evidence, has)
    }

    fn put_rules(
        &mut self,
        evidence: &mut Evidence,
        has: &mut Vec<String>,
        candidates: &BTreeSet<std::net::SocketAddr>,
    ) {
        for family in Family::BOTH {
            // The back end in use is the one with kube-proxy's rules, where several are shown.
            let mut all: Vec<(&'static str, rules::Rules)> = ["", "nft", "legacy"]
                .into_iter()
                .filter_map(|backend| Some((backend, self.rules.remove(&(backend, family))?)))
                .filter(|(_, rules)| !rules.is_empty())
                .collect();
            all.sort_by_key(|(backend, rules)| {
                (
                    rules.unused().is_some(),
                    !backend.is_empty(),
                    !rules.has_kube_proxy(),
                )
            });
            for (at, (backend, mut rules)) in all.into_iter().enumerate() {
                let item = match (at, backend, family) {
                    (0, ..) => Item::iptables(family),
                    (_, "legacy", Family::V4) => Item::IptablesLegacy4,
                    (_, "legacy", Family::V6) => Item::IptablesLegacy6,
                    (_, _, Family::V4) => Item::IptablesNft4,
                    (_, _, Family::V6) => Item::IptablesNft6,
                };
                if let Some(why) = rules.unused() {
                    if at == 0 {
                        evidence.insert(item, Err(Gap::Partial(item, why)));
                    }
                    continue;
                }
                rules.infer(candidates);
                let tables: Vec<&str> = rules.names().collect();
                let six = if family == Family::V6 { "IPv6 " } else { "" };
                has.insert(
                    at.min(has.len()),
                    format!("{six}rules ({})", tables.join(", ")),
                );
                insert(evidence, item, rules.text());
            }
        }
    }

    fn put_network(&mut self, evidence: &mut Evidence, has: &mut Vec<String>) {
        let routes = self.routes.take();
        if let Some((all, _)) = &routes
            && self
                .addresses
                .as_ref()
                .is_none_or(|(_, missing)| missing.is_some())
        {
            // The table of local routes has every address.
            let flat: Vec<Value> = all.iter().flatten().cloned().collect();
            let local = links::local(&flat);
            if !local.is_empty() {
                self.addresses = Some((local, None));
            }
        }
        if let Some((all, missing)) = self.addresses.take().filter(|(all, _)| !all.is_empty()) {
            has.push("addresses".to_owned());
            insert(
                evidence,
                Item::Addresses,
                (json!(all).to_string() + "\n", missing),
            );
        }
        if let Some((all, missing)) = self.links.take().filter(|(all, _)| !all.is_empty()) {
            has.push("links".to_owned());
            insert(
                evidence,
                Item::Links,
                (json!(all).to_string() + "\n", missing),
            );
        }
        if let Some(([four, six], missing)) =
            routes.filter(|(all, _)| all.iter().any(|all| !all.is_empty()))
        {
            has.push("routes".to_owned());
            let text = format!("{}\n{}\n", json!(four), json!(six));
            insert(evidence, Item::Routes, (text, missing));
        }
        let [four, six] = std::mem::take(&mut self.policy);
        if let Some(four) = four {
            has.push("routing rules".to_owned());
            let text = format!("{}\n{}\n", json!(four), json!(six.unwrap_or_default()));
            evidence.insert(Item::Rules, Ok(text));
        }
    }
}

fn insert(evidence: &mut Evidence, item: Item, (text, missing): (String, Option<String>)) {
    match missing {
        Some(why) => evidence.insert_part(item, text, why),
        None => evidence.insert(item, Ok(text)),
    }
}
