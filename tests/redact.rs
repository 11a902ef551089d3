//! Redaction changes no diagnosis and leaks no name: each recording is compared with its redacted copy.

pub(crate) mod varied;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kpx_judge::redact::Redactor;
use kpx_node::evidence::{Evidence, ITEMS, Item, Manifest, load, save};
use kpx_node::net::Family;
use kpx_node::node::{IptablesBackend, NodeSnapshot};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{chosen, kpx, recordings, root};

/// A recording and its redacted copy.
struct Pair {
    name: String,
    redactor: Redactor,
    before: Evidence,
    folder: TempDir,
}

impl Pair {
    fn of(name: &str) -> Self {
        let path = root().join("testdata/nodes").join(name);
        let before = load(&path, ITEMS).unwrap();
        // Each recording has another key: keys decide the order of addresses and names.
        let length = u8::try_from(name.len()).unwrap();
        Self::new(name, before, [length; 32])
    }

    /// Returns copies of the recording under several keys. What depends on the order of names alone, as an example among
    /// equals, is the same under one of them.
    fn under_keys(name: &str) -> impl Iterator<Item = Self> {
        let path = root().join("testdata/nodes").join(name);
        let before = load(&path, ITEMS).unwrap();
        (1..=8).map(move |key| Self::new(name, before.clone(), [key; 32]))
    }

    fn new(name: &str, before: Evidence, key: [u8; 32]) -> Self {
        let mut redactor = Redactor::new(key, &before);
        let after = redactor.evidence(&before);
        let folder = tempfile::tempdir().unwrap();
        let time = before
            .manifest()
            .map_or("2026-11-20T12:11:57Z", |manifest| manifest.time.as_str())
            .to_owned();
        let mut manifest = Manifest::of(&before, time.clone(), None);
        save(&before, &manifest, &folder.path().join("before")).unwrap();
        manifest = Manifest::of(&after, time, None);
        manifest.redacted = true;
        save(&after, &manifest, &folder.path().join("after")).unwrap();
        Self {
            name: name.to_owned(),
            redactor,
            before,
            folder,
        }
    }

    /// Runs kpx on the recording and on its copy; returns both reports, with the names of the recording.
    fn reports(&mut self, before: &[&str], after: &[&str]) -> (Value, Value) {
        let run = |part: &str, args: &[&str]| {
            let path = self.folder.path().join(part);
            let from = ["--from", path.to_str().unwrap()];
            let args = [&from[..], args, &["-o", "json"]].concat();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let ran = runtime.block_on(kpx(&args));
            let is_usage = ran.code == 2 && !ran.err.contains("different IP families");
            assert!(!is_usage, "{args:?}: {ran}");
            // Commands in the report name the bundle.
            let named = |text: &str| text.replace(path.to_str().unwrap(), "BUNDLE");
            // An error has no report; its text is compared.
            serde_json::from_str(&named(&ran.out))
                .unwrap_or_else(|_| serde_json::json!({ "code": ran.code, "err": named(&ran.err) }))
        };
        let (left, right) = (run("before", before), run("after", after));
        let right = restored(&mut self.redactor, right);
        (normal("", left), normal("", right))
    }

    /// Compares the reports of the same command.
    fn compare(&mut self, args: &[&str]) -> Result<(), String> {
        let (before, after) = self.reports(args, args);
        self.same(&args.join(" "), &before, &after)
    }

    fn same(&self, what: &str, before: &Value, after: &Value) -> Result<(), String> {
        let mut found = Vec::new();
        differences("", before, after, &mut found);
        if found.is_empty() {
            return Ok(());
        }
        let count = found.len();
        found.truncate(60);
        Err(format!(
            "{} {what}: {count} differences\n  {}",
            self.name,
            found.join("\n  ")
        ))
    }

