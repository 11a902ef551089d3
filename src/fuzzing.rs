//! Targets of the fuzzer: parsers and decoders of bytes that kpx did not write. For any bytes, a target returns and its
//! assertions hold.
//!
//! Evidence is passed as the files of a bundle, each behind a line `== FILE`.

use std::fs;
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::str::FromStr;

use crate::cli;
use crate::render::TextWriter;
use kpx_host::{credential, decoders as decode};
use kpx_judge::check::ignore::Ignores;
use kpx_judge::check::{Facts, all, run};
use kpx_judge::diff;
use kpx_judge::redact::Redactor;
use kpx_judge::trace::target::Target;
use kpx_judge::trace::{Carried, Entry, Flow, World};
use kpx_migrate::wire::Line;
use kpx_node::backend::{Mode, ipset, iptables, ipvs, nftables};
use kpx_node::cluster::config::ProxyConfig;
use kpx_node::cluster::edit::{self, Fields};
use kpx_node::cluster::flags::Flags;
use kpx_node::cluster::release::Goal;
use kpx_node::cluster::selector::Selector;
use kpx_node::cluster::validate;
use kpx_node::cluster::version::Version;
use kpx_node::dns::{Reply, ResolvConf, in_hosts};
use kpx_node::evidence::{
    Evidence, IPTABLES, ITEMS, Item, Kernel, Limits, Manifest, Time, load_within, others_of, save,
};
use kpx_node::foreign;
use kpx_node::net::{Cidr, Family, Mark, PortRange, Proto};
use kpx_node::node::{IptablesBackend, NodeSnapshot, conntrack, links, routes, tc, xfrm};

/// A target: its name, and its function.
pub type Named = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Named] = &[
    ("iptables", |bytes| with_node(bytes, iptables_rules)),
    ("nftables", |bytes| {
        with_node(bytes, |node| {
            let Ok(rules) = node.nft() else {
                return;
            };
            // JSON can have parts that nft has no words for.
            if node.evidence().text(Item::Nft).is_ok() {
                rules
                    .tables
                    .iter()
                    .map(nftables::print::block)
                    .for_each(drop);
            } else {
                nftables_rules(rules, false);
            }
        });
    }),
    ("items", |bytes| with_node(bytes, every_item)),
    ("objects", |bytes| with_node(bytes, objects)),
    ("doctor", |bytes| doctor(&evidence(bytes))),
    ("bundle", bundle),
    ("pastes", pastes),
    ("config", |bytes| config(&text(bytes))),
    ("arguments", |bytes| arguments(&text(bytes))),
    ("words", |bytes| words(&text(bytes))),
    ("messages", messages),
    ("netlink", netlink),
    ("netlink-nftables", |bytes| {
        if let Some(text) = decode::nft(bytes) {
            let rules = nftables::parse::json(&text);
            let rules = rules.unwrap_or_else(|why| panic!("{why}\n{text}"));
            if !has_escapes(&text) {
                nftables_rules(&rules, true);
            }
        }
    }),
    ("netlink-iptables", |bytes| {
        printed_iptables(decode::xtables(bytes))
    }),
    ("legacy-iptables", |bytes| {
        printed_iptables(decode::legacy(bytes))
    }),
];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns names and texts of the files in `text`.
fn files(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let sections = text.split("== ");
    sections.filter_map(|section| section.split_once('\n'))
}

/// Returns the items in `bytes`.
fn evidence(bytes: &[u8]) -> Evidence {
    let mut evidence = Evidence::default();
    for (file, text) in files(&text(bytes)) {
        if let Some(item) = Item::of_file(file) {
            evidence.insert(item, Ok(text.to_owned()));
        }
    }
    evidence
}

