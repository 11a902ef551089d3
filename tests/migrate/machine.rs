//! A fake node with a fake kube-proxy, which makes the same changes as a real one when it starts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use kpx_judge::diff::{self, Layer};
use kpx_judge::plan::{self, Drain, Plan};
use kpx_node::action::Action;
use kpx_node::backend::Mode;
use kpx_node::cluster::Pod;
use kpx_node::evidence::{Evidence, Gap, ITEMS, Item, load};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use super::rules::{Rules, Tables};
use crate::fake::Node;
use crate::support::root;

/// The path of the fake kube-proxy's configuration.
pub(super) const CONFIG: &str = "/etc/kubernetes/kube-proxy.conf";

/// The systemd unit of the fake kube-proxy.
const UNIT: &str = "kube-proxy.service";

/// The table of connections of IPVS without any.
pub(super) const CONNECTIONS: &str =
    "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n";

/// A node.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    evidence: Evidence,
    pub(super) kernel: Kernel,
    pub(super) files: BTreeMap<PathBuf, String>,
    pub(super) proxy: Proxy,
    /// The table of connections of IPVS.
    pub(super) connections: String,
    /// kube-proxy's log; `None` if it cannot be read.
    pub(super) log: Option<String>,
    /// How often kube-proxy rewrites its rules between a read and a change of kpx.
    pub(super) restless: u32,
    /// Whether kube-proxy runs in a pod that the API server lists.
    pub(super) in_pod: bool,
}

/// The kernel's state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Kernel {
    rules: [Rules; 2],
    tables: Tables,
    node: Node,
    sysctls: BTreeMap<String, String>,
}

/// The running kube-proxy.
#[derive(Clone, Debug)]
pub(super) struct Proxy {
    pub(super) mode: Mode,
    pid: u32,
    /// The number of reads until it has synced.
    pub(super) busy: u32,
    /// The number of reads from its start to its first sync.
    pub(super) slow: u32,
    /// The modes in which it does not start.
    pub(super) broken: Vec<Mode>,
    /// How often its container has ended since it was started.
    ends: u32,
}

impl Kernel {
    /// Returns the whole state as sorted lines: kube-proxy writes Services in any order.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut all = Evidence::default();
        self.node.tell(&mut all);
        let told = [Item::Ipset, Item::IpvsSave].map(|item| all.text(item).unwrap().to_owned());
        let settings = self
            .sysctls
            .iter()
            .map(|(key, value)| format!("{key} = {value}"));
        let rules = ["", "6 "]
            .iter()
            .zip(&self.rules)
            .map(|(family, rules)| rules.save().replace('\n', &format!("\n{family}")));
        let texts: Vec<_> = rules.chain(told).chain([self.tables.list()]).collect();
        let lines = texts
            .iter()
            .flat_map(|text| text.lines())
            .map(str::to_owned);
        let addresses = self.node.links.iter().flat_map(|link| {
            let all = link["addr_info"].as_array().into_iter().flatten();
            all.map(move |address| format!("{} {}", link["ifname"], address["local"]))
        });
        let routes = self.node.local_routes().replace("},", "},\n");
        let lines = lines
            .chain(routes.lines().map(str::to_owned))
            .chain(settings);
        let mut lines: Vec<_> = lines.chain(addresses).collect();
        lines.sort();
        lines
    }
}

/// Returns the lines that only one of the two has.
pub(super) fn differences(one: &Kernel, other: &Kernel) -> Vec<String> {
    let (one, other) = (one.lines(), other.lines());
    let gone = one
        .iter()
        .filter(|line| !other.contains(line))
        .map(|line| format!("- {line}"));
    let new = other
        .iter()
        .filter(|line| !one.contains(line))
        .map(|line| format!("+ {line}"));
    gone.chain(new).collect()
}

