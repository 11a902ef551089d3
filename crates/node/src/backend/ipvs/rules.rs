//! The iptables rules of the ipvs mode.
//!
//! Source: `writeIptablesRules` in kube-proxy's `pkg/proxy/ipvs/proxier.go`.

use super::expect::{Expected, SETS, set_name};
use crate::backend::iptables::build::{
    TableBuilder, comment, detected, from, jump, jumps, protocol, reject, rule, ruleset, set_mark,
    states, to_local,
};
use crate::backend::iptables::expect::{forwarding, masquerading};
use crate::backend::iptables::model::{
    AddrType, Invertible, Match, Physdev, Rule, Ruleset, Side, Sides, States, Target,
};
use crate::cluster::release::Change;
use crate::desired::{DesiredState, FamilyState};
use crate::net::Proto;

/// The jumps from built-in chains: table, from, to, comment.
pub const JUMPS: &[(&str, &str, &str, &str)] = &[
    (
        "nat",
        "OUTPUT",
        "KUBE-SERVICES",
        "kubernetes service portals",
    ),
    (
        "nat",
        "PREROUTING",
        "KUBE-SERVICES",
        "kubernetes service portals",
    ),
    (
        "nat",
        "POSTROUTING",
        "KUBE-POSTROUTING",
        "kubernetes postrouting rules",
    ),
    (
        "filter",
        "FORWARD",
        "KUBE-FORWARD",
        "kubernetes forwarding rules",
    ),
    (
        "filter",
        "INPUT",
        "KUBE-NODE-PORT",
        "kubernetes health check rules",
    ),
    (
        "filter",
        "INPUT",
        "KUBE-PROXY-FIREWALL",
        "kube-proxy firewall rules",
    ),
    (
        "filter",
        "FORWARD",
        "KUBE-PROXY-FIREWALL",
        "kube-proxy firewall rules",
    ),
    (
        "filter",
        "INPUT",
        "KUBE-IPVS-FILTER",
        "kubernetes ipvs access filter",
    ),
    (
        "filter",
        "OUTPUT",
        "KUBE-IPVS-OUT-FILTER",
        "kubernetes ipvs access filter",
    ),
];

const BOTH: &[Side] = &[Side::Destination, Side::Destination];
const FULL: &[Side] = &[Side::Destination, Side::Destination, Side::Source];
const ONE: &[Side] = &[Side::Destination];
const FROM: &[Side] = &[Side::Source, Side::Destination];

/// Returns the rules of `family`, for the members in `sets`.
pub fn expect<'a>(
    state: &'a DesiredState,
    family: &'a FamilyState,
    sets: &Expected,
) -> Ruleset<'a> {
    let writer = Writer {
        state,
        family,
        sets,
    };
    ruleset(vec![("nat", writer.nat()), ("filter", writer.filter())])
}

struct Writer<'a, 's> {
    state: &'a DesiredState,
    family: &'a FamilyState,
    sets: &'s Expected,
}

