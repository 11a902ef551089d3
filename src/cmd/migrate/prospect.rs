//! What a migration would do to this node, and what stands in its way.

use color_eyre::eyre::eyre;
use futures_util::future::join_all;

use super::site::probe;
use crate::backend::Mode;
use crate::bridge::Lease;
use crate::check;
use crate::cli::{Global, JourneyArgs, StrategyArg};
use crate::cluster::config::ProxyConfig;
use crate::cluster::edit::Fields;
use crate::cluster::validate;
use crate::cmd::failure::{Failure, Hint as _};
use crate::cmd::identity::Named;
use crate::cmd::{Io, doctor, gather, mode, preflight};
use crate::diff;
use crate::evidence::{Evidence, Item, Time};
use crate::host::{clock, own_pods};
use crate::migrate::gates::{self, Expected, Seen};
use crate::migrate::journal::State;
use crate::migrate::journey::{Journey, Stage, Strategy};
use crate::migrate::removal::Removal;
use crate::migrate::{drain, loss, probes, stage};
use crate::node::NodeSnapshot;
use crate::node::identity::Clue;
use crate::plan::{self, ConfigSource, Consent, Plan};
use crate::report::migrate::{Offer, Offers, Prospect, StagePlan};
use crate::report::preflight::PreflightReport;
use crate::requirements::Status;

const READ: &str = "`kpx snapshot -v` says what of the node and its cluster can be read";

/// What a migration would do.
pub(super) struct Outlook {
    pub(super) journey: Journey,
    pub(super) prospect: Prospect,
    pub(super) notes: Vec<String>,
}

/// Returns the mode that kube-proxy says it runs in.
pub(super) async fn present(global: &Global, io: &Io<'_>) -> Result<Mode, Failure> {
    let evidence = gather(global, io, &[Item::ProxyMode]).await?;
    let told = NodeSnapshot::new(&evidence).reported_mode();
    told.hint("only a kube-proxy that runs, and says its mode at its metrics address, can be seen to change it")
}

/// Looks at the node, which is `named`, and plans the way from mode `from`.
pub(super) async fn look(
    global: &Global,
    named: &Named,
    io: &Io<'_>,
    args: &JourneyArgs,
    from: Mode,
    elsewhere: bool,
) -> Result<Outlook, Failure> {
    let to = to(args)?;
    refuse_strays(global, args)?;
    let name = named.name.as_str();
    let skipped = doctor::named(&args.skip)?;
    let mut checks = check::asked(Some(to));
    checks.retain(|check| skipped.iter().all(|skipped| skipped.id != check.id));
    let report = preflight::look(global, io, to, &checks).await?;
    preflight::refuse_without(&report)?;
    let evidence = gather(global, io, &needs(from, to)).await?;
    let node = NodeSnapshot::new(&evidence).called(Some(name));
    plan::refuse_other(&node)
        .hint("a migration changes kube-proxy's mode, and it is not kube-proxy that serves here")?;
    refuse_unseen(&node, from)?;
    refuse_invalid(&evidence, to)?;
    let mut journey = journey(&node, args, from, elsewhere, &report)?;
    journey.node = Some(name.to_owned());
    let state = State::new(journey.clone());
    let wanted = stage::configured(&evidence, &state).hint(READ)?;
    let wanted = NodeSnapshot::new(&wanted).called(Some(name));
    let desired = wanted.desired(to).hint(READ)?;
    if global.from.is_none() {
        let targets = probes::targets(desired);
        let met = join_all(targets.iter().map(|target| probe(global, target))).await;
        let answered = targets.into_iter().zip(met).filter(|(_, met)| met.is_ok());
        journey.probes = answered.map(|(target, _)| target).collect();
    }
    let store = ConfigSource::find(&node, name);
    let (place, diff) = match &store {
        Ok(store) => (store.place().to_string(), store.diff(&journey.there)),
        Err(gap) => (gap.to_string(), String::new()),
    };
    let stages = stages(&state, &evidence, name, args)?;
    let others = Strategy::ALL.into_iter();
    let others = others.filter(|strategy| *strategy != journey.strategy);
    let others = others.map(|strategy| {
        let journey = Journey {
            strategy,
            ..journey.clone()
        };
        Offer {
            strategy,
            loss: loss::expect(&node, desired, &journey),
            refused: refused(&State::new(journey), &stages, &evidence, name, &lease(args)),
        }
    });
    let prospect = Prospect {
        store: place,
        diff,
        strategies: Offers {
            why: match args.strategy {
                Some(_) => "it was asked for".to_owned(),
                None => Strategy::why_usual(from, to).to_owned(),
            },
            others: others.collect(),
            without_kpx: loss::plain(&node, desired, from, to),
        },
        stages,
        loss: loss::expect(&node, desired, &journey),
        assessment: report.assessment,
    };
    let mut notes = notes(from, to);
    if !matches!(named.by, Clue::Given | Clue::Flag | Clue::Config) {
        notes.push(format!("this machine is Node {name}, by {}", named.by));
    }
    if store.is_ok_and(|store| store.is_shared()) && !elsewhere {
        notes.push(
            "the configuration is that of all nodes: from its change on, each other node goes to the new mode whenever its \
             kube-proxy happens to restart"
                .to_owned(),
        );
    }
    Ok(Outlook {
        journey,
        prospect,
        notes,
    })
}