fn with_node(bytes: &[u8], run: fn(&NodeSnapshot<'_>)) {
    run(&NodeSnapshot::new(&evidence(bytes)));
}

/// A chain that is read alone equals the one in the whole, and printed rules read back as themselves.
fn iptables_rules(node: &NodeSnapshot<'_>) {
    let store = IptablesBackend::InUse;
    for family in Family::BOTH {
        let saved = node.saved(store, family);
        let Ok(rules) = node.iptables(store, family) else {
            continue;
        };
        let saved = saved.expect("the whole was read");
        for table in &rules.tables {
            for chain in &table.chains {
                let alone = saved.chain(&table.name, &chain.name);
                assert_eq!(alone, Ok(Some(chain)), "table {}", table.name);
            }
        }
        same_iptables(rules);
    }
}

fn same_iptables(rules: &iptables::model::Ruleset<'_>) {
    let printed = rules.to_string();
    let again = iptables::parse::ruleset(Item::Iptables4, &printed);
    let again = again.unwrap_or_else(|why| panic!("{why}\n{printed}"));
    assert_eq!(again.tables, rules.tables, "{printed}");
}

/// Returns whether `json` has names with quotes or control characters: nft has no escapes in text, so they are not read back.
fn has_escapes(json: &str) -> bool {
    json.contains('\\')
}

/// Tables that are printed have the same parts when they are read, and are the same if they are the kernel's: words that nft
/// does not write may change.
fn nftables_rules(rules: &nftables::model::Ruleset, of_kernel: bool) {
    // Names of other characters than nft's own are not read back.
    let is_name = |name: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"_./-".contains(&byte);
        !name.is_empty() && name.bytes().all(is_part)
    };
    for table in &rules.tables {
        let chains = table.chains.iter().map(|chain| &chain.name);
        let mut names = chains.chain(table.sets.iter().map(|set| &set.name));
        // The kernel's base chains have a type.
        let mut kinds = table.chains.iter().filter_map(|chain| chain.base.as_ref());
        if kinds.any(|base| !is_name(&base.kind)) {
            continue;
        }
        // Names in verdicts and expressions are found in Rust's notation of the table, which escapes quotes.
        let notation = format!("{table:?}");
        let marks = ["Jump(\"", "Goto(\"", "Named(\"", "set: \""];
        let rests = marks.iter().flat_map(|mark| notation.split(mark).skip(1));
        let mut used = rests.filter_map(|rest| rest.split('"').next());
        if !is_name(&table.name) || !names.all(|name| is_name(name)) || !used.all(is_name) {
            continue;
        }
        let printed = nftables::print::block(table);
        // Parts that only JSON has are printed as they are, and not read as such.
        if printed.contains("{\"") || printed.contains("[\"") {
            continue;
        }
        if let Ok(again) = nftables::parse::text(&printed) {
            let shapes: Vec<_> = again.tables.iter().map(shape).collect();
            assert_eq!(shapes, [shape(table)], "{printed}");
            let twice: String = again.tables.iter().map(nftables::print::block).collect();
            assert!(!of_kernel || twice == printed, "{printed}\n{twice}");
        }
    }
}

/// Returns how many rules and elements each part of `table` has.
fn shape(table: &nftables::model::Table) -> [Vec<(&str, usize)>; 2] {
    let chains = table.chains.iter();
    let chains = chains.map(|chain| (chain.name.as_str(), chain.rules.len()));
    let sets = table.sets.iter();
    let sets = sets.map(|set| (set.name.as_str(), set.elements.len()));
    [chains.collect(), sets.collect()]
}

