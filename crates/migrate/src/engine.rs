//! Carries a migration out, stage by stage, and rolls it back when it fails.

mod error;
mod evict;
mod wait;

use std::net::SocketAddr;
use std::time::Duration;

use super::drain::Gauge;
use super::evict::Leaving;
use super::gates::{self, Gate};
use super::journal::{self, Entry, MigrationState};
use super::loss::ObservedLoss;
use super::migration::{Leg, Stage};
use super::node::Node;
use super::probes::{Target, Unanswered};
use super::stage;
use error::{StageError, done, is_moved};
use kpx_judge::bridge::Lease;
use kpx_judge::plan::Plan;
use kpx_node::action::Action;
use kpx_node::apply;
use kpx_node::backend::Mode;
use kpx_node::cluster::Pod;
use kpx_node::evidence::{Evidence, Gap};
use kpx_node::node::{NodeSnapshot, identity};

/// The node that is migrated, with its cluster, its bridge and its journal.
pub trait MigrationNode: Node {
    /// Returns the unique ids of the pods that this process runs in.
    fn own_pods(&self) -> Result<Vec<String>, String>;
    /// Connects to all of `targets` at once, past the bridge if it is loaded; returns the address and port of each client.
    fn probe(
        &mut self,
        targets: &[Target],
    ) -> impl Future<Output = Vec<Result<SocketAddr, Unanswered>>>;
    /// Returns kube-proxy's pods on the Node called `node`, from the API server.
    fn proxy_pods(&mut self, node: &str) -> impl Future<Output = Result<Vec<Pod>, Gap>>;
    /// Returns the last line that `container` of kube-proxy's pod `pod` logged before it ended; `None` if that cannot be
    /// read.
    fn last_line(&mut self, pod: &str, container: &str) -> impl Future<Output = Option<String>>;
    /// Appends `entry` to the journal, and returns once it is on disk.
    fn record(&mut self, entry: &Entry) -> impl Future<Output = Result<(), String>>;
    /// Writes a bundle of the node into the migration's folder, unless there is one.
    fn backup(&mut self) -> impl Future<Output = Result<(), String>>;
    /// Starts a guard, which outlives this process, for a bridge that serves as `mode`, and keeps the bridge's lease from
    /// then on. Called before the bridge is loaded.
    fn guard(&mut self, mode: Mode) -> impl Future<Output = Result<(), String>>;
    /// Guards the bridge, which serves as `mode`, and follows the cluster with it. A bridge whose lease has expired is
    /// loaded again.
    fn follow(&mut self, mode: Mode) -> impl Future<Output = Result<(), String>>;
    /// Stops following, after the update in progress. Called before the bridge is removed.
    fn unfollow(&mut self) -> impl Future<Output = ()>;
    /// Returns what the follower reported since the last call.
    fn bridge_notices(&mut self) -> Vec<String>;
    /// Returns how often another program deleted the bridge since the last call.
    fn bridge_gaps(&mut self) -> usize {
        0
    }
    /// Returns whether a stop is requested.
    fn is_to_stop(&self) -> bool;
}

/// How long to wait, and what happens at a timeout.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For the gates, before the migration is rolled back.
    pub confirm: Duration,
    /// For connections to end, and for pods to leave.
    pub drain: Duration,
    /// Whether connections that have not ended may break.
    pub accept_loss: bool,
    /// Whether the external change of the configuration is done.
    pub configured: bool,
    /// The bridge's lease.
    pub lease: Duration,
}

