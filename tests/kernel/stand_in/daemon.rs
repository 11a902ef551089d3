//! The process: cleans up, waits, syncs, and syncs again when the cluster changes.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kpx_host as host;
use kpx_node::backend::Mode;
use kpx_node::cluster::config::ProxyConfig;
use kpx_node::evidence::{self, Evidence, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

use super::servers::{self, Status, now};
use super::{Folder, cleanup, sync};

/// How often the cluster is read. The real kube-proxy watches it and gets each change at once.
const LOOK: Duration = Duration::from_millis(100);

/// The same for reads that take several requests.
const ASK: Duration = Duration::from_secs(1);

/// The items of the node that kube-proxy reads.
const NODE: &[Item] = &[
    Item::KernelRelease,
    Item::IptablesVersion,
    Item::Addresses,
    Item::Sysctl,
];

/// The items of the cluster that it reads.
const CLUSTER: &[Item] = &[
    Item::Services,
    Item::EndpointSlices,
    Item::Nodes,
    Item::DaemonSets,
];

/// Is kube-proxy until it is ended.
pub(super) fn run(folder: &Folder) -> ! {
    let text = fs::read_to_string(folder.config()).unwrap();
    let config = ProxyConfig::parse(&text).unwrap();
    let mode = config.mode_asked().unwrap();
    let log = Log(folder.log());
    if mode == Mode::Ipvs && !sync::try_run("modprobe -va ip_vs") {
        let why = "can't use the IPVS proxier: ipvs not supported";
        log.line(
            "server.go:1",
            &format!("\"Error running ProxyServer\" err=\"{why}\""),
        );
        panic!("{why}");
    }
    cleanup::at_start(mode);
    log.line(
        "server.go:274",
        "\"kube-proxy running in dual-stack mode\" primary ipFamily=\"IPv4\"",
    );
    log.line("server_linux.go:137", &format!("\"Using {mode} Proxier\""));
    if mode == Mode::Ipvs {
        log.line(
            "proxier.go:351",
            "\"IPVS scheduler not specified, use rr by default\" ipFamily=\"IPv4\"",
        );
    }
    let proxy = Proxy {
        mode,
        cluster: Cluster::of(folder),
        text,
        log,
    };
    let mut cluster = proxy.cluster.read();
    sync::settings(&proxy.snapshot(&cluster, |node| node.desired(mode).unwrap().clone()));
    let status = Arc::new(Mutex::new(Status {
        mode,
        config: effective(&proxy.text, mode),
        started: now(),
        queued: BTreeMap::new(),
        synced: BTreeMap::new(),
    }));
    let (metrics, healthz) = (
        address(&config.metrics_bind_address, "127.0.0.1:10249"),
        address(
            config.healthz_bind_address.as_deref().unwrap_or_default(),
            "0.0.0.0:10256",
        ),
    );
    servers::start(&status, metrics, healthz);
    status.lock().unwrap().queued = Family::BOTH.map(|family| (family, now())).into();
    let delay: u64 = fs::read_to_string(folder.delay()).unwrap().parse().unwrap();
    thread::sleep(Duration::from_millis(delay));
    cluster = proxy.cluster.read();
    let mut first = true;
    loop {
        for family in Family::BOTH {
            proxy.sync(&cluster, family, first);
            status.lock().unwrap().synced.insert(family, now());
            proxy.log.line(
                "proxier.go:900",
                &format!("\"SyncProxyRules complete\" ipFamily=\"{family}\""),
            );
        }
        first = false;
        cluster = proxy.wait(&cluster);
        status.lock().unwrap().queued = Family::BOTH.map(|family| (family, now())).into();
    }
}

struct Proxy {
    mode: Mode,
    cluster: Cluster,
    /// The text of its configuration.
    text: String,
    log: Log,
}

impl Proxy {
    fn sync(&self, cluster: &Evidence, family: Family, first: bool) {
        self.log.line(
            "proxier.go:850",
            &format!("\"Syncing rules\" ipFamily=\"{family}\""),
        );
        let desired = self.snapshot(cluster, |node| node.desired(self.mode).unwrap().clone());
        sync::family(&desired, family, first);
    }

    /// Does `work` with what is known of the node and `cluster`.
    fn snapshot<T>(&self, cluster: &Evidence, work: impl FnOnce(&NodeSnapshot<'_>) -> T) -> T {
        let mut evidence = block_on(host::collect(NODE, &options(None)));
        evidence.extend(cluster.clone());
        evidence.insert(Item::ProxyConfig, Ok(self.text.clone()));
        // Whether packets are counted is seen in the rules there are; kube-proxy counts.
        let recorded = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("testdata/nodes/dual-iptables/node/iptables-save.txt");
        evidence.insert(Item::Iptables4, Ok(fs::read_to_string(recorded).unwrap()));
        work(&NodeSnapshot::new(&evidence))
    }

    /// Waits until the cluster is another, or it is time to look after what was written.
    fn wait(&self, before: &Evidence) -> Evidence {
        const PERIOD: Duration = Duration::from_secs(30);
        let begin = Instant::now();
        loop {
            thread::sleep(match self.cluster {
                Cluster::Bundle(_) => LOOK,
                Cluster::Server(_) => ASK,
            });
            let cluster = self.cluster.read();
            let same = CLUSTER
                .iter()
                .all(|&item| cluster.text(item) == before.text(item));
            // Only the ipvs mode writes all of it again.
            if !same || self.mode == Mode::Ipvs && begin.elapsed() > PERIOD {
                return cluster;
            }
        }
    }
}

/// The source of the cluster's objects.
enum Cluster {
    Bundle(PathBuf),
    Server(PathBuf),
}

impl Cluster {
    fn of(folder: &Folder) -> Self {
        let kubeconfig = folder.0.join("kubeconfig");
        if kubeconfig.exists() {
            Self::Server(kubeconfig)
        } else {
            Self::Bundle(folder.0.clone())
        }
    }

    fn read(&self) -> Evidence {
        match self {
            Self::Bundle(folder) => evidence::load(folder, CLUSTER).unwrap(),
            Self::Server(kubeconfig) => loop {
                let options = options(Some(kubeconfig.clone()));
                let read = block_on(host::collect(CLUSTER, &options));
                // A server that is away is asked again, as by an informer.
                if CLUSTER.iter().all(|&item| read.text(item).is_ok()) {
                    break read;
                }
                thread::sleep(LOOK);
            },
        }
    }
}

fn options(kubeconfig: Option<PathBuf>) -> host::Options {
    host::Options {
        netns: None,
        root: PathBuf::from("/"),
        node: Some("node1".to_owned()),
        families: Family::BOTH.to_vec(),
        timeout: Duration::from_secs(60),
        no_api: kubeconfig.is_none(),
        kubeconfig,
        context: None,
        selection: host::Selection::default(),
        environment: host::Environment::default(),
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap().block_on(future)
}

/// The configuration as `/configz` shows it, with its mode.
fn effective(text: &str, mode: Mode) -> serde_json::Value {
    let mut config: serde_json::Value = serde_yaml::from_str(text).unwrap();
    config["mode"] = mode.name().into();
    config
}

fn address(configured: &str, default: &str) -> SocketAddr {
    let text = if configured.is_empty() {
        default
    } else {
        configured
    };
    text.parse().unwrap()
}

/// The log file, in the form of Kubernetes' logs.
struct Log(PathBuf);

impl Log {
    fn line(&self, place: &str, text: &str) {
        let mut file = OpenOptions::new().append(true).open(&self.0).unwrap();
        let pid = process::id();
        // 2026-11-20T13:10:03.123456789Z
        let time = servers::stamp(now());
        let (month, day, clock) = (&time[5..7], &time[8..10], &time[11..26]);
        let line = format!("I{month}{day} {clock} {pid:7} {place}] {text}\n");
        file.write_all(line.as_bytes()).unwrap();
    }
}