/// Returns the mode that is asked for.
pub(super) fn to(args: &JourneyArgs) -> Result<Mode, Failure> {
    let to = args.to.map(mode);
    to.ok_or_else(|| Failure::usage("--to MODE says which mode"))
}

fn needs(from: Mode, to: Mode) -> Vec<Item> {
    let mut items = [
        &diff::needs(from)[..],
        &diff::needs(to),
        gates::PROXY_NEEDS,
        plan::CONFIG_NEEDS,
        drain::NEEDS,
        plan::BRIDGE_RULES,
        plan::EVICT_NEEDS,
        plan::CLEANUP_NEEDS,
        &[Item::Modules, Item::ModulesBuiltin, Item::ModulesDep],
    ]
    .concat();
    items.sort();
    items.dedup();
    items
}

/// Refuses a configuration that kube-proxy would refuse in mode `to`: its container would end again and again.
pub(super) fn refuse_invalid(evidence: &Evidence, to: Mode) -> Result<(), Failure> {
    let text = evidence.text(Item::ProxyConfig).hint(READ)?;
    let refused = validate::refused(text, to).hint(READ)?;
    // The mode is about to be another one.
    let refused = refused.iter().filter(|of| of.field != "mode");
    let refused: Vec<String> = refused.map(ToString::to_string).collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(Failure::from(eyre!(
        "kube-proxy would not start in mode {to}: {}; nothing was changed",
        refused.join("; ")
    ))
    .with_hint("set these fields in kube-proxy's configuration first"))
}

/// Refuses a node whose kube-proxy could not be seen to do well afterwards.
fn refuse_unseen(node: &NodeSnapshot<'_>, from: Mode) -> Result<(), Failure> {
    let fields = Fields {
        mode: from,
        scheduler: None,
        strict_arp: None,
    };
    let expected = Expected {
        fields: &fields,
        before: None,
        cleaned: None,
    };
    let gates = gates::of_proxy(node, expected, &mut Seen::default());
    let unknown = gates
        .iter()
        .find(|gate| gate.status == gates::Status::Unknown);
    match unknown {
        None => Ok(()),
        Some(gate) => Err(Failure::from(eyre!(
            "whether kube-proxy does well could not be told afterwards: {}",
            gate.reason
        ))
        .with_hint("it must run, and have its metrics where its configuration says")),
    }
}

/// Returns the name of a migration that began at `began`.
pub(super) fn id(began: Time, from: Mode, to: Mode) -> String {
    let time = began.to_string();
    let time: String = time.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("{time}-{from}-{to}")
}

