//! Every command says the same of a connection.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kpx_judge::verdict::Fate;
use kpx_judge::why::{Asked, Cause, Look};
use kpx_node::evidence;
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::Value;

use super::{few, json, services};

/// The answer of a command on the connections from one kind of client to one address.
type Said = BTreeMap<(String, String, String), (String, Vec<&'static str>)>;

fn say(
    all: &mut Said,
    key: &(String, String, String),
    fate: &str,
    command: &'static str,
) -> Option<String> {
    let what = format!("{key:?}");
    let known = all
        .entry(key.clone())
        .or_insert_with(|| (fate.to_owned(), Vec::new()));
    known.1.push(command);
    (known.0 != fate).then(|| {
        format!(
            "{what}: {command} says {fate}, {:?} say {}",
            known.1, known.0
        )
    })
}

/// Returns the disagreements of `why`, `trace` and `show services` about every Service, address and client of a bundle, of the fate and
/// of whether it is by design, and how many connections were compared.
async fn disagreements(dir: &Path) -> (usize, Vec<String>) {
    let evidence = evidence::load(dir, evidence::ITEMS).unwrap();
    let node = NodeSnapshot::new(&evidence);
    let Ok(look) = Look::new(&node, &Family::BOTH, &[]) else {
        return (0, Vec::new());
    };
    let (mut said, mut designs, mut wrong) = (Said::new(), Said::new(), Vec::new());
    let design = |of: bool| if of { "by design" } else { "a fault" };
    let mut targets: BTreeMap<(SocketAddr, String), String> = BTreeMap::new();
    let mut fates: BTreeMap<String, (Fate, bool)> = BTreeMap::new();
    for name in services(&node) {
        let answer = look.why(&Asked::parse(&name).unwrap(), None).unwrap();
        let whole = Fate::of_all(answer.paths.iter().map(|path| path.fate));
        // A load balancer that no node shows has no row.
        let mut causes = answer.causes.iter();
        let is_unseen = causes.any(|cause| matches!(cause.cause, Cause::Balancer { .. }));
        let whole = match whole {
            Fate::Works if is_unseen => Fate::Unknown,
            whole => whole,
        };
        let failing = answer.paths.iter().filter(|path| path.fate.fails());
        let failing: Vec<bool> = failing.map(|path| path.by_design).collect();
        let is_meant = !failing.is_empty() && failing.iter().all(|of| *of);
        if !answer.paths.is_empty() {
            fates.insert(name.clone(), (answer.fate, is_meant));
        }
        if !answer.paths.is_empty() && whole != answer.fate {
            wrong.push(format!(
                "{name}: the headline of why is {}, its table {whole}",
                answer.fate
            ));
        }
        for path in &answer.paths {
            let key = (path.target().to_string(), path.from.clone(), name.clone());
            wrong.extend(say(&mut said, &key, path.fate.name(), "why"));
            wrong.extend(say(&mut designs, &key, design(path.by_design), "why"));
            targets.insert((path.to, path.protocol.to_string()), name.clone());
        }
    }
    let counted = json(dir, &["doctor"]).await;
    wrong.extend(miscounted(&counted["services"], &fates));
    let shown = json(dir, &["show", "services"]).await;
    for row in shown["services"].as_array().into_iter().flatten() {
        let name = row["service"].as_str().unwrap().split(':').next().unwrap();
        let protocol = row["protocol"].as_str().unwrap();
        for cell in row["connections"].as_array().unwrap() {
            let to = format!("{}/{protocol}", cell["to"].as_str().unwrap());
            let is_said = |(key, _): &(&(String, String, String), &(String, Vec<&str>))| {
                key.0 == to && key.2 == name && client_of(&key.1) == cell["client"]
            };
            let known = said.iter().find(is_said).map(|(key, _)| key.clone());
            let Some(key) = known else { continue };
            let [fate, by_design] = [&cell["fate"], &cell["byDesign"]];
            let by_design = design(by_design.as_bool().unwrap());
            let command = "show services";
            wrong.extend(say(&mut said, &key, fate.as_str().unwrap(), command));
            wrong.extend(say(&mut designs, &key, by_design, command));
        }
    }
    for ((to, protocol), name) in &targets {
        let trace = json(dir, &["trace", &to.to_string(), "--protocol", protocol]).await;
        let all = trace["sources"]
            .as_array()
            .cloned()
            .unwrap_or_else(|| vec![trace.clone()]);
        for source in all {
            let from = source["from"].as_str().unwrap();
            let from = match from.strip_prefix("the host") {
                Some(_) => "the host",
                None => from,
            };
            let key = (format!("{to}/{protocol}"), from.to_owned(), name.clone());
            if said.contains_key(&key) {
                wrong.extend(say(
                    &mut said,
                    &key,
                    source["fate"].as_str().unwrap(),
                    "trace",
                ));
            }
        }
    }
    let compared = said
        .values()
        .filter(|(_, commands)| commands.len() > 1)
        .count();
    (compared, wrong)
}

/// Returns the Services that the doctor's `tally` counts otherwise than `fates` has them: the fates that `why` says, and whether all
/// that fails does so by design.
fn miscounted(tally: &Value, fates: &BTreeMap<String, (Fate, bool)>) -> Vec<String> {
    let is_in = |list: &str, name: &str| {
        let mut all = tally[list].as_array().into_iter().flatten();
        all.any(|of| of == name)
    };
    let failing = |name: &str| {
        let mut all = tally["failing"].as_array().into_iter().flatten();
        all.find(|of| of["service"] == name)
    };
    let wrong = fates.iter().filter_map(|(name, (fate, is_meant))| {
        let said = if let Some(of) = failing(name) {
            of["fate"].as_str().unwrap()
        } else if is_in("restricted", name) {
            "restricted"
        } else if is_in("withoutEndpoints", name) {
            "without endpoints"
        } else if is_in("unknown", name) {
            "unknown"
        } else {
            "works"
        };
        let is_same = match said {
            "restricted" => *is_meant,
            "without endpoints" => fate.fails(),
            said => said == fate.name(),
        };
        (!is_same).then(|| format!("{name}: the doctor counts it as {said}, why says {fate}"))
    });
    wrong.collect()
}

/// Returns the kind of a client in JSON, by its name.
fn client_of(from: &str) -> &'static str {
    if from.starts_with("a pod of the Service") {
        "itself"
    } else if from.starts_with("a pod") {
        "pod"
    } else if from.starts_with("the host") {
        "host"
    } else {
        "outside"
    }
}

#[tokio::test]
async fn no_two_commands_disagree() {
    commands_agree(few()).await;
}

/// Fails if two commands disagree about a connection.
pub(crate) async fn commands_agree(dirs: Vec<PathBuf>) {
    let (mut compared, mut wrong) = (0, Vec::new());
    for dir in dirs {
        let (count, of) = disagreements(&dir).await;
        compared += count;
        wrong.extend(
            of.into_iter()
                .map(|text| format!("{}: {text}", dir.display())),
        );
    }
    assert!(
        wrong.is_empty(),
        "{} of {compared}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(compared > 500, "{compared} connections");
}