    /// Compares the traces to `at` most Services, at their cluster IPs, external addresses and node ports.
    fn compare_traces(&mut self, at: usize) -> Result<usize, String> {
        let services = self.before.text(Item::Services).unwrap_or("{}");
        let services: Value = serde_json::from_str(services).unwrap();
        let mut targets = Vec::new();
        for service in services["items"].as_array().into_iter().flatten() {
            let spec = &service["spec"];
            for port in spec["ports"].as_array().into_iter().flatten() {
                let protocol = port["protocol"].as_str().unwrap_or("TCP").to_lowercase();
                let ingress = service["status"]["loadBalancer"]["ingress"].as_array();
                let addresses = spec["clusterIPs"]
                    .as_array()
                    .into_iter()
                    .chain(spec["externalIPs"].as_array())
                    .flatten()
                    .chain(ingress.into_iter().flatten().map(|ingress| &ingress["ip"]));
                for address in addresses {
                    if let Some(ip) = address.as_str().and_then(|ip| ip.parse::<IpAddr>().ok()) {
                        let number = u16::try_from(port["port"].as_u64().unwrap()).unwrap();
                        targets.push((Some(SocketAddr::new(ip, number)), 0, protocol.clone()));
                    }
                }
                if let Some(number) = port["nodePort"].as_u64() {
                    targets.push((None, number, protocol));
                }
            }
        }
        let mut sources = ["host", "outside"]
            .map(|name| (name.to_owned(), name.to_owned()))
            .to_vec();
        let slices = self.before.text(Item::EndpointSlices).unwrap_or("{}");
        let slices: Value = serde_json::from_str(slices).unwrap();
        let pods = slices["items"].as_array().into_iter().flatten();
        let mut pods = pods.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        let pod = pods.find_map(|pod| pod["addresses"][0].as_str()?.parse::<IpAddr>().ok());
        sources.extend(pod.map(|pod| (pod.to_string(), self.redactor.address(pod).to_string())));
        // Spread over all Services.
        let step = targets.len().div_ceil(at).max(1);
        let mut count = 0;
        for (to, number, protocol) in targets.into_iter().step_by(step) {
            let port = format!("nodeport:{number}");
            let old = to.map_or(port.clone(), |to| to.to_string());
            let new = to.map_or(port, |to| {
                SocketAddr::new(self.redactor.address(to.ip()), to.port()).to_string()
            });
            // Each target from the next source.
            let (from, to) = &sources[count % sources.len()];
            let trace =
                |target, source| ["trace", target, "--protocol", &protocol, "--source", source];
            let (before, after) = self.reports(&trace(&old, from), &trace(&new, to));
            self.same(&format!("trace {old} from {from}"), &before, &after)?;
            count += 1;
        }
        Ok(count)
    }
}

fn restored(redactor: &mut Redactor, value: Value) -> Value {
    match value {
        Value::Array(all) => all
            .into_iter()
            .map(|value| restored(redactor, value))
            .collect(),
        Value::Object(all) => Value::Object(
            all.into_iter()
                .map(|(key, value)| (redactor.restore(&key), restored(redactor, value)))
                .collect(),
        ),
        Value::String(text) => redactor.restore(&text).into(),
        other => other,
    }
}

/// Returns the report without the parts that depend on the order of names: places in lists, places of missing rules, and
/// the object in the next command, if several have the same finding.
fn normal(key: &str, value: Value) -> Value {
    match value {
        Value::Array(all) => {
            let mut all: Vec<Value> = all.into_iter().map(|value| normal(key, value)).collect();
            all.sort_by_key(Value::to_string);
            Value::Array(all)
        }
        Value::Object(mut all) => {
            let next = all
                .get("next")
                .and_then(|next| Some((next.as_str()?, all.get("findings")?.as_array()?)));
            if let Some((next, findings)) = next {
                let named = findings
                    .iter()
                    .find(|finding| next.split(' ').any(|word| word == finding["subject"]));
                if let Some(of) = named {
                    let (id, message) = (&of["id"], &of["message"]);
                    let next = next.replace(of["subject"].as_str().unwrap(), "SUBJECT");
                    all["next"] = format!("{next} {id} {message}").into();
                }
            }
            // Hops refer to outcomes by their places.
            let outcomes = all.get("outcomes").cloned();
            for hop in list(all.get_mut("hops")) {
                for at in list(hop.get_mut("outcomes")) {
                    *at = outcomes.as_ref().unwrap()
                        [usize::try_from(at.as_u64().unwrap()).unwrap()]
                    .clone();
                }
            }
            let normal = all.into_iter().map(|(name, value)| {
                let value = normal(&name, value);
                (name, value)
            });
            Value::Object(normal.collect())
        }
        Value::String(text) if key != "id" => Value::String(sorted(&text)),
        other => other,
    }
}

fn list(value: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    value.and_then(Value::as_array_mut).into_iter().flatten()
}

