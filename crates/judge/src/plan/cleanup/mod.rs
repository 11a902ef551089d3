//! The plan that removes another mode's leftovers, and nothing else.
//!
//! Steps are in order of reference: rules, then chains, then sets, virtual servers, addresses, the link. Objects that
//! the mode in force also writes are kept, and so are objects that other software refers to.

mod ipvs;

use std::collections::BTreeSet;

use thiserror::Error;

use super::draft::Draft;
use crate::plan::repair::backend;
use kpx_node::action::{Action, Backend, Plan, Undo};
use kpx_node::backend::Mode;
use kpx_node::backend::chain_owner::modes_of;
use kpx_node::backend::iptables::change::Edits;
use kpx_node::backend::iptables::expect::{CANARY, JUMPS};
use kpx_node::backend::iptables::model::{Chain, Rule, Ruleset, Table};
use kpx_node::backend::iptables::portals::JUMPS as PORTAL_JUMPS;
use kpx_node::backend::ipvs::rules::JUMPS as IPVS_JUMPS;
use kpx_node::backend::nftables::print;
use kpx_node::evidence::{Gap, IPTABLES, Item, join};
use kpx_node::net::Family;
use kpx_node::node::objects::Object;
use kpx_node::node::{IptablesBackend, NodeSnapshot};

/// Chains that show that the kubelet writes its own rules.
const KUBELET: &[&str] = &[
    "KUBE-KUBELET-CANARY",
    "KUBE-IPTABLES-HINT",
    "KUBE-MARK-DROP",
];
/// Chains of table nat that the kubelet wrote, too, as long as kube-proxy had mode userspace.
const KUBELETS: [&str; 2] = ["KUBE-MARK-MASQ", "KUBE-POSTROUTING"];
/// The chain that both the kubelet and kube-proxy's iptables mode write.
const FIREWALL: &str = "KUBE-FIREWALL";
/// The setting that is unsafe without the rule in [`FIREWALL`] (CVE-2020-8558).
const LOCALNET: &str = "net.ipv4.conf.all.route_localnet";

/// Items that [`cleanup`] uses: everything that a mode can leave behind, and the data that identifies its owner.
pub const CLEANUP_NEEDS: &[Item] = &join::<22>(&[
    IPTABLES,
    &[
        Item::Addresses,
        Item::Bpf,
        Item::Ipset,
        Item::Ipvs,
        Item::IpvsSave,
        Item::IpvsTimeout,
        Item::Links,
        Item::Modules,
        Item::Nft,
        Item::NftText,
        Item::Processes,
        Item::ProxyConfig,
        Item::ProxyMode,
        Item::Services,
        Item::Sysctl,
        Item::Tc,
    ],
]);

/// Why a mode cannot be cleaned up.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The mode serves the node.
    #[error("mode {mode} serves this node ({how}); without it, no Service is reachable")]
    Serves {
        /// Mode to be cleaned up.
        mode: Mode,
        /// Evidence that it serves the node.
        how: &'static str,
    },
    /// The state of the node is unknown.
    #[error(transparent)]
    Unknown(#[from] Gap),
}

/// Returns the steps that remove the leftovers of `mode` on `node`, for `families`; with `force` even if it serves the
/// node.
pub fn cleanup(
    node: &NodeSnapshot<'_>,
    mode: Mode,
    families: &[Family],
    force: bool,
) -> Result<Plan, Refusal> {
    // If another service proxy serves, no mode of kube-proxy does.
    let replaced = matches!(node.served_by_ebpf(), Ok(Some(_)));
    let modes = node.modes();
    let serves = match (&modes.reported, modes.observed(), &modes.configured) {
        (Ok(reported), _, _) => (*reported == mode).then_some("kube-proxy reports it"),
        (_, Some(observed), _) => {
            (observed == mode).then_some("its rules lead packets to Services")
        }
        (_, None, Ok(configured)) => {
            (*configured == mode).then_some("kube-proxy is configured for it")
        }
        (_, None, Err(_)) if replaced => None,
        (_, None, Err(gap)) => return Err(gap.clone().into()),
    };
    let alone = node.is_served_by(mode);
    let serves = serves.or(alone.then_some("no other rules lead packets to Services"));
    if let Some(how) = serves.filter(|_| !force && !replaced) {
        return Err(Refusal::Serves { mode, how });
    }
    let keep = modes
        .current()
        .filter(|&current| current != mode && !replaced);
    let mut draft = Draft::default();
    for &family in families {
        draft.rules_of(node, mode, keep, family)?;
    }
    match mode {
        Mode::Iptables | Mode::Userspace => {}
        Mode::Ipvs => draft.ipvs_of(node, families)?,
        Mode::Nftables => draft.tables_of(node, families)?,
    }
    Ok(draft.plan)
}