/// Parses each item that has no target of its own.
fn every_item(node: &NodeSnapshot<'_>) {
    virtual_servers(node);
    redact(node.evidence());
    node.ipvs_connections().ok();
    node.ipset_or_none().ok();
    node.recent().ok();
    node.addresses().ok();
    node.links().ok();
    node.routes().ok();
    node.rules().ok();
    node.sockets().ok();
    node.held_sockets().ok();
    node.conntrack().ok();
    node.conntrack_stat().ok();
    node.processes().ok();
    node.proxy_files().ok();
    node.migration().ok();
    node.health().ok();
    node.kernel().ok();
    node.modes();
    node.identity();
    node.proxy_version(None).ok();
    for family in Family::BOTH {
        node.neighbours(family).ok();
    }
    if let Ok(modules) = node.modules() {
        let names = ["ip_vs", "ip_vs_rr", "nf_conntrack", "nf_tables"].map(str::to_owned);
        modules.to_load(&names);
        for name in &names {
            modules.standing(name);
            modules.blocker(name);
        }
    }
    if let Ok(metrics) = node.metrics() {
        metrics.git_version();
        metrics.process_start();
        metrics.full_sync();
        metrics.any_sync();
        metrics.has_synced(&Family::BOTH);
        metrics.last_queued().count();
        metrics.average("kubeproxy_sync_proxy_rules_duration_seconds");
    }
    if let Ok(sysctl) = node.sysctl() {
        for (key, value) in sysctl.iter() {
            assert!(sysctl.get(key).is_some(), "{key} = {value}");
        }
    }
    if let Ok(text) = node.evidence().text(Item::Ipvs) {
        decode::proc_ip_vs(text);
    }
}

fn virtual_servers(node: &NodeSnapshot<'_>) {
    let Ok(table) = node.ipvs() else {
        return;
    };
    for server in &table.servers {
        let key = ipvs::print::key(server.key);
        let options = ipvs::print::options(server);
        assert!(
            !key.contains('\n') && !options.contains('\n'),
            "{key}{options}"
        );
    }
}

/// Parses the objects of the cluster, and computes kube-proxy's desired state for them.
fn objects(node: &NodeSnapshot<'_>) {
    node.services().ok();
    node.slices().ok();
    node.nodes().ok();
    node.config_maps().ok();
    node.daemon_sets().ok();
    node.service_cidrs().ok();
    node.all_pods().ok();
    for mode in Mode::EVER {
        node.desired(mode).ok();
    }
}

/// The same evidence is redacted in the same way.
fn redact(evidence: &Evidence) {
    let redacted = || {
        let all = Redactor::new([7; 32], evidence).evidence(evidence);
        let all = all
            .iter()
            .map(|(item, read)| (item, read.map(str::to_owned).map_err(Clone::clone)));
        all.collect::<Vec<_>>()
    };
    assert_eq!(redacted(), redacted());
}

/// Runs every check, a diff in each mode, and the traces of a few Services.
fn doctor(evidence: &Evidence) {
    let node = &NodeSnapshot::new(evidence);
    let facts = Facts::new(node, Time::from_epoch(1_800_000_000.0));
    for check in all() {
        run(check, &facts);
    }
    for mode in Mode::EVER {
        diff::compare(node, mode, &Family::BOTH).ok();
    }
    let services = node.services().map(Vec::as_slice).unwrap_or_default();
    let to = services.iter().take(3).filter_map(|service| {
        let destination: IpAddr = service.spec.cluster_ip.parse().ok()?;
        Some((destination, service.spec.ports.first()?))
    });
    for (destination, port) in to {
        for entry in [Entry::Pod, Entry::Host, Entry::Outside] {
            let flow = Flow {
                entry,
                source: None,
                destination,
                port: port.port,
                mark: 0,
                carried: Carried::default(),
                proto: Proto::Tcp,
                established: false,
            };
            let ends = World::whole(node, Family::of(destination)).walk(&flow);
            let ends = ends.expect("the node has all rules");
            let sum: f64 = ends.iter().map(|end| end.probability).sum();
            assert!((sum - 1.0).abs() < 0.001, "{sum}: {ends:?}");
        }
    }
}

/// Limits that prevent a small archive from expanding beyond the fuzzer's memory.
const LIMITS: Limits = Limits {
    member: 1 << 20,
    kept: 4 << 20,
    archive: 16 << 20,
};