/// Returns the words of `text`, sorted: lists in it are in the order of names.
fn sorted(text: &str) -> String {
    let mut words: Vec<&str> = text
        .split([' ', ',', ';', '\n', '{', '}', '(', ')', '"', '\'', '`'])
        .filter(|word| !word.is_empty())
        .collect();
    // The first of several, in the order of names: `X and 4 more`. Their number is compared.
    let more =
        (1..words.len()).find(|at| words[*at].starts_with("more") && is_number(words[at - 1]));
    if let Some(at) = more {
        return words[at - 1..].join(" ");
    }
    if let Some(at) = words.iter().position(|word| *word == "rule")
        && words.get(at + 1).is_some_and(|word| is_number(word))
    {
        words.remove(at + 1);
    }
    // The source of a trace is the first address of the pods' network that no pod has.
    if let Some(at) = words.iter().position(|word| *word == "--source") {
        words.remove(at + 1);
    }
    words.sort_unstable();
    words.join(" ")
}

fn is_number(word: &str) -> bool {
    word.parse::<f64>().is_ok()
}

fn differences(at: &str, before: &Value, after: &Value, found: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                let of = |map: &serde_json::Map<String, Value>| {
                    map.get(key).cloned().unwrap_or_default()
                };
                differences(&format!("{at}.{key}"), &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            let mut left = b.clone();
            let only: Vec<&Value> = a
                .iter()
                .filter(
                    |value| match left.iter().position(|other| other == *value) {
                        Some(at) => {
                            left.swap_remove(at);
                            false
                        }
                        None => true,
                    },
                )
                .collect();
            // Two about the same thing are compared part by part.
            let about = |of: &Value| {
                ["id", "service", "protocol", "to", "client"]
                    .map(|key| of[key].to_string())
                    .concat()
            };
            let is_alone = |one: &Value, all: &[Value]| {
                all.iter()
                    .filter(|entry| about(entry) == about(one))
                    .count()
                    == 1
            };
            let mut only: Vec<Value> = only.into_iter().cloned().collect();
            for one in only.clone() {
                if is_alone(&one, &only) && is_alone(&one, &left) {
                    let name = about(&one);
                    only.retain(|item| about(item) != name);
                    let other = left.iter().position(|entry| about(entry) == name).unwrap();
                    differences(
                        &format!("{at}[{name}]"),
                        &one,
                        &left.swap_remove(other),
                        found,
                    );
                }
            }
            found.extend(
                only.iter()
                    .map(|value| format!("{at} before: {}", brief(value))),
            );
            found.extend(
                left.iter()
                    .map(|value| format!("{at} after:  {}", brief(value))),
            );
        }
        (a, b) if a != b => found.push(format!("{at}: {} / {}", brief(a), brief(b))),
        _ => {}
    }
}

fn brief(value: &Value) -> String {
    value.to_string().chars().take(700).collect()
}

/// Runs `work` for each of these recordings, on all processors, and fails with all errors.
fn each(names: &[String], work: impl Fn(&str) -> Vec<String> + Sync) {
    let next = AtomicUsize::new(0);
    let threads = thread::available_parallelism().map_or(2, usize::from);
    let errors: Vec<String> = thread::scope(|scope| {
        let worker = || {
            let mut errors = Vec::new();
            while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                errors.extend(work(name));
            }
            errors
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap())
            .collect()
    });
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

fn is_large(name: &str) -> bool {
    name.starts_with("scale-")
}

#[test]
#[ignore = "takes long: make test-loops"]
fn the_doctor_and_the_diff_say_the_same_of_a_redacted_bundle() {
    diagnosis_is_kept(&chosen());
}