/// An event of a migration.
#[derive(Clone, Copy, Debug)]
pub enum Event<'e> {
    /// A stage begins: its direction, its plan, its position among the stages from 1, and their number.
    Begins(Leg, Stage, &'e Plan, (usize, usize)),
    /// A step of a plan begins or is undone.
    Step(apply::Event<'e>),
    /// A stage is done.
    Done(Leg, Stage),
    /// The gates were checked.
    Gates(&'e [Gate]),
    /// Connections were counted; the second number is the first count.
    Drain(&'e Gauge, usize),
    /// The pods that have to leave were counted.
    Evict(&'e Leaving),
    /// The bridge was updated, or could not be.
    Bridge(&'e str),
    /// A stage waits for a condition: how long it still waits at most.
    Waits(Duration),
    /// The node changed while a stage ran, with the error: the stage is planned again.
    Retries(&'e str),
    /// A stop was requested.
    StopRequested,
    /// The migration turns to its rollback, and why.
    RollsBack(&'e str),
}

/// How a run ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ended {
    /// The node runs in the new mode.
    Migrated,
    /// The node runs in the old mode again, and why.
    RolledBack(String),
    /// Everything is built; the configuration is to be changed externally.
    Prepared,
    /// It stopped part-way, and why; another run continues from the journal.
    Stopped(String),
}

/// How often a stage is planned again because the node changed while it ran: a kube-proxy that starts rewrites its rules
/// several times.
const TRIES: u32 = 5;

/// The pause before the first retry; each further pause is longer by as much.
const RETRY: Duration = Duration::from_millis(500);

/// The pause between two checks of a condition.
const PAUSE: Duration = Duration::from_secs(1);

/// After how many seconds of a wait its end is reported, and then how often.
const REPORTED: (u64, u64) = (5, 30);

/// Runs the remaining stages of a migration.
pub struct Engine<'e, N> {
    /// The node.
    pub node: &'e mut N,
    /// How long to wait.
    pub limits: Limits,
    /// Receives events.
    pub on_event: &'e mut dyn FnMut(Event<'_>),
}

impl<N: MigrationNode> Engine<'_, N> {
    /// Runs from `progress` to the end of the migration or its rollback.
    pub async fn run(&mut self, progress: &mut MigrationState) -> Ended {
        let name = match self.name(progress).await {
            Ok(name) => name,
            Err(gap) => return Ended::Stopped(gap.to_string()),
        };
        // The process that kept the bridge up to date has ended, and the bridge may be gone.
        if progress.is_bridged()
            && let Err(why) = self.node.follow(progress.served()).await
        {
            return Ended::Stopped(why);
        }
        let mut undrained = progress.is_drained();
        while let Some(stage) = progress.next() {
            if progress.migration.external && stage.is_configuration() && !self.limits.configured {
                return Ended::Prepared;
            }
            let result = if std::mem::take(&mut undrained) {
                // The guard may have removed the bridge since then: new connections used virtual servers again.
                self.drain(progress, &name).await.map(|_| ())
            } else {
                self.stage(progress, stage, &name).await
            };
            let gaps = ObservedLoss {
                bridge_gaps: self.node.bridge_gaps(),
                ..ObservedLoss::default()
            };
            let result = result.and(self.observe(progress, gaps).await);
            let Err(error) = result else {
                continue;
            };
            if let Some(ended) = self.fail(progress, stage, &error).await {
                return ended;
            }
        }
        let (at, leg) = (self.node.now(), progress.leg);
        if !progress.ended
            && let Err(error) = self.record(progress, Entry::Ended { at, leg }).await
        {
            return Ended::Stopped(error.to_string());
        }
        match leg {
            Leg::There => Ended::Migrated,
            Leg::Back => Ended::RolledBack(progress.why.clone().unwrap_or_default()),
        }
    }

    /// Turns to the rollback after `error` in `stage` if that is safe; otherwise returns that the run stopped.
    async fn fail(
        &mut self,
        progress: &mut MigrationState,
        stage: Stage,
        error: &StageError,
    ) -> Option<Ended> {
        let why = error.to_string();
        if matches!(error, StageError::Journal(_)) {
            return Some(Ended::Stopped(why));
        }
        let at = self.node.now();
        let stops = matches!(error, StageError::StopRequested) || !rolls_back(progress, stage);
        let entry = if stops {
            Entry::Stopped {
                at,
                why: why.clone(),
            }
        } else {
            (self.on_event)(Event::RollsBack(&why));
            Entry::Turned {
                at,
                why: why.clone(),
                requested: false,
                external: false,
                set_back: matches!(error, StageError::SetBack(_)),
            }
        };
        if let Err(error) = self.record(progress, entry).await {
            return Some(Ended::Stopped(error.to_string()));
        }
        stops.then_some(Ended::Stopped(why))
    }

    /// Turns to the rollback on request, unless the migration has turned already.
    ///
    /// With `external`, the rollback runs up to the restore of the configuration, which is then external, and continues
    /// after it.
    pub async fn roll_back(
        &mut self,
        progress: &mut MigrationState,
        external: bool,
    ) -> Result<(), String> {
        if progress.leg == Leg::Back {
            return Ok(());
        }
        let entry = Entry::Turned {
            at: self.node.now(),
            why: "requested".to_owned(),
            requested: true,
            external,
            set_back: false,
        };
        let turned = self.record(progress, entry).await;
        turned.map_err(|error| error.to_string())
    }

    async fn record(
        &mut self,
        progress: &mut MigrationState,
        entry: Entry,
    ) -> Result<(), StageError> {
        self.node
            .record(&entry)
            .await
            .map_err(StageError::Journal)?;
        if progress.follow(entry) {
            Ok(())
        } else {
            Err(StageError::Journal(
                "the entry cannot follow the ones before it".to_owned(),
            ))
        }
    }

    /// Adds `loss` to the observed one.
    async fn observe(
        &mut self,
        progress: &mut MigrationState,
        loss: ObservedLoss,
    ) -> Result<(), StageError> {
        if loss == ObservedLoss::default() {
            return Ok(());
        }
        let at = self.node.now();
        self.record(progress, Entry::Observed { at, loss }).await
    }

    /// Returns the name of the Node: from the journal, or for a journal of an older kpx from the node.
    async fn name(&mut self, progress: &mut MigrationState) -> Result<String, Gap> {
        if let Some(name) = &progress.migration.node {
            return Ok(name.clone());
        }
        let evidence = self.node.read(identity::NEEDS).await;
        let name = NodeSnapshot::new(&evidence).name()?;
        progress.migration.node = Some(name.clone());
        Ok(name)
    }

    async fn stage(
        &mut self,
        progress: &mut MigrationState,
        stage: Stage,
        name: &str,
    ) -> Result<(), StageError> {
        self.may_continue()?;
        if stage == Stage::BridgeDown {
            // The follower must not load again what this stage removes.
            self.node.unfollow().await;
        }
        let mut pause = Duration::ZERO;
        let notes = loop {
            let error = match self.attempt(progress, stage, name).await {
                Ok(notes) => break notes,
                Err(error) => error,
            };
            if !error.is_transient() || pause >= RETRY * TRIES {
                return Err(error);
            }
            (self.on_event)(Event::Retries(&error.to_string()));
            pause += RETRY;
            self.node.pause(pause).await;
            self.may_continue()?;
        };
        let entry = Entry::Done {
            at: self.node.now(),
            leg: progress.leg,
            stage,
            notes,
        };
        self.record(progress, entry).await?;
        (self.on_event)(Event::Done(progress.leg, stage));
        Ok(())
    }

    /// Reads the node, plans the stage, records the plan, and carries it out.
    async fn attempt(
        &mut self,
        progress: &mut MigrationState,
        stage: Stage,
        name: &str,
    ) -> Result<Vec<String>, StageError> {
        let external = progress.migration.external && stage.is_configuration();
        let evidence = if external {
            Evidence::default()
        } else {
            let mut items = stage::needs(progress, stage);
            if matches!(stage, Stage::Build | Stage::Configure) {
                items.extend(gates::PROXY_NEEDS);
            }
            items.sort();
            items.dedup();
            self.node.read(&items).await
        };
        let node = NodeSnapshot::new(&evidence).called(Some(name));
        let plan = if external {
            Ok(Plan::default())
        } else {
            let own = match stage {
                Stage::Cordon | Stage::Evict => self.node.own_pods(),
                _ => Ok(Vec::new()),
            };
            let own = own.map_err(|why| StageError::Failed { stage, why })?;
            let lease = Lease::of(self.limits.lease);
            stage::plan(progress, stage, &evidence, name, &own, &lease)
        };
        let plan = plan.map_err(|error| StageError::Unplanned { stage, error })?;
        // An external change of the configuration is planned without a look at the node.
        let known = matches!(stage, Stage::Build | Stage::Configure)
            && progress.leg == Leg::There
            && !external;
        // An earlier run began it.
        let resumed = progress.begun;
        let entry = Entry::Stage {
            at: self.node.now(),
            leg: progress.leg,
            stage,
            steps: journal::recorded(&plan),
            proxy: known.then(|| gates::proxy(&node)),
        };
        self.record(progress, entry).await?;
        let position = (progress.done + 1, progress.stages().len());
        (self.on_event)(Event::Begins(progress.leg, stage, &plan, position));
        match stage {
            Stage::Backup => done(stage, self.node.backup().await),
            Stage::Drain => self.drain(progress, name).await,
            Stage::Evict => self.evict(&plan).await,
            Stage::Verify | Stage::Recheck => self.verify(progress, stage, name, resumed).await,
            Stage::BridgeUp => {
                // The guard starts first: it keeps the bridge if kpx is killed right after the load.
                done(stage, self.node.guard(progress.served()).await)?;
                self.do_steps(stage, &plan).await?;
                done(stage, self.node.follow(progress.served()).await)
            }
            Stage::Configure if progress.leg == Leg::Back => {
                self.undo_steps(stage, &plan).await?;
                // The notes name the differences from the old text.
                Ok(plan.notes)
            }
            _ if progress.leg == Leg::There && stage != Stage::Uncordon => {
                self.do_steps(stage, &plan).await
            }
            _ => self.undo_steps(stage, &plan).await,
        }
    }

    /// Fails if a stop is requested.
    fn may_continue(&self) -> Result<(), StageError> {
        if self.node.is_to_stop() {
            return Err(StageError::StopRequested);
        }
        Ok(())
    }

    async fn do_steps(&mut self, stage: Stage, plan: &Plan) -> Result<Vec<String>, StageError> {
        let on_event = &mut self.on_event;
        let watch = |event: apply::Event<'_>| on_event(Event::Step(event));
        let ran = apply::run_while(plan, self.node, watch, |node| !node.is_to_stop()).await;
        let count = ran.map_err(|stopped| StageError::Step {
            stage,
            moved: is_moved(&stopped.error, plan.steps.get(stopped.step)),
            error: stopped.error,
            left: stopped.left,
        })?;
        if count < plan.steps.len() {
            return Err(StageError::StopRequested);
        }
        Ok(Vec::new())
    }

    /// Carries out a plan of the rollback. When a step fails, the ones before it are kept: they lead to the old mode.
    async fn undo_steps(&mut self, stage: Stage, plan: &Plan) -> Result<Vec<String>, StageError> {
        let mut notes = Vec::new();
        for (number, step) in plan.steps.iter().enumerate() {
            self.may_continue()?;
            (self.on_event)(Event::Step(apply::Event::Begins(number, &step.title)));
            let Err(error) = self.node.apply(&step.action).await else {
                continue;
            };
            // A module that something else uses by now stays loaded.
            if !matches!(step.action, Action::UnloadModules { .. }) {
                return Err(StageError::Step {
                    stage,
                    moved: is_moved(&error, Some(step)),
                    error,
                    left: Vec::new(),
                });
            }
            notes.push(error.to_string());
        }
        Ok(notes)
    }
}

/// Returns whether an error in `stage` starts the rollback. Two errors do not: one after kube-proxy serves in the new mode,
/// when only leftovers of the old mode remain, and one after an external change of the configuration, which is undone
/// externally.
fn rolls_back(progress: &MigrationState, stage: Stage) -> bool {
    let verified = progress.stages()[..progress.done].contains(&Stage::Verify);
    let cleaning = verified
        && matches!(
            stage,
            Stage::Unlink | Stage::Drain | Stage::Clean | Stage::BridgeDown | Stage::Uncordon
        );
    let external = progress.migration.external && progress.was_configured();
    progress.leg == Leg::There && !cleaning && !external
}
