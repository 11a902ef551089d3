//! The pods that run kpx on nodes: one for each command.

mod phase;
mod reply;

use serde_json::{Value, json};

use super::digest;
use super::state::FleetPlan;
use crate::wire::{NodeCommand, Start};
use kpx_node::action::{KubeCommand, OURS, Object, Only, Resource, waits_for_copy};

pub use phase::{Finished, Phase, is_ending, is_hopeless, lost, not_pulled, phase, uid};
pub use reply::{
    Ended, Progress, awaits_restart, ended, notes, observed_loss, previewed, progress,
};

/// The label with the id of the migration.
pub const MIGRATION: &str = "kpx.dev/migration";

/// Where the node's file system is mounted in the pod.
const ROOT: &str = "/host";

/// The exit status of a pod whose standard input ended before kpx was copied into it, as if it had been killed.
const NOT_COPIED: u8 = 143;

/// The job of a pod.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Job {
    /// Builds the new mode.
    Prepare,
    /// Verifies the new mode and removes the old one.
    Finish,
    /// Rolls back.
    Rollback,
    /// Rolls back up to the restart of kube-proxy, which an operator does before the job [`Job::Finish`].
    RollbackUntilRestart,
    /// Reports what blocks a migration and what it costs.
    Preview,
    /// Keeps the bridge whenever no other kpx on the node does: it starts before the bridge is loaded and ends after the
    /// bridge is removed.
    Guard,
}

/// Returns the command of `job`.
pub fn command(plan: &FleetPlan, job: Job) -> NodeCommand {
    let start = || Start {
        to: plan.there.mode,
        left: plan.from,
        scheduler: plan.there.scheduler.clone(),
        strict_arp: plan.there.strict_arp,
        strategy: plan.strategy,
        evict: plan.evict,
        skip: plan.skip.clone(),
        accepts: plan.accepts.clone(),
        timeouts: plan.timeouts,
    };
    let timeouts = plan.timeouts;
    match job {
        Job::Prepare => NodeCommand::Prepare(start()),
        Job::Finish => NodeCommand::Finish(timeouts),
        Job::Rollback | Job::RollbackUntilRestart => NodeCommand::Rollback {
            until_restart: job == Job::RollbackUntilRestart,
            timeouts,
        },
        Job::Preview => NodeCommand::Preview(start()),
        Job::Guard => NodeCommand::Guard {
            mode: plan.from,
            // As long as the job that loads the bridge may take.
            awaits: plan.limit,
            lease: timeouts.lease,
        },
    }
}

/// Returns the command line of `job` as an operator types it on the node.
pub fn command_line(plan: &FleetPlan, job: Job) -> String {
    format!("kpx {}", command(plan, job).arguments().join(" "))
}

/// Returns the pod for `job` on `node`.
pub fn object(plan: &FleetPlan, node: &str, job: Job) -> Object {
    // A node's name may be as long as a pod's.
    let short = digest(&format!("{} {node}", plan.id));
    let name = format!("kpx-{}-{short}", command(plan, job).name());
    Object::of_system(Resource::Pod, name)
}

/// Returns the command that creates the pod for `job` on `node`, of `image`.
pub fn create(plan: &FleetPlan, image: &str, node: &str, job: Job) -> KubeCommand {
    let object = object(plan, node, job);
    let mut words = if plan.copies {
        // A guard that exits with another status is restarted, and would wait for a copy.
        waits_for_copy(if job == Job::Guard { 0 } else { NOT_COPIED })
    } else {
        vec!["kpx".to_owned()]
    };
    words.extend(command(plan, job).pod_arguments(ROOT, node));
    let mut body = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": object.name,
            "namespace": "kube-system",
            "labels": {(OURS.0): OURS.1, (MIGRATION): plan.id},
        },
        "spec": {
            "nodeName": node,
            "hostNetwork": true,
            "hostPID": true,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 5,
            "priorityClassName": "system-node-critical",
            "serviceAccountName": plan.service_account,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "kpx",
                "image": image,
                "command": words,
                "securityContext": {"privileged": true},
                "volumeMounts": [{"name": "host", "mountPath": ROOT, "mountPropagation": "HostToContainer"}],
            }],
            "volumes": [{"name": "host", "hostPath": {"path": "/"}}],
        },
    });
    if plan.copies {
        let spec = &mut body["spec"];
        let container = &mut spec["containers"][0];
        container["imagePullPolicy"] = json!("IfNotPresent");
        container["stdin"] = json!(true);
        container["stdinOnce"] = json!(true);
        if let Some(mounts) = container["volumeMounts"].as_array_mut() {
            mounts.push(json!({"name": "kpx", "mountPath": "/kpx"}));
        }
        if let Some(volumes) = spec["volumes"].as_array_mut() {
            volumes.push(json!({"name": "kpx", "emptyDir": {"medium": "Memory"}}));
        }
    }
    if job == Job::Guard {
        // It ends with the bridge, not before.
        body["spec"]["restartPolicy"] = json!("OnFailure");
    } else {
        body["spec"]["activeDeadlineSeconds"] = json!(plan.limit);
    }
    KubeCommand::Create { object, body }
}

/// Returns the command that deletes the pod for `job` on `node`.
pub fn delete(plan: &FleetPlan, node: &str, job: Job) -> KubeCommand {
    KubeCommand::Delete {
        object: object(plan, node, job),
        only: Only::Ours,
    }
}

fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_guard_is_restarted_and_has_no_deadline() {
        let fields = |mode| json!({"mode": mode, "scheduler": null, "strictArp": null});
        let plan: FleetPlan = serde_json::from_value(json!({
            "id": "x", "began": "2026-01-01T00:00:00Z", "from": "ipvs", "there": fields("nftables"),
            "back": fields("ipvs"), "nodes": ["worker1"], "whole": true, "staged": false,
            "serviceAccount": "kpx", "soak": 1, "ready": 1, "timeouts": {"confirm": 1, "drain": 1}, "limit": 60,
        }))
        .unwrap();
        let pod = |job| match create(&plan, "kpx:1", "worker1", job) {
            KubeCommand::Create { body, .. } => body["spec"].clone(),
            other => panic!("{other:?}"),
        };
        let (guard, prepare) = (pod(Job::Guard), pod(Job::Prepare));
        assert_eq!(guard["restartPolicy"], "OnFailure");
        assert!(guard["activeDeadlineSeconds"].is_null(), "{guard}");
        assert_eq!(prepare["restartPolicy"], "Never");
        assert_eq!(prepare["activeDeadlineSeconds"], plan.limit);
    }
}