/// Returns what is set in the configuration, which is `config` now, on the way there and on the way back.
pub(super) fn fields(
    args: &JourneyArgs,
    config: &ProxyConfig,
    from: Mode,
    to: Mode,
) -> (Fields, Fields) {
    let there = Fields {
        mode: to,
        scheduler: args.scheduler.clone(),
        strict_arp: args.strict_arp,
    };
    let scheduler = args.scheduler.as_ref();
    let back = Fields {
        mode: from,
        scheduler: scheduler.map(|_| config.ipvs.scheduler.clone()),
        strict_arp: args.strict_arp.map(|_| config.ipvs.strict_arp),
    };
    (there, back)
}

fn journey(
    node: &NodeSnapshot<'_>,
    args: &JourneyArgs,
    from: Mode,
    elsewhere: bool,
    report: &PreflightReport,
) -> Result<Journey, Failure> {
    let to = to(args)?;
    let config = node.proxy_config().hint(READ)?;
    let began = clock::now();
    let (there, back) = fields(args, config, from, to);
    Ok(Journey {
        id: id(began, from, to),
        began,
        node: None,
        from,
        there,
        back,
        strategy: match args.strategy {
            // Nothing that is there goes by the mode that it left any more.
            _ if node.reported_mode() == Ok(to) => Strategy::InPlace,
            Some(arg) => strategy(arg),
            None => Strategy::usual(from, to),
        },
        evict: consent(args),
        modules: report.modules(Status::Loadable),
        elsewhere,
        probes: Vec::new(),
    })
}

/// Returns the strategy that is asked for.
pub(super) const fn strategy(arg: StrategyArg) -> Strategy {
    match arg {
        StrategyArg::Bridge => Strategy::Bridge,
        StrategyArg::InPlace => Strategy::InPlace,
        StrategyArg::DrainNode => Strategy::DrainNode,
    }
}

/// Returns what may be evicted although something is lost with it.
pub(super) const fn consent(args: &JourneyArgs) -> Consent {
    Consent {
        bare: args.evict.delete_bare_pods,
        empty_dir: args.evict.delete_emptydir_data,
    }
}

/// Refuses settings that go with another mode or strategy than what is asked for.
pub(super) fn refuse_strays(global: &Global, args: &JourneyArgs) -> Result<(), Failure> {
    let drains = args.strategy == Some(StrategyArg::DrainNode);
    let what = if to(args)? != Mode::Ipvs && (args.scheduler.is_some() || args.strict_arp.is_some())
    {
        "--scheduler and --strict-arp are settings of mode ipvs"
    } else if !drains && !consent(args).is_none() {
        "--delete-bare-pods and --delete-emptydir-data go with --strategy drain-node"
    } else if drains && global.no_api {
        "--strategy drain-node cordons the node and evicts its pods through the API server, which --no-api leaves out"
    } else {
        return Ok(());
    };
    Err(Failure::usage(what))
}

fn lease(args: &JourneyArgs) -> Lease {
    Lease::of(args.go_on.lease)
}

