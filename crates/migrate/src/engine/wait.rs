//! The stages that wait: for connections to end, and for kube-proxy to serve.

use std::time::Duration;

use super::{Engine, Event, MigrationNode, PAUSE, REPORTED, StageError};
use crate::drain::{self, Gauge};
use crate::gates::{self, Expected, Gate, Name, Previous, Status, Unserved};
use crate::journal::MigrationState;
use crate::loss::ObservedLoss;
use crate::migration::{Leg, Stage};
use crate::probes::{self, Answerer, Unanswered};
use crate::stage;
use kpx_judge::bridge::Lease;
use kpx_judge::plan::{self, ConfigSource, Place};
use kpx_node::backend::Mode;
use kpx_node::cluster::pod::{CrashLoop, Restarts};
use kpx_node::evidence::Time;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::desired;

impl<N: MigrationNode> Engine<'_, N> {
    /// Waits until no connections are open that the removal of virtual servers would break.
    pub(super) async fn drain(
        &mut self,
        progress: &mut MigrationState,
        name: &str,
    ) -> Result<Vec<String>, StageError> {
        let stage = Stage::Drain;
        let cluster = self.node.read(desired::NEEDS).await;
        let cluster = NodeSnapshot::new(&cluster).called(Some(name));
        let desired = cluster
            .desired(progress.migration.source(progress.leg))
            .ok();
        let mut waited = Duration::ZERO;
        let mut first = None;
        loop {
            let items = drain::awaited(progress.migration.strategy);
            let evidence = self.node.read(items).await;
            let gauge = Gauge::read(&NodeSnapshot::new(&evidence), desired);
            let gauge = gauge.map_err(|gap| StageError::Failed {
                stage,
                why: gap.to_string(),
            })?;
            let first = *first.get_or_insert(gauge.count);
            (self.on_event)(Event::Drain(&gauge, first));
            if gauge.count == 0 {
                return Ok(Vec::new());
            }
            if self.limits.accept_loss && waited >= self.limits.drain {
                let lost = format!("{} lost: {}", gauge.connections(), gauge.holders());
                let observed = ObservedLoss {
                    connections: gauge.count,
                    ..ObservedLoss::default()
                };
                self.observe(progress, observed).await?;
                return Ok(vec![lost]);
            }
            if waited >= self.limits.drain {
                return Err(StageError::Drain { waited, gauge });
            }
            self.pause(waited, self.limits.drain).await?;
            waited += PAUSE;
        }
    }

    /// Waits until every gate is passed, and records the probes that failed meanwhile. A `resumed` run restarts a kube-proxy that
    /// is older than its configuration.
    pub(super) async fn verify(
        &mut self,
        progress: &mut MigrationState,
        stage: Stage,
        name: &str,
        resumed: bool,
    ) -> Result<Vec<String>, StageError> {
        let mut loss = ObservedLoss::default();
        let restarts = resumed && stage == Stage::Verify && !progress.migration.external;
        let verified = self.pass(progress, stage, name, restarts, &mut loss).await;
        self.observe(progress, loss).await?;
        verified
    }

    /// Waits until every gate is passed, and counts the probes that fail meanwhile.
    async fn pass(
        &mut self,
        progress: &MigrationState,
        stage: Stage,
        name: &str,
        mut again: bool,
        loss: &mut ObservedLoss,
    ) -> Result<Vec<String>, StageError> {
        let (leg, fields) = (
            progress.leg,
            progress.migration.fields(progress.leg).clone(),
        );
        let expected = Expected {
            fields: &fields,
            before: progress.proxy.filter(|_| leg == Leg::There),
            cleaned: (stage == Stage::Recheck).then(|| progress.migration.source(leg)),
        };
        let mut previous = Previous::default();
        let mut restarts = Restarts::default();
        let mut waited = Duration::ZERO;
        let began = self.node.now();
        loop {
            let (mut gates, silent) = self.gates(progress, expected, &mut previous, name).await;
            loss.failed_probes += silent;
            let external = progress.migration.external;
            if leg == Leg::There
                && !external
                && gates::awaits_configuration(&gates)
                && let Some(why) = self.set_back(progress, name).await
            {
                return Err(StageError::SetBack(why));
            }
            if again && let Some(why) = gates::outdated(&gates) {
                again = false;
                (self.on_event)(Event::Retries(&why));
                self.restart_again(progress, name).await?;
                continue;
            }
            if gates.iter().any(Gate::is_blocking)
                && let Some(found) = self.crash_loop(progress, name, &mut restarts).await
            {
                // A failed rollback cannot be rolled back, and kube-proxy may still start.
                if leg == Leg::There && stage == Stage::Verify {
                    return Err(StageError::Crashes(found));
                }
                gates.insert(0, gates::of_crash(&found));
            }
            (self.on_event)(Event::Gates(&gates));
            let blocking: Vec<_> = gates.iter().filter(|gate| gate.is_blocking()).collect();
            if blocking.is_empty() {
                // Only once: the stage Recheck skips the same gates.
                return Ok(if stage == Stage::Verify {
                    skipped(&gates)
                } else {
                    Vec::new()
                });
            }
            // The checks take time as well.
            if waited.max(self.node.now().since(began)) >= self.limits.confirm {
                let what = blocking
                    .iter()
                    .map(|gate| format!("{}: {}", gate.name, gate.reason));
                let mut what = what.collect::<Vec<_>>().join("; ");
                // The node is as before, but a bridge may still serve what fails past it.
                if leg == Leg::Back && blocking.iter().all(|gate| gate.name == Name::Probes) {
                    what = format!(
                        "{what}; kube-proxy serves in mode {} as before: `kpx why` names the cause",
                        fields.mode
                    );
                    if self.limits.accept_loss {
                        return Ok(vec![what]);
                    }
                    what += ", and --accept-loss ends the rollback nevertheless";
                }
                return Err(StageError::Gates {
                    waited: self.limits.confirm,
                    what,
                });
            }
            self.pause(waited, self.limits.confirm).await?;
            waited += PAUSE;
        }
    }

    /// Returns that another program set the configuration back at its source, if so.
    async fn set_back(&mut self, progress: &MigrationState, name: &str) -> Option<String> {
        let evidence = self.node.read(plan::CONFIG_NEEDS).await;
        let node = NodeSnapshot::new(&evidence).called(Some(name));
        let store = ConfigSource::find(&node, name).ok()?;
        // Other places have no text of its own.
        if !matches!(store.place(), Place::ConfigMap { .. } | Place::File(_)) {
            return None;
        }
        gates::set_back(
            &store.place().to_string(),
            store.text(),
            progress.migration.target(progress.leg),
        )
    }

    /// Restarts kube-proxy although the journal has its restart.
    async fn restart_again(
        &mut self,
        progress: &MigrationState,
        name: &str,
    ) -> Result<(), StageError> {
        let stage = Stage::Restart;
        let evidence = self.node.read(&stage::needs(progress, stage)).await;
        let lease = Lease::of(self.limits.lease);
        let plan = stage::plan(progress, stage, &evidence, name, &[], &lease);
        let plan = plan.map_err(|error| StageError::Unplanned { stage, error })?;
        self.do_steps(stage, &plan).await.map(drop)
    }

    /// Waits a moment, unless a stop is requested, and reports the updates of the bridge since the last pause. `waited` is the time so
    /// far, of at most `limit`.
    pub(super) async fn pause(
        &mut self,
        waited: Duration,
        limit: Duration,
    ) -> Result<(), StageError> {
        self.may_continue()?;
        let (first, every) = REPORTED;
        let after = waited.as_secs().checked_sub(first);
        if after.is_some_and(|after| after.is_multiple_of(every)) {
            (self.on_event)(Event::Waits(limit.saturating_sub(waited)));
        }
        self.node.pause(PAUSE).await;
        for text in self.node.bridge_notices() {
            (self.on_event)(Event::Bridge(&text));
        }
        self.may_continue()
    }

    /// Returns the crash loop of kube-proxy's container, if there is one. Without access to its pods, the gates decide.
    async fn crash_loop(
        &mut self,
        progress: &MigrationState,
        name: &str,
        restarts: &mut Restarts,
    ) -> Option<CrashLoop> {
        let pods = self.node.proxy_pods(name).await.ok()?;
        let started = progress.proxy.and_then(|proxy| proxy.started);
        let since = started.map(|seconds| Time { seconds });
        let mut found = restarts.crash_loop(&pods, since)?;
        found.last_line = self.node.last_line(&found.pod, &found.container).await;
        Some(found)
    }

    /// Checks the gates: the cheap ones first, and the others once these are passed. Returns them, and the number of probes
    /// that failed.
    async fn gates(
        &mut self,
        progress: &MigrationState,
        expected: Expected<'_>,
        previous: &mut Previous,
        name: &str,
    ) -> (Vec<Gate>, usize) {
        let evidence = self.node.read(gates::PROXY_NEEDS).await;
        let node = NodeSnapshot::new(&evidence).called(Some(name));
        let mut all = gates::of_proxy(&node, expected, previous);
        if all.iter().any(Gate::is_blocking) {
            return (all, 0);
        }
        let evidence = self.node.read(&gates::state_needs(expected)).await;
        let node = NodeSnapshot::new(&evidence).called(Some(name));
        all.extend(gates::of_state(&node, expected, previous));
        if all.iter().any(Gate::is_blocking) {
            return (all, 0);
        }
        let unserved = self.unserved(progress, &node, expected.fields.mode).await;
        all.push(gates::of_probes(&unserved));
        (all, unserved.failed.len())
    }

    /// Probes the Services that answered before the migration, past the bridge, and returns those that do not answer as then.
    /// `node` has the cluster's objects.
    async fn unserved(
        &mut self,
        progress: &MigrationState,
        node: &NodeSnapshot<'_>,
        mode: Mode,
    ) -> Unserved {
        let mut unserved = Unserved::default();
        let mut answered = Vec::new();
        let targets = &progress.migration.probes;
        let probed = self.node.probe(targets).await;
        for (target, probed) in targets.iter().zip(probed) {
            match probed {
                Ok(client) => answered.push((target, client)),
                Err(Unanswered::Silent(why)) => unserved.failed.push(format!("{target}: {why}")),
                // Its connections have ended with it.
                Err(Unanswered::NoPod) => {}
            }
        }
        // In mode userspace, kube-proxy itself answers.
        answered.retain(|(target, _)| target.by_endpoint && mode != Mode::Userspace);
        if answered.is_empty() {
            return unserved;
        }
        let tables = self.node.read(probes::NEEDS).await;
        let tables = NodeSnapshot::new(&tables);
        for (target, client) in answered {
            let by = node.desired(mode).map_or_else(
                |gap| Answerer::Unknown(gap.to_string()),
                |desired| probes::answerer(&tables, desired, target, client),
            );
            match by {
                Answerer::Endpoint => {}
                Answerer::Other(by) => unserved.failed.push(format!(
                    "{target}: misled: {by} answered, which is no endpoint of the Service"
                )),
                Answerer::Unknown(why) => unserved
                    .unknown
                    .push(format!("{target}: who answered is unknown: {why}")),
            }
        }
        unserved
    }
}

/// Returns a note for each gate that was skipped.
fn skipped(gates: &[Gate]) -> Vec<String> {
    let skipped = gates.iter().filter(|gate| gate.status == Status::Skipped);
    let notes = skipped.map(|gate| format!("gate {} was skipped: {}", gate.name, gate.reason));
    notes.collect()
}