impl Machine {
    /// Returns the recorded node `name` in the desired state of its kube-proxy.
    pub(super) fn new(name: &str, mode: Mode) -> Self {
        let bundle = root().join("testdata/nodes").join(name);
        let mut evidence = load(&bundle, ITEMS).unwrap();
        // Migrations do not read these items, and they are slow to copy.
        for item in [Item::ProxyLog, Item::Conntrack, Item::Sockets, Item::Routes] {
            evidence.insert(item, Err(Gap::NotCollected(item)));
        }
        evidence.insert(Item::Rules, Ok("[]".to_owned()));
        evidence.insert(Item::Nodes, Ok(three_nodes(&evidence)));
        let host = "host-name = box\nmachine-id = m\n";
        evidence.insert(Item::Host, Ok(host.to_owned()));
        let metrics = evidence.text(Item::Metrics).unwrap().lines();
        let metrics = metrics.filter(|line| line.starts_with("kube") && !line.contains("_bucket"));
        let metrics = metrics.collect::<Vec<_>>().join("\n");
        evidence.insert(Item::Metrics, Ok(metrics));
        let text = |item| evidence.text(item).unwrap_or_default();
        let mut ipvs = Evidence::default();
        ipvs.insert(Item::Ipset, Ok(text(Item::Ipset).to_owned()));
        ipvs.insert(Item::IpvsSave, Ok(text(Item::IpvsSave).to_owned()));
        ipvs.insert(Item::Addresses, Ok(text(Item::Addresses).to_owned()));
        let settings = text(Item::Sysctl)
            .lines()
            .filter_map(|line| line.split_once(" = "));
        let kernel = Kernel {
            rules: [
                Rules::parse(text(Item::Iptables4)),
                Rules::parse(text(Item::Iptables6)),
            ],
            tables: Tables::default(),
            node: Node::new(&ipvs),
            sysctls: settings
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        };
        // kubeadm leaves it empty: the name must be found otherwise.
        let config = text(Item::ProxyConfig);
        let named = "hostnameOverride: node1\n";
        assert!(config.contains(named), "{config}");
        let config = config.replace(named, "hostnameOverride: \"\"\n");
        let mut machine = Self {
            kernel,
            files: BTreeMap::from([(PathBuf::from(CONFIG), config)]),
            proxy: Proxy {
                mode: Mode::Nftables,
                pid: 100,
                busy: 0,
                slow: 0,
                broken: Vec::new(),
                ends: 0,
            },
            connections: CONNECTIONS.to_owned(),
            log: None,
            restless: 0,
            in_pod: false,
            evidence,
        };
        // Beside mode nftables, nothing of the others is shared.
        machine.clean(Mode::Iptables);
        machine.clean(Mode::Ipvs);
        for (key, value) in [
            ("net.ipv4.vs.conn_reuse_mode", "1"),
            ("net.ipv4.vs.conntrack", "0"),
            ("net.ipv4.vs.expire_nodest_conn", "0"),
            ("net.ipv4.vs.expire_quiescent_template", "0"),
        ] {
            machine
                .kernel
                .sysctls
                .insert(key.to_owned(), value.to_owned());
        }
        machine.configure(mode);
        machine.start();
        machine.proxy.busy = 0;
        machine.sync();
        machine
    }

    /// Removes all evidence of the name of this machine's Node.
    pub(super) fn lose_identity(&mut self) {
        self.evidence
            .insert(Item::Host, Ok("host-name = box\n".to_owned()));
        let nodes = self.evidence.text(Item::Nodes).unwrap();
        let nodes = nodes.replace("10.0.2.15", "2001:db8::15");
        self.evidence.insert(Item::Nodes, Ok(nodes));
    }

    /// Returns whether a table of the bridge is loaded.
    pub(super) fn has_bridge(&self) -> bool {
        self.kernel.tables.list().contains("kpx-bridge")
    }

    /// Returns the mode that the configuration asks for.
    pub(super) fn configured(&self) -> Mode {
        let config =
            kpx_node::cluster::config::ProxyConfig::parse(&self.files[Path::new(CONFIG)]).unwrap();
        config.mode_asked().unwrap()
    }

    /// Changes the configuration and restarts kube-proxy, externally.
    pub(super) fn restart_as(&mut self, mode: Mode) {
        self.configure(mode);
        self.start();
    }

    /// Restarts kube-proxy, externally.
    pub(super) fn restart(&mut self) {
        self.start();
    }

    fn configure(&mut self, mode: Mode) {
        let fields = kpx_node::cluster::edit::Fields {
            mode,
            scheduler: None,
            strict_arp: None,
        };
        let text = self.files.get_mut(Path::new(CONFIG)).unwrap();
        *text = kpx_node::cluster::edit::set(text, &fields).unwrap();
    }