/// Loads an archive, or a folder if the bytes are evidence. A bundle that was loaded is the same after it is saved.
fn bundle(bytes: &[u8]) {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let path = dir.path().join("bundle");
    if bytes.starts_with(b"== ") {
        folder(&text(bytes), &path);
    } else {
        fs::write(&path, bytes).expect("the disk has room");
    }
    if let Ok(loaded) = load_within(&path, ITEMS, LIMITS) {
        saved_as_loaded(&loaded, dir.path());
    }
    kpx_node::evidence::each_node(&path, &[Item::Nodes], &mut |_, _, _| {
        ControlFlow::Continue(())
    })
    .ok();
}

/// Reads a pasted text, or an archive. Only rules that iptables could have written are kept.
fn pastes(bytes: &[u8]) {
    let Ok(files) = others_of("input", bytes.to_vec(), &foreign::is_wanted) else {
        return;
    };
    let found = foreign::files("input", files);
    for node in found.into_iter().flat_map(|found| found.nodes) {
        let evidence = node.evidence.with_all_parts();
        for item in IPTABLES {
            if let Ok(text) = evidence.text(*item) {
                let rules = iptables::parse::ruleset(*item, text);
                rules.unwrap_or_else(|why| panic!("{why}\n{text}"));
            }
        }
        every_item(&NodeSnapshot::new(&evidence));
    }
}

fn folder(text: &str, top: &Path) {
    for (file, text) in files(text) {
        let known = Item::of_file(file).is_some()
            || matches!(file, "manifest.json" | "errors.txt" | "nodes.json");
        if known {
            let path = top.join(file);
            let parent = path.parent().expect("it is below the top");
            fs::create_dir_all(parent).expect("the disk has room");
            fs::write(&path, text).expect("the disk has room");
        }
    }
}

fn saved_as_loaded(loaded: &Evidence, dir: &Path) {
    let path = dir.join("saved.tar.gz");
    let manifest = Manifest::of(loaded, "2026-01-01T00:00:00Z".to_owned(), None);
    save(loaded, &manifest, &path).expect("the disk has room");
    let again = load_within(&path, ITEMS, LIMITS).expect("it was just saved");
    for (item, read) in loaded.iter() {
        assert_eq!(read.ok(), again.text(item).ok(), "{item}");
    }
}

/// Reads kube-proxy's configuration, and edits it.
fn config(text: &str) {
    edits(text);
    if let Ok(config) = ProxyConfig::parse(text) {
        config.healthz_bind();
        config.bind_address();
        config.bind_family();
        config.scheduler();
        config.exclude_cidrs();
        config.mode_asked();
        for mode in Mode::EVER {
            config.sync_period(mode);
            config.masquerade_bit(mode);
            config.node_ports_at(mode);
        }
    }
    for mode in Mode::EVER {
        validate::refused(text, mode, None).ok();
    }
}

/// Only the requested fields change, and setting them again changes nothing.
fn edits(text: &str) {
    let mut fields = Fields {
        mode: Mode::Nftables,
        scheduler: None,
        strict_arp: None,
    };
    for _ in 0..2 {
        if let Ok(done) = edit::set(text, &fields) {
            assert_eq!(edit::set(&done, &fields).as_ref(), Ok(&done));
            let read = |text: &str| kpx_node::cluster::config::written(text).expect("it was read");
            let (mut want, have) = (read(text), read(&done));
            want["mode"] = fields.mode.name().into();
            if let Some(scheduler) = &fields.scheduler {
                if want["ipvs"].is_null() {
                    want["ipvs"] = serde_json::json!({});
                }
                want["ipvs"]["scheduler"] = scheduler.as_str().into();
                want["ipvs"]["strictARP"] = true.into();
            }
            assert_eq!(have, want, "{done}");
            edit::put_back(&done, text, &fields).ok();
        }
        fields.mode = Mode::Ipvs;
        fields.scheduler = Some("lc".to_owned());
        fields.strict_arp = Some(true);
    }
}

