//! Goes through the stages of a journey, and turns back where it cannot go on.

mod evict;

use std::time::Duration;

use thiserror::Error;

use super::drain::{self, Gauge};
use super::evict::Leaving;
use super::gates::{self, Expected, Gate, Seen, Status};
use super::journal::{self, Entry, State};
use super::journey::{Leg, Stage};
use super::probes::Target;
use super::stage::{self, Unplanned};
use crate::action::Action;
use crate::apply::{self, Apply, StepError};
use crate::backend::Mode;
use crate::bridge::Lease;
use crate::cluster::Pod;
use crate::cluster::pod::{CrashLoop, Restarts};
use crate::evidence::{Evidence, Gap, Item, Time};
use crate::node::{NodeSnapshot, identity};
use crate::plan::{Plan, Step};

/// The node and its cluster, to be read and changed, and the place where the journal is.
pub trait Site: Apply {
    /// Reads `items`. What cannot be read is a gap.
    fn read(&mut self, items: &[Item]) -> impl Future<Output = Evidence>;
    /// Returns the unique ids of the pods that kpx runs in.
    fn own_pods(&self) -> Result<Vec<String>, String>;
    /// Connects to `target`; returns what it met instead of an answer.
    fn probe(&mut self, target: &Target) -> impl Future<Output = Result<(), String>>;
    /// Returns kube-proxy's pods on the Node called `node`, as the API server has them.
    fn proxy_pods(&mut self, node: &str) -> impl Future<Output = Result<Vec<Pod>, Gap>>;
    /// Returns the last line that `container` of kube-proxy's pod `pod` logged before it ended, where it can be read.
    fn last_line(&mut self, pod: &str, container: &str) -> impl Future<Output = Option<String>>;
    /// Writes `entry` to the journal: when it returns, it is on the disk.
    fn record(&mut self, entry: &Entry) -> impl Future<Output = Result<(), String>>;
    /// Writes all there is into the folder of the journey. What is there already stays.
    fn backup(&mut self) -> impl Future<Output = Result<(), String>>;
    /// Has somebody who outlives kpx guard the bridge, which serves as `mode` does, and keeps its lease: before it is up.
    fn guard(&mut self, mode: Mode) -> impl Future<Output = Result<(), String>>;
    /// Has the bridge, which serves as `mode` does, follow the cluster until it is taken down, and be guarded. One whose
    /// lease is over is loaded anew.
    fn follow(&mut self, mode: Mode) -> impl Future<Output = Result<(), String>>;
    /// Ends that, whatever it has begun being done, before the bridge is taken down.
    fn unfollow(&mut self) -> impl Future<Output = ()>;
    /// Returns what was to be said of that since it was asked last.
    fn heard(&mut self) -> Vec<String>;
    /// Returns whether somebody asked to stop.
    fn is_to_stop(&self) -> bool;
    /// Returns the present time.
    fn now(&self) -> Time;
    /// Waits.
    fn pause(&mut self, duration: Duration) -> impl Future<Output = ()>;
}

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For the gates, before it turns back.
    pub confirm: Duration,
    /// For connections to end, and for pods to leave.
    pub drain: Duration,
    /// Whether to go on with connections that have not ended.
    pub accept_loss: bool,
    /// Whether what somebody else does to the configuration is done.
    pub configured: bool,
    /// How long the bridge serves when nobody keeps it.
    pub lease: Duration,
}

