//! The draft of a migration: its plan on this node, and the obstacles.

use std::collections::BTreeSet;
use std::mem;

use color_eyre::eyre::eyre;

use super::args::JourneyArgs;
use super::local_node::probe;
use super::report::{FoundProvider, Offer, Offers, PlannedMigration, PlannedStage};
use crate::command::diff::run as cmd_diff;
use crate::command::preflight::report::PreflightReport;
use crate::command::preflight::run as preflight;
use crate::command::shared::READABLE;
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::identity::Named;
use crate::command::shared::local_bridge::read_all;
use crate::command::shared::named_checks;
use crate::command::shared::session::{Readable as _, Session};
use crate::provider;
use kpx_host::{clock, own_pods};
use kpx_judge::bridge::Lease;
use kpx_judge::check::{self, Severity};
use kpx_judge::diff;
use kpx_judge::plan::{self, ConfigSource, Consent, Plan};
use kpx_judge::requirements::Status;
use kpx_migrate::accept;
use kpx_migrate::gates::{self, Expected, Previous};
use kpx_migrate::journal::MigrationState;
use kpx_migrate::migration::{Migration, Stage, Strategy};
use kpx_migrate::preview::blocked_by;
use kpx_migrate::probes::{Answerer, Target, Unanswered};
use kpx_migrate::removal::Removal;
use kpx_migrate::{drain, loss, probes, stage};
use kpx_node::backend::Mode;
use kpx_node::cluster::config::ProxyConfig;
use kpx_node::cluster::edit::Fields;
use kpx_node::cluster::validate;
use kpx_node::desired::DesiredState;
use kpx_node::evidence::{Evidence, Item, Time};
use kpx_node::net::Vantage;
use kpx_node::node::NodeSnapshot;
use kpx_node::node::identity::Clue;

/// A migration before it is confirmed.
pub(super) struct Draft {
    pub(super) migration: Migration,
    pub(super) plan: PlannedMigration,
    pub(super) notes: Vec<String>,
}

/// Returns the mode that kube-proxy reports.
pub(super) async fn present(session: &Session) -> Result<Mode, Failure> {
    let evidence = session.gather(&[Item::ProxyMode]).await?;
    let reported = NodeSnapshot::new(&evidence).reported_mode();
    reported.hint("kube-proxy must run and serve /proxyMode at its metrics address, so that kpx can verify the new mode")
}

/// Returns `failure` of a kube-proxy that does not report its mode, or instead what the checks before a switch find about it.
pub(super) async fn silent(session: &Session, args: &JourneyArgs, failure: Failure) -> Failure {
    let (Ok(to), Ok(skipped)) = (to(args), named_checks::named(&args.skip)) else {
        return failure;
    };
    let mut checks = check::asked(Some(to));
    checks.retain(|check| skipped.iter().all(|skipped| skipped.id != check.id));
    let accepted = accept::classes(&args.go_on.accept_loss);
    let Ok(report) = preflight::look(session, to, &checks, &accepted).await else {
        return failure;
    };
    let mut findings = report.assessment.findings.iter();
    if !findings.any(|finding| finding.id == SILENT && finding.severity == Severity::Error) {
        return failure;
    }
    Failure::from(eyre!(
        "blocked by {}; nothing was changed",
        blocked_by(&report.assessment.blockers())
    ))
    .with_hint("`kpx explain ID` describes each fix")
    .blocked()
}

/// The check whether kube-proxy answers.
const SILENT: &str = "KP05";

/// Adds the page about the provider of node `name` to a failure, if the provider is known.
pub(super) async fn explained<T>(
    session: &Session,
    name: &str,
    result: Result<T, Failure>,
) -> Result<T, Failure> {
    let Err(failure) = result else {
        return result;
    };
    Err(match session.gather(provider::NEEDS).await {
        Ok(evidence) => hinted(failure, &NodeSnapshot::new(&evidence), name),
        Err(_) => failure,
    })
}

/// Adds the page about the provider of node `name` to `failure`, if the provider is known.
pub(super) fn hinted(failure: Failure, node: &NodeSnapshot<'_>, name: &str) -> Failure {
    match provider::recognise(node, name) {
        Ok(found) => failure.and_hint(&format!(
            "`kpx explain {}` says what is possible with {}",
            found.provider.id, found.provider.name
        )),
        Err(_) => failure,
    }
}