pub(crate) fn diagnosis_is_kept(names: &[String]) {
    each(names, |name| {
        let commands: [&[&str]; 5] = [
            &["doctor"],
            &["diff"],
            &["doctor", "--to", "iptables"],
            &["doctor", "--to", "ipvs"],
            &["doctor", "--to", "nftables"],
        ];
        // Faults that matter for a switch of the mode.
        let switches = ["faults-", "fit-", "km", "mx"];
        let is_switched = switches.iter().any(|start| name.starts_with(start));
        let commands = &commands[..if is_switched { 5 } else { 2 }];
        let differing = |mut pair: Pair| -> Vec<String> {
            let compared = commands.iter().map(|args| pair.compare(args));
            compared.filter_map(Result::err).collect()
        };
        let first = differing(Pair::of(name));
        if first.is_empty()
            || Pair::under_keys(name)
                .map(differing)
                .any(|all| all.is_empty())
        {
            return Vec::new();
        }
        first
    });
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_trace_says_the_same_of_a_redacted_bundle() {
    traces_are_kept(&chosen(), 20);
}

/// Fails if a trace changes, or if no more than `least` are compared.
pub(crate) fn traces_are_kept(names: &[String], least: usize) {
    let traced = AtomicUsize::new(0);
    each(names, |name| match Pair::of(name).compare_traces(3) {
        Ok(count) => {
            traced.fetch_add(count, Ordering::Relaxed);
            Vec::new()
        }
        Err(error) => vec![error],
    });
    assert!(traced.into_inner() > least);
}

#[tokio::test(flavor = "current_thread")]
async fn a_bundle_is_not_compared_with_its_redacted_copy() {
    let pair = Pair::of("seed-iptables");
    let [before, after] = ["before", "after"].map(|part| pair.folder.path().join(part));
    let [before, after] = [before.to_str().unwrap(), after.to_str().unwrap()];
    for (one, other) in [(before, after), (after, before)] {
        let ran = kpx(&["diff", one, other]).await;
        assert_eq!((ran.code, ran.out.as_str()), (4, ""), "{ran}");
        let wanted = format!("all names and addresses in {after} are replaced");
        let err = ran.err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(err.contains(&wanted), "{ran}");
    }
    let ran = kpx(&["diff", after, after]).await;
    assert!(ran.out.contains("nothing changed"), "{ran}");
}

#[test]
fn the_migration_in_a_bundle_has_the_same_status_after_redaction() {
    let status: &[&str] = &["migrate", "status"];
    let zebra = Pair::new("zebra", of_zebra(), [42; 32]);
    for mut pair in [Pair::of("mx06-unfinished-migration"), zebra] {
        pair.compare(status).unwrap();
        let (before, after) = pair.reports(status, status);
        assert_eq!(before["migration"]["id"], "20261121T163000Z-iptables-ipvs");
        assert_eq!(after["migration"]["to"], "ipvs");
    }
}

#[test]
#[ignore = "takes minutes: make test-loops"]
fn redaction_changes_no_answer_about_any_recording() {
    each(&recordings(), |name| {
        let mut pair = Pair::of(name);
        let commands: [&[&str]; 3] = [&["doctor"], &["diff"], &["show", "services"]];
        let mut errors: Vec<String> = commands
            .iter()
            .filter_map(|args| pair.compare(args).err())
            .collect();
        for key in if is_large(name) { 0..0 } else { 0..8 } {
            let before = pair.before.clone();
            let mut pair = Pair::new(name, before, [key; 32]);
            errors.extend(commands.iter().filter_map(|args| pair.compare(args).err()));
        }
        let most = if is_large(name) { 10 } else { usize::MAX };
        errors.extend(pair.compare_traces(most).err());
        errors
    });
}

/// Returns evidence with the word `zebra` and addresses of 203.0.113.0/24 wherever an administrator can write them.
fn of_zebra() -> Evidence {
    load(&root().join("testdata/zebra"), ITEMS).unwrap()
}

#[test]
fn a_word_of_an_administrator_is_left_nowhere() {
    let before = of_zebra();
    let after = Redactor::new([42; 32], &before).evidence(&before);
    let mut count = 0;
    for (item, read) in after.iter() {
        let text = match (before.text(item), read) {
            (Err(_), _) => continue,
            (Ok(_), read) => read.unwrap_or_else(|gap| panic!("{item}: {gap}")),
        };
        for word in ["zebra", "2ebra", "203.0.113.", "00:16:3e"] {
            let at = text.to_lowercase().find(word);
            let near = |at: usize| &text[at.saturating_sub(80)..(at + 40).min(text.len())];
            assert!(at.is_none(), "{item}: {:?}", at.map(near));
        }
        assert!(text.len() > 10, "{item}: {text:?}");
        count += 1;
    }
    assert_eq!(count, 29);
    // The grammar survives: everything parses, and relations are kept.
    let node = NodeSnapshot::new(&after);
    let nft = node.nft().unwrap();
    assert_eq!(nft.tables.len(), 1);
    let rules = node.iptables(IptablesBackend::InUse, Family::V4).unwrap();
    assert_eq!(rules.table("filter").unwrap().chains.len(), 4);
    assert_eq!(node.links().unwrap().all.len(), 2);
    assert_eq!(
        node.migration().unwrap().id,
        "20261121T163000Z-iptables-ipvs"
    );
    assert_eq!(node.proxy_config().unwrap().mode, "ipvs");
    let link = &node.links().unwrap().all[0].name;
    let of_rule = after.text(Item::Iptables4).unwrap();
    assert!(of_rule.contains(&format!("-i {link} ")), "{of_rule}");
    assert!(
        after
            .text(Item::Sysctl)
            .unwrap()
            .contains(&format!("conf.{link}.rp_filter = 1"))
    );
    assert!(
        after
            .text(Item::Nft)
            .unwrap()
            .contains("[\"established\",\"new\"]")
    );
    let name = node.proxy_config().unwrap().hostname_override.clone();
    assert!(
        after
            .text(Item::Processes)
            .unwrap()
            .contains(&format!("hostname-override={name}"))
    );
    assert!(
        after
            .text(Item::Nodes)
            .unwrap()
            .contains(&format!("\"{name}\""))
    );
    assert!(after.text(Item::Host).unwrap().contains(&name));
}

#[test]
fn replacements_depend_on_the_key_alone() {
    let before = of_zebra();
    let redacted = |key| Redactor::new([key; 32], &before).evidence(&before);
    assert!(redacted(1).iter().eq(redacted(1).iter()));
    let (one, other) = (redacted(1), redacted(2));
    assert_ne!(one.text(Item::Services), other.text(Item::Services));
}

#[test]
#[ignore = "takes long: make test-loops"]
fn neighbours_policies_filters_and_networks_of_pods_are_redacted_and_judged_the_same() {
    let folder = root().join("testdata/nodes/full-iptables");
    let recorded = load(&folder, ITEMS).unwrap();
    let neighbours =
        r#"[{"dst":"10.0.2.2","dev":"eth0","lladdr":"52:55:0a:00:02:02","state":["FAILED"]}]"#;
    let policies = "src 10.0.2.15/32 dst 10.244.0.0/16 proto tcp \n\tdir out action block priority 0 ptype main \n";
    let filters = r#"{"qdiscs":[{"kind":"blackhole","dev":"eth0","root":true}],"filters":[{"dev":"eth0","hook":"egress","filters":[
        {"protocol":"ip","pref":3,"kind":"u32","chain":0,"options":{"match":{"value":"a000202","mask":"ffffffff","offmask":"","off":16},"actions":[{"kind":"mirred","mirred_action":"redirect","to_dev":"eth0","control_action":{"type":"stolen"}}]}},
        {"protocol":"ip","pref":4,"kind":"flower","chain":0,"options":{"keys":{"dst_ip":"10.0.2.2"},"actions":[{"kind":"gact","control_action":{"type":"drop"}}]}},
        {"protocol":"ip","pref":5,"kind":"bpf","chain":0,"options":{"bytecode":{"length":1,"insns":[{"code":6,"k":167772674}]}}}]}]}"#;
    let networks = r#"=== 77