/// What happens on the way.
#[derive(Clone, Copy, Debug)]
pub enum Event<'e> {
    /// A stage begins: on which way, and what it does; the how manieth it is, and of how many.
    Begins(Leg, Stage, &'e Plan, (usize, usize)),
    /// A step of a plan begins, or is taken back.
    Step(apply::Event<'e>),
    /// A stage is done.
    Done(Leg, Stage),
    /// The gates were looked at.
    Gates(&'e [Gate]),
    /// The connections were counted; and how many there were at first.
    Drain(&'e Gauge, usize),
    /// The pods that are to leave were counted.
    Evict(&'e Leaving),
    /// The bridge followed the cluster, or could not.
    Bridge(&'e str),
    /// A step failed because the node changed between the look and the step, and why: it is looked at again.
    Again(&'e str),
    /// Somebody asked to stop.
    Asked,
    /// The way turns back, and why.
    Turns(&'e str),
}

/// How it ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Ended {
    /// The node runs in the new mode.
    Migrated,
    /// It runs in the old mode, as before; and why.
    RolledBack(String),
    /// Everything is built; the configuration is for somebody else to change.
    Prepared,
    /// It is where it is, and why; the journal tells how to go on.
    Stopped(String),
}

/// Why a stage was not done.
#[derive(Debug, Error)]
enum Trouble {
    #[error("it was asked to stop")]
    Asked,
    #[error("the journal cannot be written, so nothing more was done: {0}")]
    Journal(String),
    #[error("cannot {}: {error}", .stage.title())]
    Unplanned { stage: Stage, error: Unplanned },
    #[error("cannot {}: {error}{}", .stage.title(), stay(.left))]
    Step {
        stage: Stage,
        error: StepError,
        left: Vec<(usize, String)>,
        /// Whether the kernel's state, which a kube-proxy that runs changes as well, made it fail.
        moved: bool,
    },
    #[error("cannot {}: {why}", .stage.title())]
    Failed { stage: Stage, why: String },
    #[error("after {} s not all is well: {what}", .waited.as_secs())]
    Gates { waited: Duration, what: String },
    #[error("kube-proxy does not start: {0}")]
    Crashes(CrashLoop),
    #[error(
        "after {} s {} through virtual servers, or from their addresses, still open: {}", .waited.as_secs(),
        .gauge.connections(), .gauge.holders()
    )]
    Drain { waited: Duration, gauge: Gauge },
    #[error("after {} s pods have not left the node: {what}", .waited.as_secs())]
    Evict { waited: Duration, what: String },
}

impl Trouble {
    /// Returns whether it may go well if the node is looked at again.
    const fn is_passing(&self) -> bool {
        match self {
            Self::Step { moved, .. } => *moved,
            Self::Unplanned { error, .. } => matches!(error, Unplanned::Gap(Gap::Failed(..))),
            _ => false,
        }
    }
}

/// Whether `step` failed because what it changes is not what it was when it was read, as far as that can be told: the tools
/// say so in many words, and another try does no harm.
fn is_moved(error: &StepError, step: Option<&Step>) -> bool {
    let changes = step.is_some_and(|step| {
        matches!(
            step.action,
            Action::Iptables { .. }
                | Action::Nft { .. }
                | Action::Ipset { .. }
                | Action::Ipvs { .. }
                | Action::Link { .. }
                | Action::Routes { .. }
        )
    });
    match error {
        StepError::Moved(_) => true,
        StepError::Refused(_) => changes,
        StepError::Denied(_) | StepError::Absent(_) | StepError::Held(_) => false,
    }
}

fn stay(left: &[(usize, String)]) -> String {
    let left = left
        .iter()
        .map(|(step, why)| format!("; step {} stays: {why}", step + 1));
    left.collect()
}

fn failed(stage: Stage, done: Result<(), String>) -> Result<Vec<String>, Trouble> {
    done.map(|()| Vec::new())
        .map_err(|why| Trouble::Failed { stage, why })
}

/// How often a stage is planned anew because the node changed while it was gone through: a kube-proxy that starts rewrites
/// its rules, and each time it does, what was read of them is old.
const TRIES: u32 = 5;

/// The pause before the first of these; each is that much longer than the one before.
const AGAIN: Duration = Duration::from_millis(500);

/// How often the node is looked at while something is waited for.
const PAUSE: Duration = Duration::from_secs(1);

/// Goes through the rest of a journey.
pub struct Engine<'e, S> {
    /// Where.
    pub site: &'e mut S,
    /// How long to wait for what.
    pub limits: Limits,
    /// Is told what happens.
    pub tell: &'e mut dyn FnMut(Event<'_>),
}

impl<S: Site> Engine<'_, S> {
    /// Goes on from `so_far` to the end, there or back.
    pub async fn run(&mut self, so_far: &mut State) -> Ended {
        let name = match self.name(so_far).await {
            Ok(name) => name,
            Err(gap) => return Ended::Stopped(gap.to_string()),
        };
        // Whoever kept the bridge up to date is gone, and perhaps the bridge is, too.
        if so_far.is_bridged()
            && let Err(why) = self.site.follow(so_far.served()).await
        {
            return Ended::Stopped(why);
        }
        let mut undrained = so_far.is_drained();
        while let Some(stage) = so_far.next() {
            if so_far.journey.elsewhere && stage.is_configuration() && !self.limits.configured {
                return Ended::Prepared;
            }
            let went = if std::mem::take(&mut undrained) {
                // The guard may have taken the bridge down since, and connections begun through virtual servers.
                self.drain(so_far, &name).await.map(|_| ())
            } else {
                self.stage(so_far, stage, &name).await
            };
            let Err(trouble) = went else {
                continue;
            };
            let why = trouble.to_string();
            let at = self.site.now();
            if matches!(trouble, Trouble::Journal(_)) {
                return Ended::Stopped(why);
            }
            let asked = matches!(trouble, Trouble::Asked);
            let entry = if !asked && turns(so_far, stage) {
                (self.tell)(Event::Turns(&why));
                Entry::Turned {
                    at,
                    why: why.clone(),
                    elsewhere: false,
                }
            } else {
                Entry::Stopped {
                    at,
                    why: why.clone(),
                }
            };
            let stops = matches!(entry, Entry::Stopped { .. });
            if let Err(trouble) = self.record(so_far, entry).await {
                return Ended::Stopped(trouble.to_string());
            }
            if stops {
                return Ended::Stopped(why);
            }
        }
        let (at, leg) = (self.site.now(), so_far.leg);
        if !so_far.ended
            && let Err(trouble) = self.record(so_far, Entry::Ended { at, leg }).await
        {
            return Ended::Stopped(trouble.to_string());
        }
        match leg {
            Leg::There => Ended::Migrated,
            Leg::Back => Ended::RolledBack(so_far.why.clone().unwrap_or_default()),
        }
    }

    /// Turns back, unless it did already.
    pub async fn turn(&mut self, so_far: &mut State, why: &str) -> Result<(), String> {
        self.turn_to(so_far, why, false).await
    }

    /// Turns back like [`Engine::turn`]; with `elsewhere` only as far as it goes before somebody else puts the configuration
    /// back and restarts kube-proxy, and on from there afterwards.
    pub async fn turn_to(
        &mut self,
        so_far: &mut State,
        why: &str,
        elsewhere: bool,
    ) -> Result<(), String> {
        if so_far.leg == Leg::Back {
            return Ok(());
        }
        let entry = Entry::Turned {
            at: self.site.now(),
            why: why.to_owned(),
            elsewhere,
        };
        let turned = self.record(so_far, entry).await;
        turned.map_err(|trouble| trouble.to_string())
    }

    async fn record(&mut self, so_far: &mut State, entry: Entry) -> Result<(), Trouble> {
        self.site.record(&entry).await.map_err(Trouble::Journal)?;
        if so_far.follow(entry) {
            Ok(())
        } else {
            Err(Trouble::Journal(
                "the entry cannot follow the ones before it".to_owned(),
            ))
        }
    }

    /// Returns the name of the Node that this is: as the journal has it, or, where an older kpx wrote that, as it is found.
    async fn name(&mut self, so_far: &mut State) -> Result<String, Gap> {
        if let Some(name) = &so_far.journey.node {
            return Ok(name.clone());
        }
        let evidence = self.site.read(identity::NEEDS).await;
        let name = NodeSnapshot::new(&evidence).name()?;
        so_far.journey.node = Some(name.clone());
        Ok(name)
    }

    async fn stage(&mut self, so_far: &mut State, stage: Stage, name: &str) -> Result<(), Trouble> {
        self.may_go_on()?;
        if stage == Stage::BridgeDown {
            // Or it might put back what this takes away.
            self.site.unfollow().await;
        }
        let mut pause = Duration::ZERO;
        let notes = loop {
            let trouble = match self.one_try(so_far, stage, name).await {
                Ok(notes) => break notes,
                Err(trouble) => trouble,
            };
            if !trouble.is_passing() || pause >= AGAIN * TRIES {
                return Err(trouble);
            }
            (self.tell)(Event::Again(&trouble.to_string()));
            pause += AGAIN;
            self.site.pause(pause).await;
            self.may_go_on()?;
        };
        let entry = Entry::Done {
            at: self.site.now(),
            leg: so_far.leg,
            stage,
            notes,
        };
        self.record(so_far, entry).await?;
        (self.tell)(Event::Done(so_far.leg, stage));
        Ok(())
    }

    /// Looks, plans, and carries the plan out.
    async fn one_try(
        &mut self,
        so_far: &mut State,
        stage: Stage,
        name: &str,
    ) -> Result<Vec<String>, Trouble> {
        let mine = !(so_far.journey.elsewhere && stage.is_configuration());
        let evidence = if mine {
            let mut items = stage::needs(so_far, stage);
            if matches!(stage, Stage::Build | Stage::Configure) {
                items.extend(gates::PROXY_NEEDS);
            }
            items.sort();
            items.dedup();
            self.site.read(&items).await
        } else {
            Evidence::default()
        };
        let node = NodeSnapshot::new(&evidence).called(Some(name));
        let plan = if mine {
            let own = match stage {
                Stage::Cordon | Stage::Evict => self.site.own_pods(),
                _ => Ok(Vec::new()),
            };
            let own = own.map_err(|why| Trouble::Failed { stage, why })?;
            let lease = Lease::of(self.limits.lease);
            stage::plan(so_far, stage, &evidence, name, &own, &lease)
        } else {
            Ok(Plan::default())
        };
        let plan = plan.map_err(|error| Trouble::Unplanned { stage, error })?;
        let known = matches!(stage, Stage::Build | Stage::Configure) && so_far.leg == Leg::There;
        let entry = Entry::Stage {
            at: self.site.now(),
            leg: so_far.leg,
            stage,
            steps: journal::recorded(&plan),
            proxy: known.then(|| gates::proxy(&node)),
        };
        self.record(so_far, entry).await?;
        let place = (so_far.done + 1, so_far.stages().len());
        (self.tell)(Event::Begins(so_far.leg, stage, &plan, place));
        match stage {
            Stage::Backup => failed(stage, self.site.backup().await),
            Stage::Drain => self.drain(so_far, name).await,
            Stage::Evict => self.evict(&plan).await,
            Stage::Verify | Stage::Recheck => self.wait(so_far, stage, name).await,
            Stage::BridgeUp => {
                failed(stage, self.site.guard(so_far.served()).await)?;
                self.do_steps(stage, &plan).await?;
                failed(stage, self.site.follow(so_far.served()).await)
            }
            Stage::Configure if so_far.leg == Leg::Back => {
                self.undo_steps(stage, &plan).await?;
                // What was not put back to the letter.
                Ok(plan.notes)
            }
            _ if so_far.leg == Leg::There && stage != Stage::Uncordon => {
                self.do_steps(stage, &plan).await
            }
            _ => self.undo_steps(stage, &plan).await,
        }
    }

    /// Says whether nobody asked to stop.
    fn may_go_on(&self) -> Result<(), Trouble> {
        if self.site.is_to_stop() {
            return Err(Trouble::Asked);
        }
        Ok(())
    }

    async fn do_steps(&mut self, stage: Stage, plan: &Plan) -> Result<Vec<String>, Trouble> {
        let tell = &mut self.tell;
        let watch = |event: apply::Event<'_>| tell(Event::Step(event));
        let ran = apply::run_while(plan, self.site, watch, |site| !site.is_to_stop()).await;
        let done = ran.map_err(|stopped| Trouble::Step {
            stage,
            moved: is_moved(&stopped.error, plan.steps.get(stopped.step)),
            error: stopped.error,
            left: stopped.left,
        })?;
        if done < plan.steps.len() {
            return Err(Trouble::Asked);
        }
        Ok(Vec::new())
    }

    /// Carries out a plan of the way back: what is done of it stays so, for it only leads nearer to the old mode.
    async fn undo_steps(&mut self, stage: Stage, plan: &Plan) -> Result<Vec<String>, Trouble> {
        let mut notes = Vec::new();
        for (number, step) in plan.steps.iter().enumerate() {
            self.may_go_on()?;
            (self.tell)(Event::Step(apply::Event::Begins(number, &step.title)));
            let Err(error) = self.site.apply(&step.action).await else {
                continue;
            };
            // Whoever uses a module by now is not to lose it.
            if !matches!(step.action, Action::UnloadModules { .. }) {
                return Err(Trouble::Step {
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

    /// Waits until there are no connections that the removal of virtual servers would break.
    async fn drain(&mut self, so_far: &State, name: &str) -> Result<Vec<String>, Trouble> {
        let stage = Stage::Drain;
        let cluster = crate::node::desired::NEEDS;
        let named = self.site.read(cluster).await;
        let named = NodeSnapshot::new(&named).called(Some(name));
        let desired = named.desired(so_far.journey.source(so_far.leg)).ok();
        let mut waited = Duration::ZERO;
        let mut first = None;
        loop {
            let evidence = self
                .site
                .read(drain::awaited(so_far.journey.strategy))
                .await;
            let gauge = Gauge::read(&NodeSnapshot::new(&evidence), desired);
            let gauge = gauge.map_err(|gap| Trouble::Failed {
                stage,
                why: gap.to_string(),
            })?;
            let first = *first.get_or_insert(gauge.count);
            (self.tell)(Event::Drain(&gauge, first));
            if gauge.count == 0 {
                return Ok(Vec::new());
            }
            if self.limits.accept_loss && waited >= self.limits.drain {
                let lost = format!("{} lost: {}", gauge.connections(), gauge.holders());
                return Ok(vec![lost]);
            }
            if waited >= self.limits.drain {
                return Err(Trouble::Drain { waited, gauge });
            }
            self.pause().await?;
            waited += PAUSE;
        }
    }

    /// Waits until every gate is passed.
    async fn wait(
        &mut self,
        so_far: &State,
        stage: Stage,
        name: &str,
    ) -> Result<Vec<String>, Trouble> {
        let (leg, fields) = (so_far.leg, so_far.journey.fields(so_far.leg).clone());
        let expected = Expected {
            fields: &fields,
            before: so_far.proxy.filter(|_| leg == Leg::There),
            cleaned: (stage == Stage::Recheck).then(|| so_far.journey.source(leg)),
        };
        let mut seen = Seen::default();
        let mut restarts = Restarts::default();
        let mut waited = Duration::ZERO;
        let began = self.site.now();
        loop {
            let mut gates = self.look(so_far, expected, &mut seen, name).await;
            if gates.iter().any(Gate::is_open)
                && let Some(found) = self.crash_loop(so_far, name, &mut restarts).await
            {
                // On the way back there is nothing to turn to: it may come up yet.
                if leg == Leg::There && stage == Stage::Verify {
                    return Err(Trouble::Crashes(found));
                }
                gates.insert(0, gates::of_crash(&found));
            }
            (self.tell)(Event::Gates(&gates));
            let open: Vec<_> = gates.iter().filter(|gate| gate.is_open()).collect();
            if open.is_empty() {
                // Once is enough.
                return Ok(if stage == Stage::Verify {
                    not_told(&gates)
                } else {
                    Vec::new()
                });
            }
            // Looks take their time, too.
            if waited.max(self.site.now().since(began)) >= self.limits.confirm {
                let what = open
                    .iter()
                    .map(|gate| format!("{}: {}", gate.name, gate.reason));
                let what = what.collect::<Vec<_>>().join("; ");
                return Err(Trouble::Gates {
                    waited: self.limits.confirm,
                    what,
                });
            }
            self.pause().await?;
            waited += PAUSE;
        }
    }

    /// Waits a while, unless somebody asks to stop, and tells what became of the bridge meanwhile.
    async fn pause(&mut self) -> Result<(), Trouble> {
        self.may_go_on()?;
        self.site.pause(PAUSE).await;
        for text in self.site.heard() {
            (self.tell)(Event::Bridge(&text));
        }
        self.may_go_on()
    }

    /// Returns the crash loop that kube-proxy is in. Where its pods cannot be seen, the gates alone tell how it does.
    async fn crash_loop(
        &mut self,
        so_far: &State,
        name: &str,
        restarts: &mut Restarts,
    ) -> Option<CrashLoop> {
        let pods = self.site.proxy_pods(name).await.ok()?;
        let started = so_far.proxy.and_then(|proxy| proxy.started);
        let since = started.map(|seconds| Time { seconds });
        let mut found = restarts.crash_loop(&pods, since)?;
        found.last_line = self.site.last_line(&found.pod, &found.container).await;
        Some(found)
    }

    /// Looks at the gates: first at those that cost little, and at the others once these are passed.
    async fn look(
        &mut self,
        so_far: &State,
        expected: Expected<'_>,
        seen: &mut Seen,
        name: &str,
    ) -> Vec<Gate> {
        let evidence = self.site.read(gates::PROXY_NEEDS).await;
        let node = NodeSnapshot::new(&evidence).called(Some(name));
        let mut all = gates::of_proxy(&node, expected, seen);
        if all.iter().any(Gate::is_open) {
            return all;
        }
        let evidence = self.site.read(&gates::state_needs(expected)).await;
        let node = NodeSnapshot::new(&evidence).called(Some(name));
        all.extend(gates::of_state(&node, expected, seen));
        if all.iter().any(Gate::is_open) {
            return all;
        }
        let mut silent = Vec::new();
        for target in &so_far.journey.probes {
            if let Err(met) = self.site.probe(target).await {
                silent.push(format!("{target}: {met}"));
            }
        }
        all.push(gates::of_probes(&silent));
        all
    }
}

/// What the way goes on without.
fn not_told(gates: &[Gate]) -> Vec<String> {
    let skipped = gates.iter().filter(|gate| gate.status == Status::Skipped);
    let words = skipped.map(|gate| {
        format!(
            "not known, and gone on without: {}: {}",
            gate.name, gate.reason
        )
    });
    words.collect()
}

/// Whether trouble in `stage` leads back. Where the node already serves in the new mode and is only not rid of the old one,
/// it stays there; and what somebody else changed, they change back.
fn turns(so_far: &State, stage: Stage) -> bool {
    let verified = so_far.stages()[..so_far.done].contains(&Stage::Verify);
    let cleaning = verified
        && matches!(
            stage,
            Stage::Unlink | Stage::Drain | Stage::Clean | Stage::BridgeDown | Stage::Uncordon
        );
    let elsewhere = so_far.journey.elsewhere && so_far.was_configured();
    so_far.leg == Leg::There && !cleaning && !elsewhere
}
