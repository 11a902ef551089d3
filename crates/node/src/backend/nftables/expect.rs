//! What the nftables mode writes: the table `kube-proxy` of one family, as `nft -j` lists it.
//!
//! Source: `syncProxyRules` and `setupNFTables` in kube-proxy's `pkg/proxy/nftables/proxier.go`; what changed when is in
//! [`crate::cluster::release`].

mod ports;
mod statics;

use super::build::{self, address, jump, payload};
use super::model::{Base, Datum, Expr, Set, Statement, Table, Verdict};
pub use super::model::{COMMENT, TABLE};
use super::table_builder::Draft;
use crate::cluster::release::Change;
use crate::desired::{DesiredState, Detector, FamilyState};
use crate::evidence::Gap;
use crate::net::{Cidr, Family, Proto};

/// The map of NodePorts that are rejected on loopback addresses.
pub const REJECTED_ON_LOOPBACK: &str = "localhost-nodeport-reject-ports";
/// The comment of the rule that drops traffic to addresses no Service has.
pub const UNALLOCATED: &str = "Drop traffic to unallocated ClusterIPs";

/// Returns the table of `family`.
///
/// `service_cidrs` are the prefixes that cluster IPs come from; without them traffic to other addresses of these is
/// not expected to be dropped. Not known are the tables of 1.29, where the mode was alpha.
pub fn expect(
    state: &DesiredState,
    family: &FamilyState,
    service_cidrs: &[Cidr],
) -> Result<Table, Gap> {
    if !state.has(Change::NftablesLayout) {
        let why = format!(
            "kube-proxy {} has another table layout than {}, the oldest release whose tables kpx knows",
            state.version,
            Change::NftablesLayout.release()
        );
        return Err(Gap::NotApplicable(why));
    }
    let mut writer = Writer::new(state, family);
    writer.jumps();
    writer.check_rules(service_cidrs);
    writer.service_rules();
    if !family.node_ports.all {
        for addr in family.node_port_addresses(&state.facts, false)? {
            writer.add("nodeport-ips", vec![address(addr)], None, None);
        }
    }
    for port in &family.ports {
        writer.port(port);
    }
    Ok(writer.finish())
}

/// Returns the type of `family`'s addresses in sets.
pub const fn address_type(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4_addr",
        Family::V6 => "ipv6_addr",
    }
}

/// Returns the chain that rejects packets of `proto` to NodePorts on loopback addresses.
fn loopback_chain(proto: Proto) -> String {
    format!("localhost-nodeport-reject-{proto}")
}

struct Writer<'a> {
    state: &'a DesiredState,
    family: &'a FamilyState,
    ip: &'static str,
    addr: &'static str,
    draft: Draft,
}

impl<'a> Writer<'a> {
    fn new(state: &'a DesiredState, family: &'a FamilyState) -> Self {
        let mut writer = Self {
            state,
            family,
            ip: family.family.nft_name(),
            addr: address_type(family.family),
            draft: Draft::new(family.family, TABLE, COMMENT),
        };
        writer.static_chains();
        writer
    }

    fn finish(self) -> Table {
        self.draft.finish()
    }

    fn chain(&mut self, name: &str, base: Option<Base>) {
        self.draft.chain(name, base);
    }

    fn rule(&mut self, chain: &str, statements: Vec<Statement>, comment: Option<&str>) {
        self.draft.rule(chain, statements, comment);
    }

    fn set(&mut self, name: &str, key: &[&str], verdicts: bool, comment: &str) {
        self.draft.set(Set {
            name: name.to_owned(),
            comment: Some(comment.to_owned()),
            key: key.iter().map(|&part| part.to_owned()).collect(),
            data: verdicts.then(|| vec!["verdict".to_owned()]),
            ..Set::default()
        });
    }

    /// Adds an element, unless its key is taken: the first of two Services with the same key gets it.
    fn add(&mut self, set: &str, key: Vec<Expr>, to: Option<Verdict>, comment: Option<&str>) {
        self.draft.add(set, key, to.map(Datum::Verdict), comment);
    }

    fn saddr(&self) -> Expr {
        payload(self.ip, "saddr")
    }

    fn daddr(&self) -> Expr {
        payload(self.ip, "daddr")
    }

    fn detected(&self, detector: &Detector, not: bool) -> Statement {
        // An index does not survive the link.
        build::detected(
            self.family.family,
            detector,
            not,
            !self.state.has(Change::NftablesLinkNames),
        )
    }

    /// `mark set mark OP M`.
    fn set_mark(&self, op: &str) -> Statement {
        build::set_mark(op, self.state.mark)
    }

    /// Marks packets for masquerade.
    fn mark(&self) -> Statement {
        if self.state.has(Change::NftablesInlineMark) {
            self.set_mark("|")
        } else {
            jump("mark-for-masquerade")
        }
    }
}
