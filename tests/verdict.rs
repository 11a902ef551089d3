//! One verdict: every command says the same of a connection, causes are necessary and sufficient, and missing evidence never
//! makes anything work.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use kpx_judge::repair::Repair;
use kpx_judge::trace::{Outcome, Walks, World};
use kpx_judge::verdict::{Brief, Cell, Fate, Judge, Question, Surveyed, survey, targets};
use kpx_judge::why::{Asked, Cause, Look};
use kpx_node::evidence::{self, Evidence, Gap, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::{Owners, Port};
use serde_json::Value;

use crate::support::{chosen, kpx, kpx_on, root};

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

async fn json(dir: &Path, args: &[&str]) -> Value {
    let all = [&["--from", dir.to_str().unwrap()], args, &["-o", "json"]].concat();
    let ran = kpx(&all).await;
    serde_json::from_str(&ran.out)
        .unwrap_or_else(|e| panic!("{}: {args:?}: {e}: {ran}", dir.display()))
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
            let key = (path.target(), path.from.clone(), name.clone());
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

type Fates = BTreeMap<(String, SocketAddr, String), Fate>;

fn fates(ports: &[Surveyed]) -> Fates {
    let cells = ports
        .iter()
        .flat_map(|port| port.cells.iter().map(move |cell| (port, cell)));
    cells
        .map(|(port, cell)| {
            let key = (
                format!("{}/{}", port.name, port.proto),
                cell.to,
                cell.client.name().to_owned(),
            );
            (key, cell.fate)
        })
        .collect()
}

fn without(evidence: &Evidence, item: Item) -> Evidence {
    let kept: Vec<Item> = evidence::ITEMS
        .iter()
        .copied()
        .filter(|kept_item| *kept_item != item)
        .collect();
    evidence.only(&kept)
}

/// Items of which a bundle cannot tell whether the node has them: rules of the back end of iptables that is not in use, where the
/// loaded modules are unknown, and routing policy rules, of which every kernel has the same by default.
const MAY_BE_NONE: &[Item] = &[
    Item::IptablesLegacy4,
    Item::IptablesLegacy6,
    Item::IptablesNft4,
    Item::IptablesNft6,
];

/// Bundles in which something works without an item, and why.
const KNOWN_HOLES: &[(&str, Item, &str)] = &[
    (
        "seen-07-conntrack-close-wait",
        Item::Sysctl,
        "only sysctls tell that the table of tracked connections is full",
    ),
    (
        "seen-11-other-conflist",
        Item::Nodes,
        "only the Nodes tell whose pods have the range of a route",
    ),
    (
        "seen-11-other-conflist",
        Item::Pods,
        "only the objects of pods tell that one here has an address of another Node's range",
    ),
    (
        "healthy-cilium-beside",
        Item::Bpf,
        "bundles of before this item are judged by the rules alone",
    ),
    (
        "kp17-cilium-beside",
        Item::Bpf,
        "bundles of before this item are judged by the rules alone",
    ),
];

#[test]
#[ignore = "takes long: make test-loops"]
fn removing_evidence_never_turns_anything_into_works() {
    less_evidence_never_works(few());
}

/// Fails if a connection works without an item only.
pub(crate) fn less_evidence_never_works(dirs: Vec<PathBuf>) {
    let mut compared = 0;
    let mut wrong = BTreeMap::new();
    for dir in dirs {
        let evidence = evidence::load(&dir, evidence::ITEMS).unwrap();
        let node = NodeSnapshot::new(&evidence);
        let before = fates(&surveyed(&node));
        if before.values().all(|fate| *fate == Fate::Works) {
            continue;
        }
        for item in evidence::ITEMS {
            if evidence.text(*item).is_err() || MAY_BE_NONE.contains(item) {
                continue;
            }
            let fewer = without(&evidence, *item);
            let node = NodeSnapshot::new(&fewer);
            for (key, fate) in fates(&surveyed(&node)) {
                let was = before.get(&key).copied();
                let is_new = fate == Fate::Works && was.is_some_and(|was| was != Fate::Works);
                if is_new {
                    let name = dir.file_name().unwrap().to_str().unwrap();
                    let is_known =
                        |(of, without, _): &&(&str, Item, &str)| *of == name && *without == *item;
                    if !KNOWN_HOLES.iter().any(|hole| is_known(&hole)) {
                        let what = format!("{key:?}; before: {was:?}");
                        wrong.insert((name.to_owned(), *item), what);
                    }
                }
                compared += usize::from(was.is_some());
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(compared > 5_000, "{compared}");
}

#[test]
fn a_program_on_the_way_is_named_and_nothing_works_through_it() {
    let dir = root().join("testdata/nodes/full-iptables");
    let mut evidence = evidence::load(&dir, evidence::ITEMS).unwrap();
    let works = |evidence: &Evidence| {
        let node = NodeSnapshot::new(evidence);
        let all = surveyed(&node);
        let cells = all.iter().flat_map(|port| &port.cells);
        let named = cells.clone().filter(|cell| {
            let text = cell.fault.as_ref().map(ToString::to_string);
            text.is_some_and(|text| {
                text.starts_with("XDP program drop_all (id 7) on eth0 may drop")
            })
        });
        let works = cells.clone().filter(|cell| cell.fate == Fate::Works);
        (works.count(), named.count())
    };
    let (before, _) = works(&evidence);
    let text = evidence.text(Item::Links).unwrap();
    let mut links: Value = serde_json::from_str(text).unwrap();
    for link in links.as_array_mut().unwrap() {
        if link["ifname"] == "eth0" {
            link["xdp"] = serde_json::json!({"mode": 2, "prog": {"id": 7, "name": "drop_all"}});
        }
    }
    evidence.insert(Item::Links, Ok(links.to_string()));
    let (after, named) = works(&evidence);
    assert!(named > 10 && after < before, "{before} {after} {named}");
}

#[test]
#[ignore = "takes long: make test-loops"]
fn neighbours_that_do_not_answer_or_were_set_by_hand_are_named() {
    let dir = root().join("testdata/nodes/full-iptables");
    let recorded = evidence::load(&dir, evidence::ITEMS).unwrap();
    let entry = |address: &str, state: &str| serde_json::json!({"dst": address, "dev": "eth0", "lladdr": "02:00:00:00:00:99", "state": [state]});
    let counted = |entries: &[Value], links: Option<&str>, words: &str| {
        let mut evidence = recorded.clone();
        let text = Value::from(entries.to_vec()).to_string();
        evidence.insert(Item::NeighbourTable, Ok(text));
        if let Some(more) = links {
            let text = format!("{}\n{more}", evidence.text(Item::Links).unwrap());
            evidence.insert(Item::Links, Ok(text));
        }
        let cells = briefs(&evidence);
        let works = cells.iter().filter(|cell| cell.fate == Fate::Works);
        let named = cells.iter().filter(|cell| says(cell, words));
        (works.count(), named.count())
    };
    let (healthy, _) = counted(&[entry("10.0.2.2", "STALE")], None, "none");
    assert_eq!(counted(&[], None, "none").0, healthy);
    let learnt = entry("10.0.2.3", "REACHABLE");
    for (state, words) in [
        ("FAILED", "10.0.2.2 did not answer on eth0"),
        ("INCOMPLETE", "10.0.2.2 has not answered on eth0 yet"),
        (
            "PERMANENT",
            "a static neighbour entry sends packets for 10.0.2.2 on eth0 to 02:00:00:00:00:99",
        ),
    ] {
        let (works, named) = counted(&[entry("10.0.2.2", state), learnt.clone()], None, words);
        assert!(named > 5 && works < healthy, "{state}: {works} {named}");
    }
    // Entries of other nodes, entries that a program writes, and entries where nothing shows that the others are
    // learnt.
    let set = entry("10.0.2.2", "PERMANENT");
    let cilium = r#"[{"ifindex": 9, "ifname": "cilium_host"}]"#;
    for (entries, links) in [
        (vec![entry("10.0.2.9", "FAILED"), learnt.clone()], None),
        (vec![set.clone(), learnt.clone()], Some(cilium)),
        (vec![set.clone()], None),
        (vec![set, learnt, entry("10.0.2.4", "PERMANENT")], None),
    ] {
        let (before, _) = counted(&[], links, "neighbour");
        let (works, named) = counted(&entries, links, "neighbour");
        assert_eq!((works, named), (before, 0), "{entries:?}");
    }
}

#[test]
fn a_link_without_a_carrier_carries_nothing() {
    let dir = root().join("testdata/nodes/full-iptables");
    let recorded = evidence::load(&dir, evidence::ITEMS).unwrap();
    let named = |flags: &[&str], words: &str| {
        let mut evidence = recorded.clone();
        let text = evidence.text(Item::Links).unwrap();
        let mut links: Value = serde_json::from_str(text).unwrap();
        for link in links.as_array_mut().unwrap() {
            if link["ifname"] == "eth0" {
                link["flags"] = serde_json::json!(flags);
            }
        }
        evidence.insert(Item::Links, Ok(links.to_string()));
        let cells = briefs(&evidence);
        let named = cells.iter().filter(|cell| says(cell, words));
        assert!(
            named
                .clone()
                .all(|cell| cell.fate.fails() || cell.fate == Fate::Partly)
        );
        named.count()
    };
    assert_eq!(named(&["UP", "LOWER_UP"], "eth0"), 0);
    assert_eq!(named(&[], "eth0"), 0);
    assert!(named(&["NO-CARRIER", "UP"], "eth0 has no carrier") > 10);
    assert!(named(&["BROADCAST"], "eth0 is down") > 10);
}

#[test]
fn an_endpoint_of_a_node_that_no_longer_reports_is_in_doubt() {
    let dir = root().join("testdata/nodes/full-iptables");
    let recorded = evidence::load(&dir, evidence::ITEMS).unwrap();
    let with_nodes = |edit: &dyn Fn(&mut Vec<Value>)| {
        let mut evidence = recorded.clone();
        let mut nodes: Value = serde_json::from_str(evidence.text(Item::Nodes).unwrap()).unwrap();
        edit(nodes["items"].as_array_mut().unwrap());
        evidence.insert(Item::Nodes, Ok(nodes.to_string()));
        briefs(&evidence)
    };
    let in_doubt = |cells: &[Brief], words: &str| {
        let named = cells.iter().filter(|cell| says(cell, words));
        assert!(
            named.clone().all(|cell| cell.fate == Fate::Unknown),
            "{words}"
        );
        named.count()
    };
    let ready = |status: &'static str| {
        with_nodes(&move |nodes| {
            nodes[1]["status"]["conditions"] = serde_json::json!([
                {"type": "Ready", "status": status, "lastTransitionTime": "2026-11-20T12:00:00Z"}
            ]);
        })
    };
    let since = "the kubelet of its node node2 has not reported since 2026-11-20T12:00:00Z";
    assert!(in_doubt(&ready("Unknown"), since) > 5);
    assert_eq!(in_doubt(&ready("False"), "has not reported"), 0);
    let gone = with_nodes(&|nodes| nodes[1]["metadata"]["name"] = "node3".into());
    assert!(in_doubt(&gone, "the cluster has no Node node2") > 5);
}

#[test]
fn an_endpoint_whose_pod_has_ended_is_lost() {
    let dir = root().join("testdata/nodes/full-iptables");
    let mut evidence = evidence::load(&dir, evidence::ITEMS).unwrap();
    let slices: Value = serde_json::from_str(evidence.text(Item::EndpointSlices).unwrap()).unwrap();
    let endpoints = slices["items"].as_array().unwrap().iter();
    let mut endpoints =
        endpoints.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
    let ends = endpoints
        .find(|endpoint| endpoint["nodeName"] == "node1" && endpoint["targetRef"]["kind"] == "Pod")
        .unwrap();
    let mut pods: Value = serde_json::from_str(evidence.text(Item::Pods).unwrap()).unwrap();
    pods["items"].as_array_mut().unwrap().push(serde_json::json!({
        "metadata": {"namespace": ends["targetRef"]["namespace"], "name": ends["targetRef"]["name"]},
        "spec": {"nodeName": "node1", "containers": []},
        "status": {"phase": "Failed"},
    }));
    let name = ends["targetRef"]["name"].as_str().unwrap();
    let before = briefs(&evidence);
    evidence.insert(Item::Pods, Ok(pods.to_string()));
    let words = format!(
        "/{name} of endpoint {}",
        ends["addresses"][0].as_str().unwrap()
    );
    let after = briefs(&evidence);
    let lost: Vec<_> = after.iter().filter(|cell| says(cell, &words)).collect();
    assert!(!lost.is_empty() && !before.iter().any(|cell| says(cell, &words)));
    assert!(
        lost.iter()
            .all(|cell| cell.fate == Fate::Partly || cell.fate.fails())
    );
}

#[tokio::test(flavor = "current_thread")]
async fn only_the_host_has_a_way_to_its_loopback_addresses() {
    let ran = kpx_on("full-iptables", &["why", "127.0.0.1:31082", "-o", "json"]).await;
    let said: Value = serde_json::from_str(&ran.out).unwrap();
    let paths = said["paths"].as_array().unwrap();
    assert!(!paths.is_empty());
    assert!(
        paths.iter().all(|path| path["client"] == "host"),
        "{paths:?}"
    );
}

#[test]
#[ignore = "takes long: make test-loops"]
fn policies_of_ipsec_block_what_they_match_and_leave_the_rest_alone() {
    let dir = root().join("testdata/nodes/full-iptables");
    let recorded = evidence::load(&dir, evidence::ITEMS).unwrap();
    let counted = |read: Option<Result<String, Gap>>| {
        let mut evidence = recorded.clone();
        if let Some(read) = read {
            evidence.insert(Item::XfrmPolicies, read);
        }
        let cells = briefs(&evidence);
        let count = |is: &dyn Fn(&Brief) -> bool| cells.iter().filter(|cell| is(cell)).count();
        [
            count(&|cell| cell.fate == Fate::Works),
            count(&|cell| cell.fate.fails() && says(cell, "xfrm polic")),
            count(&|cell| cell.fate == Fate::Unknown && says(cell, "through IPsec")),
            count(&|cell| cell.fate == Fate::Unknown && says(cell, "may block the packets")),
            count(&|cell| says(cell, "the policies of IPsec are unknown")),
        ]
    };
    let text = |policy: &str| Some(Ok(policy.to_owned()));
    let healthy = counted(None);
    assert_eq!(healthy[1..], [0; 4]);
    for same in [
        text(""),
        text("src 100.64.9.0/24 dst 0.0.0.0/0 \n\tdir out action block priority 0 ptype main \n"),
        text("src 0.0.0.0/0 dst 0.0.0.0/0 \n\tsocket out action block priority 0 ptype main \n"),
        text("src 0.0.0.0/0 dst 0.0.0.0/0 \n\tdir out priority 0 ptype main \n"),
        text(
            "src 0.0.0.0/0 dst 0.0.0.0/0 proto sctp sport 3\n\tdir out action block priority 0 \n\tif_id 0x3\n",
        ),
        Some(Err(Gap::NotCollected(Item::XfrmPolicies))),
        Some(Err(Gap::NotApplicable("no module".to_owned()))),
    ] {
        assert_eq!(counted(same.clone()), healthy, "{same:?}");
    }
    let block = "src 0.0.0.0/0 dst 0.0.0.0/0 \n\tdir out action block priority 5 ptype main \n";
    let both = format!("{block}{}", block.replace("0.0.0.0/0", "::/0"));
    let [works, blocked, ..] = counted(text(&both));
    assert!(blocked > 50 && works < healthy[0], "{works} {blocked}");
    let tunnel = "src 0.0.0.0/0 dst 0.0.0.0/0 \n\tdir out priority 0 ptype main \n\ttmpl src 10.0.2.15 dst 10.0.2.16\n\t\tproto esp reqid 1 mode tunnel\n";
    let [works, _, unsure, ..] = counted(text(tunnel));
    assert!(unsure > 50 && works < healthy[0], "{works} {unsure}");
    let marked = format!("{block}\tmark 0x100/0x100 \n");
    let [works, blocked, _, unsure, _] = counted(text(&marked));
    assert!(
        blocked == 0 && unsure > 50 && works < healthy[0],
        "{works} {unsure}"
    );
    // Items that should have been read and were not are named.
    let denied = Gap::Denied(Item::XfrmPolicies, "needs CAP_NET_ADMIN".to_owned());
    let [works, .., unknown] = counted(Some(Err(denied)));
    assert!(unknown > 50 && works < healthy[0], "{works} {unknown}");
}

#[test]
#[ignore = "takes long: make test-loops"]
fn filters_and_qdiscs_on_the_way_drop_or_leave_open() {
    let dir = root().join("testdata/nodes/full-iptables");
    let recorded = evidence::load(&dir, evidence::ITEMS).unwrap();
    let counted = |read: Option<Result<String, Gap>>| {
        let mut evidence = recorded.clone();
        let ifb = r#"[{"ifindex": 9, "ifname": "bwp1", "linkinfo": {"info_kind": "ifb"}}]"#;
        let links = format!("{}\n{ifb}", evidence.text(Item::Links).unwrap());
        evidence.insert(Item::Links, Ok(links));
        if let Some(read) = read {
            evidence.insert(Item::Tc, read);
        }
        let cells = briefs(&evidence);
        let count = |is: &dyn Fn(&Brief) -> bool| cells.iter().filter(|cell| is(cell)).count();
        [
            count(&|cell| cell.fate == Fate::Works),
            count(&|cell| cell.fate.fails() && says(cell, "the tc ")),
            count(&|cell| {
                let is_named = says(cell, "tc ") && says(cell, "eth0");
                cell.fate == Fate::Unknown && is_named
            }),
            count(&|cell| says(cell, "the filters of links are unknown")),
        ]
    };
    let healthy = counted(None);
    assert_eq!(healthy[1..], [0; 3]);
    let filter = |dev: &str, hook: &str, kind: &str, options: &str| {
        format!(
            r#"{{"qdiscs":[],"filters":[{{"dev":"{dev}","hook":"{hook}","filters":[{{"protocol":"all","pref":3,"kind":"{kind}","chain":0}},{{"protocol":"all","pref":3,"kind":"{kind}","chain":0,"options":{options}}}]}}]}}"#
        )
    };
    let qdisc = |dev: &str, kind: &str, options: &str| {
        format!(
            r#"{{"qdiscs":[{{"kind":"{kind}","dev":"{dev}","root":true,"options":{options}}}],"filters":[]}}"#
        )
    };
    let gact = |what: &str| {
        format!(r#"{{"actions":[{{"kind":"gact","control_action":{{"type":"{what}"}}}}]}}"#)
    };
    let drops = gact("drop");
    let redirect = |to: &str| {
        format!(
            r#"{{"actions":[{{"kind":"mirred","mirred_action":"redirect","to_dev":"{to}","control_action":{{"type":"stolen"}}}}]}}"#
        )
    };
    let keyed = |keys: &str| {
        format!(
            r#"{{"keys":{{{keys}}},"actions":[{{"kind":"gact","control_action":{{"type":"drop"}}}}]}}"#
        )
    };
    let mirror = r#"{"actions":[{"kind":"skbedit","control_action":{"type":"pipe"}},{"kind":"mirred","mirred_action":"mirror","to_dev":"x","control_action":{"type":"pipe"}}]}"#;
    let police = r#"{"actions":[{"kind":"police","control_action":{"type":"drop"}}]}"#;
    for harmless in [
        r#"{"qdiscs":[],"filters":[]}"#.to_owned(),
        qdisc("eth0", "tbf", r#"{"rate":1}"#),
        qdisc("eth0", "netem", r#"{"limit":1000,"delay":{"delay":0.1}}"#),
        filter("eth0", "egress", "matchall", &gact("pass")),
        filter("eth0", "egress", "matchall", mirror),
        filter("eth0", "ingress", "matchall", police),
        filter("eth0", "ingress", "u32", &redirect("bwp1")),
        filter("eth1", "egress", "matchall", &drops),
        filter(
            "eth0",
            "egress",
            "flower",
            &keyed(r#""eth_type":"ipv4","dst_ip":"100.64.9.1","dst_port":9"#),
        ),
        filter(
            "eth0",
            "egress",
            "flower",
            &keyed(r#""dst_ip":"100.64.9.0/24","ct_state":"+trk""#),
        ),
        filter("eth0", "egress", "u32", r#"{"fh":"800:","ht_divisor":1}"#),
    ] {
        assert_eq!(counted(Some(Ok(harmless.clone()))), healthy, "{harmless}");
    }
    for gap in [
        Gap::NotCollected(Item::Tc),
        Gap::Absent(Item::Tc, "no tc".to_owned()),
    ] {
        assert_eq!(counted(Some(Err(gap))), healthy);
    }
    for fault in [
        filter("eth0", "egress", "matchall", &drops),
        filter("eth0", "ingress", "matchall", &drops),
        filter("eth0", "root", "flower", &keyed(r#""ip_proto":"tcp""#)),
        qdisc("eth0", "blackhole", "{}"),
        qdisc(
            "eth0",
            "netem",
            r#"{"loss-random":{"loss":1,"correlation":0}}"#,
        ),
    ] {
        let [works, fails, ..] = counted(Some(Ok(fault.clone())));
        assert!(fails > 5 && works < healthy[0], "{works} {fails} {fault}");
    }
    for open in [
        filter(
            "eth0",
            "egress",
            "u32",
            r#"{"match":{"value":"0","mask":"ff","offmask":"","off":0},"actions":[{"kind":"gact","control_action":{"type":"shot"}}]}"#,
        ),
        filter("eth0", "egress", "flower", &keyed(r#""ct_state":"+trk""#)),
        filter(
            "eth0",
            "ingress",
            "bpf",
            r#"{"bpf_name":"cil_from_netdev","direct-action":true,"prog":{"id":7}}"#,
        ),
        filter("eth0", "ingress", "matchall", &redirect("eth1")),
        filter("eth0", "egress", "matchall", &gact("goto")),
        qdisc("eth0", "netem", r#"{"loss-random":{"loss":0.25}}"#),
        qdisc("eth0", "netem", r#"{"loss-state":{"p13":0.1}}"#),
    ] {
        let [works, fails, named, _] = counted(Some(Ok(open.clone())));
        assert!(
            fails == 0 && named > 5 && works < healthy[0],
            "{works} {fails} {named} {open}"
        );
    }
    let failed = Gap::Failed(Item::Tc, "a netlink error".to_owned());
    let [works, _, _, unknown] = counted(Some(Err(failed)));
    assert!(unknown > 50 && works < healthy[0], "{works} {unknown}");
}