    /// Returns the evidence of the node.
    pub(super) fn tell(&self) -> Evidence {
        let mut all = self.evidence.clone();
        let mut add = |item, text: String| all.insert(item, Ok(text));
        add(Item::Iptables4, self.kernel.rules[0].save());
        add(Item::Iptables6, self.kernel.rules[1].save());
        add(Item::NftText, self.kernel.tables.list());
        add(Item::ProxyConfig, self.files[Path::new(CONFIG)].clone());
        let settings = self
            .kernel
            .sysctls
            .iter()
            .map(|(key, value)| format!("{key} = {value}"));
        add(Item::Sysctl, settings.collect::<Vec<_>>().join("\n"));
        add(Item::Processes, self.processes().to_string());
        let files: Vec<_> = self
            .files
            .iter()
            .map(|(path, text)| json!({"path": path, "text": text}))
            .collect();
        add(Item::ProxyFiles, json!({"files": files}).to_string());
        add(Item::Metrics, self.metrics());
        add(Item::IpvsConnections, self.connections.clone());
        if let Some(log) = &self.log {
            add(Item::ProxyLog, log.clone());
        }
        let links: Vec<Value> = self.kernel.node.links.iter().map(link).collect();
        add(Item::Links, Value::from(links).to_string());
        add(Item::Routes, self.kernel.node.local_routes());
        self.kernel.node.tell(&mut all);
        if self.is_up() {
            all.insert(Item::ProxyMode, Ok(self.proxy.mode.name().to_owned()));
        } else {
            let gone = |item| Err(Gap::Absent(item, "nothing answers".to_owned()));
            all.insert(Item::ProxyMode, gone(Item::ProxyMode));
            all.insert(Item::Metrics, gone(Item::Metrics));
        }
        all.insert(Item::Nft, Err(Gap::NotCollected(Item::Nft)));
        all.insert(Item::Ipvs, Err(Gap::NotCollected(Item::Ipvs)));
        all
    }

    /// Returns kube-proxy's pods on this node: one whose container ends at once ends again with every look, and runs for a
    /// moment between.
    pub(super) fn pods(&mut self) -> Vec<Pod> {
        if !self.in_pod {
            return Vec::new();
        }
        let ended = json!({"terminated": {"exitCode": 1}});
        let (state, last, restarts) = if self.is_up() {
            (json!({"running": {}}), json!({}), 0)
        } else {
            self.proxy.ends += 1;
            match self.proxy.ends {
                1 => (ended, json!({}), 0),
                count => (json!({"running": {}}), ended, count - 1),
            }
        };
        let pod = json!({
            "metadata": {"name": "kube-proxy-x", "namespace": "kube-system", "uid": self.proxy.pid.to_string(),
                "creationTimestamp": "2027-01-01T00:00:00Z"},
            "spec": {"nodeName": "node1"},
            "status": {"containerStatuses": [
                {"name": "kube-proxy", "restartCount": restarts, "state": state, "lastState": last}]},
        });
        vec![serde_json::from_value(pod).unwrap()]
    }

    fn is_up(&self) -> bool {
        !self.proxy.broken.contains(&self.proxy.mode)
    }

    fn processes(&self) -> Value {
        json!({"processes": [{
            "pid": self.proxy.pid,
            "name": "kube-proxy",
            "args": ["/usr/bin/kube-proxy", format!("--config={CONFIG}")],
            "started": 1_795_180_000 + u64::from(self.proxy.pid),
            "sameNetwork": true,
            "cgroup": format!("/system.slice/{UNIT}"),
        }]})
    }

    fn metrics(&self) -> String {
        let recorded = self.evidence.text(Item::Metrics).unwrap();
        let mine = [
            "kubeproxy_sync_proxy_rules_last_",
            "process_start_time_seconds ",
        ];
        let others = recorded
            .lines()
            .filter(|line| !mine.iter().any(|name| line.starts_with(name)));
        let mut text = others.collect::<Vec<_>>().join("\n") + "\n";
        for family in Family::BOTH {
            let name = "kubeproxy_sync_proxy_rules_last";
            writeln!(
                text,
                "{name}_queued_timestamp_seconds{{ip_family=\"{family}\"}} 1.7951802e9"
            )
            .unwrap();
            if self.proxy.busy == 0 {
                writeln!(
                    text,
                    "{name}_timestamp_seconds{{ip_family=\"{family}\"}} 1.7951803e9"
                )
                .unwrap();
            }
        }
        text
    }

    /// Reading the node takes time, in which kube-proxy makes progress.
    pub(super) fn pass(&mut self) {
        if self.proxy.busy > 0 {
            self.proxy.busy -= 1;
            if self.proxy.busy == 0 {
                self.sync();
            }
        }
    }

    /// Makes one change of kpx's; kube-proxy may have rewritten its rules since kpx read them.
    pub(super) fn change(&mut self, action: &Action) -> Result<(), String> {
        if self.restless > 0 && matches!(action, Action::Iptables { .. }) {
            self.restless -= 1;
            self.rewrite();
        }
        self.apply(action)
    }

    /// Makes kube-proxy sync its rules, up to the moment when it has deleted its jumps to insert them again at the top.
    fn rewrite(&mut self) {
        self.proxy.busy = 0;
        self.sync();
        for rules in &mut self.kernel.rules {
            rules.lose_jumps();
        }
        // The next read has the jump again, if it still belongs to kube-proxy.
        self.proxy.busy = 1;
    }

