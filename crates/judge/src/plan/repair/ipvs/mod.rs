//! Modules, kube-ipvs0, sets, virtual servers and addresses of the ipvs mode, in an order that never interrupts traffic, even
//! if it stops part-way: an object is created before any reference to it, and deleted after all of them.

mod servers;
mod sets;

use std::net::IpAddr;

use super::Drain;
use crate::check::ipv6_refusal;
use crate::diff::{Change, Delta, Layer, Object};
use crate::plan::draft::Draft;
use kpx_node::action::{Action, Undo};
use kpx_node::backend::ipset::change::Edits as SetEdits;
use kpx_node::backend::ipvs::change::{self, Edits};
use kpx_node::backend::ipvs::expect::{Expected, expect};
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::backend::ipvs::rules;
use kpx_node::desired::{DesiredState, FamilyState};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use servers::Servers;
use sets::SetPhases;

/// The note on connections of removed real servers.
const DRAINING: &str = "removed TCP real servers drain: without connections they are deleted now, otherwise they stay at weight 0 until \
    `kpx reconcile` or kube-proxy finds them idle. --no-drain deletes them at once";

impl Draft {
    /// Loads the modules that IPVS settings and servers need.
    pub(super) fn modules(&mut self, node: &NodeSnapshot<'_>, desired: &DesiredState) {
        // The file of IPVS in /proc exists if ip_vs is loaded.
        let Err(Gap::Absent(Item::Ipvs, _)) = node.ipvs() else {
            return;
        };
        let scheduler = format!("ip_vs_{}", desired.config.scheduler());
        let names = vec!["ip_vs".to_owned(), scheduler];
        let title = format!("load the modules {}", names.join(" and "));
        let undo = names.iter().rev().cloned().collect();
        let undo = Undo::Do(Action::UnloadModules { names: undo });
        self.plan.push(title, Action::LoadModules { names }, undo);
    }

    /// Brings one family to its desired state.
    pub(super) fn ipvs(
        &mut self,
        node: &NodeSnapshot<'_>,
        desired: &DesiredState,
        state: &FamilyState,
        changes: &[&Change],
        layers: &[Layer],
        drain: Drain,
    ) -> Result<(), Gap> {
        let family = state.family;
        let want = expect(desired, state)?;
        let mut sets = SetPhases::default();
        if layers.contains(&Layer::Ipset) {
            sets = SetPhases::new(node, &want.sets(family), family, changes)?;
        }
        let mut servers = Servers::default();
        if layers.contains(&Layer::Ipvs) {
            servers = Servers::new(node, &want, changes, drain)?;
        }
        let addresses = Addresses::new(&want, changes);

        if addresses.link {
            let (add, delete) = change::add_link();
            // The other family's addresses are on it too.
            if self.plan.steps.iter().all(|step| step.action != add) {
                self.plan
                    .push(format!("add the link {DUMMY}"), add, Undo::Do(delete));
            }
        }
        self.sets(family, sets.first);
        if changes
            .iter()
            .any(|change| change.layer() == Layer::Iptables)
        {
            let rules = rules::expect(desired, state, &want);
            self.rules(node, family, &rules, changes)?;
        }
        self.servers(family, servers.make);
        if family == Family::V6
            && !addresses.missing.is_empty()
            && let Some(key) = ipv6_refusal(node)
        {
            let [make, undo] = ["0", "1"].map(|value| Action::Sysctl {
                key: key.clone(),
                value: value.to_owned(),
            });
            let title = format!("set {key} to 0: the kernel refuses IPv6 addresses at the link");
            self.plan.push(title, make, Undo::Do(undo));
        }
        self.addresses(family, "add", &addresses.missing, change::add_addresses);
        self.foreign(&servers.foreign);
        if servers.drains && !self.plan.notes.iter().any(|note| note == DRAINING) {
            self.plan.notes.push(DRAINING.to_owned());
        }
        self.servers(family, servers.gone);
        self.addresses(family, "delete", &addresses.extra, change::delete_addresses);
        self.sets(family, sets.last);
        Ok(())
    }

    fn sets(&mut self, family: Family, (title, edits): (Vec<String>, SetEdits)) {
        if !edits.is_empty() {
            let (make, undo) = edits.actions();
            self.plan.push(
                format!("{family} sets: {}", title.join(", ")),
                make,
                Undo::Do(undo),
            );
        }
    }

    fn servers(&mut self, family: Family, (title, edits): (Vec<String>, Edits)) {
        if !edits.is_empty() {
            let (make, undo) = edits.actions();
            let title = format!("{family} IPVS: {}", title.join(", "));
            self.plan.push(title, make, Undo::Do(undo));
        }
    }

    fn foreign(&mut self, servers: &[String]) {
        if !servers.is_empty() {
            self.plan.notes.push(format!(
                "not changed, because neither kube-ipvs0 nor a Service has the address: {}. kube-proxy in mode ipvs deletes \
                 virtual servers outside its excludeCIDRs; `ipvsadm -D` deletes them now",
                servers.join(", ")
            ));
        }
    }

    fn addresses(
        &mut self,
        family: Family,
        verb: &str,
        addrs: &[IpAddr],
        change: fn(&[IpAddr]) -> (Action, Action),
    ) {
        if !addrs.is_empty() {
            let (make, undo) = change(addrs);
            let title = format!("{family} {DUMMY}: {verb} addresses ({})", addrs.len());
            self.plan.push(title, make, Undo::Do(undo));
        }
    }
}

/// Addresses of kube-ipvs0 that change.
#[derive(Debug, Default)]
struct Addresses {
    /// Whether the link is missing.
    link: bool,
    missing: Vec<IpAddr>,
    extra: Vec<IpAddr>,
}

impl Addresses {
    fn new(want: &Expected, changes: &[&Change]) -> Self {
        let mut found = Self::default();
        for change in changes {
            match &change.object {
                Object::Link => {
                    found.link = true;
                    found.missing.clone_from(&want.addresses);
                }
                Object::Address(Delta::Extra(addr)) => found.extra.push(**addr),
                Object::Address(Delta::Missing(addr) | Delta::Differs { want: addr, .. }) => {
                    found.missing.push(**addr);
                }
                _ => {}
            }
        }
        found
    }
}
