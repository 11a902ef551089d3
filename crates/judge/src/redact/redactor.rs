//! Evidence with names and addresses replaced.

use std::collections::HashSet;
use std::net::IpAddr;

use serde_json::Value;

use super::address::Addresses;
use super::names::{Kind, Names};
use super::{document, order};
use kpx_node::evidence::{Evidence, Forbidden, Gap, Item, pod_networks};

/// Fields of filters with numbers that may be addresses: the matches of `u32`, and the code of classic BPF.
pub(super) const CODE_OF_FILTERS: &[&str] = &["bytecode", "match"];

/// Replaces addresses and names consistently under one key.
pub struct Redactor {
    pub(super) addresses: Addresses,
    pub(super) names: Names,
    /// Chains that a listing of iptables declares.
    pub(super) targets: HashSet<String>,
}

impl Redactor {
    /// Returns a redactor that maps the links and the chain hashes of the Services and endpoints in `evidence`.
    pub fn new(key: [u8; 32], evidence: &Evidence) -> Self {
        let mut redactor = Self {
            addresses: Addresses::new(key),
            names: Names::new(key),
            targets: HashSet::new(),
        };
        redactor.learn(evidence);
        redactor
    }

    /// Returns the replacement of an address.
    pub fn address(&mut self, address: IpAddr) -> IpAddr {
        self.addresses.map(address)
    }

    /// Returns the replacement of a node name.
    pub fn node(&mut self, name: &str) -> String {
        self.names.map(Kind::Node, name)
    }

    /// Returns redacted `evidence`, with gaps for removed items.
    pub fn evidence(&mut self, evidence: &Evidence) -> Evidence {
        let mut new = Evidence::default();
        for (item, read) in evidence.iter() {
            let read = match read {
                Ok(text) => self.item(item, text),
                Err(gap) => Err(self.gap(gap)),
            };
            new.insert(item, read);
        }
        new.mark_parts_of(evidence, |why| self.reason(why));
        new
    }

    /// Returns `text` redacted, or a gap if the item must not be published. Every item is listed: a new one does not
    /// compile until its redaction is decided here.
    #[deny(clippy::wildcard_enum_match_arm)]
    pub(super) fn item(&mut self, item: Item, text: &str) -> Result<String, Gap> {
        Ok(match item {
            Item::KernelRelease
            | Item::ConntrackVersion
            | Item::IptablesVersion
            | Item::Modules
            | Item::ModulesBuiltin
            | Item::ModulesDep
            | Item::IpsetVersion
            | Item::NftVersion
            | Item::ConntrackStat
            | Item::Neighbours4
            | Item::Neighbours6
            | Item::ProxyTools
            | Item::ProxyMode => text.to_owned(),
            Item::ModulesLoad | Item::Modprobe | Item::Firewalls | Item::LinkManagers => {
                self.filed(text)
            }
            Item::Iptables4
            | Item::Iptables6
            | Item::IptablesLegacy4
            | Item::IptablesLegacy6
            | Item::IptablesNft4
            | Item::IptablesNft6
            | Item::Arptables
            | Item::NftText
            | Item::Ipset => self.rules(text),
            Item::IpvsSave
            | Item::IpvsStats
            | Item::IpvsTimeout
            | Item::Conntrack
            | Item::XfrmPolicies
            | Item::XfrmStates => self.addresses(text),
            Item::Recent => self.recent(text),
            Item::IpvsConnections => self.connections(text),
            Item::Tcp4 | Item::Tcp6 | Item::Udp4 | Item::Udp6 => self.proc_net(text),
            Item::Sockets | Item::HeldSockets => self.sockets(text),
            Item::Sysctl => self.sysctl(text),
            Item::ProxyConfig => self.config(text),
            Item::Metrics => self.metrics(text),
            Item::ProxyLog => self.proxy_log(text),
            Item::KernelLog => self.kernel_log(text),
            Item::ProxyFiles => self.proxy_files(item, text)?,
            Item::Migration => self.journal(text),
            Item::Host => self.host_identity(text),
            Item::EndpointSlices => {
                let mut value = parse(item, text)?;
                order::number_endpoints(&mut value);
                self.api(value, "EndpointSlice").to_string()
            }
            Item::Services => self.api(parse(item, text)?, "Service").to_string(),
            Item::Nodes => self.api(parse(item, text)?, "Node").to_string(),
            Item::ConfigMaps => self.api(parse(item, text)?, "ConfigMap").to_string(),
            Item::DaemonSets => self.api(parse(item, text)?, "DaemonSet").to_string(),
            Item::ServiceCidrs => self.api(parse(item, text)?, "ServiceCIDR").to_string(),
            Item::Pods => self.api(parse(item, text)?, "Pod").to_string(),
            Item::Ipvs => {
                let mut value = parse(item, text)?;
                // Other addresses have other hashes.
                let services = value.get_mut("services").and_then(Value::as_array_mut);
                for service in services.into_iter().flatten() {
                    if let Some(service) = service.as_object_mut() {
                        service.remove("order");
                    }
                }
                self.document(value, "").to_string()
            }
            Item::Tc => {
                let mut value = parse(item, text)?;
                document::without(&mut value, CODE_OF_FILTERS);
                self.document(value, "").to_string()
            }
            Item::Bpf => self.bpf(item, text)?,
            Item::PodNetworks => {
                let all = pod_networks::parse(item, text)?;
                pod_networks::print(&all, |item, text| self.item(item, text))?
            }
            Item::Nft => self.nft(parse(item, text)?, "").to_string(),
            Item::Access => self.access(parse(item, text)?).to_string(),
            Item::Configz => self.settings(parse(item, text)?, "").to_string(),
            Item::Addresses
            | Item::Links
            | Item::Routes
            | Item::Rules
            | Item::NeighbourTable
            | Item::Processes
            | Item::Healthz => self.document(parse(item, text)?, "").to_string(),
        })
    }

    pub(super) fn gap(&mut self, gap: &Gap) -> Gap {
        match gap.clone() {
            Gap::Forbidden(item, of) => {
                let user = self.user(&of.user);
                let why = self.reason(&of.why.replace(&of.user, &user));
                let credentials = self.reason(&of.credentials);
                Gap::Forbidden(
                    item,
                    Box::new(Forbidden {
                        why,
                        user,
                        credentials,
                        ..*of
                    }),
                )
            }
            gap => gap.reworded(|why| self.reason(why)),
        }
    }

    /// Returns the replacement of a user of the API server.
    pub(super) fn user(&mut self, user: &str) -> String {
        const NODE: &str = "system:node:";
        const ACCOUNT: &str = "system:serviceaccount:";
        if let Some(node) = user.strip_prefix(NODE) {
            return format!("{NODE}{}", self.node(node));
        }
        let account = user
            .strip_prefix(ACCOUNT)
            .and_then(|rest| rest.split_once(':'));
        match account {
            Some((namespace, name)) => format!(
                "{ACCOUNT}{}:{}",
                self.names.map(Kind::Namespace, namespace),
                self.names.map(Kind::Other, name)
            ),
            None => self.names.map(Kind::Other, user),
        }
    }
}

pub(super) fn parse(item: Item, text: &str) -> Result<Value, Gap> {
    serde_json::from_str(text).map_err(|error| unreadable(item, &error))
}

/// Returns why a text that is not JSON was removed, without a part of it.
pub(super) fn unreadable(item: Item, error: &serde_json::Error) -> Gap {
    let reason = if error.is_eof() {
        "it is cut short: collect it again"
    } else {
        "removed by redaction: it is not valid JSON"
    };
    Gap::Failed(item, reason.to_owned())
}
