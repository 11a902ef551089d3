//! One node with a real kube-proxy and a real API server, on a kernel that has `ip_vs`, moved between all three modes under
//! traffic.
//!
//! Such a kernel runs one processor, on which a kubelet does not start. So kube-proxy is a process here, and whoever runs
//! kpx restarts it in the new mode between `kpx migrate prepare` and `kpx migrate finish`.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::lab::{CONTROL, Lab, OUTSIDE};
use crate::run::{must, output, start, uncounted, wait_for};
use crate::traffic::{Place, Traffic};

const NODE: &str = "kpx-lab-node";
const ADDRESS: &str = "10.210.0.16";

/// The pods: the first two are servers. Each has a namespace of its name.
///
/// Both Services have the same endpoints, and IPVS loses a connection to one of them from the port of a recent connection to the
/// other: each has a client of its own.
const PODS: [(&str, &str); 4] = [
    ("kpx-lab-server1", "10.244.1.11"),
    ("kpx-lab-server2", "10.244.1.12"),
    ("kpx-lab-client1", "10.244.1.13"),
    ("kpx-lab-client2", "10.244.1.14"),
];

/// Every way between two modes, once.
const WAYS: [&str; 7] = [
    "iptables", "nftables", "ipvs", "iptables", "ipvs", "nftables", "iptables",
];

/// Goes all ways; prints the figures of each.
pub(crate) fn run(lab: &Lab) {
    lab.ready();
    lab.api();
    network();
    objects(lab);
    for (pod, _) in &PODS[..2] {
        let words = ["ip", "netns", "exec", pod, &Lab::app(), "serve"];
        lab.daemon(pod, &words);
    }
    let mut proxy = Proxy::start(lab, "iptables");
    proxy.synced();
    println!(
        "{}",
        kpx(lab, &["doctor"], &[0, 3])
            .lines()
            .next()
            .unwrap_or_default()
    );

    for pair in WAYS.windows(2) {
        let (from, to) = (pair[0], pair[1]);
        let traffic = Traffic::of(lab, places(lab), Duration::from_millis(100));
        thread::sleep(Duration::from_secs(4));
        let began = Instant::now();
        kpx(lab, &["migrate", "prepare", "--to", to, "--yes"], &[0]);
        proxy.stop();
        proxy = Proxy::start(lab, to);
        kpx(lab, &["migrate", "finish", "--yes"], &[0]);
        let took = began.elapsed();
        thread::sleep(Duration::from_secs(3));
        let report = traffic.stop();
        println!("{from} to {to}: {:.0} s; {report}", took.as_secs_f32());
        report.unharmed();
        kpx(lab, &["diff"], &[0, 3]);
        assert_eq!(modes(), [to], "what is left of other modes");
        if (from, to) == ("nftables", "ipvs") {
            proxy = served(lab, proxy);
        }
    }
}

/// Serves the node in mode ipvs in place of `proxy`, while endpoints come and go; the kube-proxy that takes over changes
/// nothing.
fn served(lab: &Lab, mut proxy: Proxy) -> Proxy {
    const CHANGES: usize = 10;
    let traffic = Traffic::of(lab, places(lab), Duration::from_millis(100));
    proxy.stop();
    let words = ["reconcile", "--watch", "--apply", "--yes", "--mode", "ipvs"];
    let mut watch = kpx_on_node(lab, &words).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let first = lines.find(|line| line.as_ref().unwrap().contains(" start: "));
    assert!(first.is_some(), "{:?}", watch.wait_with_output());
    for change in 0..CHANGES {
        let count = 2 - (change + 1) % 2;
        slices(lab, count);
        let wanted = format!("{ADDRESS}:30080");
        wait_for("its real servers", Duration::from_secs(10), || {
            let text = node("ipvsadm -Sn");
            let servers = text.lines().filter(|line| {
                line.starts_with("-a") && line.contains(&wanted) && !line.ends_with("-w 0")
            });
            (servers.count() == count).then_some(())
        });
        thread::sleep(Duration::from_secs(1));
    }
    let before = state();
    proxy = Proxy::start(lab, "ipvs");
    let ended = watch.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(4), "{err}");
    assert!(err.contains("runs: stopped; the rules stay"), "{err}");
    thread::sleep(Duration::from_secs(10));
    assert_eq!(state(), before, "what kube-proxy changed");
    let report = traffic.stop();
    println!("served in ipvs by kpx to the end of {CHANGES} changes: {report}");
    report.unharmed();
    proxy
}

/// The output of a shell command on the node.
fn node(script: &str) -> String {
    must(&["ip", "netns", "exec", NODE, "sh", "-c", script])
}

/// Virtual servers, sets, addresses and rules, without counters and order.
fn state() -> Vec<String> {
    let text = node(
        "ipvsadm -Sn; ipset save; ip -o addr show dev kube-ipvs0; iptables-save; ip6tables-save",
    );
    uncounted(&text)
}