/// Reads the node, which is `named`, and plans its migration from mode `from`.
pub(super) async fn plan(
    session: &Session,
    named: &Named,
    args: &JourneyArgs,
    from: Mode,
    external: bool,
) -> Result<Draft, Failure> {
    let to = to(args)?;
    refuse_strays(session, args)?;
    let name = named.name.as_str();
    let skipped = named_checks::named(&args.skip)?;
    let mut checks = check::asked(Some(to));
    checks.retain(|check| skipped.iter().all(|skipped| skipped.id != check.id));
    let accepted = accept::classes(&args.go_on.accept_loss);
    let report = preflight::look(session, to, &checks, &accepted).await?;
    preflight::refuse_without(&report)?;
    let mut items = needs(from, to);
    let proves = args.dry_run && !args.brief;
    if proves {
        items.extend(cmd_diff::packets_need());
        items.sort();
        items.dedup();
    }
    let evidence = session.gather(&items).await?;
    let node = NodeSnapshot::new(&evidence).called(Some(name));
    plan::refuse_other(&node)
        .hint("kpx migrates kube-proxy, and another proxy serves Services on this node")?;
    refuse_unobservable(&node, from)?;
    refuse_invalid(&evidence, to)?;
    let mut migration = migration(&node, args, from, external, &report)?;
    migration.node = Some(name.to_owned());
    let state = MigrationState::new(migration.clone());
    let wanted = stage::configured(&evidence, &state).readable()?;
    let wanted = NodeSnapshot::new(&wanted).called(Some(name));
    let desired = wanted.desired(to).readable()?;
    let mut unprobed = Vec::new();
    if !args.dry_run {
        (migration.probes, unprobed) = probed(session, &node, desired, name).await;
    }
    let store = ConfigSource::find(&node, name);
    let (place, diff) = match &store {
        Ok(store) => (store.place().to_string(), store.diff(&migration.there)),
        Err(gap) => (gap.to_string(), String::new()),
    };
    // What blocks the migration is reported before what keeps a stage from being planned.
    let lenient = args.dry_run || !report.assessment.blockers().is_empty();
    let stages = stages(&state, &evidence, name, args, lenient)?;
    let others = Strategy::ALL.into_iter();
    let others = others.filter(|strategy| *strategy != migration.strategy);
    let others = others.map(|strategy| {
        let migration = Migration {
            strategy,
            ..migration.clone()
        };
        Offer {
            strategy,
            loss: loss::expect(&node, desired, &migration),
            refused: refused(
                &MigrationState::new(migration),
                &stages,
                &evidence,
                name,
                &lease(args),
            ),
        }
    });
    let plan = PlannedMigration {
        store: place,
        diff,
        provider: FoundProvider::from(provider::recognise(&node, name)),
        strategies: Offers {
            why: match args.strategy {
                Some(_) => "requested".to_owned(),
                None => Strategy::why_usual(from, to).to_owned(),
            },
            others: others.collect(),
            without_kpx: loss::plain(&node, desired, from, to),
        },
        stages,
        packets: proves.then(|| cmd_diff::proof_of(session, &node, to, true)),
        loss: loss::expect(&node, desired, &migration),
        assessment: report.assessment,
    };
    let mut notes = notes(from, to);
    notes.extend(unprobed);
    notes.extend(accept::unused(&accepted, &plan.lost(), to));
    if !matches!(named.by, Clue::Given | Clue::Flag | Clue::Config) {
        notes.push(format!(
            "this machine is Node {name}, found by {}",
            named.by
        ));
    }
    if store.is_ok_and(|store| store.is_shared()) && !external {
        notes.push(
            "all nodes share the configuration: once it is changed, every other node changes to the new mode when its \
             kube-proxy restarts"
                .to_owned(),
        );
    }
    Ok(Draft {
        migration,
        plan,
        notes,
    })
}

