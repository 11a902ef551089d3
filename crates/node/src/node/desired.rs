//! The node's desired state, from the cluster's objects and the node's properties.

use super::{IptablesBackend, NodeSnapshot};
use crate::backend::Mode;
use crate::backend::iptables::model::{Match, States, Target};
use crate::cluster::config::ProxyConfig;
use crate::cluster::release::{OLDEST, RECORDED, Release};
use crate::cluster::version::Version;
use crate::cluster::{EndpointSlice, Node, Service};
use crate::desired::{DesiredState, Facts, LinkAddress, Objects};
use crate::evidence::{Gap, Item};
use crate::net::Family;

/// Items that a desired state is built from; the rules themselves are not needed.
pub const NEEDS: &[Item] = &[
    Item::KernelRelease,
    Item::IptablesVersion,
    Item::Addresses,
    Item::Sysctl,
    Item::ProxyConfig,
    Item::Configz,
    Item::ProxyMode,
    Item::Metrics,
    Item::Services,
    Item::EndpointSlices,
    Item::Nodes,
    Item::DaemonSets,
    Item::Pods,
];

/// Inputs of a desired state other than Services and endpoints.
#[derive(Clone, Debug)]
pub struct Basis {
    config: ProxyConfig,
    node: Option<Node>,
    mode: Mode,
    name: String,
    version: Version,
    facts: Facts,
    notes: Vec<String>,
    /// Why the release is not known, if it is assumed.
    assumed: Option<Gap>,
}

impl Basis {
    /// Returns the same for the other releases that the kube-proxy may be of, the newest first: none if its release is known.
    pub fn of_other_releases(&self) -> impl Iterator<Item = Self> {
        let older = OLDEST.minor..self.version.minor;
        let is_known = self.assumed.is_none();
        older.rev().filter(move |_| !is_known).map(|minor| Self {
            version: Version::new(self.version.major, minor, 0),
            ..self.clone()
        })
    }

    /// Returns the desired state for `services` and their endpoints in `slices`.
    pub fn desired(&self, services: &[Service], slices: &[EndpointSlice]) -> DesiredState {
        let objects = Objects {
            services,
            slices,
            node: self.node.as_ref(),
        };
        let facts = self.facts.clone();
        let mut desired = DesiredState::build(
            objects,
            &self.config,
            self.mode,
            &self.name,
            self.version,
            facts,
        );
        desired.notes.extend(self.notes.iter().cloned());
        if let Some(gap) = &self.assumed {
            let Version { major, minor, .. } = self.version;
            desired.notes.push(format!(
                "kube-proxy's version is unknown ({gap}): comparing with the rules of {}",
                Release { major, minor }
            ));
        }
        desired
    }
}

