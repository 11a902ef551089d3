//! Endpoints of a service port, and how kube-proxy chooses among them.

use std::net::SocketAddr;

use super::settings::lenient_ip;
use crate::cluster::config::ProxyConfig;
use crate::cluster::release::Change;
use crate::cluster::version::Version;
use crate::cluster::{EndpointPort, EndpointSlice, Labels, Named, Node};
use crate::net::{Family, Proto};

/// One endpoint of a service port.
#[derive(Clone, Debug, Eq, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a condition of its own in the API"
)]
pub struct Endpoint {
    /// Address and port.
    pub addr: SocketAddr,
    /// Its number among the endpoints of its Service; 0 except in a redacted bundle.
    pub order: u64,
    /// Address and port as text, the sort key and the name of the endpoint.
    pub text: String,
    /// Whether it runs on this node.
    pub local: bool,
    /// Whether it is ready.
    pub ready: bool,
    /// Whether it still accepts connections, ready or not.
    pub serving: bool,
    /// Whether it is terminating.
    pub terminating: bool,
    /// Whether its topology hints match this node's zone.
    pub zone: Hint,
    /// Whether its topology hints match this node.
    pub node: Hint,
}

/// Topology hints of an endpoint, seen from this node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Hint {
    /// The endpoint has no hints.
    None,
    /// The hints name other nodes or zones only.
    Others,
    /// The hints name this node or zone.
    Us,
}

/// Inputs of the choice among endpoints.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) version: Version,
    node: &'a str,
    zone: &'a str,
    node_hints: bool,
    annotation: bool,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        node: Option<&'a Node>,
        config: &ProxyConfig,
        name: &'a str,
        version: Version,
    ) -> Self {
        let zone = node.and_then(|node| node.metadata.labels.get("topology.kubernetes.io/zone"));
        Self {
            version,
            node: name,
            zone: zone.map_or("", String::as_str),
            node_hints: version.has(Change::NodeHints)
                && config.gate(
                    "PreferSameTrafficDistribution",
                    version.has(Change::NodeHintsDefault),
                ),
            // Before, hints counted without an annotation only where trafficDistribution was on.
            annotation: !version.has(Change::HintsWithoutAnnotation)
                && !config.gate(
                    "ServiceTrafficDistribution",
                    version.has(Change::TrafficDistributionDefault),
                ),
        }
    }

    /// Returns whether kube-proxy respects hints for a Service with `annotations`.
    pub(super) fn hints_count(&self, annotations: &Labels) -> bool {
        if !self.annotation {
            return true;
        }
        let old = annotations.get("service.kubernetes.io/topology-aware-hints");
        if !self.version.has(Change::TopologyMode) {
            return old.is_some_and(|v| matches!(v.as_str(), "Auto" | "auto"));
        }
        let value = old.or_else(|| annotations.get("service.kubernetes.io/topology-mode"));
        value.is_some_and(|v| !matches!(v.as_str(), "" | "disabled" | "Disabled"))
    }

    fn hint(here: &str, names: Option<&Vec<Named>>) -> Hint {
        match names {
            None => Hint::None,
            Some(names) if names.is_empty() => Hint::None,
            Some(names) if !here.is_empty() && names.iter().any(|n| n.name == here) => Hint::Us,
            Some(_) => Hint::Others,
        }
    }
}

/// Collects the endpoints of port `name` from `slices`, sorted by address and port as text.
pub(super) fn collect(
    slices: &[&EndpointSlice],
    context: &Context<'_>,
    family: Family,
    name: &str,
    proto: Proto,
) -> Vec<Endpoint> {
    let kind = family.to_string();
    let mut found = Vec::new();
    for slice in slices.iter().filter(|slice| slice.address_type == kind) {
        for port in &slice.ports {
            let Some(number) = matching(port, name, proto) else {
                continue;
            };
            for endpoint in &slice.endpoints {
                let first = endpoint.addresses.first();
                let Some(addr) = first.and_then(|text| lenient_ip(text)) else {
                    continue;
                };
                let addr = SocketAddr::new(addr, number);
                let hints = endpoint.hints.as_ref();
                found.push(Endpoint {
                    addr,
                    order: endpoint.order,
                    text: addr.to_string(),
                    local: endpoint.node_name.as_deref() == Some(context.node),
                    ready: endpoint.conditions.ready.unwrap_or(true),
                    serving: endpoint.conditions.serving.unwrap_or(true),
                    terminating: endpoint.conditions.terminating.unwrap_or(false),
                    zone: Context::hint(context.zone, hints.map(|h| &h.for_zones)),
                    node: Context::hint(context.node, hints.map(|h| &h.for_nodes)),
                });
            }
        }
    }
    found.sort_by(|a, b| (a.order, &a.text).cmp(&(b.order, &b.text)));
    // If an address occurs twice, the later entry wins, unless it is terminating. Older releases keep the first, unless the
    // later one is local.
    let newer = context.version.has(Change::ReusedPodAddresses);
    found.dedup_by(|later, kept| {
        let same = later.text == kept.text;
        if same
            && (if newer {
                !later.terminating
            } else {
                later.local
            })
        {
            std::mem::swap(later, kept);
        }
        same
    });
    found
}

