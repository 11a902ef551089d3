//! How long it takes to write what the ipvs mode needs for 2000 Services with 10 endpoints each, beside the standard tools
//! that load the same text. As root, where there is `ip_vs`: `make bench-ipvs` runs it in the virtual machine.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints its result, and panics on errors"
)]

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kpx_host::{self as host, Live};
use kpx_node::action::Action;
use kpx_node::apply::Apply as _;
use kpx_node::backend::ipvs::change::{self, Edits};
use kpx_node::backend::ipvs::model::{Flags, Forwarding, Key, RealServer, VirtualServer};
use kpx_node::backend::ipvs::print;
use kpx_node::net::{Family, Proto};

const SERVERS: u32 = 2000;
const REALS: u32 = 10;

fn servers() -> Vec<VirtualServer> {
    let addr = |base: [u8; 4], n: u32| IpAddr::V4((u32::from(Ipv4Addr::from(base)) + n).into());
    let real = |n| RealServer {
        addr: addr([10, 244, 0, 1], n),
        port: 8080,
        weight: 1,
        forwarding: Forwarding::Masq,
        upper: 0,
        lower: 0,
        connections: None,
        stats: None,
    };
    let server = |n| VirtualServer {
        key: Key::Address {
            proto: Proto::Tcp,
            addr: addr([10, 96, 0, 1], n),
            port: 80,
        },
        scheduler: "rr".to_owned(),
        flags: Flags(0),
        timeout: 0,
        prefix: 32,
        engine: None,
        reals: (0..REALS).map(|at| real(n * REALS + at)).collect(),
        order: Vec::new(),
        stats: None,
    };
    (0..SERVERS).map(server).collect()
}

/// One half of the comparison: a network namespace, and how long each part took.
struct Side {
    netns: String,
    parts: Vec<(&'static str, Duration)>,
}

impl Side {
    fn new(name: &str) -> Self {
        let netns = format!("kpx-bench-{name}-{}", std::process::id());
        run(&["ip", "netns", "add", &netns], "");
        run(
            &[
                "ip",
                "-n",
                &netns,
                "link",
                "add",
                "kube-ipvs0",
                "type",
                "dummy",
            ],
            "",
        );
        // Without a table of local addresses, none is unicast.
        run(&["ip", "-n", &netns, "link", "set", "lo", "up"], "");
        Self {
            netns,
            parts: Vec::new(),
        }
    }

    fn tool(&self, line: &[&str], input: &str) -> String {
        run(
            &[&["ip", "netns", "exec", &self.netns], line].concat(),
            input,
        )
    }

    fn total(&self) -> Duration {
        self.parts.iter().map(|(_, took)| *took).sum()
    }

    /// The state now, to show that both did the same.
    fn state(&self) -> [usize; 3] {
        [
            self.tool(&["ipvsadm", "-Sn"], ""),
            self.tool(&["ip", "-o", "addr", "show", "dev", "kube-ipvs0"], ""),
            self.tool(&["ipset", "save"], ""),
        ]
        .map(|text| text.lines().count())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        run(&["ip", "netns", "del", &self.netns], "");
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the tools that kpx is compared with"
)]
fn run(line: &[&str], input: &str) -> String {
    let mut child = Command::new(line[0])
        .args(&line[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{line:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The processor time of this process, in user space and in the kernel.
fn processor() -> [Duration; 2] {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    // Fields 14 and 15 of proc(5), in hundredths of a second.
    [fields[11], fields[12]].map(|ticks| Duration::from_millis(10 * ticks.parse::<u64>().unwrap()))
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let servers = servers();
    let addresses: Vec<IpAddr> = servers
        .iter()
        .filter_map(|server| match server.key {
            Key::Address { addr, .. } => Some(addr),
            Key::Fwmark { .. } => None,
        })
        .collect();
    let (mut restore, mut batch) = (String::new(), String::new());
    let mut sets =
        "create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536 -exist\n\
                    create KUBE-IPVS-IPS hash:ip family inet hashsize 1024 maxelem 65536 -exist\n"
            .to_owned();
    let mut edits = Edits::default();
    for server in &servers {
        edits.add_server(server);
        let key = print::key(server.key);
        writeln!(restore, "-A {key} {}", print::options(server)).unwrap();
        for real in &server.reals {
            writeln!(restore, "-a {key} {}", print::real(real)).unwrap();
        }
    }
    for addr in &addresses {
        writeln!(batch, "addr add {addr}/32 dev kube-ipvs0").unwrap();
        writeln!(sets, "add KUBE-CLUSTER-IP {addr},tcp:80 -exist").unwrap();
    }
    // ipset sends what goes into one set together.
    for addr in &addresses {
        writeln!(sets, "add KUBE-IPVS-IPS {addr} -exist").unwrap();
    }
    // Modules are loaded, and what is read once is read.
    let warm = Side::new("warm");
    warm.tool(&["ipvsadm", "-A", "-t", "10.0.0.1:80", "-s", "rr"], "");
    warm.tool(&["ipset", "restore"], &sets);
    drop(warm);

    let mut tools = Side::new("tools");
    for (name, line, input) in [
        ("sets", &["ipset", "restore"][..], &sets),
        ("servers", &["ipvsadm", "--restore"], &restore),
        ("addresses", &["ip", "-batch", "-"], &batch),
    ] {
        let start = Instant::now();
        tools.tool(line, input);
        tools.parts.push((name, start.elapsed()));
    }

    let mut ours = Side::new("kpx");
    let mut live = Live::new(&host::Options {
        netns: Some(ours.netns.clone()),
        root: PathBuf::from("/"),
        node: None,
        families: vec![Family::V4],
        timeout: Duration::from_secs(60),
        kubeconfig: None,
        context: None,
        selection: host::Selection::default(),
        no_api: true,
        environment: host::Environment::default(),
    })
    .unwrap();
    let mut shares = Vec::new();
    for (name, action) in [
        ("sets", Action::Ipset { input: sets }),
        ("servers", edits.actions().0),
        ("addresses", change::add_addresses(&addresses).0),
    ] {
        let (start, before) = (Instant::now(), processor());
        live.apply(&action).await.unwrap();
        ours.parts.push((name, start.elapsed()));
        let after = processor();
        shares.push([0, 1].map(|at| after[at].saturating_sub(before[at])));
    }
    assert_eq!(ours.state(), tools.state());

    println!(
        "{SERVERS} virtual servers with {REALS} real servers each, {SERVERS} addresses, 2 sets of {SERVERS}"
    );
    println!(
        "{:<10} {:>9} {:>9} {:>7}   kpx itself: user, kernel",
        "", "tools", "kpx", "times"
    );
    let row = |name: &str, tools: Duration, kpx: Duration, more: String| {
        let times = tools.as_secs_f64() / kpx.as_secs_f64();
        println!(
            "{name:<10} {:>7} ms {:>6} ms {times:>7.1}   {more}",
            tools.as_millis(),
            kpx.as_millis()
        );
    };
    for (((name, tools), (_, kpx)), [user, kernel]) in
        tools.parts.iter().zip(&ours.parts).zip(&shares)
    {
        let more = format!("{} ms, {} ms", user.as_millis(), kernel.as_millis());
        row(name, *tools, *kpx, more);
    }
    row("all", tools.total(), ours.total(), String::new());
}