impl<'a> Writer<'a, '_> {
    /// `-m set --match-set NAME SIDES`.
    fn set(&self, name: &'static str, sides: &[Side]) -> Match<'static> {
        Match::Set {
            name: Invertible::plain(set_name(name, self.family.family)),
            sides: Sides::new(sides).expect("no set has more than three dimensions here"),
        }
    }

    /// The comment and the match of a set.
    fn noted(name: &'static str, set: Match<'static>) -> Vec<Match<'static>> {
        let kind = SETS.iter().find(|set| set.name == name);
        let mut matches: Vec<_> = kind.map(|set| comment(set.comment)).into_iter().collect();
        matches.push(set);
        matches
    }

    fn start(&self, table: &'static str) -> TableBuilder<'a> {
        let mut builder = TableBuilder::default();
        let out = self.state.has(Change::IpvsOutFilter);
        let rows = JUMPS
            .iter()
            .filter(|row| row.0 == table && (out || row.2 != "KUBE-IPVS-OUT-FILTER"));
        jumps(
            &mut builder,
            &rows.map(|&(_, from, to, text)| (from, rule(vec![comment(text)], jump(to)))),
        );
        builder
    }

    fn nat(&self) -> TableBuilder<'a> {
        let mut nat = self.start("nat");
        let services = nat.chain("KUBE-SERVICES");
        let postrouting = nat.chain("KUBE-POSTROUTING");
        let node_port = nat.chain("KUBE-NODE-PORT");
        let balancer = nat.chain("KUBE-LOAD-BALANCER");
        let mark_masq = nat.chain("KUBE-MARK-MASQ");
        let mark = || jump("KUBE-MARK-MASQ");

        let loopback = self.family.family.loopback();
        let source = Match::Source(Invertible::plain(loopback));
        nat.push(services, rule(vec![source], Target::Return));
        let mut by_set = |chain, proto: Option<Proto>, name, sides, target| {
            if self.sets.fills(name) {
                let mut matches: Vec<_> = proto.map(protocol).into_iter().collect();
                matches.extend(Self::noted(name, self.set(name, sides)));
                nat.push(chain, rule(matches, Some(target)));
            }
        };
        let plain_masquerade = Target::Masquerade {
            ports: None,
            random: false,
            random_fully: false,
        };
        by_set(postrouting, None, "KUBE-LOOP-BACK", FULL, plain_masquerade);
        by_set(
            services,
            None,
            "KUBE-LOAD-BALANCER",
            BOTH,
            jump("KUBE-LOAD-BALANCER"),
        );
        by_set(
            balancer,
            None,
            "KUBE-LOAD-BALANCER-LOCAL",
            BOTH,
            Target::Return,
        );
        for (proto, local, all, sides) in [
            (
                Proto::Tcp,
                "KUBE-NODE-PORT-LOCAL-TCP",
                "KUBE-NODE-PORT-TCP",
                ONE,
            ),
            (
                Proto::Udp,
                "KUBE-NODE-PORT-LOCAL-UDP",
                "KUBE-NODE-PORT-UDP",
                ONE,
            ),
            (
                Proto::Sctp,
                "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
                "KUBE-NODE-PORT-SCTP-HASH",
                BOTH,
            ),
        ] {
            by_set(node_port, Some(proto), local, sides, Target::Return);
            by_set(node_port, Some(proto), all, sides, mark());
        }
        if let Some(rule) = self.masquerade_cluster_ips() {
            nat.push(services, rule);
        }
        for (name, marks) in [
            ("KUBE-EXTERNAL-IP", true),
            ("KUBE-EXTERNAL-IP-LOCAL", false),
        ] {
            if self.sets.fills(name) {
                let to = Self::noted(name, self.set(name, BOTH));
                if marks {
                    nat.push(services, rule(to.clone(), mark()));
                }
                nat.push(services, not_bridged(to.clone()));
                let local = to.into_iter().chain([to_local()]).collect();
                nat.push(services, rule(local, Target::Accept));
            }
        }
        nat.push(services, rule(vec![to_local()], jump("KUBE-NODE-PORT")));
        nat.push(balancer, rule(Vec::new(), mark()));
        for name in ["KUBE-CLUSTER-IP", "KUBE-LOAD-BALANCER"] {
            if self.sets.fills(name) {
                nat.push(services, rule(vec![self.set(name, BOTH)], Target::Accept));
            }
        }
        let random_fully = self.state.facts.random_fully;
        masquerading(&mut nat, postrouting, self.state.mark, random_fully);
        nat.push(mark_masq, rule(Vec::new(), set_mark(self.state.mark)));
        nat
    }

    fn masquerade_cluster_ips(&self) -> Option<Rule<'a>> {
        let name = "KUBE-CLUSTER-IP";
        if !self.sets.fills(name) {
            return None;
        }
        let matches = match (&self.family.detector, self.state.masquerade_all) {
            (_, true) => Self::noted(name, self.set(name, BOTH)),
            (Some(detector), false) => {
                // Where packets come from is printed before what extensions match.
                let mut matches = vec![detected(detector, true)];
                matches.extend(Self::noted(name, self.set(name, BOTH)));
                matches
            }
            (None, false) => Self::noted(name, self.set(name, FROM)),
        };
        Some(rule(matches, jump("KUBE-MARK-MASQ")))
    }

    fn filter(&self) -> TableBuilder<'a> {
        let mut filter = self.start("filter");
        let forward = filter.chain("KUBE-FORWARD");
        let node_port = filter.chain("KUBE-NODE-PORT");
        let firewall = filter.chain("KUBE-PROXY-FIREWALL");
        let ranges = filter.chain("KUBE-SOURCE-RANGES-FIREWALL");
        let access = filter.chain("KUBE-IPVS-FILTER");
        let mut by_set = |chain, name, sides, target| {
            if self.sets.fills(name) {
                let matches = Self::noted(name, self.set(name, sides));
                filter.push(chain, rule(matches, Some(target)));
            }
        };
        by_set(
            firewall,
            "KUBE-LOAD-BALANCER-FW",
            BOTH,
            jump("KUBE-SOURCE-RANGES-FIREWALL"),
        );
        by_set(
            ranges,
            "KUBE-LOAD-BALANCER-SOURCE-CIDR",
            FULL,
            Target::Return,
        );
        by_set(ranges, "KUBE-LOAD-BALANCER-SOURCE-IP", FULL, Target::Return);
        filter.push(ranges, rule(Vec::new(), Target::Drop));
        if self.state.has(Change::IpvsOutFilter) {
            let out = filter.chain("KUBE-IPVS-OUT-FILTER");
            for &(addr, proto, port) in &self.sets.closed {
                let options = format!("--vproto {} --vaddr {addr} --vport {port}", proto.number());
                let matches = vec![from(addr), Match::Ipvs(options.into())];
                filter.push(out, rule(matches, Target::Drop));
            }
        }
        forwarding(&mut filter, forward, self.state.mark);
        let health = self.set("KUBE-HEALTH-CHECK-NODE-PORT", ONE);
        let matches = vec![comment("Kubernetes health check node port"), health.clone()];
        filter.push(node_port, rule(matches, Target::Accept));
        for name in ["KUBE-LOAD-BALANCER", "KUBE-CLUSTER-IP", "KUBE-EXTERNAL-IP"] {
            filter.push(access, rule(vec![self.set(name, BOTH)], Target::Return));
        }
        if self.state.has(Change::LocalExternalAddresses) {
            let local = self.set("KUBE-EXTERNAL-IP-LOCAL", BOTH);
            filter.push(access, rule(vec![local], Target::Return));
        }
        if self.state.has(Change::HealthCheckPorts) {
            filter.push(access, rule(vec![health], Target::Return));
        }
        let bound = vec![states(States::NEW), self.set("KUBE-IPVS-IPS", ONE)];
        filter.push(access, rule(bound, reject(self.family.family)));
        filter
    }
}

/// Accepts packets from outside: not from a bridge's port, and not from this host.
fn not_bridged(mut matches: Vec<Match<'_>>) -> Rule<'_> {
    matches.push(Match::Physdev(Box::new(Physdev {
        is_in: Some(Invertible::inverted(())),
        ..Physdev::default()
    })));
    matches.push(Match::AddrType {
        source: Some(Invertible::inverted(AddrType::LOCAL)),
        destination: None,
        limit: None,
    });
    rule(matches, Target::Accept)
}