/// Returns the Services that answer now, and a note for each network from which none does.
async fn probed(
    session: &Session,
    node: &NodeSnapshot<'_>,
    desired: &DesiredState,
    name: &str,
) -> (Vec<Target>, Vec<String>) {
    let (pods, mut notes) = match probes::clients(node, name) {
        Ok(pods) => (pods, Vec::new()),
        Err(gap) => (
            Vec::new(),
            vec![format!("Services are not probed from a pod: {gap}")],
        ),
    };
    let targets = probes::targets(desired, &pods);
    let met = probe(session, &targets).await;
    let tables = read_all(session, probes::NEEDS).await;
    let tables = NodeSnapshot::new(&tables);
    let (mut answered, mut failed) = (Vec::new(), Vec::new());
    for (mut target, met) in targets.into_iter().zip(met) {
        match met {
            Ok(client) => {
                let by = probes::answerer(&tables, desired, &target, client);
                target.by_endpoint = by == Answerer::Endpoint;
                answered.push(target);
            }
            Err(Unanswered::Silent(why)) => failed.push((target, why)),
            Err(Unanswered::NoPod) => failed.push((target, "the pod has ended".to_owned())),
        }
    }
    let mut told = BTreeSet::new();
    for (target, why) in failed {
        let like =
            |other: &Target| mem::discriminant(&other.from) == mem::discriminant(&target.from);
        if target.from != Vantage::Node && !answered.iter().any(like) {
            let from = match target.from {
                Vantage::Outside => "outside the cluster",
                Vantage::Node | Vantage::Pod(_) => "a pod",
            };
            if told.insert(from) {
                notes.push(format!(
                    "no Service answers from {from}, so none is probed from there: {target}: {why}"
                ));
            }
        }
    }
    (answered, notes)
}

/// Returns the requested mode.
pub(super) fn to(args: &JourneyArgs) -> Result<Mode, Failure> {
    args.to
        .ok_or_else(|| Failure::usage("--to MODE is required"))
}