/// The modes of which something is on the node.
fn modes() -> Vec<&'static str> {
    let all = [
        ("iptables", "iptables-save | grep KUBE-SVC-"),
        ("nftables", "nft list tables | grep kube-proxy"),
        (
            "ipvs",
            "ipvsadm -Ln | grep -E 'TCP|UDP' || ip link show kube-ipvs0",
        ),
    ];
    let there = |script: &str| output(&["ip", "netns", "exec", NODE, "sh", "-c", script]).is_ok();
    all.into_iter()
        .filter(|(_, script)| there(script))
        .map(|(mode, _)| mode)
        .collect()
}

/// The command that runs kpx on the node.
fn kpx_on_node(lab: &Lab, arguments: &[&str]) -> Command {
    let kubeconfig = lab.folder.join("pki/admin.conf");
    let kpx = env!("CARGO_BIN_EXE_kpx");
    let mut words = vec![
        "ip",
        "netns",
        "exec",
        NODE,
        kpx,
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
    ];
    words.extend(["--node", "node"]);
    words.extend(arguments);
    let mut command = crate::run::command(&words);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs kpx on the node; it must end with one of `codes`. Returns what it printed.
fn kpx(lab: &Lab, arguments: &[&str], codes: &[i32]) -> String {
    // Each line of progress with its time, also if the machine ends before kpx.
    let mut child = kpx_on_node(lab, arguments).spawn().unwrap();
    let mut err = String::new();
    let began = Instant::now();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        println!("    {:6.1} {line}", began.elapsed().as_secs_f32());
        err += &line;
        err.push('\n');
    }
    let output = child.wait_with_output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let code = output.status.code();
    assert!(
        codes.iter().any(|good| code == Some(*good)),
        "{arguments:?}: {code:?}\n{out}\n{err}"
    );
    out.into_owned()
}

struct Proxy {
    child: Child,
}

impl Proxy {
    /// Starts kube-proxy in `mode`, and has the ConfigMap say so.
    fn start(lab: &Lab, mode: &str) -> Self {
        let folder = PathBuf::from("/var/lib/kube-proxy");
        fs::create_dir_all(&folder).unwrap();
        let all = include_str!("kube-proxy.yaml");
        let map = all
            .split("---\n")
            .find(|part| part.contains("kind: ConfigMap"))
            .unwrap();
        // On the way out of ipvs, kpx waits until IPVS has forgotten every connection: minutes after its end, by default.
        let map = map
            .replace("mode: \"\"", &format!("mode: \"{mode}\""))
            .replace("tcpFinTimeout: 0s", "tcpFinTimeout: 20s")
            .replace("udpTimeout: 0s", "udpTimeout: 20s");
        lab.apply(&map);
        let text = lab.kubectl("-n kube-system get configmap kube-proxy -o json");
        let map: Value = serde_json::from_str(&text).unwrap();
        let config = map["data"]["config.conf"].as_str().unwrap();
        fs::write(folder.join("config.conf"), config).unwrap();
        fs::copy(
            lab.folder.join("pki/admin.conf"),
            folder.join("kubeconfig.conf"),
        )
        .unwrap();
        let program = lab.program("kube-proxy");
        let words = [
            "ip",
            "netns",
            "exec",
            NODE,
            &program,
            "--config=/var/lib/kube-proxy/config.conf",
            "--hostname-override=node",
        ];
        Self {
            child: start(&words, &lab.log("kube-proxy")),
        }
    }

