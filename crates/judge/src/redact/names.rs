//! Replaces names, and kube-proxy's hashes of names.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use sha2::{Digest as _, Sha256};

use super::words;
use kpx_node::backend::chain_owner::prefix_of;
use kpx_node::backend::iptables::names::{endpoint_hash, service_hash};
use kpx_node::net::Proto;

/// The longest name of a chain of iptables, in bytes; sets may have three more.
const LONGEST_CHAIN: usize = 28;

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
    Link,
    Object,
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
            Self::Link => "if",
            Self::Object => "chain",
            Self::Other => "x",
        }
    }

    /// Returns whether `name` occurs in every cluster and is not private.
    pub(super) fn is_known(self, name: &str) -> bool {
        self.known().contains(&name)
    }

    /// Names that occur in every cluster and are not private.
    const fn known(self) -> &'static [&'static str] {
        match self {
            Self::Namespace => &["default", "kube-system", "kube-public", "kube-node-lease"],
            Self::Service => &["kubernetes", "kube-dns", "coredns", "metrics-server"],
            Self::Port => &[
                "dns", "dns-tcp", "grpc", "http", "https", "metrics", "tcp", "udp",
            ],
            Self::Program | Self::Other => &[
                "antrea-agent",
                "aws-eks-nodeagent",
                "aws-node",
                "azure-npm",
                "calico-felix",
                "calico-node",
                "cilium",
                "cilium-agent",
                "containerd",
                "coredns",
                "crio",
                "dockerd",
                "etcd",
                "hyperkube",
                "k0s",
                "k3s",
                "k3s-agent",
                "k3s-server",
                "keepalived",
                "kindnet",
                "kindnet-cni",
                "kpng",
                "kube-apiserver",
                "kube-controller",
                "kube-dns",
                "kube-flannel",
                "kube-proxy",
                "kube-router",
                "kube-scheduler",
                "kube-vip",
                "kubelet",
                "kubelite",
                "kubernetes",
                "lib-modules",
                "node-local-dns",
                "ovnkube",
                "ovnkube-controller",
                "rke2",
                "sshd",
                "systemd",
                "systemd-resolve",
                "weave-npc",
                "xtables-lock",
            ],
            Self::Pod | Self::Node | Self::Host | Self::Zone | Self::Slice => &["localhost"],
            Self::Link | Self::Object => &[],
        }
    }
}

/// A keyed mapping of names.
pub(super) struct Names {
    key: [u8; 32],
    done: HashMap<(Kind, String), String>,
    chains: HashMap<String, String>,
    /// Names of kube-proxy's nftables chains and sets without their first word, by their hash.
    nft: HashMap<String, String>,
    /// Links of the node whose names are replaced.
    links: HashMap<String, String>,
    /// Beginning of the names of pods' links, by kube-proxy's configuration.
    link_prefix: Option<String>,
    /// The original of each replacement.
    originals: BTreeMap<String, String>,
}

