//! Plans for mode ipvs on a fake node: applied, they leave no difference; undone, they restore the node.

use std::collections::BTreeMap;

use kpx_judge::diff::{self, Change, Layer};
use kpx_judge::plan::{self, Drain, Plan, Undo};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, load};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::Value;

use crate::fake::Node;
use crate::support::root;

impl Node {
    /// The same, with addresses in one order and by themselves.
    fn sorted(&self) -> Self {
        let mut node = self.clone();
        let addresses = node.addresses();
        let mut all: Vec<Value> = addresses.iter().map(|info| info["local"].clone()).collect();
        all.sort_by_key(Value::to_string);
        *addresses = all;
        node
    }

    /// Makes differences of every kind; `seed` selects them.
    fn disturb(&mut self, seed: usize) {
        let mut number = seed;
        let mut turn = |every: usize| {
            number += 1;
            number.is_multiple_of(every)
        };
        for (name, (head, members)) in &mut self.sets {
            members.retain(|_, _| !turn(5));
            if turn(4) && head.starts_with("hash") {
                *head = head.replace("maxelem 65536", "maxelem 1000");
            }
            if turn(3) && name.ends_with("CLUSTER-IP") {
                let six = name.starts_with("KUBE-6");
                let addr = if six { "fd00::9" } else { "10.9.9.9" };
                members.insert(format!("{addr},tcp:9"), String::new());
            }
        }
        self.servers.retain(|_, _| !turn(6));
        for (options, reals) in self.servers.values_mut() {
            reals.retain(|_, _| !turn(5));
            if turn(4) {
                "-s wlc -p 77".clone_into(options);
            }
            if turn(3) {
                for options in reals.values_mut() {
                    "-m -w 9".clone_into(options);
                }
            }
        }
        self.addresses().retain(|_| !turn(4));
        let extra = self.addresses()[0]["local"].as_str().unwrap().to_owned();
        let at = format!("{extra}:9");
        let key = if extra.contains(':') {
            format!("-t [{extra}]:9")
        } else {
            format!("-t {at}")
        };
        self.servers
            .insert(key, ("-s wlc".to_owned(), BTreeMap::new()));
    }
}

/// Returns the plan for the node, and the changes that it is made from.
fn plan(evidence: &Evidence) -> (Plan, Vec<Change>) {
    const LAYERS: &[Layer] = &[Layer::Ipset, Layer::Ipvs, Layer::Link];
    let node = NodeSnapshot::new(evidence);
    let mut found = diff::compare(&node, Mode::Ipvs, &Family::BOTH).unwrap();
    assert!(found.unknown.is_empty(), "{:?}", found.unknown);
    found
        .changes
        .retain(|change| LAYERS.contains(&change.layer()));
    let plan = plan::repair(
        &node,
        Mode::Ipvs,
        &Family::BOTH,
        &found,
        LAYERS,
        Drain::First,
    );
    (plan.unwrap(), found.changes)
}

#[test]
fn a_plan_ends_where_nothing_differs_and_its_undo_where_it_began() {
    for name in ["dual-ipvs", "full-ipvs", "full-ipvs-v1.30"] {
        let bundle = root().join("testdata/nodes").join(name);
        let mut evidence = load(&bundle, &diff::needs(Mode::Ipvs)).unwrap();
        let healthy = Node::new(&evidence);
        for seed in 0..12 {
            let mut node = healthy.clone();
            node.disturb(seed);
            let disturbed = node.clone();
            node.tell(&mut evidence);
            let (plan_, _) = plan(&evidence);
            assert!(plan_.steps.len() > 3, "{name} {seed}: {plan_:?}");
            for step in &plan_.steps {
                node.apply(&step.action);
            }
            node.tell(&mut evidence);
            let (rest, changes) = plan(&evidence);
            assert!(rest.steps.is_empty(), "{name} {seed}: {rest:?}");
            assert!(changes.is_empty(), "{name} {seed}: {changes:?}");
            for step in plan_.steps.iter().rev() {
                let Undo::Do(undo) = &step.undo else {
                    panic!("{name} {seed}: {}", step.title);
                };
                node.apply(undo);
            }
            assert_eq!(node.sorted(), disturbed.sorted(), "{name} {seed}");
        }
    }
}

#[test]
fn a_cleanup_of_a_mode_without_leftovers_is_empty() {
    let bundle = root().join("testdata/nodes/leftover-iptables-to-nftables");
    let evidence = load(&bundle, kpx_node::evidence::ITEMS).unwrap();
    let node = NodeSnapshot::new(&evidence);
    let plan = plan::cleanup(&node, Mode::Ipvs, &Family::BOTH, true).unwrap();
    assert!(plan.steps.is_empty(), "{:?}", plan.steps);
    assert!(plan.notes.is_empty(), "{:?}", plan.notes);
}