fn needs(from: Mode, to: Mode) -> Vec<Item> {
    let mut items = [
        &diff::needs(from)[..],
        &diff::needs(to),
        gates::PROXY_NEEDS,
        plan::CONFIG_NEEDS,
        provider::NEEDS,
        drain::NEEDS,
        &[Item::Conntrack],
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

/// Refuses a configuration that kube-proxy rejects in mode `to`: its container would crash-loop.
pub(super) fn refuse_invalid(evidence: &Evidence, to: Mode) -> Result<(), Failure> {
    let text = evidence.text(Item::ProxyConfig).readable()?;
    let refused = validate::refused(text, to, None).readable()?;
    // The mode is about to change.
    let refused = refused.iter().filter(|refused| refused.field != "mode");
    let refused: Vec<String> = refused.map(ToString::to_string).collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(Failure::from(eyre!(
        "kube-proxy rejects its configuration in mode {to}: {}; nothing was changed",
        refused.join("; ")
    ))
    .with_hint("change these fields of kube-proxy's configuration first"))
}

/// Refuses a node on which the gates could not be checked afterwards.
fn refuse_unobservable(node: &NodeSnapshot<'_>, from: Mode) -> Result<(), Failure> {
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
    let gates = gates::of_proxy(node, expected, &mut Previous::default());
    let unknown = gates
        .iter()
        .find(|gate| gate.status == gates::Status::Unknown);
    match unknown {
        None => Ok(()),
        Some(gate) => Err(Failure::from(eyre!(
            "kpx would be unable to verify kube-proxy after the migration: {}",
            gate.reason
        ))
        .with_hint("kube-proxy must run and serve metrics at the address in its configuration")),
    }
}

/// Returns the id of a migration that began at `began`.
pub(super) fn id(began: Time, from: Mode, to: Mode) -> String {
    let time = began.to_string();
    let time: String = time.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("{time}-{from}-{to}")
}

/// Returns the fields that are set in the configuration, now `config`, by the migration and by its rollback.
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

fn migration(
    node: &NodeSnapshot<'_>,
    args: &JourneyArgs,
    from: Mode,
    external: bool,
    report: &PreflightReport,
) -> Result<Migration, Failure> {
    let to = to(args)?;
    let config = node.proxy_config().readable()?;
    let began = clock::now();
    let (there, back) = fields(args, config, from, to);
    Ok(Migration {
        id: id(began, from, to),
        began,
        node: None,
        from,
        there,
        back,
        strategy: match args.strategy {
            // The old mode no longer serves, so only its leftovers are removed.
            _ if node.reported_mode() == Ok(to) => Strategy::InPlace,
            Some(strategy) => strategy,
            None => Strategy::usual(from, to),
        },
        evict: consent(args),
        modules: report.modules(Status::Loadable),
        external,
        probes: Vec::new(),
    })
}

/// Returns which pods may be evicted although data is lost.
pub(super) const fn consent(args: &JourneyArgs) -> Consent {
    Consent {
        bare: args.evict.delete_bare_pods,
        empty_dir: args.evict.delete_emptydir_data,
    }
}

/// Refuses options that belong to another mode or strategy.
pub(super) fn refuse_strays(session: &Session, args: &JourneyArgs) -> Result<(), Failure> {
    let drains = args.strategy == Some(Strategy::DrainNode);
    let what = if to(args)? != Mode::Ipvs && (args.scheduler.is_some() || args.strict_arp.is_some())
    {
        "--scheduler and --strict-arp require --to ipvs"
    } else if !drains && !consent(args).is_none() {
        "--delete-bare-pods and --delete-emptydir-data require --strategy drain-node"
    } else if drains && session.host.no_api {
        "--strategy drain-node cordons the node and evicts its pods through the API server: it cannot be used with --no-api"
    } else {
        return Ok(());
    };
    Err(Failure::usage(what))
}

fn lease(args: &JourneyArgs) -> Lease {
    Lease::of(args.go_on.lease())
}

/// Returns the plan of each stage, as far as it can be known before the earlier stages are done. With `lenient`, a stage that cannot
/// be planned is unknown.
fn stages(
    state: &MigrationState,
    evidence: &Evidence,
    name: &str,
    args: &JourneyArgs,
    lenient: bool,
) -> Result<Vec<PlannedStage>, Failure> {
    let own = own_pods()
        .map_err(|why| eyre!(why).wrap_err("cannot find out whether kpx runs in a pod"))?;
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
        let plan = if state.migration.external && stage.is_configuration() {
            Plan {
                notes: vec!["done externally".to_owned()],
                ..Plan::default()
            }
        } else if known {
            // Only the items that the stage itself will read.
            let evidence = evidence.only(&stage::needs(state, stage));
            match stage::plan(state, stage, &evidence, name, &own, &lease(args)) {
                Ok(plan) => plan,
                // A refusal to evict is an error even in a dry run.
                Err(error @ stage::Unplanned::Evict(_)) => return Err(unplanned(error)),
                // The plan that is printed has a gap.
                Err(error) if lenient => {
                    all.push(PlannedStage::unknown(stage, &error));
                    continue;
                }
                Err(error) => return Err(unplanned(error)),
            }
        } else {
            Plan::default()
        };
        let mut planned = PlannedStage::new(stage, plan);
        if stage == Stage::Clean {
            removal(state, evidence, &mut planned);
        }
        all.push(planned);
    }
    Ok(all)
}

/// Adds the leftovers of the old mode that will be removed.
fn removal(state: &MigrationState, evidence: &Evidence, planned: &mut PlannedStage) {
    let (from, to) = (state.migration.from, state.migration.to());
    match Removal::expected(evidence, from, to) {
        Ok(removal) => planned.removes = Some(removal),
        Err(why) => planned
            .notes
            .push(format!("the number of leftovers is unknown: {why}")),
    }
    if to == Mode::Nftables || from == Mode::Nftables {
        planned.notes.push(format!(
            "kube-proxy itself removes most of them when it starts in mode {to}"
        ));
    }
}

/// Returns why a stage of another strategy, which is not among the planned `stages`, cannot be planned.
fn refused(
    other: &MigrationState,
    stages: &[PlannedStage],
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
            "--strategy in-place needs no bridge; endpoints are then not updated for a while",
        ),
        stage::Unplanned::Evict(plan::Unevictable::Lossy(lossy)) => {
            let command = lossy.command();
            Failure::from(error).with_hint(format!(
                "`{command}` evicts them first; nothing was changed"
            ))
        }
        stage::Unplanned::Unwritable(_) => Failure::from(error).with_hint(
            "run `kpx migrate prepare --to MODE`, change the configuration and restart kube-proxy, then run `kpx migrate \
             finish`; `kpx explain providers` names the page with the commands of each provider",
        ),
        _ => Failure::from(error).with_hint(READABLE),
    }
}

pub(super) fn notes(from: Mode, to: Mode) -> Vec<String> {
    let mut notes = Vec::new();
    if to == Mode::Ipvs {
        notes.push(
            "mode ipvs is deprecated since Kubernetes 1.35, will be off by default from 1.40 and removed in 1.43 \
             (KEP-5495); `kpx migrate --to nftables` replaces it"
                .to_owned(),
        );
    }
    if from == Mode::Userspace {
        notes.push(
            "kube-proxy's process carries every connection to a Service: those that are established end with it, whatever \
             the strategy; clients that reconnect use the rules of the new mode"
                .to_owned(),
        );
    }
    if from == Mode::Ipvs {
        notes.push(
            "kernel modules and sysctls of mode ipvs stay: they have no effect without virtual servers".to_owned(),
        );
        notes.push(
            "connections of host processes whose source is an address of kube-ipvs0, UDP sockets included, cannot outlive \
             mode ipvs: the bridge waits for their end, other strategies break them; `ss -tun` lists them, with the \
             Service's address on both sides"
                .to_owned(),
        );
    }
    notes
}
