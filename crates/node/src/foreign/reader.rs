//! Reads the outputs of commands, one after the other.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;

use super::command::Command;
use super::draft::Draft;
use super::form::{Form, begins};
use super::split::{self, Section};
use super::{Foreign, ForeignNode, config, kubectl, links, lists, minikube, rules};
use crate::evidence::{Gap, Item, Manifest, proxy_log};
use crate::net::Family;
use crate::words::number_of;

/// A log of kube-proxy.
#[derive(Debug)]
pub(super) struct ProxyLog {
    /// The node, if the place of the log names it.
    pub(super) node: Option<String>,
    /// The pod, or a path with its name.
    pub(super) pod: String,
    pub(super) text: String,
    pub(super) is_cut: bool,
}

/// The data read so far, by node.
#[derive(Debug, Default)]
pub(super) struct Reader {
    pub(super) nodes: BTreeMap<String, Draft>,
    pub(super) cluster: kubectl::Objects,
    pub(super) logs: Vec<ProxyLog>,
    pub(super) unread: Vec<String>,
}

impl Reader {
    /// Reads a text with outputs of commands.
    pub(super) fn pasted(&mut self, text: &str) {
        if minikube::is_of(text) {
            self.minikube(text);
            return;
        }
        if TOOLS_OF_WINDOWS.iter().any(|tool| text.contains(tool)) {
            self.of_windows("outputs of tools of Windows");
        }
        for section in split::sections(text) {
            self.section(section);
        }
    }