/// Returns the number of `port`, if it belongs to the Service port `name`.
pub fn matching(port: &EndpointPort, name: &str, proto: Proto) -> Option<u16> {
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    let fits = port.name.as_deref() == Some(name) && protocol.parse() == Ok(proto);
    port.port.filter(|&number| fits && number != 0)
}

/// Endpoints that receive each kind of traffic, as positions in the list of endpoints.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Choice {
    pub(super) cluster: Vec<u32>,
    pub(super) local: Vec<u32>,
    pub(super) reachable: Vec<u32>,
    pub(super) any: bool,
}

/// Chooses endpoints as `CategorizeEndpoints` does.
pub(super) fn choose(
    endpoints: &[Endpoint],
    context: &Context<'_>,
    hints: bool,
    uses_cluster: bool,
    uses_local: bool,
) -> Choice {
    let mut choice = Choice::default();
    let pick = |wanted: &dyn Fn(&Endpoint) -> bool| -> Vec<u32> {
        let positions = (0..).zip(endpoints).filter(|(_, e)| wanted(e));
        positions.map(|(at, _)| at).collect()
    };
    let fading = |e: &Endpoint| e.serving && e.terminating;
    let mut narrowed = false;
    if uses_cluster {
        let topology = topology(endpoints, context, hints);
        narrowed = topology != Topology::All;
        choice.cluster = pick(&|e| e.ready && topology.allows(e));
        if choice.cluster.is_empty() {
            choice.cluster = pick(&fading);
        }
        choice.any = !choice.cluster.is_empty();
    }
    if !uses_local {
        choice.reachable.clone_from(&choice.cluster);
        return choice;
    }
    choice.any |= endpoints.iter().any(|e| e.ready || fading(e));
    choice.local = pick(&|e| e.local && e.ready);
    let mut fallback = false;
    if choice.local.is_empty() {
        choice.local = pick(&|e| e.local && fading(e));
        fallback = !choice.local.is_empty();
    }
    choice.reachable = if !uses_cluster {
        choice.local.clone()
    } else if !narrowed && !fallback {
        choice.cluster.clone()
    } else {
        let mut both = choice.cluster.clone();
        both.extend(&choice.local);
        both.sort_unstable();
        both.dedup();
        both
    };
    choice
}

/// How topology hints restrict the choice.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Topology {
    All,
    SameZone,
    SameNode,
}

impl Topology {
    fn allows(self, endpoint: &Endpoint) -> bool {
        match self {
            Self::All => true,
            Self::SameZone => endpoint.zone == Hint::Us,
            Self::SameNode => endpoint.node == Hint::Us,
        }
    }
}

