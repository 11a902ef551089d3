//! The parts of the bridge that do not depend on Services: base chains, sets, maps, and the rules that use them.

use super::build::{DROP, OUTSIDE, REJECT, Scope, Writer};
use super::lease::{self, Lease};
use super::probes;
use kpx_node::backend::nftables::build::{
    by_node_port, by_service, connection, differs, equals, goto, jump, local, loopback, masked,
    masquerade, meta, named, payload, reject, set_mark,
};
use kpx_node::backend::nftables::expect::address_type;
use kpx_node::backend::nftables::model::{Base, Expr, Set, Statement, Verdict};

/// Before the nat chains of kube-proxy and of CNI plugins, which are at -100 and 100.
const BEFORE_DNAT: i32 = -110;
const BEFORE_SNAT: i32 = 90;

/// The base chains: name, type, hook and priority. The refusing chains come first: a stale rule of kube-proxy cannot translate
/// a packet that the bridge rejects or drops.
const BASES: &[(&str, &str, &str, i32)] = &[
    ("refusing-prerouting", "filter", "prerouting", BEFORE_DNAT),
    ("refusing-output", "filter", "output", BEFORE_DNAT),
    ("nat-prerouting", "nat", "prerouting", BEFORE_DNAT),
    ("nat-output", "nat", "output", BEFORE_DNAT),
    ("nat-postrouting", "nat", "postrouting", BEFORE_SNAT),
];

/// The base chains that handle new connections: they end with the lease. Masquerading does not: it completes the translation
/// of a packet that the nat chains have just begun.
const BEGIN: &[&str] = &[
    "refusing-prerouting",
    "refusing-output",
    "nat-prerouting",
    "nat-output",
];

impl Writer<'_> {
    pub(super) fn statics(&mut self, lease: &Lease) {
        for &(name, kind, hook, priority) in BASES {
            let base = Base {
                kind: kind.to_owned(),
                hook: hook.to_owned(),
                devices: Vec::new(),
                priority,
                policy: "accept".to_owned(),
            };
            self.draft.chain(name, Some(base));
        }
        for name in ["refusing", "services", REJECT, DROP, OUTSIDE] {
            self.draft.chain(name, None);
        }
        self.draft.set(lease.set());
        self.draft.set(probes::set(self.family.family));
        for base in BEGIN {
            self.draft.rule(base, lease::rule(), None);
            self.draft
                .rule(base, probes::rule(self.family.family), None);
        }
        self.sets();
        self.refusing();
        self.serving();
        self.masquerading();
    }

    fn sets(&mut self) {
        let addr = address_type(self.family.family).to_owned();
        let mut add = |name: &str, key: Vec<String>, verdicts: bool| {
            self.draft.set(Set {
                name: name.to_owned(),
                key,
                data: verdicts.then(|| vec!["verdict".to_owned()]),
                ..Set::default()
            });
        };
        add("cluster-ips", vec![addr.clone()], false);
        add("external-ips", vec![addr.clone()], false);
        if !self.family.node_ports.all {
            add("node-ips", vec![addr.clone()], false);
        }
        let service = Scope::Service.key(&addr);
        let hairpin = [vec![addr.clone()], service.clone()].concat();
        add("hairpins", hairpin, false);
        add("firewalls", service, true);
        for scope in [Scope::Service, Scope::NodePort] {
            add(scope.served(), scope.key(&addr), true);
            add(scope.refused(), scope.key(&addr), true);
        }
    }

    fn refusing(&mut self) {
        let family = self.family.family;
        for base in ["refusing-prerouting", "refusing-output"] {
            let new = vec![connection("state", "new"), jump("refusing")];
            self.draft.rule(base, new, None);
        }
        let refused = Scope::Service.refused();
        for map in ["firewalls", refused] {
            self.draft
                .rule("refusing", vec![by_service(family, map)], None);
        }
        let refused = by_node_port(Scope::NodePort.refused());
        self.draft.rule("refusing", vec![refused], None);
        self.draft.rule(REJECT, vec![reject(family)], None);
        let drop = || Statement::Verdict(Verdict::Drop);
        self.draft.rule(DROP, vec![drop()], None);
        // With a policy Local, pods and the node itself use endpoints of other nodes, too.
        if let Some(detector) = &self.family.detector {
            let inside = vec![
                self.detected(detector, false),
                Statement::Verdict(Verdict::Return),
            ];
            self.draft.rule(OUTSIDE, inside, None);
        }
        let own = vec![local("saddr"), Statement::Verdict(Verdict::Return)];
        self.draft.rule(OUTSIDE, own, None);
        self.draft.rule(OUTSIDE, vec![drop()], None);
        for name in [REJECT, DROP, OUTSIDE] {
            let chain = format!("{}{name}", Scope::NodePort.prefix());
            self.draft.chain(&chain, None);
            let mut rule = self.to_node_port();
            rule.push(goto(name));
            self.draft.rule(&chain, rule, None);
        }
    }

    fn serving(&mut self) {
        let family = self.family.family;
        // The source may be a cluster IP, if a host process connected while kube-ipvs0 had that address.
        for set in ["cluster-ips", "external-ips"] {
            let own = vec![equals(self.saddr(), named(set)), self.mark()];
            self.draft.rule("nat-output", own, None);
        }
        for base in ["nat-prerouting", "nat-output"] {
            self.draft.rule(base, vec![jump("services")], None);
        }
        let mut marked = vec![equals(self.daddr(), named("cluster-ips"))];
        let others = self.family.detector.as_ref();
        let others = others.filter(|_| !self.state.masquerade_all);
        marked.extend(others.map(|detector| self.detected(detector, true)));
        if self.state.masquerade_all || others.is_some() {
            marked.push(self.mark());
            self.draft.rule("services", marked, None);
        }
        let services = by_service(family, Scope::Service.served());
        self.draft.rule("services", vec![services], None);
        let mut rule = self.to_node_port();
        rule.push(by_node_port(Scope::NodePort.served()));
        self.draft.rule("services", rule, None);
    }

    fn masquerading(&mut self) {
        let translated = || connection("status", "dnat");
        let marked = differs(masked("&", self.marks.masquerade), Expr::Number(0));
        let unmark = set_mark("&", !self.marks.set);
        let rule = vec![marked, unmark, translated(), masquerade()];
        self.draft.rule("nat-postrouting", rule, None);
        let hairpin = equals(
            Expr::Concat(vec![
                self.saddr(),
                self.daddr(),
                meta("l4proto"),
                payload("th", "dport"),
            ]),
            named("hairpins"),
        );
        let rule = vec![translated(), hairpin, masquerade()];
        self.draft.rule("nat-postrouting", rule, None);
    }

    /// Matches packets to addresses that take NodePort traffic.
    fn to_node_port(&self) -> Vec<Statement> {
        let node_ports = &self.family.node_ports;
        if !node_ports.all {
            return vec![equals(self.daddr(), named("node-ips"))];
        }
        let mut matches = vec![local("daddr")];
        if !node_ports.localhost {
            let loopback = loopback(self.family.family);
            matches.push(differs(self.daddr(), loopback));
        }
        matches
    }
}