    fn stop(&mut self) {
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill(pid, Signal::SIGTERM).unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its first sync.
    fn synced(&mut self) {
        wait_for("kube-proxy's first sync", Duration::from_secs(60), || {
            assert!(self.child.try_wait().unwrap().is_none(), "kube-proxy ended");
            output(&[
                "ip",
                "netns",
                "exec",
                NODE,
                "sh",
                "-c",
                "iptables-save | grep KUBE-SVC-",
            ])
            .ok()
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn network() {
    let ip = |words: &str| {
        must(
            &["ip"]
                .into_iter()
                .chain(words.split(' '))
                .collect::<Vec<_>>(),
        )
    };
    let join = |inside: &str, link: &str, switch: &str, bridge: &str, address: &str| {
        ip(&format!("netns add {inside}"));
        ip(&format!(
            "link add {link} netns {switch} type veth peer name eth0 netns {inside}"
        ));
        ip(&format!("-n {switch} link set {link} master {bridge} up"));
        ip(&format!("-n {inside} addr add {address}/24 dev eth0"));
        ip(&format!("-n {inside} link set lo up"));
        ip(&format!("-n {inside} link set eth0 up"));
    };
    join(NODE, "kl-node", CONTROL, "br0", ADDRESS);
    join(OUTSIDE, "kl-out", CONTROL, "br0", "10.210.0.99");
    ip(&format!("-n {NODE} route add default via 10.210.0.2"));
    ip(&format!("-n {NODE} link add cni0 type bridge"));
    ip(&format!("-n {NODE} addr add 10.244.1.1/24 dev cni0"));
    ip(&format!("-n {NODE} link set cni0 up"));
    for (index, (pod, address)) in PODS.into_iter().enumerate() {
        let link = format!("kl-pod{index}");
        join(pod, &link, NODE, "cni0", address);
        ip(&format!("-n {pod} route add default via 10.244.1.1"));
        must(&[
            "ip", "netns", "exec", NODE, "bridge", "link", "set", "dev", &link, "hairpin", "on",
        ]);
    }
    must(&["modprobe", "br_netfilter"]);
    must(&[
        "ip",
        "netns",
        "exec",
        NODE,
        "sysctl",
        "-qw",
        "net.ipv4.ip_forward=1",
        "net.bridge.bridge-nf-call-iptables=1",
        "net.bridge.bridge-nf-call-ip6tables=1",
    ]);
}

/// A Node, and Services of which the endpoints are written here: there is no controller.
fn objects(lab: &Lab) {
    let mut all = vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "demo" } }),
        json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node", "labels": { "kubernetes.io/os": "linux" } },
            "spec": { "podCIDR": "10.244.1.0/24" } }),
    ];
    let http = json!({ "name": "http", "port": 80, "targetPort": 8080 });
    let with_node_port = |port: u16| {
        let mut http = http.clone();
        http["nodePort"] = json!(port);
        http
    };
    let datagrams = json!({ "name": "datagrams", "port": 9001, "protocol": "UDP" });
    let echo = json!({ "name": "echo", "port": 9000 });
    for (name, spec) in [
        (
            "web",
            json!({ "clusterIP": "10.96.0.80", "ports": [http, datagrams, echo] }),
        ),
        (
            "sticky",
            json!({ "clusterIP": "10.96.0.81", "sessionAffinity": "ClientIP", "ports": [http] }),
        ),
        (
            "nodeport",
            json!({ "type": "NodePort", "ports": [with_node_port(30080)] }),
        ),
        (
            "local",
            json!({ "type": "NodePort", "externalTrafficPolicy": "Local", "ports": [with_node_port(30081)] }),
        ),
    ] {
        all.push(
            json!({ "apiVersion": "v1", "kind": "Service", "metadata": meta(name), "spec": spec }),
        );
    }
    apply(lab, &all);
    slices(lab, 2);
    let status = json!({ "status": { "addresses": [
        { "type": "InternalIP", "address": ADDRESS }, { "type": "Hostname", "address": "node" },
    ] } });
    lab.kubectl(&format!(
        "patch node node --subresource=status --type=merge -p '{status}'"
    ));
}

fn meta(name: &str) -> Value {
    json!({ "name": name, "namespace": "demo" })
}

/// Has the first `count` of the servers be the endpoints of each Service.
fn slices(lab: &Lab, count: usize) {
    let ports = [
        ("http", 8080, "TCP"),
        ("datagrams", 9001, "UDP"),
        ("echo", 9000, "TCP"),
    ];
    let ports = ports
        .map(|(name, port, protocol)| json!({ "name": name, "port": port, "protocol": protocol }));
    let endpoints: Vec<_> = PODS[..count]
        .iter()
        .map(|(_, address)| json!({ "addresses": [address], "nodeName": "node", "conditions": { "ready": true } }))
        .collect();
    let slice = |service: &str| {
        let mut meta = meta(&format!("{service}-1"));
        meta["labels"] = json!({ "kubernetes.io/service-name": service });
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta,
            "addressType": "IPv4", "endpoints": endpoints, "ports": ports,
        })
    };
    apply(lab, &["web", "sticky", "nodeport", "local"].map(slice));
}

fn apply(lab: &Lab, objects: &[Value]) {
    let mut text = String::new();
    for object in objects {
        writeln!(text, "---\n{object}").unwrap();
    }
    lab.apply(&text);
}

fn places(lab: &Lab) -> Vec<Place> {
    let address = |service: &str| lab.address(service);
    let [web, sticky] = ["web", "sticky"].map(address);
    let web = vec![
        format!("web=http={web}:80"),
        format!("datagrams=udp={web}:9001"),
    ];
    let sticky = vec![format!("sticky=http={sticky}:80")];
    // Packets of the node itself are masqueraded: their ports are made unique.
    let both = [web.clone(), sticky.clone()].concat();
    let outside = vec![
        format!("nodeport=http={ADDRESS}:30080"),
        format!("local=http={ADDRESS}:30081"),
    ];
    let netns = |name: &str| format!("/run/netns/{name}");
    vec![
        ("pod1".to_owned(), netns(PODS[2].0), web),
        ("pod2".to_owned(), netns(PODS[3].0), sticky),
        ("host".to_owned(), netns(NODE), both),
        ("outside".to_owned(), netns(OUTSIDE), outside),
    ]
}