    /// Reads the output of one command.
    pub(super) fn section(&mut self, section: Section) {
        let Section {
            host,
            command,
            lines,
        } = section;
        if command.as_ref().is_some_and(|command| command.is_elsewhere) {
            return;
        }
        let named = command.as_ref().and_then(|command| command.host.clone());
        let host = named.or(host).unwrap_or_default();
        let command = command.as_ref();
        if let Some(of) = command.filter(|command| {
            ["kubectl", "oc"].contains(&command.program.as_str()) && command.has("logs")
        }) {
            if let Some(pod) = of.args.iter().find(|arg| arg.contains("kube-proxy")) {
                let is_cut = lines.iter().any(|line| rules::is_cut(line)) || of.fragment.is_some();
                let lines: Vec<&str> = lines
                    .iter()
                    .map(String::as_str)
                    .filter(|line| !rules::is_cut(line))
                    .collect();
                self.log(ProxyLog {
                    node: None,
                    pod: pod.clone(),
                    text: lines.join("\n") + "\n",
                    is_cut,
                });
            }
            return;
        }
        if command.is_some_and(Command::is_of_kernel_log)
            || command.is_none() && is_kernel_log(&lines)
        {
            let part = command.and_then(|command| command.fragment.clone());
            let draft = self.nodes.entry(host).or_default();
            draft.put(Item::KernelLog, (lines.join("\n") + "\n", part));
            return;
        }
        if let Some(of) = command.filter(|command| command.is_of_journal())
            && let Some(lines) = journal(of, &lines)
        {
            let is_short = |line: &&str| rules::is_cut(line) || line.contains(ELLIPSIZED);
            // `status` shows the last lines alone.
            let is_cut =
                of.program != "journalctl" || lines.iter().any(is_short) || of.fragment.is_some();
            self.log(ProxyLog {
                node: Some(host).filter(|host| !host.is_empty()),
                pod: String::new(),
                text: lines.join("\n") + "\n",
                is_cut,
            });
            return;
        }
        if command.is_none() && is_log(&lines) {
            let is_short = |line: &String| rules::is_cut(line) || line.contains(ELLIPSIZED);
            self.log(ProxyLog {
                node: Some(host).filter(|host| !host.is_empty()),
                pod: String::new(),
                is_cut: lines.iter().any(is_short),
                text: lines.join("\n") + "\n",
            });
            return;
        }
        if let Some((item, why)) = command.and_then(|command| refused(command, &lines)) {
            let draft = self.nodes.entry(host).or_default();
            draft.gaps.insert(item, Gap::Failed(item, why));
            return;
        }
        if let Some(command) = command {
            if command.shows_settings() {
                self.unread.push(format!(
                    "`{command}` (a file of settings, not the kernel's state)"
                ));
                return;
            }
            if command.prints_chosen_fields() {
                return self.unread.push(format!(
                    "`{command}` (kpx reads the tables, the YAML and the JSON of kubectl)"
                ));
            }
            if command.program.starts_with("cilium") {
                return self.cilium(&host, command, &lines);
            }
            if self.values(&host, command, &lines) {
                return;
            }
            if let Some(read) = config::of_arguments(&lines, command) {
                let draft = self.nodes.entry(host).or_default();
                draft.texts.entry(Item::ProxyConfig).or_insert(read);
                return;
            }
        }
        let mut any = false;
        let mut at = 0;
        while at < lines.len() {
            let line = lines[at].trim();
            if is_json(line) {
                any = true;
                at += self.json(&host, &lines[at..], command);
                continue;
            }
            if let Some(pod) = logged_pod(line) {
                any = true;
                let log: Vec<&str> = lines[at + 1..]
                    .iter()
                    .map(String::as_str)
                    .take_while(|line| !line.starts_with("==== END logs"))
                    .collect();
                self.logs.push(ProxyLog {
                    node: None,
                    pod: pod.to_owned(),
                    text: log.join("\n") + "\n",
                    is_cut: false,
                });
                at += log.len() + 2;
                continue;
            }
            let Some(form) = begins(&lines[at..]) else {
                at += 1;
                continue;
            };
            any = true;
            let start = at;
            let mut depth = braces(&lines[at]);
            at += 1;
            while at < lines.len()
                && (form.goes_on(&lines[at], depth) || form == Form::Save && is_gap(&lines[at..]))
            {
                // Another list of the same form is a separate list.
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
                && command.is_none_or(|command| command.iptables().is_some())
                && lines[at]
                    .trim_start()
                    .starts_with(|c: char| c.is_ascii_digit())
            {
                block.push(lines[at].clone());
                at += 1;
            }
            self.block(&host, form, &block, command);
        }
        if let Some(command) = command.filter(|_| !any) {
            self.unknown(&host, command, &lines);
        }
    }

    /// Adds a log of kube-proxy, unless it ran on Windows: nothing else of such a node is read.
    fn log(&mut self, log: ProxyLog) {
        let mut lines = log.text.lines();
        if lines.any(|line| {
            source_of(line).is_some() && OF_WINDOWS.iter().any(|source| line.contains(source))
        }) {
            let of = match log.pod.as_str() {
                "" => String::new(),
                pod => format!(" ({pod})"),
            };
            return self.of_windows(&format!("the log of kube-proxy on Windows{of}"));
        }
        self.logs.push(log);
    }

    /// Notes `what`, which is of a node of Windows.
    fn of_windows(&mut self, what: &str) {
        let what = format!("{what}: {HNS}");
        if !self.unread.contains(&what) {
            self.unread.push(what);
        }
    }

    /// Reads JSON at the start of `lines`; returns the number of lines that it takes.
    fn json(&mut self, host: &str, lines: &[String], command: Option<&Command>) -> usize {
        let text = lines.join("\n");
        let (mut end, mut others) = self.cluster.json(&text, command);
        let mut taken = text[..end].matches('\n').count() + 1;
        if end == 0 {
            // A terminal breaks strings, too; elsewhere in JSON, a line end does not matter.
            let whole = lines.concat();
            (end, others) = self.cluster.json(&whole, command);
            let mut length = 0;
            let lengths = lines.iter().take_while(|line| {
                length += line.len();
                length < end
            });
            taken = lengths.count() + 1;
        }
        if end == 0 {
            let what = command.map_or_else(
                || "JSON".to_owned(),
                |command| format!("JSON of `{command}`"),
            );
            self.unread
                .push(format!("{what} (it is cut, or not as it was printed)"));
            // Its lines are none of another output.
            let is_end = |line: &String| line.starts_with(['}', ']']);
            taken = lines
                .iter()
                .position(is_end)
                .map_or(lines.len(), |at| at + 1);
        }
        for other in others {
            self.other_json(host, &other, command);
        }
        taken
    }

    /// Reads values without their names: of `cat FILE` for a file of `/proc/sys`, and of `sysctl -n`; returns whether they are.
    fn values(&mut self, host: &str, command: &Command, lines: &[String]) -> bool {
        let is_bare = command.program == "sysctl" && command.flag('n', "--values");
        let names: Vec<&String> = match command.program.as_str() {
            "cat" => command
                .args
                .iter()
                .filter(|arg| arg.starts_with("/proc/sys/"))
                .collect(),
            "sysctl" if is_bare => command
                .args
                .iter()
                .filter(|arg| !arg.starts_with('-'))
                .collect(),
            _ => return false,
        };
        let values: Vec<&String> = lines
            .iter()
            .filter(|line| !line.trim().is_empty())
            .collect();
        if names.is_empty() || names.len() != values.len() {
            return false;
        }
        let pairs = names.iter().zip(values);
        let pairs: Vec<String> = pairs
            .map(|(name, value)| format!("{name} = {value}"))
            .collect();
        if !pairs.iter().all(|pair| lists::is_setting(pair)) {
            return false;
        }
        let draft = self.nodes.entry(host.to_owned()).or_default();
        draft.put(Item::Sysctl, lists::settings(&pairs, Some(command)));
        true
    }

    /// Reads Cilium's list of Services, which shows that its programs serve them and not the programs.
    fn cilium(&mut self, host: &str, command: &Command, lines: &[String]) {
        let is_list = command.has("list") && (command.has("service") || command.has("lb"));
        let is_frontend = |line: &&String| {
            let mut words = line.split_whitespace().take(2);
            words.any(|word| {
                word.split('/')
                    .next()
                    .unwrap_or(word)
                    .parse::<SocketAddr>()
                    .is_ok()
            })
        };
        let count = lines.iter().filter(is_frontend).count();
        if !is_list || count == 0 {
            return self.unknown(host, command, lines);
        }
        let why = format!(
            "`{command}` shows {} of Cilium, and not its programs",
            number_of(count as u64, "front end")
        );
        let draft = self.nodes.entry(host.to_owned()).or_default();
        draft.gaps.insert(Item::Bpf, Gap::Partial(Item::Bpf, why));
    }

    /// Names an output in no known form: an error in any language, or text that kpx does not read.
    fn unknown(&mut self, host: &str, command: &Command, lines: &[String]) {
        let mut filled = lines
            .iter()
            .map(|line| line.trim())
            .filter(|line| !line.is_empty());
        let Some(first) = filled.next() else {
            return;
        };
        if command.fragment.is_some() {
            return;
        }
        if let Some(item) = command.item() {
            let draft = self.nodes.entry(host.to_owned()).or_default();
            draft
                .gaps
                .entry(item)
                .or_insert_with(|| Gap::Failed(item, first.to_owned()));
        } else if command.is_read() {
            self.cluster.unknown(command, first);
            self.unread.push(format!("`{command}` ({first})"));
        } else if command.is_of_node() {
            self.unread
                .push(format!("`{command}` (kpx does not read it)"));
        }
    }

    pub(super) fn block(
        &mut self,
        host: &str,
        form: Form,
        lines: &[String],
        command: Option<&Command>,
    ) {
        let fragment = command.and_then(|command| command.fragment.as_deref());
        let is_cut = lines.iter().any(|line| rules::is_cut(line));
        let partial = fragment
            .map(str::to_owned)
            .or_else(|| is_cut.then(|| "the list is cut".to_owned()));
        match form {
            Form::Table => return self.cluster.table(lines, command),
            Form::Rows => return self.cluster.service_rows(lines, command),
            Form::Description => {
                if !self.cluster.describe(lines) {
                    let name = lines[0].split_once(':').map_or("", |(_, name)| name.trim());
                    self.unread.push(format!("the description of {name}"));
                }
                return;
            }
            Form::Yaml => {
                match kubectl::without_indentation(lines) {
                    Some(kind) => self.unread.push(format!(
                        "YAML of a {kind} (its indentation is lost; paste it as code, or name the file with another --from)"
                    )),
                    None if lines.iter().any(|line| line.starts_with(' ') && rules::is_dots(line)) => {
                        self.unread.push("YAML (it is cut)".to_owned());
                    }
                    None => {
                        if let Err(why) = self.cluster.yaml(&lines.join("\n"), command) {
                            self.unread.push(format!("YAML ({why})"));
                        }
                    }
                }
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
            Form::Settings => {
                let (text, missing) = lists::settings(lines, command);
                draft.put(Item::Sysctl, (text, missing.or(partial)));
            }
            Form::Tracked => draft.put(Item::Conntrack, lists::tracked(lines, command)),
            Form::Counters => draft.put(Item::ConntrackStat, (lists::counters(lines), None)),
            Form::Nft => match lists::nft(lines, command) {
                Ok(text) => draft.put(Item::NftText, (text, None)),
                Err(why) => {
                    for item in [Item::Nft, Item::NftText] {
                        draft.gaps.insert(item, Gap::Partial(item, why.clone()));
                    }
                }
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
            Form::Table | Form::Rows | Form::Description | Form::Yaml => {}
        }
    }

    /// Reads JSON that is no object of the API: what `ip -j` and `nft -j` print, or a map of settings.
    pub(super) fn other_json(&mut self, host: &str, value: &Value, command: Option<&Command>) {
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

    /// Returns the log of each node; the name of a node that nothing shows is empty.
    fn logs_by_node(&mut self) -> BTreeMap<String, (String, bool)> {
        let mut logs: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new();
        for log in std::mem::take(&mut self.logs) {
            let node = log.node.or_else(|| self.cluster.node_of(&log.pod));
            let all = logs.entry(node.unwrap_or_default()).or_default();
            let read = (log.text, log.is_cut);
            if !all.contains(&read) {
                all.push(read);
            }
        }
        // One node with one log: it is that of the node.
        if let ([only], 1) = (self.nodes.keys().collect::<Vec<_>>().as_slice(), logs.len()) {
            let only = (*only).clone();
            logs = logs.into_values().map(|all| (only.clone(), all)).collect();
        }
        let mut by_node = BTreeMap::new();
        for (node, mut all) in logs {
            let several = self.nodes.len() > 1 && node.is_empty();
            match (all.pop(), all.len()) {
                (Some(log), 0) if !several => drop(by_node.insert(node, log)),
                (_, more) => {
                    let of = if node.is_empty() {
                        "unknown nodes"
                    } else {
                        &node
                    };
                    self.unread.push(format!(
                        "{} of kube-proxy, of {of}, of several pods or times",
                        number_of(more as u64 + 1, "log")
                    ));
                }
            }
        }
        by_node
    }

    /// Returns everything as evidence. If there is none, the error names the unreadable parts.
    pub(super) fn foreign(mut self, what: String) -> Result<Foreign, Vec<String>> {
        let candidates = {
            let mut all = self.cluster.endpoints();
            for rules in self.nodes.values().flat_map(|draft| draft.rules.values()) {
                all.extend(rules.targets());
            }
            all
        };
        let rules = self.nodes.values().flat_map(|draft| draft.rules.values());
        self.cluster
            .place(&rules.flat_map(rules::Rules::named).collect());
        self.unread.extend(self.cluster.contradicted());
        let mut nodes: Vec<ForeignNode> = Vec::new();
        if self.nodes.values().all(Draft::is_empty) {
            self.nodes.clear();
        }
        let mut logs = self.logs_by_node();
        for node in logs.keys() {
            self.nodes.entry(node.clone()).or_default();
        }
        if self.nodes.is_empty() {
            if self.cluster.is_empty() {
                return Err(self.unread);
            }
            self.nodes.insert(String::new(), Draft::default());
        }
        for (name, draft) in self.nodes {
            let log = logs.remove(&name);
            if draft.is_empty() && log.is_none() && !self.cluster.is_empty() && !nodes.is_empty() {
                continue;
            }
            let (mut evidence, mut has) = draft.evidence(&candidates);
            if let Some((log, is_cut)) = log {
                if is_cut {
                    evidence.insert_part(Item::ProxyLog, log, "the log is cut".to_owned());
                } else {
                    evidence.insert(Item::ProxyLog, Ok(log));
                }
                has.push("kube-proxy's log".to_owned());
            }
            self.cluster.put(&mut evidence);
            if !evidence.has(Item::ProxyConfig)
                && let Some(config) = self.cluster.proxy_config(&name)
            {
                evidence.insert(Item::ProxyConfig, Ok(config));
                has.push("kube-proxy's configuration".to_owned());
            }
            config::infer(&mut evidence);
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
        // A node with rules is better evidence than one with sockets.
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
        Ok(Foreign {
            what,
            nodes,
            unread: self.unread,
        })
    }
}

/// The most lines of a gap between rules.
const LONGEST_GAP: usize = 32;

/// Returns whether `lines` of rules begin with a gap: words in place of rules that were cut out, or a row that ends in the middle.
fn is_gap(lines: &[String]) -> bool {
    let next = (0..lines.len().min(LONGEST_GAP)).find(|at| begins(&lines[*at..]).is_some());
    if let Some(next) = next.map(|at| lines[at].as_str()) {
        return rules::begins_rule(next) || next.trim() == "COMMIT";
    }
    let (first, rest) = lines
        .split_first()
        .map_or(("", lines), |(first, rest)| (first.trim(), rest));
    rest.iter().all(|line| line.trim().is_empty())
        && (["-", "-A"].contains(&first) || first.starts_with([':', '[']))
}

/// Returns whether JSON begins with `line`.
fn is_json(line: &str) -> bool {
    line.starts_with('{') || line.starts_with("[{") || line == "["
}

/// Returns the pod whose log of kube-proxy begins with `line`, as `kubectl cluster-info dump` titles it.
pub(super) fn logged_pod(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("==== START logs for container kube-proxy of pod ")?;
    Some(rest.trim_end_matches(['=', ' ']))
}

pub(super) fn braces(line: &str) -> i64 {
    let count = |c: char| i64::try_from(line.matches(c).count()).unwrap_or(0);
    count('{') - count('}')
}

/// The note of `systemctl status` below shortened lines of the journal.
const ELLIPSIZED: &str = "Some lines were ellipsized";

/// Source files of which only kube-proxy's log has messages.
const SOURCES: &[&str] = &[
    "proxier",
    "server_others",
    "server_linux",
    "server_windows",
    "ipset",
    "bounded_frequency_runner",
    "graceful_termination",
    "roundrobin",
];

/// Returns the source file that a message of klog names: `proxier` of `E1102 23:38:04.959564 6315 proxier.go:1507] …`.
fn source_of(line: &str) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().take(16).collect();
    let is_digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let mut heads = words.windows(4);
    let head = heads.find(|head| {
        let date = head[0].strip_prefix(['I', 'W', 'E', 'F']);
        date.is_some_and(|date| date.len() == 4 && is_digits(date)) && is_digits(head[2])
    })?;
    head[3].split_once(".go:").map(|(file, _)| file)
}

/// Parts of messages that only kube-proxy on Windows writes: names of its network service, and errors of it.
const OF_WINDOWS: &[&str] = &[
    "hcnCreate",
    "hcnModify",
    "hcnDelete",
    "hcnEnum",
    "in Win32:",
    "HNS ",
    "hns.go:",
    "server_windows.go:",
];

/// Tools that list the Services of a node of Windows.
const TOOLS_OF_WINDOWS: &[&str] = &["Get-Hns", "hnsdiag", "vfpctrl"];

/// Why nothing of a node of Windows is read.
pub const HNS: &str = "its rules are those of HNS, which kpx does not read";

/// Lines of other programs that may stand above a log: a command without a prompt, and the head of `systemctl status`.
const MOST_ABOVE: usize = 16;

/// Returns whether lines without a command are a kernel's log, as `journalctl` and `/var/log/messages` print it.
fn is_kernel_log(lines: &[String]) -> bool {
    let mut filled = lines
        .iter()
        .filter(|line| !line.trim().is_empty())
        .peekable();
    let is_its = |line: &String| {
        let words: Vec<&str> = line.split_whitespace().take(5).collect();
        words.contains(&"kernel:")
    };
    filled.peek().is_some() && filled.all(is_its)
}

/// Returns whether lines without a command are a log of kube-proxy: it begins with a message of its own, or with lines that name it, and
/// many of the others are its own, which may have several lines each.
fn is_log(lines: &[String]) -> bool {
    let first = lines.iter().position(|line| source_of(line).is_some());
    // Another output above it is read apart.
    let is_other = |at: usize| {
        let line = lines[at].trim();
        is_json(line) || logged_pod(line).is_some() || begins(&lines[at..]).is_some()
    };
    if (0..first.unwrap_or(0)).any(is_other) {
        return false;
    }
    let (above, lines) = lines.split_at(first.unwrap_or(0));
    let is_named =
        above.len() <= MOST_ABOVE && above.iter().any(|line| line.contains("kube-proxy"));
    if !is_named && above.iter().any(|line| !line.trim().is_empty()) {
        return false;
    }
    let mut filled = lines.iter().filter(|line| !line.trim().is_empty());
    let count = filled.clone().count();
    let is_own = |line: &&String| source_of(line).is_some_and(|source| SOURCES.contains(&source));
    let own = filled.clone().filter(is_own).count();
    let others = filled
        .clone()
        .filter(|line| source_of(line).is_some())
        .count()
        - own;
    (is_named || filled.next().as_ref().is_some_and(is_own))
        && own * 3 >= count
        && own > others
        && !lines.iter().any(|line| rules::is_chain_line(line))
}

/// Returns the lines of kube-proxy that `command` prints after the status of the unit, if the unit of the journal is kube-proxy's, or
/// contains kube-proxy.
fn journal<'l>(command: &Command, lines: &'l [String]) -> Option<Vec<&'l str>> {
    let has = |names: &[&str]| {
        let mut args = command.args.iter();
        args.any(|arg| names.iter().any(|name| arg.contains(name)))
    };
    let is_own = has(&["kube-proxy", "daemon-proxy"]);
    let is_inside = has(&["daemon-kubelite", "k3s", "rke2", "k0s"]);
    if !is_own && !is_inside {
        return None;
    }
    let first = lines.iter().position(|line| source_of(line).is_some());
    let lines = lines[first.unwrap_or(0)..].iter().map(String::as_str);
    let mut is_kept = is_own;
    let is_proxys = |line: &&str| {
        // A message may have several lines.
        if !is_own && begins_message(line) {
            let is_by_source = source_of(line).is_some_and(|source| SOURCES.contains(&source));
            is_kept = is_by_source || line.to_ascii_lowercase().contains("prox");
        }
        is_kept
    };
    Some(lines.filter(is_proxys).collect())
}

/// Returns whether `line` of a journal begins a message, of klog or of the program that has kube-proxy inside.
fn begins_message(line: &str) -> bool {
    let text = proxy_log::further(line).unwrap_or(line);
    source_of(line).is_some()
        || ["time=", "{", "level="]
            .iter()
            .any(|prefix| text.starts_with(prefix))
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
    let item = command.item()?;
    Some((item, first.to_owned()))
}
