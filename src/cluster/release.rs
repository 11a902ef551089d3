//! What changed in which release of kube-proxy: the only place that compares a release with a number.
//!
//! A new release needs [`NEWEST`], a [`Change`] for each difference, and recordings of it below `testdata/nodes`.

use std::fmt;

use super::version::Version;

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

/// The newest release whose rules are known.
pub(crate) const NEWEST: Release = Release::one(36);
/// The oldest release whose rules are known.
pub(crate) const OLDEST: Release = Release::one(26);

macro_rules! changes {
    ($($(#[doc = $doc:literal])+ $name:ident = $minor:literal;)+) => {
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
        }
    };
}

// Each change with the minor release (of Kubernetes 1) that has it first.
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
    /// ipvs: an address that another link has is not bound to kube-ipvs0.
    SkipsBoundAddresses = 28;
    /// ipvs: KUBE-IPVS-FILTER lets health checks of NodePorts pass.
    HealthCheckPorts = 28;
    /// ipvs: KUBE-IPVS-OUT-FILTER guards load-balancer addresses from the node itself.
    IpvsOutFilter = 29;
    /// iptables: no drop of INVALID packets where conntrack is liberal.
    LiberalConntrack = 29;
    /// `ipMode` of a load balancer's address, behind the gate `LoadBalancerIPMode`.
    LoadBalancerIpMode = 29;
    /// kube-proxy's image has an iptables whose rules iptables older than 1.8.8 cannot read.
    NewIptables = 29;
    /// nftables: the first layout of the table that kpx knows.
    NftablesLayout = 30;
    /// ipvs: KUBE-IPVS-FILTER lets external addresses with local endpoints pass.
    LocalExternalAddresses = 30;
    /// The gate `LoadBalancerIPMode` is on by default.
    LoadBalancerIpModeDefault = 30;
    /// The gate `ServiceTrafficDistribution` is on by default.
    TrafficDistributionDefault = 31;
    /// iptables: nfacct counters for dropped and accepted packets.
    NfacctCounters = 32;
    /// UDP flows are ended by netlink; before, by the tool `conntrack`.
    ConntrackByNetlink = 32;
    /// Hints count without an annotation.
    HintsWithoutAnnotation = 33;
    /// Hints for a node, behind the gate `PreferSameTrafficDistribution`.
    NodeHints = 33;
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
    /// Services' externalIPs are deprecated, behind the gate `AllowServiceExternalIPs`, which is on by default.
    ExternalIpsDeprecated = 36;
}

impl Version {
    /// Returns whether kube-proxy of this version has `change`.
    pub fn has(self, change: Change) -> bool {
        self.is_at_least(change.release())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_listed_by_release_within_the_known_ones() {
        let releases: Vec<_> = CHANGES.iter().map(|change| change.release()).collect();
        assert!(releases.is_sorted(), "{releases:?}");
        assert!(releases.iter().all(|&of| OLDEST < of && of <= NEWEST));
        assert_eq!(releases.last(), Some(&NEWEST), "what changed in {NEWEST}?");
    }

    #[test]
    fn a_change_counts_from_its_release_on() {
        let of = |minor, patch| Version::new(1, minor, patch);
        assert!(!of(28, 9).has(Change::IpvsOutFilter));
        assert!(of(29, 0).has(Change::IpvsOutFilter) && of(36, 1).has(Change::IpvsOutFilter));
        assert!(of(36, 3).is_at_least(NEWEST) && !of(36, 3).is_newer_than(NEWEST));
        assert!(of(37, 0).is_newer_than(NEWEST) && !of(25, 9).is_at_least(OLDEST));
    }

    #[test]
    fn the_lost_ipvs_resync_is_in_the_releases_that_lost_it() {
        let of = |minor, patch| Version::new(1, minor, patch).lacks_ipvs_resync();
        assert!(of(34, 0) && of(34, 3) && of(35, 0));
        assert!(!of(33, 9) && !of(34, 4) && !of(35, 1) && !of(36, 0));
    }
}
