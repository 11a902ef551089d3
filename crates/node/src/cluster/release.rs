//! What changed in which release of kube-proxy: the only place that compares a release with a number.
//!
//! A new release needs [`NEWEST`], a [`Change`] for each difference, and recordings of it below `testdata/nodes`, up to which
//! [`RECORDED`] counts.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::version::{NotAVersion, Version};

/// A minor release of Kubernetes: `1.36`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Release {
    /// The first number.
    pub major: u16,
    /// The second number.
    pub minor: u16,
}

impl Release {
    /// Returns the release `1.minor`.
    const fn one(minor: u16) -> Self {
        Self { major: 1, minor }
    }

    /// Returns the first version of this release.
    pub const fn first(self) -> Version {
        Version::new(self.major, self.minor, 0)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The newest release whose changes are known, from its source.
pub const NEWEST: Release = Release::one(38);
/// The newest release whose rules were recorded.
pub const RECORDED: Release = Release::one(36);
/// The oldest release whose rules are known.
pub const OLDEST: Release = Release::one(26);

/// The API server validates addresses strictly, unless its feature gate `StrictIPCIDRValidation` is off (KEP-4858).
pub const STRICT_ADDRESSES: Release = Release::one(36);
/// The API server validates addresses strictly, always; announced.
pub const STRICT_ADDRESSES_ALWAYS: Release = Release::one(38);

/// Changes of kube-proxy that are announced, each with its release.
pub mod planned {
    use super::Release;

    /// Without a mode, kube-proxy uses nftables (KEP-5343).
    pub const NFTABLES_DEFAULT: Release = Release::one(40);
    /// The ipvs mode needs the gate `KubeProxyIPVS` (KEP-5495).
    pub const IPVS_OFF: Release = Release::one(40);
    /// The ipvs mode is removed (KEP-5495).
    pub const IPVS_REMOVED: Release = Release::one(43);
    /// externalIPs need the gate `AllowServiceExternalIPs` (KEP-5707).
    pub const EXTERNAL_IPS_OFF: Release = Release::one(40);
    /// externalIPs are removed (KEP-5707).
    pub const EXTERNAL_IPS_REMOVED: Release = Release::one(43);
    /// The last release with an announced change.
    pub const LAST: Release = Release::one(43);
}

/// Feature gates of kube-proxy that later releases do not know, with the first of these. Where the page of removed gates in the
/// documentation does not have one, 1.36 is the first release that is known not to have it.
const REMOVED_GATES: &[(&str, Release)] = &[
    ("EndpointSlice", Release::one(25)),
    ("EndpointSliceProxying", Release::one(25)),
    ("IPv6DualStack", Release::one(25)),
    ("KubeProxyDrainingTerminatingNodes", Release::one(33)),
    ("LoadBalancerIPMode", Release::one(35)),
    ("MinimizeIPTablesRestore", Release::one(30)),
    ("MultiCIDRServiceAllocator", Release::one(37)),
    ("ProxyTerminatingEndpoints", Release::one(30)),
    ("ServiceInternalTrafficPolicy", Release::one(28)),
    ("ServiceTrafficDistribution", Release::one(36)),
    ("SupportIPVSProxyMode", Release::one(21)),
    ("TopologyAwareHints", Release::one(36)),
];

/// Feature gates that can no longer be off, with the first release in which they are on for good.
const LOCKED_GATES: &[(&str, Release)] = &[
    ("IPv6DualStack", Release::one(23)),
    ("KubeProxyDrainingTerminatingNodes", Release::one(31)),
    ("LoadBalancerIPMode", Release::one(32)),
    ("MinimizeIPTablesRestore", Release::one(28)),
    ("NFTablesProxyMode", Release::one(33)),
    ("ProxyTerminatingEndpoints", Release::one(28)),
    ("ServiceInternalTrafficPolicy", Release::one(26)),
    ("TopologyAwareHints", Release::one(33)),
];

/// Why kube-proxy does not start with a feature gate that is set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RefusedGate {
    /// This release and later ones do not know it.
    Unknown(Release),
    /// From this release on it cannot be off.
    Locked(Release),
}

/// Returns why a kube-proxy of `release` does not start with the feature gate `name` set to `value`; `None` if it does, as far as is
/// known.
pub fn refused_gate(name: &str, value: bool, release: Release) -> Option<RefusedGate> {
    let since = |table: &[(&str, Release)]| {
        let row = table
            .iter()
            .find(|(of, since)| *of == name && release >= *since)?;
        Some(row.1)
    };
    let locked = || since(LOCKED_GATES).filter(|_| !value);
    since(REMOVED_GATES)
        .map(RefusedGate::Unknown)
        .or_else(|| locked().map(RefusedGate::Locked))
}

macro_rules! changes {
    ($($(#[doc = $doc:literal])+ $name:ident = $minor:literal $(or $patched:literal patch $patch:literal)*;)+) => {
        /// A change of kube-proxy that kpx knows.
        #[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
        pub enum Change { $($(#[doc = $doc])+ $name,)+ }

        /// Every [`Change`], in the order of the table.
        #[cfg(test)]
        const CHANGES: &[Change] = &[$(Change::$name,)+];

        impl Change {
            /// Returns the first release that has the change.
            pub const fn release(self) -> Release {
                Release::one(match self { $(Self::$name => $minor,)+ })
            }

            /// Returns earlier releases whose patch versions have the change from one on: the minor release and that patch.
            const fn patches(self) -> &'static [(u16, u16)] {
                match self { $(Self::$name => &[$(($patched, $patch)),*],)+ }
            }
        }
    };
}

// Each change with the minor release (of Kubernetes 1) that has it first, and the earlier ones to which it was brought: for a
// cherry-pick without a release note, by its date, rather too early than too late, because kpx would remove a rule that it does
// not expect.
changes! {
    /// iptables: kube-proxy writes KUBE-FIREWALL itself; before, only the kubelet did.
    KubeFirewall = 27;
    /// iptables: a KUBE-FW chain ends with a comment on KUBE-PROXY-FIREWALL.
    FirewallComment = 27;
    /// ipvs: the scheduler `mh` hashes the port as well.
    MaglevPort = 27;
    /// ipvs: kube-proxy no longer insists on the schedulers `sh` and `wrr`.
    AnyScheduler = 27;
    /// The annotation `topology-mode` takes any value for hints; before, `topology-aware-hints: auto` was needed.
    TopologyMode = 27;
    /// The node's addresses come from its Node object; before, a dual-stack kube-proxy took its bind address.
    NodeAddresses = 28;
    /// iptables: kube-proxy no longer removes the KUBE-XLB chains that releases before 1.24 wrote.
    ForgetsOldChains = 28;
    /// ipvs: an address that another link has is not bound to kube-ipvs0.
    SkipsBoundAddresses = 28;
    /// ipvs: KUBE-IPVS-FILTER lets health checks of NodePorts pass.
    HealthCheckPorts = 28 or 26 patch 5 or 27 patch 2;
    /// ipvs: KUBE-IPVS-OUT-FILTER guards load-balancer addresses from the node itself.
    IpvsOutFilter = 29;
    /// iptables: no drop of INVALID packets where conntrack is liberal.
    LiberalConntrack = 29;
    /// `ipMode` of a load balancer's address, behind the gate `LoadBalancerIPMode`.
    LoadBalancerIpMode = 29;
    /// kube-proxy's image has an iptables whose rules iptables older than 1.8.8 cannot read.
    NewIptables = 29;
    /// nftables: the mode exists, behind the gate `NFTablesProxyMode`, which is off by default.
    NftablesMode = 29;
    /// nftables: the first layout of the table that kpx knows.
    NftablesLayout = 30;
    /// nodePortAddresses takes the word `primary` (kubernetes/kubernetes#122724).
    NodePortPrimary = 30;
    /// ipvs: KUBE-IPVS-FILTER lets external addresses with local endpoints pass.
    LocalExternalAddresses = 30 or 28 patch 6 or 29 patch 1;
    /// The gate `LoadBalancerIPMode` is on by default.
    LoadBalancerIpModeDefault = 30;
    /// The gate `ServiceTrafficDistribution` is on by default.
    TrafficDistributionDefault = 31;
    /// nftables: the gate `NFTablesProxyMode` is on by default.
    NftablesModeOn = 31;
    /// iptables: nfacct counters for dropped and accepted packets.
    NfacctCounters = 32;
    /// UDP flows are ended by netlink; before, by the tool `conntrack`.
    ConntrackByNetlink = 32;
    /// `clusterCIDR` is validated only if local traffic is detected by it.
    ClusterCidrOfLocalMode = 32;
    /// Hints count without an annotation.
    HintsWithoutAnnotation = 33;
    /// Hints for a node, behind the gate `PreferSameTrafficDistribution`.
    NodeHints = 33;
    /// nftables: the gate `NFTablesProxyMode` can no longer be off.
    NftablesModeStable = 33;
    /// The gate `PreferSameTrafficDistribution` is on by default.
    NodeHintsDefault = 34;
    /// nftables: other base chains, and jumps from them.
    NftablesBaseChains = 34;
    /// nftables: a Service's chain masquerades by its address; before, by address and port.
    NftablesMasqueradeByAddress = 34;
    /// nftables: links are matched by name; before, by index.
    NftablesLinkNames = 35;
    /// The ipvs mode is deprecated.
    IpvsDeprecated = 35;
    /// nftables: rules set the mark themselves; before, they jumped to `mark-for-masquerade`.
    NftablesInlineMark = 36;
    /// nftables: cluster IPs are masqueraded in `services`; before, in each Service's chain.
    NftablesMasqueradeInServices = 36;
    /// nftables: a set of hairpin connections; before, a rule in each endpoint's chain.
    NftablesHairpinSet = 36;
    /// nftables: a Service's chain translates to its endpoints; before, it went to a chain for each.
    NftablesEndpointMaps = 36;
    /// Of two endpoints with one address, the pod that does not terminate counts; before, the first in the slice.
    ReusedPodAddresses = 36;
    /// Services' externalIPs are deprecated, behind the gate `AllowServiceExternalIPs`, which is on by default.
    ExternalIpsDeprecated = 36;
    /// The ipvs mode is behind the gate `KubeProxyIPVS`, which is on by default.
    IpvsGate = 37;
    /// nftables: kube-proxy lists its rules by netlink, behind the gate `NFTablesNetlink`, which is on by default; before, with
    /// the tool `nft`, with which it still writes them.
    NftablesNetlink = 37;
    /// `nodePortAddresses` takes the words `primary`, `localhost` and `all` in addition to prefixes; before, only
    /// `primary` alone.
    NodePortWords = 37;
    /// nftables: kube-proxy listens for NodePorts of TCP on loopback addresses, behind the gate
    /// `KubeProxyNFTablesLocalhostNodePorts` (KEP-6032), and rejects other ports there; with the metric
    /// `kubeproxy_nftables_localhost_nodeport_listeners`.
    LocalhostNodePorts = 37;
    /// nftables: the tool `nft` in kube-proxy's image reads sets of every newer `nft`; before, it crashes on those of 1.1.2.
    ReadsNewerSets = 37;
    /// UDP flows to Services that lost their last endpoint are ended.
    UdpWithoutEndpoints = 37;
    /// The gate `KubeProxyNFTablesLocalhostNodePorts` is on by default.
    LocalhostNodePortsDefault = 38;
    /// UDP flows to Services that were deleted are ended.
    UdpOfDeletedServices = 38;
}

impl Version {
    /// Returns whether kube-proxy of this version has `change`.
    pub fn has(self, change: Change) -> bool {
        let is_patched = |&(minor, patch): &(u16, u16)| {
            (self.major, self.minor) == (1, minor) && self.patch >= patch
        };
        self.is_at_least(change.release()) || change.patches().iter().any(is_patched)
    }

    /// Returns whether this is `release`, any patch, or a newer one.
    pub fn is_at_least(self, release: Release) -> bool {
        self.at_least(release.major, release.minor)
    }

    /// Returns whether this is of a release newer than `release`.
    pub fn is_newer_than(self, release: Release) -> bool {
        (self.major, self.minor) > (release.major, release.minor)
    }

    /// Returns whether kube-proxy of this version leaves virtual servers unchecked until something changes.
    pub fn lacks_ipvs_resync(self) -> bool {
        // The regression came with 1.34.0; 1.34.4 and 1.35.1 fixed it.
        match (self.major, self.minor) {
            (1, 34) => self.patch < 4,
            (1, 35) => self.patch < 1,
            _ => false,
        }
    }
}

/// The version that an upgrade leads to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Goal {
    /// The release.
    pub release: Release,
    /// The patch version; `None` for the latest one.
    pub patch: Option<u16>,
}

impl Goal {
    /// Returns the version; without a patch version, one that is newer than every patch of the release.
    pub const fn version(self) -> Version {
        let patch = match self.patch {
            Some(patch) => patch,
            None => u16::MAX,
        };
        Version::new(self.release.major, self.release.minor, patch)
    }
}

impl FromStr for Goal {
    type Err = NotAVersion;

    /// Parses `1.40`, or `v1.36.2`.
    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let version: Version = text.parse()?;
        let has_patch = text
            .split(['-', '+'])
            .next()
            .unwrap_or("")
            .matches('.')
            .count()
            > 1;
        Ok(Self {
            release: Release {
                major: version.major,
                minor: version.minor,
            },
            patch: has_patch.then_some(version.patch),
        })
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.patch {
            Some(patch) => write!(f, "{}.{patch}", self.release),
            None => self.release.fmt(f),
        }
    }
}

impl Serialize for Goal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Versions that have a known bug: from the first one up to, but not including, the one that fixes it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Span {
    /// The first version.
    pub(crate) first: Version,
    /// The first version without the bug; `None` if there is none yet.
    pub fixed: Option<Version>,
}

impl Span {
    /// Returns whether `version` is one of them.
    pub fn contains(&self, version: Version) -> bool {
        self.first <= version && self.fixed.is_none_or(|fixed| version < fixed)
    }
}

impl FromStr for Span {
    type Err = String;

    /// Parses `1.32.0..1.32.3`, or `1.37.0..` if no version fixes the bug.
    fn from_str(text: &str) -> Result<Self, String> {
        let (first, fixed) = text
            .split_once("..")
            .ok_or_else(|| format!("{text:?} is no span of versions such as 1.32.0..1.32.3"))?;
        let version = |text: &str| text.parse().map_err(|e| format!("{e}"));
        Ok(Self {
            first: version(first)?,
            fixed: (!fixed.is_empty()).then(|| version(fixed)).transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_listed_by_release_within_the_known_ones() {
        let releases: Vec<_> = CHANGES.iter().map(|change| change.release()).collect();
        assert!(releases.is_sorted(), "{releases:?}");
        assert!(
            releases
                .iter()
                .all(|&release| OLDEST < release && release <= NEWEST)
        );
        assert_eq!(releases.last(), Some(&NEWEST), "what changed in {NEWEST}?");
        assert!(RECORDED <= NEWEST && NEWEST < planned::LAST);
    }

    #[test]
    fn a_patch_version_may_have_the_change_of_a_later_release() {
        let has = |minor, patch| Version::new(1, minor, patch).has(Change::HealthCheckPorts);
        assert!(has(26, 5) && has(26, 15) && has(27, 2) && has(28, 0));
        assert!(!has(26, 4) && !has(27, 1) && !has(25, 16));
    }

    #[test]
    fn a_span_ends_before_the_version_that_fixes_the_bug() {
        let span: Span = "1.32.0..1.32.3".parse().unwrap();
        let has = |minor, patch| span.contains(Version::new(1, minor, patch));
        assert!(has(32, 0) && has(32, 2) && !has(32, 3) && !has(31, 9) && !has(33, 0));
        let open: Span = "1.37.0..".parse().unwrap();
        assert!(open.contains(Version::new(1, 40, 0)) && !open.contains(Version::new(1, 36, 9)));
        assert!("1.32.0".parse::<Span>().is_err() && "1.32.0..x".parse::<Span>().is_err());
    }

    #[test]
    fn a_goal_without_a_patch_is_newer_than_every_patch() {
        let goal = |text: &str| text.parse::<Goal>().unwrap();
        assert_eq!(goal("v1.36.2").to_string(), "1.36.2");
        assert_eq!(goal("1.40").to_string(), "1.40");
        assert!(goal("1.36").version() > Version::new(1, 36, 99));
        assert!(goal("1.36").version() < Version::new(1, 37, 0));
        assert!("soon".parse::<Goal>().is_err());
    }

    #[test]
    fn a_change_counts_from_its_release_on() {
        let of = |minor, patch| Version::new(1, minor, patch);
        assert!(!of(28, 9).has(Change::IpvsOutFilter));
        assert!(of(29, 0).has(Change::IpvsOutFilter) && of(36, 1).has(Change::IpvsOutFilter));
        assert!(of(36, 3).is_at_least(RECORDED) && !of(36, 3).is_newer_than(RECORDED));
        assert!(of(37, 0).is_newer_than(RECORDED) && !of(37, 0).is_newer_than(NEWEST));
        assert!(of(39, 0).is_newer_than(NEWEST) && !of(25, 9).is_at_least(OLDEST));
    }

    #[test]
    fn the_lost_ipvs_resync_is_in_the_releases_that_lost_it() {
        let of = |minor, patch| Version::new(1, minor, patch).lacks_ipvs_resync();
        assert!(of(34, 0) && of(34, 3) && of(35, 0));
        assert!(!of(33, 9) && !of(34, 4) && !of(35, 1) && !of(36, 0));
    }
}