/// Returns what each stage would do, as far as that can be known before the ones in front of it are done.
fn stages(
    state: &State,
    evidence: &Evidence,
    name: &str,
    args: &JourneyArgs,
) -> Result<Vec<StagePlan>, Failure> {
    let own =
        own_pods().map_err(|why| eyre!(why).wrap_err("cannot tell whether kpx runs in a pod"))?;
    let mut all = Vec::new();
    for stage in state.stages() {
        let known = matches!(
            stage,
            Stage::Prepare
                | Stage::BridgeUp
                | Stage::Cordon
                | Stage::Evict
                | Stage::Build
                | Stage::Configure
                | Stage::Restart
        );
        let plan = if state.journey.elsewhere && stage.is_configuration() {
            Plan {
                notes: vec!["this is for others to do".to_owned()],
                ..Plan::default()
            }
        } else if known {
            // What the stage itself will have: what it does not ask for must not be needed.
            let evidence = evidence.only(&stage::needs(state, stage));
            match stage::plan(state, stage, &evidence, name, &own, &lease(args)) {
                Ok(plan) => plan,
                // What is refused is known.
                Err(error @ stage::Unplanned::Evict(_)) => return Err(unplanned(error)),
                // A look is worth more with a hole in it than not at all.
                Err(error) if args.dry_run => {
                    all.push(StagePlan::unknown(stage, &error));
                    continue;
                }
                Err(error) => return Err(unplanned(error)),
            }
        } else {
            Plan::default()
        };
        let mut planned = StagePlan::new(stage, plan);
        if stage == Stage::Clean {
            removal(state, evidence, &mut planned);
        }
        all.push(planned);
    }
    Ok(all)
}

/// Adds what is left of the old mode to be removed.
fn removal(state: &State, evidence: &Evidence, planned: &mut StagePlan) {
    let (from, to) = (state.journey.from, state.journey.to());
    match Removal::expected(evidence, from, to) {
        Ok(removal) => planned.removes = Some(removal),
        Err(why) => planned
            .notes
            .push(format!("it is not known how much that is: {why}")),
    }
    if to == Mode::Nftables || from == Mode::Nftables {
        planned.notes.push(format!(
            "kube-proxy itself removes most of it when it starts in mode {to}"
        ));
    }
}

/// Returns why a stage of another strategy, which the planned `stages` are without, cannot be planned.
fn refused(
    other: &State,
    stages: &[StagePlan],
    evidence: &Evidence,
    name: &str,
    lease: &Lease,
) -> Option<String> {
    let own = match own_pods() {
        Ok(own) => own,
        Err(why) => return Some(why.clone()),
    };
    let special = [Stage::BridgeUp, Stage::Cordon, Stage::Evict];
    let more = other.stages().into_iter();
    let more = more.filter(|stage| special.contains(stage));
    let mut more = more.filter(|stage| stages.iter().all(|planned| planned.stage != *stage));
    more.find_map(|stage| {
        let plan = stage::plan(other, stage, evidence, name, &own, lease);
        plan.err().map(|why| why.to_string())
    })
}

fn unplanned(error: stage::Unplanned) -> Failure {
    match &error {
        stage::Unplanned::Bridge(_) => Failure::from(error).with_hint(
            "--strategy in-place does without: then what changes in the cluster is not followed for a while",
        ),
        stage::Unplanned::Evict(plan::Unevictable::Lossy(lossy)) => {
            let command = lossy.command();
            Failure::from(error).with_hint(format!(
                "`{command}` evicts them beforehand; nothing was changed"
            ))
        }
        stage::Unplanned::Unwritable(_) => Failure::from(error).with_hint(
            "`kpx migrate prepare` and `kpx migrate finish` do what comes before and after the change of the configuration",
        ),
        _ => Failure::from(error).with_hint(READ),
    }
}

pub(super) fn notes(from: Mode, to: Mode) -> Vec<String> {
    let mut notes = Vec::new();
    if to == Mode::Ipvs {
        notes.push(
            "mode ipvs is deprecated since Kubernetes 1.35, is to be off by default from 1.40, and to be gone from 1.43 \
             (KEP-5495); what replaces it is `kpx migrate --to nftables`"
                .to_owned(),
        );
    }
    if from == Mode::Ipvs {
        notes.push(
            "kernel modules and settings of mode ipvs stay: they do nothing without virtual servers".to_owned(),
        );
        notes.push(
            "what a process of this host opened to a Service from an address of kube-ipvs0, UDP sockets included, cannot \
             outlive mode ipvs: with the bridge its end is waited for, else it breaks with that link; `ss -tun` shows it, \
             with the Service's address on both sides"
                .to_owned(),
        );
    }
    notes
}