    /// Makes one change.
    pub(super) fn apply(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::Iptables { family, input, .. } => {
                let at = usize::from(*family == Family::V6);
                return self.kernel.rules[at].restore(input);
            }
            Action::Nft { input } => return self.kernel.tables.load(input),
            Action::Sysctl { key, value } => {
                self.kernel.sysctls.insert(key.clone(), value.clone());
            }
            Action::WriteFile { path, text } => {
                self.files.insert(path.clone(), text.clone());
            }
            Action::RestartUnit { unit } => {
                assert_eq!(unit, UNIT);
                self.start();
            }
            Action::LoadModules { .. } | Action::UnloadModules { .. } => {}
            other => self.kernel.node.apply(other),
        }
        Ok(())
    }

    /// Restarts kube-proxy: it removes the same rules as a real one, and syncs after a while.
    fn start(&mut self) {
        self.proxy.pid += 1;
        self.proxy.ends = 0;
        self.proxy.mode = self.configured();
        self.proxy.busy = self.proxy.slow + 1;
        if !self.is_up() {
            return;
        }
        match self.proxy.mode {
            Mode::Nftables => {
                self.clean(Mode::Iptables);
                self.clean(Mode::Ipvs);
            }
            Mode::Iptables | Mode::Ipvs => self.clean(Mode::Nftables),
            // It removes nothing of other modes.
            Mode::Userspace => {}
        }
    }

    /// Writes the desired state.
    fn sync(&mut self) {
        const LAYERS: &[Layer] = &[
            Layer::Ipset,
            Layer::Iptables,
            Layer::Ipvs,
            Layer::Link,
            Layer::Nftables,
            Layer::Sysctl,
        ];
        if !self.is_up() {
            return;
        }
        let mode = self.proxy.mode;
        let evidence = self.tell();
        let node = NodeSnapshot::new(&evidence).called(Some("node1"));
        let found = diff::compare(&node, mode, &Family::BOTH).unwrap();
        let plan = plan::repair(&node, mode, &Family::BOTH, &found, LAYERS, Drain::First).unwrap();
        self.carry_out(&plan);
    }

    fn clean(&mut self, mode: Mode) {
        let mut evidence = self.tell();
        // Shared chains are deleted as well, unless the running mode has them.
        evidence.insert(Item::ProxyMode, Ok(self.proxy.mode.name().to_owned()));
        let node = NodeSnapshot::new(&evidence).called(Some("node1"));
        let plan = plan::cleanup(&node, mode, &Family::BOTH, true).unwrap();
        self.carry_out(&plan);
    }

    fn carry_out(&mut self, plan: &Plan) {
        for step in &plan.steps {
            let done = self.apply(&step.action);
            assert_eq!(done, Ok(()), "{}", step.title);
        }
    }

    /// Returns the differences from the desired state of `mode`, and the leftovers of other modes.
    pub(super) fn faults(&self, mode: Mode) -> Vec<String> {
        let evidence = self.tell();
        let node = NodeSnapshot::new(&evidence).called(Some("node1"));
        let found = diff::compare(&node, mode, &Family::BOTH).unwrap();
        let mut faults: Vec<_> = found
            .changes
            .iter()
            .map(|change| change.object.to_string())
            .collect();
        faults.extend(
            found
                .unknown
                .iter()
                .map(|unknown| format!("{}: {}", unknown.what, unknown.gap)),
        );
        let leftovers = node.modes().leftovers;
        faults.extend(leftovers.iter().map(|left| format!("{left:?}")));
        faults
    }
}

/// Returns the Nodes of a cluster of three, of which the recorded one is the first: no other has its addresses.
fn three_nodes(evidence: &Evidence) -> String {
    let nodes: Value = serde_json::from_str(evidence.text(Item::Nodes).unwrap()).unwrap();
    let first = nodes["items"][0].clone();
    assert_eq!(first["metadata"]["name"], "node1");
    let other = |number: u32| {
        let mut node = first.clone();
        let name = format!("node{number}");
        node["metadata"]["name"] = json!(name);
        node["metadata"]["labels"]["kubernetes.io/hostname"] = json!(name);
        node["status"]["addresses"] = json!([
            {"type": "InternalIP", "address": format!("10.0.2.{}", 14 + number)},
            {"type": "Hostname", "address": name},
        ]);
        node
    };
    json!({"items": [first, other(2), other(3)]}).to_string()
}

/// Returns a link in the format of `ip -j -d link`, from one in the format of `ip -j addr`.
fn link(of: &Value) -> Value {
    let mut link = of.clone();
    link.as_object_mut().unwrap().remove("addr_info");
    if link["ifname"] == "kube-ipvs0" {
        link["linkinfo"] = json!({"info_kind": "dummy"});
        link["flags"] = json!(["BROADCAST", "NOARP"]);
    }
    link
}
