//! One verdict: every command says the same of a connection, causes are necessary and sufficient, and missing evidence never
//! makes anything work.

pub(crate) mod agree;
pub(crate) mod less_evidence;
mod on_the_way;

use std::path::{Path, PathBuf};

use kpx_judge::repair::Repair;
use kpx_judge::trace::{Outcome, Walks, World};
use kpx_judge::verdict::{Brief, Cell, Judge, Question, Surveyed, survey, targets};
use kpx_judge::why::{Asked, Look};
use kpx_node::evidence::{self, Evidence, Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::{Owners, Port};
use serde_json::Value;

use crate::support::{chosen, kpx, root};

/// Names of the incidents below `testdata/cases`, sorted.
fn cases() -> Vec<String> {
    let mut names = Vec::new();
    let mut add = |dir: PathBuf, prefix: &str| {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
            if entry.path().join("cluster").exists() || entry.path().join("node").exists() {
                names.push(name);
            }
        }
    };
    add(root().join("testdata/cases"), "");
    names.sort();
    names
}

/// These recordings, and these incidents.
fn bundles(recorded: Vec<String>, cases: Vec<String>) -> Vec<PathBuf> {
    let below = |dir: &str, name: String| root().join("testdata").join(dir).join(name);
    let recorded = recorded.into_iter().map(|name| below("nodes", name));
    let cases = cases.into_iter().map(|name| below("cases", name));
    recorded.chain(cases).collect()
}

/// Chosen recordings, and each sixth incident.
fn few() -> Vec<PathBuf> {
    bundles(chosen(), cases().into_iter().step_by(6).collect())
}

/// These recordings, and every incident.
pub(crate) fn with_incidents(recorded: Vec<String>) -> Vec<PathBuf> {
    bundles(recorded, cases())
}

fn services(node: &NodeSnapshot<'_>) -> Vec<String> {
    let all = node.services().into_iter().flatten();
    all.map(|service| format!("{}/{}", service.metadata.namespace, service.metadata.name))
        .collect()
}

async fn json(dir: &Path, args: &[&str]) -> Value {
    let all = [&["--from", dir.to_str().unwrap()], args, &["-o", "json"]].concat();
    let ran = kpx(&all).await;
    serde_json::from_str(&ran.out)
        .unwrap_or_else(|e| panic!("{}: {args:?}: {e}: {ran}", dir.display()))
}

/// A walk that omits hops, and follows packets that are treated alike once, has the same ends.
#[test]
#[ignore = "takes long: make test-loops"]
fn a_brief_walk_ends_like_a_whole_one() {
    brief_walks_end_alike(few());
}

/// Fails if a walk without hops has other ends than the whole one.
pub(crate) fn brief_walks_end_alike(dirs: Vec<PathBuf>) {
    let mut compared = 0;
    for_each_cell(dirs, |place, world, walks, _, cell| {
        let brief = walks.brief(&cell.flow);
        let alone = world.walk(&cell.flow).unwrap();
        let [whole, brief, alone] = [&cell.outcomes, &brief, &alone].map(|all| ends(all));
        assert_eq!(whole, brief, "{place}: {:?}", cell.flow);
        assert_eq!(whole, alone, "{place}: {:?}", cell.flow);
        compared += usize::from(whole.len() > 1);
    });
    assert!(compared > 500, "{compared} connections with several ends");
}

/// Replies that are known to arrive because another one did are judged as if each was followed.
#[test]
#[ignore = "takes long: make test-loops"]
fn a_reply_is_judged_as_if_no_other_was_known() {
    replies_are_judged_alike(few());
}

/// Fails if the verdict on a connection depends on the replies that were followed before.
pub(crate) fn replies_are_judged_alike(dirs: Vec<PathBuf>) {
    let mut compared = 0;
    for_each_cell(dirs, |place, world, _, (alone, port), cell| {
        let question = Question {
            flow: &cell.flow,
            port,
        };
        let (_, verdict) = alone.judge_in(world, question);
        assert_eq!(cell.verdict, verdict, "{place}: {:?}", cell.flow);
        compared += 1;
    });
    assert!(compared > 500, "{compared} connections");
}