impl Draft {
    /// Adds steps for chains and jumps, in every back end that contains any.
    fn rules_of(
        &mut self,
        node: &NodeSnapshot<'_>,
        mode: Mode,
        keep: Option<Mode>,
        family: Family,
    ) -> Result<(), Gap> {
        if mode == Mode::Nftables {
            return Ok(());
        }
        let in_use = backend(node, family);
        let stores = [
            // Without the program, the family has no rules.
            (IptablesBackend::InUse, in_use, keep),
            (IptablesBackend::Legacy, Backend::Legacy, None),
            (IptablesBackend::Nft, Backend::Nft, None),
        ];
        for (store, backend, keep) in stores {
            let rules = match node.iptables(store, family) {
                Ok(rules) => rules,
                Err(Gap::Absent(..) | Gap::NotApplicable(_) | Gap::NotCollected(_))
                    if store != IptablesBackend::InUse || family == Family::V6 =>
                {
                    continue;
                }
                Err(gap) => return Err(gap),
            };
            self.clean(node, rules, &Clean { mode, keep, family }, backend);
        }
        Ok(())
    }

    fn clean(
        &mut self,
        node: &NodeSnapshot<'_>,
        rules: &Ruleset<'_>,
        clean: &Clean,
        backend: Backend,
    ) {
        let family = clean.family;
        let firewall = clean.firewall(rules);
        if let Some(why) = firewall.err() {
            self.plan.notes.push(format!("{family}: {why}"));
        }
        let localnet = node.sysctl().ok().and_then(|all| all.get(LOCALNET));
        if firewall == Ok(true) && family == Family::V4 && localnet == Some("1") {
            let set = |value: &str| Action::Sysctl {
                key: LOCALNET.to_owned(),
                value: value.to_owned(),
            };
            let title = format!(
                "set {LOCALNET} to 0, which is unsafe without the rule that the next step deletes"
            );
            self.plan.push(title, set("0"), Undo::Do(set("1")));
        }
        for table in &rules.tables {
            let (mut chains, jumps) = clean.objects(table, firewall == Ok(true));
            let stay = referred(table, &mut chains, &jumps);
            for (chain, by) in stay {
                self.plan.notes.push(format!(
                    "{family} table {}: chain {chain} is kept: a rule in chain {by} jumps to it",
                    table.name
                ));
            }
            if !chains.is_empty() || !jumps.is_empty() {
                let edits = Edits::removal(&table.name, chains, jumps);
                self.table(edits, backend, family);
            }
        }
    }

    /// Adds steps for nftables tables.
    fn tables_of(&mut self, node: &NodeSnapshot<'_>, families: &[Family]) -> Result<(), Gap> {
        let found = node.objects_of(Mode::Nftables)?;
        for of in found
            .iter()
            .filter(|leftover| leftover.family.is_none_or(|f| families.contains(&f)))
        {
            let Object::Table { family, .. } = of.object else {
                continue;
            };
            let Some(table) = node.nft()?.table(family, "kube-proxy") else {
                continue;
            };
            let input = format!("delete table {family} kube-proxy\n");
            let undo = Action::Nft {
                input: print::table(table),
            };
            let title = format!("delete the nftables table {family} kube-proxy");
            self.plan.push(title, Action::Nft { input }, Undo::Do(undo));
        }
        Ok(())
    }
}

/// A clean-up in progress: the removed and the kept objects.
struct Clean {
    mode: Mode,
    keep: Option<Mode>,
    family: Family,
}