--- node/ip-addr.json
[{"ifname":"eth0","addr_info":[{"family":"inet","local":"10.244.1.14","prefixlen":24,"scope":"global"}]}]
--- node/ip-link.json
[{"ifname":"eth0","address":"52:55:0a:00:02:02"}]
--- node/ss.txt
tcp LISTEN 0 128 10.0.2.2:22 0.0.0.0:*
"#;
    let states = "src 10.0.2.15 dst 10.0.2.16\n\tproto esp spi 0x00000005 reqid 0 mode tunnel\n";
    let arp = "Chain INPUT (policy ACCEPT)\n1 -j DROP -i eth0 -s 10.0.2.16 --src-mac 52:55:0a:00:02:02 \n";
    for (item, text) in [
        (Item::NeighbourTable, neighbours),
        (Item::XfrmPolicies, policies),
        (Item::XfrmStates, states),
        (Item::Arptables, arp),
        (Item::Tc, filters),
        (Item::PodNetworks, networks),
    ] {
        let mut before = recorded.clone();
        before.insert(item, Ok(text.to_owned()));
        let after = Redactor::new([7; 32], &before).evidence(&before);
        let redacted = after.text(item).unwrap();
        for secret in ["10.0.2.", "52:55", "a000202", "167772674"] {
            assert!(!redacted.contains(secret), "{item}: {redacted}");
        }
        let fates = |evidence: &Evidence| {
            let node = NodeSnapshot::new(evidence);
            let owners = kpx_node::owner::Owners::new(&node);
            let all = kpx_judge::verdict::survey(&node, owners.ports(), &Family::BOTH, None);
            let cells = all.iter().flat_map(|port| &port.cells);
            let mut fates: Vec<_> = cells.map(|cell| cell.fate).collect();
            fates.sort_unstable();
            fates
        };
        assert_eq!(fates(&before), fates(&after), "{item}");
        assert_ne!(fates(&before), fates(&recorded), "{item}");
    }
}