/// Judges each connection of these bundles, as they are and without routes, and gives it to `compare`, with
/// a judge that has judged nothing else.
fn for_each_cell(
    dirs: Vec<PathBuf>,
    mut compare: impl FnMut(
        &str,
        &World<'_, '_>,
        &Walks<'_, '_, '_>,
        (&Judge<'_>, Option<&Port>),
        &Cell,
    ),
) {
    for dir in dirs {
        let whole = evidence::load(&dir, evidence::ITEMS).unwrap();
        let mut without_routes = whole.clone();
        without_routes.insert(Item::Routes, Err(Gap::NotCollected(Item::Routes)));
        for (evidence, what) in [(whole, ""), (without_routes, " without routes")] {
            let place = format!("{}{what}", dir.display());
            let node = NodeSnapshot::new(&evidence);
            let (judge, owners) = (Judge::new(&node), Owners::new(&node));
            let alone = Judge::new(&node);
            for family in Family::BOTH {
                let world = World::whole(&node, family);
                let walks = Walks::new(&world, family);
                let all = owners.ports().iter();
                for target in all.flat_map(|port| targets(&node, port, family)) {
                    for cell in judge.cells(&walks, target, None).unwrap() {
                        compare(&place, &world, &walks, (&alone, target.asked()), &cell);
                    }
                }
            }
        }
    }
}

/// Returns how each of `outcomes` ends, without its hops.
fn ends(outcomes: &[Outcome]) -> Vec<String> {
    let end = |of: &Outcome| {
        let mut of = of.clone();
        of.hops.clear();
        of.probability = (of.probability * 1e9).round() / 1e9;
        format!("{of:?}")
    };
    outcomes.iter().map(end).collect()
}

/// Connections that fail without a repair that kpx knows, and why.
const UNEXPLAINED: &[(&str, &str)] = &[
    (
        "userspace-1.25",
        "only kube-proxy knows the ports of portals",
    ),
    ("ir17-portals", "only kube-proxy knows the ports of portals"),
    (
        "faults-traffic default/two-families [fd00",
        "kube-proxy does not serve IPv6 there",
    ),
    (
        "ipvs-04-k3s-node-address-in-ipvs-ips",
        "a load-balancer address that is the node's own is no drift",
    ),
    (
        "seen-11-other-conflist",
        "pods have addresses of another Node's range: they are to be created anew",
    ),
    (
        "faults-plugins default/kubernetes",
        "the route to the endpoint is wrong as well, and belongs to the network plugin",
    ),
    (
        "healthy-flannel default/",
        "the endpoint is no pod of the node or its route is wrong as well",
    ),
    (
        "faults-setup ",
        "the rules are not in the recording, so none are simulated; certain is that the Services have no endpoints",
    ),
    (
        "fallback-no-ipvs-modules edge/web-remote-only",
        "kube-proxy does not run, and the Service has no endpoint for the client as well",
    ),
    (
        "fallback-no-ipvs-modules shop/agent-remote",
        "kube-proxy does not run, and the Service has no endpoint for the client as well",
    ),
    (
        "fallback-no-ipvs-modules shop/empty",
        "kube-proxy does not run, and the Service has no endpoint for the client as well",
    ),
    (
        "ipv4-flushed-checks-pass kube-system/kube-dns",
        "all rules are gone, and a pod of the Service fails in another way as well",
    ),
    (
        "ipv4-flushed-checks-pass telecom/media",
        "all rules are gone, and a pod of the Service fails in another way as well",
    ),
];

/// Each set of repairs makes the connections work, and no smaller one does.
#[test]
fn each_cause_is_necessary_and_sufficient() {
    causes_hold(few());
}

/// Fails if a set of repairs does not help or is not needed.
pub(crate) fn causes_hold(dirs: Vec<PathBuf>) {
    let (mut explained, mut unexplained) = (0, Vec::new());
    for dir in dirs {
        let evidence = evidence::load(&dir, evidence::ITEMS).unwrap();
        let node = NodeSnapshot::new(&evidence);
        let Ok(look) = Look::new(&node, &Family::BOTH, &[]) else {
            continue;
        };
        for name in services(&node) {
            let answer = look.why(&Asked::parse(&name).unwrap(), None).unwrap();
            for path in answer.paths.iter().filter(|path| path.fate.fails()) {
                let what = format!(
                    "{} {name} {} from {}",
                    dir.display(),
                    path.target(),
                    path.from
                );
                if path.repairs.is_empty() {
                    // Without the slices, what the rules are to be is not known.
                    unexplained.extend(node.slices().is_ok().then_some(what));
                    continue;
                }
                explained += 1;
                let works = |repairs: &[&Repair]| look.works_with(path, repairs);
                for set in &path.repairs {
                    let all: Vec<&Repair> = set.iter().collect();
                    assert!(works(&all), "{what}: {set:?} does not help");
                    for left_out in 0..all.len() {
                        let mut fewer = all.clone();
                        fewer.remove(left_out);
                        assert!(!works(&fewer), "{what}: {:?} is not needed", all[left_out]);
                    }
                }
            }
        }
    }
    let is_known = |what: &String| UNEXPLAINED.iter().any(|(of, _)| what.contains(of));
    unexplained.retain(|what| !is_known(what));
    assert_eq!(unexplained, [""; 0], "{explained} explained");
    assert!(explained > 150, "{explained}");
}

fn surveyed<'n>(node: &'n NodeSnapshot<'n>) -> Vec<Surveyed> {
    survey(node, Owners::new(node).ports(), &Family::BOTH, None)
}

/// Returns the verdict on every connection of a node.
fn briefs(evidence: &Evidence) -> Vec<Brief> {
    let node = NodeSnapshot::new(evidence);
    let all = surveyed(&node).into_iter();
    all.flat_map(|port| port.cells).collect()
}

/// Returns whether the fault of a connection has these words.
fn says(cell: &Brief, words: &str) -> bool {
    let text = cell.fault.as_ref().map(ToString::to_string);
    text.is_some_and(|text| text.contains(words))
}