impl NodeSnapshot<'_> {
    /// Returns the configured mode of kube-proxy.
    pub fn configured_mode(&self) -> Result<Mode, Gap> {
        let config = self.proxy_config()?;
        config.mode_asked().ok_or_else(|| {
            let what = format!("{:?} is not a mode of kube-proxy on Linux", config.mode);
            Gap::Failed(Item::ProxyConfig, what)
        })
    }

    /// Returns the desired state in `mode`.
    pub fn desired(&self, mode: Mode) -> Result<&DesiredState, Gap> {
        let at = Mode::EVER.iter().position(|&m| m == mode).unwrap_or(0);
        let built = self.desired[at].get_or_init(|| self.build(mode, true));
        built.as_ref().map_err(Clone::clone)
    }

    /// Returns the desired state in `mode` for a kube-proxy that does not know its zone.
    pub fn desired_without_zone(&self, mode: Mode) -> Result<DesiredState, Gap> {
        self.build(mode, false)
    }

    /// Returns whether kube-proxy is still in its first sync of `family`, not overdue, and may ask the API server as often as usual.
    pub fn is_first_sync(&self, family: Family) -> bool {
        let Ok(metrics) = self.metrics() else {
            return false;
        };
        let name = family.to_string();
        let told = |metric: &str| {
            let mut samples = metrics.of(metric);
            samples.any(|sample| sample.label("ip_family") == Some(&name))
        };
        let is_kept_waiting = self.proxy_config().is_ok_and(|config| {
            let connection = &config.client_connection;
            connection.seconds_between().is_some()
        });
        let on_time = !is_kept_waiting
            && self.health().is_ok_and(|health| {
                let status = health.status.get(&name);
                status.is_some_and(|family| family.healthy)
            });
        on_time
            && told("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds")
            && !told("kubeproxy_sync_proxy_rules_last_timestamp_seconds")
    }

    fn build(&self, mode: Mode, zone: bool) -> Result<DesiredState, Gap> {
        let mut basis = self.basis(mode)?;
        if !zone && let Some(node) = &mut basis.node {
            node.metadata.labels.remove("topology.kubernetes.io/zone");
        }
        Ok(basis.desired(self.services()?, self.slices()?))
    }

    /// Returns the inputs of the desired state in `mode` other than Services and endpoints.
    pub fn basis(&self, mode: Mode) -> Result<Basis, Gap> {
        let running = self.running_config();
        let config = match &running {
            Some(running) if running.mode_asked() == Some(mode) => running,
            _ => self.proxy_config()?,
        };
        let name = self.name()?;
        let all = self.nodes().map_or(&[][..], Vec::as_slice);
        let node = all.iter().find(|node| node.metadata.name == name);
        let mut notes = Vec::new();
        if let Some(why) = self.evidence.missing_part(Item::ProxyConfig) {
            notes.push(format!("kube-proxy's configuration is assumed: {why}"));
        }
        let (version, assumed) = match self.proxy_version(Some(&name)) {
            Ok(known) => (known.version, None),
            Err(gap) => (RECORDED.first(), Some(gap)),
        };
        if node.is_none() {
            let zone = "its zone and addresses are unknown";
            notes.push(match self.nodes() {
                Ok(_) => format!("Node {name} not found: {zone}"),
                Err(gap) => format!("Node {name} is not readable ({gap}): {zone}"),
            });
        }
        Ok(Basis {
            facts: self.facts(mode, config),
            config: config.clone(),
            node: node.cloned(),
            mode,
            name,
            version,
            notes,
            assumed,
        })
    }

    /// Returns the configuration that the running kube-proxy reports: it writes its rules by it, until it restarts and reads its file.
    fn running_config(&self) -> Option<ProxyConfig> {
        let text = self.evidence.text(Item::Configz).ok()?;
        let all: serde_json::Value = serde_json::from_str(text).ok()?;
        let running = all.get("kubeproxy.config.k8s.io")?;
        // kube-proxy reports each field.
        running.get("mode")?;
        ProxyConfig::parse(&running.to_string()).ok()
    }

    fn facts(&self, mode: Mode, config: &ProxyConfig) -> Facts {
        let addresses = self.addresses().map(|addresses| {
            let all = addresses.all.iter().map(|at| LinkAddress {
                link: at.link.clone(),
                addr: at.addr.addr,
            });
            all.collect()
        });
        let sysctl = |key: &str| self.sysctl().ok().and_then(|all| all.get(key));
        let version = self.evidence.text(Item::IptablesVersion).ok();
        let liberal = sysctl("net.netfilter.nf_conntrack_tcp_be_liberal").map(|value| value != "0");
        let counted =
            |table: &str, chain: &str| mode == Mode::Iptables && self.counts(table, chain);
        let mut families = vec![Family::V4];
        if mode == Mode::Userspace {
            families = vec![config.bind_family()];
        } else if self.serves_v6(mode) {
            families.push(Family::V6);
        }
        Facts {
            families,
            addresses,
            random_fully: version.and_then(numbers).is_none_or(|v| v >= (1, 6, 2)),
            tcp_liberal: liberal.unwrap_or(config.conntrack.tcp_be_liberal)
                && !(mode == Mode::Iptables && self.drops_invalid()),
            count_invalid: counted("filter", "KUBE-FORWARD"),
            count_localhost: counted("nat", "KUBE-NODEPORTS"),
            kernel: self.kernel().ok(),
        }
    }

    /// Returns whether a rule of `chain` uses nfacct. kube-proxy uses it if the kernel supports it; its own rules show
    /// that best.
    fn counts(&self, table: &str, chain: &str) -> bool {
        Family::BOTH.into_iter().any(|family| {
            let Ok(rules) = self.iptables(IptablesBackend::InUse, family) else {
                return false;
            };
            let rules = rules.chain(table, chain).map_or(&[][..], |c| &c.rules);
            rules
                .iter()
                .any(|rule| rule.matches.iter().any(|m| matches!(m, Match::Nfacct(_))))
        })
    }

    /// Returns whether a rule of kube-proxy drops invalid packets. It reads the sysctl that decides this when it starts: the rule stays if
    /// the sysctl is set later.
    fn drops_invalid(&self) -> bool {
        Family::BOTH.into_iter().any(|family| {
            let Ok(rules) = self.iptables(IptablesBackend::InUse, family) else {
                return false;
            };
            let chain = rules.chain("filter", "KUBE-FORWARD");
            let rules = chain.map_or(&[][..], |chain| &chain.rules);
            rules.iter().any(|rule| {
                let is_invalid = |matched: &Match<'_>| matches!(matched, Match::State { states, .. } if states.value.0 == States::INVALID);
                rule.target == Some(Target::Drop) && rule.matches.iter().any(is_invalid)
            })
        })
    }

    /// Returns whether kube-proxy also serves IPv6, which it does if the node supports it.
    fn serves_v6(&self, mode: Mode) -> bool {
        let disabled = self
            .sysctl()
            .ok()
            .and_then(|all| all.get("net.ipv6.conf.all.disable_ipv6"));
        let iptables = || {
            let gap = self.evidence.text(Item::Iptables6).err();
            !matches!(gap, Some(Gap::Absent(..) | Gap::NotApplicable(_)))
        };
        disabled != Some("1") && (mode == Mode::Nftables || iptables())
    }
}

/// Returns the version numbers of `iptables v1.8.9 (nf_tables)`.
fn numbers(text: &str) -> Option<(u16, u16, u16)> {
    let word = text
        .split_ascii_whitespace()
        .find_map(|w| w.strip_prefix('v'))?;
    let mut parts = word.split('.').map(|part| part.parse().ok());
    Some((
        parts.next()??,
        parts.next()??,
        parts.next().flatten().unwrap_or(0),
    ))
}
