//! From one desired state to the next without a look at the rules: the kernel then has what the next one wants.

use kpx_judge::plan::{Programmed, Undo};
use kpx_node::action::Action;
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

use super::netns::Netns;
use super::render::{load, same};
use crate::random;

fn apply(netns: &Netns, action: &Action) {
    match action {
        Action::Iptables { family, input, .. } => {
            let program = match family {
                Family::V4 => "iptables-nft-restore --noflush",
                Family::V6 => "ip6tables-nft-restore --noflush",
            };
            netns.feed(program, input);
        }
        Action::Nft { input } => {
            netns.feed("nft -f -", input);
        }
        other => panic!("{other:?}"),
    }
}

/// Fails if the rules in `netns` are not those of `evidence`.
fn holds(netns: &Netns, evidence: &Evidence, mode: Mode, what: &str) {
    let mut evidence = evidence.clone();
    let mut put = |item, command| evidence.insert(item, Ok(netns.run(command)));
    if mode == Mode::Nftables {
        put(Item::Nft, "nft -j list ruleset");
    } else {
        put(Item::Iptables4, "iptables-nft-save -c");
        put(Item::Iptables6, "ip6tables-nft-save -c");
    }
    same(&evidence, mode, what);
}

/// Goes through random clusters, each time forth, back and forth.
fn advances(mode: Mode, version: &str) {
    let netns = Netns::new();
    // Rules that match a link by its index load only where it is there.
    netns.run("ip link add cni0 type bridge");
    let mut evidence = random::evidence(0, random::DUAL, mode.name(), version);
    load(&netns, &mut evidence, mode);
    let mut before = {
        let node = NodeSnapshot::new(&evidence);
        let state = node.desired(mode).unwrap().clone();
        Programmed::new(&node, state).unwrap()
    };
    let mut steps = 0;
    for seed in 1..12 {
        let other = random::evidence(seed, random::DUAL, mode.name(), version);
        let mut next = evidence.clone();
        for item in [Item::Services, Item::EndpointSlices] {
            next.insert(item, other.text(item).map(str::to_owned));
        }
        let what = format!("{mode} {version}, to seed {seed}");
        let state = {
            let node = NodeSnapshot::new(&next);
            node.desired(mode).unwrap().clone()
        };
        let plan = before.advance(&state, &Family::BOTH).unwrap();
        let forth = || {
            for step in &plan.steps {
                apply(&netns, &step.action);
            }
        };
        forth();
        holds(&netns, &next, mode, &what);
        for step in plan.steps.iter().rev() {
            let Undo::Do(action) = &step.undo else {
                panic!("{step:?}");
            };
            apply(&netns, action);
        }
        holds(&netns, &evidence, mode, &format!("{what}, and back"));
        forth();
        holds(&netns, &next, mode, &what);
        steps += plan.steps.len();
        before = before.at(state);
        evidence = next;
        let again = before.advance(
            NodeSnapshot::new(&evidence).desired(mode).unwrap(),
            &Family::BOTH,
        );
        assert!(again.unwrap().steps.is_empty(), "{what}");
    }
    assert!(steps > 20, "{steps}");
}

#[test]
#[ignore = "needs root and a network namespace"]
fn long_host_rules_of_iptables_advance_to_random_clusters() {
    for version in ["v1.28.0", "v1.36.0"] {
        advances(Mode::Iptables, version);
    }
}

#[test]
#[ignore = "needs root and a network namespace"]
fn host_rules_of_nftables_advance_to_random_clusters() {
    for version in ["v1.30.0", "v1.36.0"] {
        advances(Mode::Nftables, version);
    }
}
