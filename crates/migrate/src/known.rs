//! The cluster's state of a node's migration, used if the node's journal was lost.

use crate::fleet::state::{Fleet, NodeState};
use crate::journal::{Entry, MigrationState};
use crate::migration::{Leg, Migration, Stage, Strategy};
use kpx_node::evidence::Time;

/// Note on a migration whose journal was lost.
pub const LOST: &str = "the node's journal lost this migration: its state is that of ConfigMap kube-system/kpx-migrate; sysctls \
                        that kpx set and kernel modules that it loaded before stay";

/// Returns whether the coordinator of `fleet` has begun to migrate `node`, and neither it nor kpx on the node has undone that.
pub fn has_begun(fleet: &Fleet, node: &str) -> bool {
    let over = fleet.ended && fleet.leg == Leg::Back;
    let state = fleet.nodes.get(node);
    let is_undone = matches!(state, Some(NodeState::RolledBack | NodeState::Already));
    !over && !is_undone && fleet.has_touched(node)
}

/// Returns the migration of `node` as the coordinator of `fleet` began it, with the name `id`.
pub fn migration(fleet: &Fleet, node: &str, id: String) -> Migration {
    let plan = &fleet.plan;
    let usual = Strategy::usual(plan.from, plan.there.mode);
    Migration {
        id,
        began: plan.began,
        node: Some(node.to_owned()),
        from: plan.from,
        there: plan.there.clone(),
        back: plan.back.clone(),
        strategy: plan.strategy.unwrap_or(usual),
        evict: plan.evict,
        modules: Vec::new(),
        external: true,
        probes: Vec::new(),
    }
}

/// Returns the entries that `state`, from the journal of `node`, lacks according to `fleet`; none if the journal is complete.
pub fn missing(fleet: &Fleet, node: &str, state: &MigrationState, now: Time) -> Vec<Entry> {
    if state.leg == Leg::Back || state.ended || !has_begun(fleet, node) {
        return Vec::new();
    }
    let stages = state.stages();
    let built = stages.iter().position(|stage| *stage == Stage::Configure);
    let built = built.unwrap_or(stages.len());
    // On a node in preparation, any stage may have been done.
    let (done, begun) = match fleet.nodes.get(node) {
        Some(NodeState::Migrated) => (stages.len(), stages.len()),
        Some(NodeState::Prepared) => (built, built),
        _ => (built.saturating_sub(1), built),
    };
    let mut entries = Vec::new();
    for (number, stage) in stages
        .iter()
        .copied()
        .enumerate()
        .take(begun)
        .skip(state.done)
    {
        if number > state.done || !state.begun {
            entries.push(Entry::Stage {
                at: now,
                leg: Leg::There,
                stage,
                steps: Vec::new(),
                proxy: None,
            });
        }
        if number < done {
            entries.push(Entry::Done {
                at: now,
                leg: Leg::There,
                stage,
                notes: if entries.len() <= 1 {
                    vec![LOST.to_owned()]
                } else {
                    Vec::new()
                },
            });
        }
    }
    if done == stages.len() {
        entries.push(Entry::Ended {
            at: now,
            leg: Leg::There,
        });
    }
    entries
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fleet(state: Option<NodeState>) -> Fleet {
        let fields = |mode| json!({"mode": mode, "scheduler": null, "strictArp": null});
        let plan = serde_json::from_value(json!({
            "id": "x", "began": "2026-01-01T00:00:00Z", "from": "iptables", "there": fields("nftables"),
            "back": fields("iptables"), "nodes": ["w1", "w2"], "whole": true, "staged": false,
            "serviceAccount": "kpx", "soak": 1, "ready": 1, "timeouts": {"confirm": 1, "drain": 1}, "limit": 60,
        }));
        let mut fleet = Fleet::new(plan.unwrap());
        fleet.begin();
        fleet.untouched = None;
        fleet
            .nodes
            .extend(state.map(|state| ("w1".to_owned(), state)));
        fleet
    }

    /// The state of a journal that was lost and completed from the cluster.
    fn filled(state: Option<NodeState>) -> MigrationState {
        let fleet = fleet(state);
        let mut lost = MigrationState::new(migration(&fleet, "w1", "y".to_owned()));
        for entry in missing(&fleet, "w1", &lost, fleet.plan.began) {
            assert!(lost.follow(entry.clone()), "{entry:?}");
        }
        lost
    }

    fn back(mut state: MigrationState) -> MigrationState {
        let turned = Entry::Turned {
            at: state.migration.began,
            why: "requested".to_owned(),
            requested: true,
            external: false,
            set_back: false,
        };
        assert!(state.follow(turned));
        state
    }

    #[test]
    fn a_node_that_was_prepared_goes_on_and_goes_back_with_its_bridge() {
        let state = filled(Some(NodeState::Prepared));
        assert!(state.is_prepared() && state.is_bridged());
        assert_eq!(state.notes, [LOST]);
        let back = back(state);
        assert!(back.is_bridged());
        assert_eq!(back.stages().last(), Some(&Stage::BridgeDown));
    }

    #[test]
    fn a_node_that_was_being_prepared_may_have_a_bridge_and_rules() {
        let state = filled(None);
        assert_eq!(state.next(), Some(Stage::Build));
        assert!(state.begun && state.was_configured());
        assert!(back(state).stages().contains(&Stage::BridgeDown));
    }

    #[test]
    fn a_node_that_was_migrated_can_be_rolled_back() {
        let state = filled(Some(NodeState::Migrated));
        assert!(state.ended && state.reached);
        assert!(back(state).is_bridged());
    }

    #[test]
    fn a_journal_that_is_behind_keeps_what_it_has() {
        let fleet = fleet(Some(NodeState::Prepared));
        let whole = filled(Some(NodeState::Prepared));
        let mut behind = MigrationState::new(whole.migration.clone());
        let all = missing(&fleet, "w1", &behind, fleet.plan.began);
        for entry in &all[..3] {
            assert!(behind.follow(entry.clone()));
        }
        for entry in missing(&fleet, "w1", &behind, fleet.plan.began) {
            assert!(behind.follow(entry));
        }
        assert!(behind.is_prepared());
        assert_eq!(missing(&fleet, "w1", &behind, fleet.plan.began), []);
    }

    #[test]
    fn a_node_on_which_kpx_did_not_start_has_not_begun() {
        let mut fleet = fleet(None);
        assert!(has_begun(&fleet, "w1"));
        fleet.untouched = Some("w1".to_owned());
        assert!(!has_begun(&fleet, "w1"));
    }

    #[test]
    fn nothing_is_known_of_nodes_that_were_not_touched_or_are_back() {
        assert!(!has_begun(&fleet(None), "w2"));
        for state in [NodeState::RolledBack, NodeState::Already] {
            assert!(!has_begun(&fleet(Some(state)), "w1"));
        }
    }
}