/// A jump from another software's chain: the chain, the rule's number from 1, the rule.
type Jump<'r, 'a> = (&'r str, usize, &'r Rule<'a>);

impl Clean {
    /// Returns whether only kube-proxy writes [`FIREWALL`] here, or why it is kept; `Ok(false)` if it does not exist.
    fn firewall(&self, rules: &Ruleset<'_>) -> Result<bool, &'static str> {
        let there = rules.chain("filter", FIREWALL).is_some();
        if self.mode != Mode::Iptables || !there {
            return Ok(false);
        }
        let mut chains = rules.tables.iter().flat_map(|table| &table.chains);
        if chains.any(|chain| KUBELET.contains(&chain.name.as_ref())) {
            return Err("chain KUBE-FIREWALL is kept: the kubelet on this node also writes it");
        }
        Ok(true)
    }

    /// Returns the chains of `table` to delete, and the jumps to them in other chains.
    fn objects<'r, 'a>(
        &self,
        table: &'r Table<'a>,
        firewall: bool,
    ) -> (Vec<&'r Chain<'a>>, Vec<Jump<'r, 'a>>) {
        let (mut chains, mut jumps) = (Vec::new(), Vec::new());
        for chain in &table.chains {
            if self.is_ours(&table.name, &chain.name, firewall) {
                chains.push(chain);
            } else if chain.policy.is_some() {
                let all = (1..)
                    .zip(&chain.rules)
                    .map(|(number, rule)| (&*chain.name, number, rule));
                let ours =
                    all.filter(|&(from, _, rule)| self.is_jump(&table.name, from, rule, firewall));
                jumps.extend(ours);
            }
        }
        // The last rule first, so that the numbers of the others do not change.
        jumps.reverse();
        (chains, jumps)
    }

    fn is_ours(&self, table: &str, chain: &str, firewall: bool) -> bool {
        let of = modes_of(table, chain);
        if self.keep == Some(Mode::Userspace) && table == "nat" && KUBELETS.contains(&chain) {
            return false;
        }
        let canary = chain == CANARY && self.mode == Mode::Iptables;
        of.contains(&self.mode) && !self.keep.is_some_and(|keep| of.contains(&keep))
            || canary
            || firewall && (table, chain) == ("filter", FIREWALL)
    }

    fn is_jump(&self, table: &str, from: &str, rule: &Rule<'_>, firewall: bool) -> bool {
        let Some(to) = rule.leads_to() else {
            return false;
        };
        let comment = rule.comment().unwrap_or_default();
        let of = |mode: Mode| match mode {
            Mode::Iptables => JUMPS
                .iter()
                .any(|row| (row.0, row.1, row.2, row.4) == (table, from, to, comment)),
            Mode::Ipvs => IPVS_JUMPS.contains(&(table, from, to, comment)),
            Mode::Userspace => PORTAL_JUMPS.contains(&(table, from, to, comment)),
            Mode::Nftables => false,
        };
        if self.keep == Some(Mode::Userspace) && table == "nat" && KUBELETS.contains(&to) {
            return false;
        }
        if to == FIREWALL {
            return firewall && of(self.mode);
        }
        of(self.mode) && !self.keep.is_some_and(of)
    }
}

/// Removes from `chains` those that remaining rules jump to, and returns them with the chain of such a rule.
fn referred<'r>(
    table: &'r Table<'_>,
    chains: &mut Vec<&'r Chain<'_>>,
    jumps: &[Jump<'_, '_>],
) -> Vec<(&'r str, &'r str)> {
    let mut stay = Vec::new();
    loop {
        let going: BTreeSet<&str> = chains.iter().map(|chain| chain.name.as_ref()).collect();
        let mut by = None;
        for chain in table
            .chains
            .iter()
            .filter(|chain| !going.contains(&*chain.name))
        {
            for (number, rule) in (1..).zip(&chain.rules) {
                let goes = jumps
                    .iter()
                    .any(|&(from, at, _)| from == chain.name && at == number);
                let to = rule.leads_to().filter(|to| !goes && going.contains(to));
                by = by.or(to.map(|to| (to, chain.name.as_ref())));
            }
        }
        let Some((to, from)) = by else {
            return stay;
        };
        stay.push((to, from));
        chains.retain(|chain| chain.name != to);
    }
}