/// Flags of kube-proxy: their configuration is YAML, and setting one twice changes nothing.
fn arguments(text: &str) {
    let words: Vec<&str> = text.split(['\0', '\n', ' ']).collect();
    let flags = Flags::parse(&words);
    Flags::passed_on(&words);
    let config = flags.to_config();
    kpx_node::cluster::config::written(&config).unwrap_or_else(|why| panic!("{why}\n{config}"));
    let fields = Fields {
        mode: Mode::Ipvs,
        scheduler: Some("lc".to_owned()),
        strict_arp: None,
    };
    if let Ok(done) = edit::set_arguments(text, &fields) {
        assert_eq!(edit::set_arguments(&done, &fields).as_ref(), Ok(&done));
    }
}

/// Words of a command line.
fn words(text: &str) {
    Target::parse(text).ok();
    Selector::parse(text).ok();
    cli::fuzz(text);
    reads_itself::<Cidr>(text);
    reads_itself::<Mark>(text);
    reads_itself::<PortRange>(text);
    reads_itself::<Family>(text);
    reads_itself::<Proto>(text);
    reads_itself::<Version>(text);
    reads_itself::<Goal>(text);
    reads_itself::<Kernel>(text);
    // A year of more than four digits is printed, and not read.
    text.parse().map(|time: Time| time.to_string()).ok();
}

/// A value that is printed reads as itself.
fn reads_itself<T: FromStr + PartialEq + std::fmt::Debug + ToString>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let printed = value.to_string();
        assert_eq!(printed.parse().ok(), Some(value), "{printed}");
    }
}

/// Answers of servers and other programs, and small files.
fn messages(bytes: &[u8]) {
    output(bytes);
    Reply::read(
        bytes,
        u16::from_be_bytes(*bytes.first_chunk().unwrap_or(&[0, 0])),
    )
    .ok();
    decode::http(bytes);
    credential(bytes);
    let text = text(bytes);
    in_hosts(&text, "node-1");
    ResolvConf::parse(&text, "node-1.example.org", |_| Some(1)).queries("web");
    Ignores::parse(&text).ok();
    if let Some(line) = Line::parse(&text) {
        assert_eq!(Line::parse(&line.to_text()), Some(line));
    }
}

/// Text that is written to a terminal in pieces contains no control character.
fn output(bytes: &[u8]) {
    use std::io::Write as _;

    let mut shown = Vec::new();
    let mut writer = TextWriter::new(&mut shown, false);
    for piece in bytes.chunks(1 + bytes.len() % 7) {
        writer.write_all(piece).expect("a Vec takes all bytes");
    }
    writer.flush().expect("a Vec takes all bytes");
    let shown = String::from_utf8(shown).expect("it is text");
    assert!(
        !shown
            .chars()
            .any(|c| c.is_control() && !matches!(c, '\n' | '\t')),
        "{shown:?}"
    );
}

/// The text that kpx prints for the kernel's rules is read, and the rules read as themselves.
fn printed_iptables(printed: Option<(Family, String)>) {
    if let Some((_, text)) = printed {
        let rules = iptables::parse::ruleset(Item::Iptables4, &text);
        same_iptables(&rules.unwrap_or_else(|why| panic!("{why}\n{text}")));
    }
}

/// Decodes the messages as each kind that has no target of its own. kpx parses the text that it prints for them.
fn netlink(bytes: &[u8]) {
    if let Some(text) = decode::ipset(bytes) {
        ipset::parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    }
    if let Some(text) = decode::ipvs(bytes) {
        ipvs::parse::records(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    }
    if let Some(text) = decode::conntrack(bytes) {
        conntrack::parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
    }
    let [all_links, addresses, all_routes, rules] = decode::routing(bytes);
    links::links(&all_links).ok();
    links::addresses(&addresses).ok();
    routes::routes(&all_routes).ok();
    routes::rules(&rules).ok();
    if let Some(text) = decode::xfrm(bytes) {
        xfrm::parse(&text).ok();
    }
    tc::parse(&decode::tc(bytes)).ok();
    decode::bpf(bytes);
    decode::sockets(bytes);
    decode::traced(bytes);
}