fn topology(endpoints: &[Endpoint], context: &Context<'_>, hints: bool) -> Topology {
    let ready = || endpoints.iter().filter(|e| e.ready);
    let applies = |hint: fn(&Endpoint) -> Hint| {
        ready().all(|e| hint(e) != Hint::None) && ready().any(|e| hint(e) == Hint::Us)
    };
    if context.node_hints && applies(|e| e.node) {
        Topology::SameNode
    } else if hints && applies(|e| e.zone) {
        Topology::SameZone
    } else {
        Topology::All
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str, flags: &str) -> Endpoint {
        let hint = |us: char, others: char| {
            if flags.contains(us) {
                Hint::Us
            } else if flags.contains(others) {
                Hint::Others
            } else {
                Hint::None
            }
        };
        Endpoint {
            addr: text.parse().unwrap(),
            order: 0,
            text: text.to_owned(),
            local: flags.contains('l'),
            ready: flags.contains('r'),
            serving: flags.contains(['r', 's']),
            terminating: flags.contains('t'),
            zone: hint('z', 'Z'),
            node: hint('n', 'N'),
        }
    }

    fn chosen(flags: &[&str], cluster: bool, local: bool) -> Choice {
        let endpoints: Vec<_> = (1..)
            .zip(flags)
            .map(|(at, flags)| endpoint(&format!("10.0.0.{at}:80"), flags))
            .collect();
        let context = Context {
            version: Version::new(1, 36, 0),
            node: "n",
            zone: "z",
            node_hints: true,
            annotation: false,
        };
        choose(&endpoints, &context, true, cluster, local)
    }

    #[test]
    fn an_address_that_a_new_pod_has_is_its_own_since_1_36() {
        let slices: Vec<EndpointSlice> = serde_json::from_value(serde_json::json!([{
            "addressType": "IPv4",
            "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
            "endpoints": [
                {"addresses": ["10.0.0.1"], "nodeName": "old",
                 "conditions": {"ready": false, "serving": false, "terminating": true}},
                {"addresses": ["10.0.0.1"], "nodeName": "new", "conditions": {"ready": true}},
            ],
        }]))
        .unwrap();
        let slices: Vec<_> = slices.iter().collect();
        let ready = |minor, node: &str| {
            let (config, version) = (ProxyConfig::default(), Version::new(1, minor, 0));
            let context = Context::new(None, &config, node, version);
            let found = collect(&slices, &context, Family::V4, "", Proto::Tcp);
            assert_eq!(found.len(), 1);
            found[0].ready
        };
        assert!(ready(36, "third") && ready(35, "new"));
        assert!(!ready(35, "third"));
    }

    #[test]
    fn an_annotation_turns_hints_on_until_1_33() {
        const OLD: &str = "service.kubernetes.io/topology-aware-hints";
        const NEW: &str = "service.kubernetes.io/topology-mode";
        let count = |minor, annotations: &[(&str, &str)]| {
            let all = annotations
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            let config = ProxyConfig::default();
            let context = Context::new(None, &config, "n", Version::new(1, minor, 0));
            context.hints_count(&all.collect())
        };
        for (minor, annotations, expected) in [
            (33, &[][..], true),
            (29, &[], false),
            (29, &[(NEW, "Auto")], true),
            (29, &[(NEW, "any")], true),
            (29, &[(NEW, "disabled")], false),
            (29, &[(OLD, "Disabled"), (NEW, "Auto")], false),
            (26, &[(OLD, "auto")], true),
            (26, &[(OLD, "any")], false),
            (26, &[(NEW, "Auto")], false),
        ] {
            assert_eq!(
                count(minor, annotations),
                expected,
                "{minor} {annotations:?}"
            );
        }
    }

    #[test]
    fn terminating_endpoints_serve_when_nothing_is_ready() {
        assert_eq!(chosen(&["r", "st", ""], true, false).cluster, [0]);
        assert_eq!(chosen(&["", "st", "t"], true, false).cluster, [1]);
        assert!(!chosen(&["", "t"], true, false).any);
        let local = chosen(&["r", "lst"], true, true);
        assert_eq!(
            (local.cluster, local.local, local.reachable),
            (vec![0], vec![1], vec![0, 1])
        );
    }

    #[test]
    fn hints_restrict_the_choice_only_if_all_endpoints_have_them() {
        assert_eq!(chosen(&["rz", "rZ"], true, false).cluster, [0]);
        assert_eq!(chosen(&["rz", "r"], true, false).cluster, [0, 1]);
        assert_eq!(chosen(&["rZ", "rZ"], true, false).cluster, [0, 1]);
        assert_eq!(chosen(&["rzN", "rZn"], true, false).cluster, [1]);
        assert_eq!(chosen(&["rzN", "rZN"], true, false).cluster, [0]);
        let both = chosen(&["rz", "rlZ"], true, true);
        assert_eq!((both.local, both.reachable), (vec![1], vec![0, 1]));
    }

    #[test]
    fn a_local_policy_excludes_remote_endpoints() {
        let remote = chosen(&["r"], false, true);
        assert!(remote.any && remote.local.is_empty() && remote.reachable.is_empty());
    }
}