impl Names {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self {
            key,
            done: HashMap::new(),
            chains: HashMap::new(),
            nft: HashMap::new(),
            links: HashMap::new(),
            link_prefix: None,
            originals: BTreeMap::new(),
        }
    }

    /// Returns the replacement of `name`.
    pub(super) fn map(&mut self, kind: Kind, name: &str) -> String {
        // An unnamed port stays unnamed: Services and slices are matched by it.
        if name.is_empty() || kind.is_known(name) {
            return name.to_owned();
        }
        let at = (kind, name.to_owned());
        if let Some(done) = self.done.get(&at) {
            return done.clone();
        }
        let hash = self.keyed(&format!("{}/{name}", kind.prefix()), 8);
        let new = format!("{}-{}", kind.prefix(), hash.to_ascii_lowercase());
        self.originals.insert(new.clone(), name.to_owned());
        self.done.insert(at, new.clone());
        new
    }

    /// Returns the original of each replacement.
    pub(super) const fn originals(&self) -> &BTreeMap<String, String> {
        &self.originals
    }

    /// Returns the replacement of `NS/NAME` or `NS/NAME:PORT`; `None` if the text has another form.
    pub(super) fn service_port(&mut self, text: &str) -> Option<String> {
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
            self.learn_chain(old, new);
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
            self.learn_chain(old, new);
        }
    }

    fn learn_chain(&mut self, old: String, new: String) {
        self.originals.insert(new.clone(), old.clone());
        self.chains.insert(old, new);
    }

    /// Adds the name of an nftables chain without its first word: `HASH-NS/NAME/PROTO/PORT`, which may be truncated.
    pub(super) fn learn_nft(&mut self, old: &str, new: &str) {
        let hash = |base: &str| base.get(..8).unwrap_or_default().to_owned();
        self.originals.insert(hash(new), hash(old));
        self.originals.insert(new.to_owned(), old.to_owned());
        self.nft.insert(hash(old), new.to_owned());
    }

    /// Returns the replacement of a name with the hash `old`, if it is known.
    pub(super) fn nft_base(&self, old: &str) -> Option<&str> {
        self.nft.get(old).map(String::as_str)
    }

    /// Sets the beginning of the names of pods' links.
    pub(super) fn learn_link_prefix(&mut self, prefix: &str) {
        let mut known = words::LINK_PREFIXES.iter();
        if !prefix.is_empty() && !known.any(|known| prefix.starts_with(*known)) {
            self.link_prefix = Some(prefix.to_owned());
        }
    }

    /// Adds a link of the node.
    pub(super) fn learn_link(&mut self, name: &str) {
        let new = self.link(name);
        if new != name {
            self.links.insert(name.to_owned(), new);
        }
    }

    /// Returns the replacement of `word` if it is the name of a link of the node that is replaced.
    pub(super) fn known_link(&self, word: &str) -> Option<String> {
        self.links.get(word).cloned()
    }

    /// Returns the replacement of a link's name, which may end with a wildcard. Names that the kernel or a network plugin
    /// gives are kept, and so is a prefix that shows the purpose.
    pub(super) fn link(&mut self, name: &str) -> String {
        let bare = name.trim_end_matches(['+', '*']);
        let wild = &name[bare.len()..];
        if bare.is_empty() || words::is_common_link(bare) {
            return name.to_owned();
        }
        if let Some((parent, number)) = bare.rsplit_once('.')
            && !number.is_empty()
            && number.bytes().all(|b| b.is_ascii_digit())
        {
            return format!("{}.{number}{wild}", self.link(parent));
        }
        if let Some(prefix) = self.link_prefix.clone()
            && let Some(rest) = bare.strip_prefix(&prefix)
        {
            let mut new = self.map(Kind::Link, &prefix);
            if !rest.is_empty() {
                new += &self.keyed(&format!("link/{bare}"), 4).to_ascii_lowercase();
                self.originals.insert(new.clone(), bare.to_owned());
            }
            return new + wild;
        }
        let prefix = words::LINK_PREFIXES
            .iter()
            .find(|prefix| bare.starts_with(**prefix));
        match prefix {
            Some(prefix) if bare == *prefix => name.to_owned(),
            Some(prefix) => {
                // The kernel limits names to 15 bytes.
                let length = 15_usize.saturating_sub(prefix.len()).min(8);
                let hash = self.keyed(&format!("link/{bare}"), length);
                let new = format!("{prefix}{}", hash.to_ascii_lowercase());
                self.originals.insert(new.clone(), bare.to_owned());
                new + wild
            }
            None => self.map(Kind::Link, bare) + wild,
        }
    }

    /// Returns the replacement of the name of a chain, table or set. Common words in it are kept: they show who wrote it.
    pub(super) fn object(&mut self, name: &str) -> String {
        const BETWEEN: [char; 5] = ['-', '_', '.', ':', ' '];
        let prefix = prefix_of(name).unwrap_or_default();
        let is_own = name.starts_with("KUBE-") && prefix.is_empty();
        if is_own || words::in_names(name) {
            return name.to_owned();
        }
        let mut new = String::new();
        for piece in name.split_inclusive(BETWEEN) {
            let word = piece.trim_end_matches(BETWEEN);
            match self.known_link(word) {
                Some(link) => new.push_str(&link),
                None if words::in_names(word) => new.push_str(word),
                None => new.push_str(&self.map(Kind::Object, word)),
            }
            new.push_str(&piece[word.len()..]);
        }
        if new.len() > LONGEST_CHAIN || !new.starts_with(prefix) {
            let hash = self.keyed(&format!("chain/{name}"), 8);
            new = format!("{prefix}{}", hash.to_ascii_lowercase());
        }
        if new != name {
            self.originals.insert(new.clone(), name.to_owned());
        }
        new
    }

    /// Returns the replacement of an ID, without dashes.
    pub(super) fn id(&mut self, id: &str) -> String {
        let plain = id.trim().replace('-', "").to_lowercase();
        if plain.is_empty() {
            return plain;
        }
        let new = self.keyed(&format!("id/{plain}"), 16).to_ascii_lowercase();
        self.originals.insert(new.clone(), plain);
        new
    }

    /// Returns the replacement of the hash in an iptables chain name; an unknown hash gets a new one.
    pub(super) fn chain_hash(&mut self, old: &str) -> String {
        if let Some(learnt) = self.chains.get(old) {
            return learnt.clone();
        }
        let new = self.keyed(&format!("chain/{old}"), 16);
        self.learn_chain(old.to_owned(), new.clone());
        new
    }

    /// Adds the original of a replacement made elsewhere.
    pub(super) fn remember(&mut self, new: &str, old: &str) {
        self.originals.insert(new.to_owned(), old.to_owned());
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
        let mut names = Names::new([1; 32]);
        let kept = "kube-system/kube-dns:dns-tcp";
        assert_eq!(names.service_port(kept).as_deref(), Some(kept));
        assert_ne!(
            names.service_port("shop/cart"),
            Some("shop/cart".to_owned())
        );
        assert_eq!(names.service_port("0x4000/0x4000:x:y"), None);
    }
}
