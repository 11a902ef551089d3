//! Replaces names, and kube-proxy's hashes of names.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use sha2::{Digest as _, Sha256};

use crate::backend::iptables::names::{endpoint_hash, service_hash};
use crate::net::Proto;

/// Type of a name; the same word gets a different replacement for each type.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum Kind {
    Namespace,
    Service,
    Port,
    Pod,
    Node,
    Host,
    Zone,
    Slice,
    Program,
    Other,
}

impl Kind {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Namespace => "ns",
            Self::Service => "svc",
            Self::Port => "p",
            Self::Pod => "pod",
            Self::Node => "node",
            Self::Host => "host",
            Self::Zone => "zone",
            Self::Slice => "slice",
            Self::Program => "program",
            Self::Other => "x",
        }
    }

    /// Names that occur in every cluster and are not private.
    const fn known(self) -> &'static [&'static str] {
        match self {
            Self::Namespace => &["default", "kube-system", "kube-public", "kube-node-lease"],
            Self::Service => &["kubernetes", "kube-dns", "coredns", "metrics-server"],
            Self::Port => &[
                "dns", "dns-tcp", "grpc", "http", "https", "metrics", "tcp", "udp",
            ],
            Self::Program => &[
                "cilium-agent",
                "containerd",
                "coredns",
                "crio",
                "dockerd",
                "etcd",
                "kube-apiserver",
                "kube-controller",
                "kube-proxy",
                "kube-router",
                "kube-scheduler",
                "kubelet",
                "sshd",
                "systemd",
                "systemd-resolve",
            ],
            Self::Other => &[
                "",
                "kube-proxy",
                "kube-dns",
                "kubernetes",
                "xtables-lock",
                "lib-modules",
            ],
            Self::Pod | Self::Node | Self::Host | Self::Zone | Self::Slice => &["localhost"],
        }
    }
}

/// A keyed mapping of names.
pub(super) struct Names {
    key: [u8; 32],
    chains: HashMap<String, String>,
}

impl Names {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self {
            key,
            chains: HashMap::new(),
        }
    }

    /// Returns the replacement of `name`.
    pub(super) fn map(&self, kind: Kind, name: &str) -> String {
        // An unnamed port stays unnamed: Services and slices are matched by it.
        if name.is_empty() || kind.known().contains(&name) {
            return name.to_owned();
        }
        let hash = self.keyed(&format!("{}/{name}", kind.prefix()), 8);
        format!("{}-{}", kind.prefix(), hash.to_ascii_lowercase())
    }

    /// Returns the replacement of `NS/NAME` or `NS/NAME:PORT`; `None` if the text has another form.
    pub(super) fn service_port(&self, text: &str) -> Option<String> {
        let (namespace, rest) = text.split_once('/')?;
        let (service, port) = match rest.split_once(':') {
            Some((service, port)) => (service, Some(port)),
            None => (rest, None),
        };
        let is_label = |label: &str| {
            !label.is_empty()
                && label
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        };
        if ![Some(namespace), Some(service), port]
            .into_iter()
            .flatten()
            .all(is_label)
        {
            return None;
        }
        let namespace = self.map(Kind::Namespace, namespace);
        let service = self.map(Kind::Service, service);
        Some(match port {
            Some(port) => format!("{namespace}/{service}:{}", self.map(Kind::Port, port)),
            None => format!("{namespace}/{service}"),
        })
    }

    /// Adds the hash of a service port's chains.
    pub(super) fn learn_service(&mut self, old: &str, proto: Proto) {
        if let Some(new) = self.service_port(old) {
            let (old, new) = (service_hash(old, proto), service_hash(&new, proto));
            self.chains.insert(old, new);
        }
    }

    /// Adds the hash of an endpoint's chain.
    pub(super) fn learn_endpoint(&mut self, old: &str, proto: Proto, at: SocketAddr, to: IpAddr) {
        if let Some(new) = self.service_port(old) {
            let to = SocketAddr::new(to, at.port());
            let (old, new) = (
                endpoint_hash(old, proto, at),
                endpoint_hash(&new, proto, to),
            );
            self.chains.insert(old, new);
        }
    }

    /// Returns the replacement of the hash in an iptables chain name; an unknown hash gets a new one.
    pub(super) fn chain_hash(&self, old: &str) -> String {
        let learnt = self.chains.get(old).cloned();
        learnt.unwrap_or_else(|| self.keyed(&format!("chain/{old}"), 16))
    }

    /// Returns the first `length` characters of a keyed hash.
    pub(super) fn keyed(&self, text: &str, length: usize) -> String {
        let mut hasher = Sha256::new();
        hasher.update(self.key);
        hasher.update(text.as_bytes());
        base32(&hasher.finalize(), length)
    }
}

/// Returns the hash that kube-proxy derives from `text` for the name of an nftables chain or set.
pub(super) fn nft_hash(text: &str) -> String {
    base32(&Sha256::digest(text.as_bytes()), 8)
}

fn base32(digest: &[u8], length: usize) -> String {
    const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let bits = digest[..16]
        .iter()
        .fold(0u128, |bits, &byte| bits << 8 | u128::from(byte));
    (0..length)
        .map(|i| char::from(ALPHABET[(bits >> (123 - 5 * i) & 31) as usize]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nftables_hashes_equal_those_of_kube_proxy() {
        assert_eq!(nft_hash("default/kubernetes/tcp/https"), "2QRHZV4L");
        assert_eq!(nft_hash("default/web/tcp/__10.244.1.10/8080"), "QLV6DV3C");
    }

    #[test]
    fn well_known_names_are_kept() {
        let names = Names::new([1; 32]);
        let kept = "kube-system/kube-dns:dns-tcp";
        assert_eq!(names.service_port(kept).as_deref(), Some(kept));
        assert_ne!(
            names.service_port("shop/cart"),
            Some("shop/cart".to_owned())
        );
        assert_eq!(names.service_port("0x4000/0x4000:x:y"), None);
    }
}
