//! Reading a node through a pod on it, from a machine that is none of the nodes: against a fake API server behind whose
//! pods are recordings.

mod apply;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kpx_host::{self as host, Environment, Options, Selection};
use kpx_node::evidence::{self, Evidence, ITEMS, Item, Manifest};
use kpx_node::net::Family;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::fake_api::{Api, Fault, Key, Recordings, Trouble, What, objects_of, remove_times};
use crate::support::{Ran, kpx, root};

/// The node that is read.
pub(crate) const NODE: &str = "node1";

/// Its recording, which has drift for `doctor` and `diff` to find.
const RECORDING: &str = "full-iptables";

/// A processor other than this machine's, for which the copied program can be small.
const PROCESSOR: &str = if cfg!(target_arch = "aarch64") {
    "amd64"
} else {
    "arm64"
};

/// Longer than any deletion takes.
const SOON: Duration = Duration::from_secs(10);

/// A cluster of recordings, and a folder with a kubeconfig for it.
pub(crate) struct World {
    pub(crate) api: Api,
    nodes: Recordings,
    dir: TempDir,
}

impl World {
    /// A cluster with the objects of `RECORDING`, whose `NODE` it is.
    pub(crate) fn new() -> Self {
        let (api, nodes) = (Api::new(), Recordings::default());
        let folder = root().join("testdata/nodes").join(RECORDING);
        nodes.deal(NODE, &folder);
        api.kubelet(nodes.clone());
        api.with(|cluster| {
            for (file, kind) in [
                ("configmaps.json", "ConfigMap"),
                ("services.json", "Service"),
                ("endpointslices.json", "EndpointSlice"),
                ("daemonsets.json", "DaemonSet"),
                ("nodes.json", "Node"),
            ] {
                for mut object in objects_of(&folder, file) {
                    object["kind"] = kind.into();
                    if kind == "Node" {
                        object["metadata"]["labels"]["kubernetes.io/os"] = json!("linux");
                        object["status"]["nodeInfo"]["architecture"] = json!(PROCESSOR);
                    }
                    cluster.put(object);
                }
            }
            // With only the pods of kube-proxy and kpx, checks of pods would differ.
            cluster.put(json!({
                "kind": "Pod", "metadata": {"namespace": "default", "name": "web"},
                "spec": {"nodeName": NODE, "containers": [{"name": "web"}]}, "status": {"phase": "Running"},
            }));
        });
        api.settle();
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("kubeconfig"), api.kubeconfig()).unwrap();
        // Several messages long, the last one not full.
        let program: Vec<u8> = (0..100_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        fs::write(dir.path().join(format!("kpx-linux-{PROCESSOR}")), program).unwrap();
        Self { api, nodes, dir }
    }

    /// Removes kube-proxy's log from the disk of `NODE`.
    pub(crate) fn lose_log(&self) {
        let from = root().join("testdata/nodes").join(RECORDING);
        let to = self.path("without-log");
        for folder in ["node", "kube-proxy"] {
            fs::create_dir_all(to.join(folder)).unwrap();
            for file in fs::read_dir(from.join(folder)).unwrap() {
                let file = file.unwrap();
                if !file
                    .file_name()
                    .to_string_lossy()
                    .contains("kube-proxy.log")
                {
                    fs::copy(file.path(), to.join(folder).join(file.file_name())).unwrap();
                }
            }
        }
        self.nodes.deal(NODE, &to);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The options with which kpx reaches the cluster.
    pub(crate) fn options(&self) -> Vec<String> {
        self.options_within("5s")
    }

    /// The same options with another time limit.
    fn options_within(&self, limit: &str) -> Vec<String> {
        let word = |path: &Path| path.to_str().unwrap().to_owned();
        vec![
            "--kubeconfig".to_owned(),
            word(&self.path("kubeconfig")),
            "--programs".to_owned(),
            word(self.dir.path()),
            "--timeout".to_owned(),
            limit.to_owned(),
        ]
    }

    /// Runs kpx for `node`.
    pub(crate) async fn on(&self, node: &str, args: &[&str]) -> Ran {
        let options = self.options();
        let mut all: Vec<&str> = options.iter().map(String::as_str).collect();
        all.extend(["--node", node]);
        all.extend(args);
        kpx(&all).await
    }

    /// Starts kpx for `NODE` as a process of its own.
    #[expect(
        clippy::disallowed_methods,
        reason = "only a process can be killed, and copies itself"
    )]
    fn process(&self, args: &[&str]) -> Child {
        // Beside other tests, copying a program of 150 MB takes seconds.
        Command::new(env!("CARGO_BIN_EXE_kpx"))
            .args(self.options_within("30s"))
            .args(["--node", NODE])
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn edit_node(&self, change: impl FnOnce(&mut Value)) {
        let key = Key::new("nodes", "", NODE);
        self.api.with(|cluster| cluster.edit(&key, change));
    }

    /// Names of the Jobs and pods of kpx in the cluster.
    fn left(&self) -> Vec<String> {
        self.api.with(|cluster| {
            let of_kpx = |object: &&Value| {
                let meta = &object["metadata"];
                meta["namespace"] == "kube-system" && meta["labels"]["k8s-app"] != "kube-proxy"
            };
            let all = cluster.list("jobs").chain(cluster.list("pods"));
            let names = all.filter(of_kpx).map(|object| &object["metadata"]["name"]);
            names
                .map(|name| name.as_str().unwrap().to_owned())
                .collect()
        })
    }

    /// Waits until kpx has left nothing.
    async fn is_clean(&self) {
        let begin = Instant::now();
        while !self.left().is_empty() {
            assert!(begin.elapsed() < SOON, "left: {:?}", self.left());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Number of requests with `method` for a path that contains `part`.
    fn asked(&self, method: &str, part: &str) -> usize {
        let asked = self.api.asked().into_iter();
        let asked = asked.filter(|request| request.method == method && request.path.contains(part));
        asked.count()
    }

    /// Saves the recording, joined with the objects of the cluster, as a bundle; returns its path.
    async fn bundle(&self) -> String {
        let (of_api, own): (Vec<Item>, Vec<Item>) = ITEMS.iter().partition(|item| item.is_object());
        let options = Options {
            netns: None,
            root: PathBuf::from("/"),
            node: Some(NODE.to_owned()),
            families: Family::BOTH.to_vec(),
            timeout: Duration::from_secs(5),
            kubeconfig: Some(self.path("kubeconfig")),
            context: None,
            selection: Selection::default(),
            no_api: false,
            environment: Environment::default(),
        };
        let mut all = Self::recorded(&own);
        all.extend(host::collect(&of_api, &options).await);
        let time = host::clock::now().to_string();
        let manifest = Manifest::of(&all, time, Some(NODE.to_owned()));
        let path = self.path("joined.tar.gz");
        evidence::save(&all, &manifest, &path).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn recorded(items: &[Item]) -> Evidence {
        evidence::load(&root().join("testdata/nodes").join(RECORDING), items).unwrap()
    }
}

/// The report in `ran`, without times and ages.
fn report(ran: &Ran) -> Value {
    let mut report = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran}"));
    remove_times(&mut report);
    remove_places(&mut report);
    report
}

/// Removes whose node a report is about, and the machines to type commands on.
fn remove_places(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(remove_places),
        Value::Object(all) => {
            all.retain(|key, _| !["machine", "nextMachine", "origin"].contains(&key.as_str()));
            all.values_mut().for_each(remove_places);
        }
        _ => {}
    }
}

/// Asserts that the reports of two runs are the same, except for where commands belong, and shows the lines that differ.
#[track_caller]
fn is_same(remote: &Ran, offline: &Ran) {
    let text = |ran: &Ran| serde_json::to_string_pretty(&report(ran)).unwrap();
    let left = text(remote);
    // The kubeconfig and what its pods are made of are part of its advice.
    let options = ["--kubeconfig ", "--programs ", "--image "];
    let left = options
        .into_iter()
        .fold(left, |text, option| without_option(&text, option));
    // So is the bundle.
    let right = without_option(&text(offline), "--from ");
    let differs = left.lines().zip(right.lines()).find(|(a, b)| a != b);
    assert!(left == right, "{differs:?}\n{left}");
    assert_eq!(remote.code, offline.code, "{remote}");
}

/// Removes `option` with its value from every command in `text`.
fn without_option(text: &str, option: &str) -> String {
    let mut parts = text.split(option);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.split_once(' ').map_or("", |(_, rest)| rest)
    })
}

/// Whether `ran` is one error with advice: exit status 4, and each of `parts`.
#[track_caller]
fn is_error(ran: &Ran, parts: &[&str]) {
    ends_with(4, ran, parts);
}

/// The same for a command line that is wrong: exit status 2.
#[track_caller]
fn is_usage(ran: &Ran, parts: &[&str]) {
    ends_with(2, ran, parts);
}

#[track_caller]
fn ends_with(code: u8, ran: &Ran, parts: &[&str]) {
    let text = ran.err.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{ran}");
    let errors = ran.err.lines().filter(|line| line.starts_with("kpx: "));
    assert_eq!(errors.count(), 1, "{ran}");
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{ran}");
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_remote_node_is_reported_as_its_bundle_is() {
    let world = World::new();
    let bundle = world.bundle().await;
    let commands: &[&[&str]] = &[
        &["doctor", "-o", "json"],
        &["doctor", "--to", "nftables", "-o", "json"],
        &["show", "services", "-o", "json"],
        &["show", "chains", "-o", "json"],
        &["diff", "-o", "json"],
        &["trace", "shop/cart", "-o", "json"],
        &["preflight", "--to", "nftables", "-o", "json"],
        &["reconcile", "-o", "json"],
        &["reconcile", "--cleanup", "ipvs", "-o", "json"],
    ];
    for (number, args) in commands.iter().enumerate() {
        let mut offline = vec!["--from", bundle.as_str(), "--node", NODE];
        offline.extend_from_slice(args);
        let (remote, offline) = (world.on(NODE, args).await, kpx(&offline).await);
        is_same(&remote, &offline);
        world.is_clean().await;
        // One pod per run, on the node that was asked for.
        assert_eq!(world.nodes.started(), vec![NODE; number + 1]);
    }
    assert_eq!(world.asked("POST", "/jobs"), commands.len());
    assert_eq!(world.asked("DELETE", "/jobs/"), commands.len());
    assert_eq!(world.asked("GET", "/attach"), commands.len());
}

#[tokio::test]
async fn a_bundle_of_a_remote_node_has_its_items_and_the_objects_of_the_cluster() {
    let world = World::new();
    let path = world.path("x.tar.gz");
    let ran = world
        .on(NODE, &["snapshot", "--file", path.to_str().unwrap()])
        .await;
    assert_eq!(ran.code, 0, "{ran}");
    let saved = evidence::load(&path, ITEMS).unwrap();
    assert_eq!(saved.manifest().unwrap().node.as_deref(), Some(NODE));
    let own: Vec<Item> = ITEMS
        .iter()
        .copied()
        .filter(|item| !item.is_object())
        .collect();
    let recorded = World::recorded(&own);
    for &item in &own {
        // The saved item is the recorded one: nothing in it is of this machine.
        assert_eq!(saved.text(item).ok(), recorded.text(item).ok(), "{item}");
    }
    for item in [
        Item::Services,
        Item::EndpointSlices,
        Item::Nodes,
        Item::DaemonSets,
    ] {
        assert!(saved.text(item).unwrap().contains("\"items\""), "{item}");
    }
    world.is_clean().await;
}

#[tokio::test]
async fn the_pod_has_what_reading_takes_and_no_more() {
    let world = World::new();
    let ran = world.on(NODE, &["show", "services"]).await;
    assert_eq!(ran.code, 0, "{ran}");
    let asked = world.api.asked();
    let created: Vec<_> = asked
        .iter()
        .filter(|request| request.method == "POST" && request.path.ends_with("/jobs"))
        .collect();
    let [job] = created.as_slice() else {
        panic!("{created:?}");
    };
    let job = &job.body;
    assert_eq!(job["spec"]["ttlSecondsAfterFinished"], 0);
    assert!(job["spec"]["activeDeadlineSeconds"].as_u64().unwrap() <= 3600);
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["nodeName"], NODE);
    assert_eq!(pod["automountServiceAccountToken"], false);
    let container = &pod["containers"][0];
    assert_eq!(container["image"], "registry.k8s.io/kube-proxy:v1.36.2");
    assert_eq!(
        (&container["stdin"], &container["stdinOnce"]),
        (&json!(true), &json!(true))
    );
    assert!(container["securityContext"]["privileged"].is_null());
    assert_eq!(
        container["securityContext"]["capabilities"]["drop"],
        json!(["ALL"])
    );
    let mounts = container["volumeMounts"].as_array().unwrap().iter();
    let of_host: Vec<_> = mounts.filter(|mount| mount["name"] == "host").collect();
    assert!(
        of_host.iter().all(|mount| mount["readOnly"] == true),
        "{of_host:?}"
    );
    // The kpx in the pod asks for the node's own items only, each once.
    let ran = world.nodes.ran();
    let read: Vec<_> = ran
        .iter()
        .filter(|(_, words)| words.contains(&"snapshot".to_owned()))
        .collect();
    assert_eq!(read.len(), 1, "{ran:?}");
    assert!(!read[0].1.join(" ").contains("cluster/"), "{read:?}");
    world.is_clean().await;
}

#[tokio::test]
async fn a_server_without_closing_of_channels_works() {
    let world = World::new();
    world.api.with(crate::fake_api::Cluster::grow_old);
    let ran = world.on(NODE, &["diff", "-o", "json"]).await;
    let bundle = world.bundle().await;
    let offline = kpx(&["--from", &bundle, "--node", NODE, "diff", "-o", "json"]).await;
    is_same(&ran, &offline);
    world.is_clean().await;
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn trouble_on_the_node_is_one_error_and_leaves_nothing() {
    let refused = "container has runAsUser 0";
    let cases: &[(Trouble, &[&str])] = &[
        (
            Trouble::Waits("ErrImagePull", "failed to pull and unpack image: not found"),
            &[
                "ErrImagePull: failed to pull and unpack image: not found",
                "--image",
            ],
        ),
        (
            Trouble::Waits("CreateContainerConfigError", refused),
            &["CreateContainerConfigError", refused],
        ),
        (Trouble::NoShell, &["executable file not found", "--image"]),
        (Trouble::Damaged, &["damaged"]),
        (
            Trouble::NotRunnable("exec /kpx/kpx: no such file or directory"),
            &["no such file or directory", "make static"],
        ),
        (
            Trouble::Fails(4, "kpx: cannot enter /host\n"),
            &["kpx on node node1 failed: cannot enter /host"],
        ),
        (Trouble::Cut, &["node1", "damaged"]),
        (
            Trouble::Killed,
            &["node1", "the connection ended before the command"],
        ),
    ];
    for &(trouble, parts) in cases {
        let world = World::new();
        world.nodes.trouble(NODE, trouble);
        let ran = world.on(NODE, &["doctor"]).await;
        is_error(&ran, parts);
        world.is_clean().await;
    }
}

#[tokio::test]
async fn the_reason_of_an_image_without_a_shell_is_not_lost_with_the_connection() {
    let world = World::new();
    world.nodes.trouble(NODE, Trouble::NoShell);
    // More than the buffers of a connection.
    let program = world.path(&format!("kpx-linux-{PROCESSOR}"));
    fs::write(program, vec![0; 16 << 20]).unwrap();
    let ran = world.on(NODE, &["doctor"]).await;
    is_error(&ran, &["executable file not found", "--image"]);
    world.is_clean().await;
}

#[tokio::test]
async fn a_node_that_is_not_ready_gets_no_pod() {
    let world = World::new();
    world.edit_node(|node| {
        node["status"]["conditions"] = json!([{
            "type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status.",
        }]);
    });
    let ran = world.on(NODE, &["doctor"]).await;
    is_error(
        &ran,
        &[
            "node node1 is not ready: Kubelet stopped posting node status.",
            "kubectl describe node node1",
        ],
    );
    assert_eq!(world.asked("POST", "/jobs"), 0);
}

#[tokio::test]
async fn a_node_that_does_not_exist_is_reported_with_those_that_do() {
    let world = World::new();
    let ran = world.on("node7", &["doctor"]).await;
    is_usage(&ran, &["the cluster has no Node node7", "node1, node2"]);
    assert_eq!(world.asked("POST", "/jobs"), 0);
}

/// A refusal by Pod Security admission, after the name of the pod.
pub(crate) const VIOLATION: &str = "violates PodSecurity \"restricted:latest\": host namespaces (hostNetwork=true, hostPID=true), \
    unrestricted capabilities (container \"kpx\" must not include \"DAC_READ_SEARCH\", \"NET_ADMIN\", \"NET_RAW\", \"SYSLOG\", \
    \"SYS_CHROOT\", \"SYS_PTRACE\" in securityContext.capabilities.add), restricted volume types (volume \"host\" uses restricted \
    volume type \"hostPath\"), runAsNonRoot != true (pod or container \"kpx\" must set securityContext.runAsNonRoot=true)";

const LABEL: &str =
    "kubectl label namespace kube-system pod-security.kubernetes.io/enforce=privileged --overwrite";

/// The API server accepts the Job; its controller cannot create the pod, and reports that with an event.
#[tokio::test]
async fn a_refused_pod_is_reported_at_once_with_the_label_that_allows_it() {
    let world = World::new();
    world.api.with(|cluster| cluster.refuse_pods(VIOLATION));
    let ran = world.on(NODE, &["doctor"]).await;
    is_error(
        &ran,
        &["the pod on node node1 is refused", VIOLATION, LABEL],
    );
    assert_eq!(world.asked("GET", "/events"), 1);
    let asked = world.api.asked();
    let looks = asked
        .iter()
        .filter(|request| request.uri.contains("reader%3D"));
    assert_eq!(looks.count(), 1, "{asked:?}");
    world.is_clean().await;
}

#[tokio::test]
async fn a_job_that_a_policy_refuses_is_not_created_again_and_needs_no_role() {
    for (message, advice) in [
        (
            "admission webhook \"validate.kyverno.svc-fail\" denied the request: host paths are not allowed",
            "exempt namespace kube-system from the policy",
        ),
        (
            "jobs.batch \"x\" is forbidden: violates PodSecurity \"baseline:latest\": hostPath volumes (volume \"host\")",
            LABEL,
        ),
    ] {
        let world = World::new();
        let refused = Fault::of("create", "jobs", What::Refused(message));
        world.api.fault(refused);
        let ran = world.on(NODE, &["doctor"]).await;
        is_error(&ran, &["create jobs.batch", message, advice]);
        assert!(!ran.err.contains("deploy/"), "{ran}");
        assert_eq!(world.asked("POST", "/jobs"), 1);
    }
}

#[tokio::test]
async fn a_pod_that_never_appears_is_reported_with_the_reason_why_its_events_are_unknown() {
    let world = World::new();
    world.api.with(|cluster| cluster.refuse_pods(VIOLATION));
    world.api.fault(Fault::forbidden("list", "events"));
    let mut options = world.options();
    *options.last_mut().unwrap() = "300ms".to_owned();
    let mut all: Vec<&str> = options.iter().map(String::as_str).collect();
    all.extend(["--node", NODE, "doctor"]);
    let ran = kpx(&all).await;
    is_error(
        &ran,
        &[
            "has no pod, and its events are unknown: list events",
            "deploy/rbac-nodes.yaml",
        ],
    );
    world.is_clean().await;
}

#[tokio::test]
async fn a_missing_right_is_named() {
    for (verb, resource) in [
        ("create", "jobs"),
        ("list", "pods"),
        ("get", "pods/exec"),
        ("create", "pods/exec"),
        ("get", "pods/attach"),
    ] {
        let world = World::new();
        world.api.fault(Fault::forbidden(verb, resource));
        let ran = world.on(NODE, &["doctor"]).await;
        is_error(&ran, &[resource, "not for you", "deploy/"]);
        world.is_clean().await;
    }
}

#[tokio::test]
async fn a_job_that_cannot_be_deleted_ends_without_kpx() {
    let world = World::new();
    world.api.fault(Fault::forbidden("delete", "jobs"));
    let ran = world.on(NODE, &["show", "services"]).await;
    is_clean_or_error(&ran);
    world.is_clean().await;
}

/// The report is not lost with the Job.
#[track_caller]
fn is_clean_or_error(ran: &Ran) {
    assert!(ran.out.contains("shop/cart"), "{ran}");
    assert_eq!(ran.code, 4, "{ran}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_job_without_input_ends_at_its_deadline() {
    let world = World::new();
    world
        .api
        .with(|cluster| cluster.set_second(Duration::from_millis(2)));
    world.nodes.trouble(NODE, Trouble::Hangs);
    let ran = world.on(NODE, &["doctor"]).await;
    is_error(&ran, &["node1"]);
    world.is_clean().await;
}

#[tokio::test]
async fn a_kpx_that_is_killed_leaves_nothing() {
    for reads in [false, true] {
        let world = World::new();
        let trouble = if reads {
            Trouble::Hangs
        } else {
            // Without kpx, only its deadline ends a pod that never ran.
            world
                .api
                .with(|cluster| cluster.set_second(Duration::from_millis(1)));
            Trouble::Waits("ContainerCreating", "")
        };
        world.nodes.trouble(NODE, trouble);
        // Without kpx, only the deadline ends a pod that never ran.
        world
            .api
            .with(|cluster| cluster.set_second(Duration::from_millis(1)));
        let mut child = world.process(&["doctor"]);
        let begin = Instant::now();
        let reached = || {
            let is_read = |words: &Vec<String>| words.iter().any(|word| word == "snapshot");
            if reads {
                world.nodes.ran().iter().any(|(_, words)| is_read(words))
            } else {
                !world.nodes.started().is_empty()
            }
        };
        while !reached() {
            assert!(begin.elapsed() < Duration::from_secs(60));
            sleep(Duration::from_millis(5)).await;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        world.is_clean().await;
    }
}

/// Its pod starts without it, and no client ever holds its standard input.
#[tokio::test]
async fn a_kpx_that_is_killed_before_its_pod_runs_leaves_nothing() {
    let world = World::new();
    // The deadline of a Job is too late by far.
    world
        .api
        .with(|cluster| cluster.set_second(Duration::from_millis(100)));
    let mut child = world.process(&["doctor"]);
    let begin = Instant::now();
    while world.left().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(1)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();
    world.is_clean().await;
}

#[tokio::test]
async fn an_image_with_kpx_needs_no_copy() {
    let world = World::new();
    let args = ["--image", "kpx:1", "diff", "-o", "json"];
    let ran = world.on(NODE, &args).await;
    let bundle = world.bundle().await;
    let offline = kpx(&["--from", &bundle, "--node", NODE, "diff", "-o", "json"]).await;
    is_same(&ran, &offline);
    assert!(
        world.nodes.ran().iter().all(|(_, words)| words[0] == "kpx"),
        "{:?}",
        world.nodes.ran()
    );
    world.is_clean().await;
}

#[tokio::test]
async fn a_node_without_kube_proxy_needs_an_image() {
    let world = World::new();
    let set = Key::new("daemonsets", "kube-system", "kube-proxy");
    world.api.with(|cluster| cluster.remove(&set));
    world.is_clean().await;
    while !world.api.proxies().is_empty() {
        sleep(Duration::from_millis(5)).await;
    }
    let ran = world.on(NODE, &["doctor"]).await;
    is_error(
        &ran,
        &[
            "node1 has no pod with the label k8s-app=kube-proxy",
            "--image IMAGE",
        ],
    );
    assert_eq!(world.asked("POST", "/jobs"), 0);
    // An image that the node has pulled before is one.
    world.api.with(|cluster| {
        let mut object = cluster.get("nodes", "", NODE).unwrap().clone();
        object["status"]["images"] = json!([
            {"names": ["registry.k8s.io/pause:3.10"]},
            {"names": ["registry.k8s.io/kube-proxy@sha256:00", "registry.k8s.io/kube-proxy:v1.36.2"]},
        ]);
        cluster.put(object);
    });
    world.on(NODE, &["doctor"]).await;
    assert_eq!(world.asked("POST", "/jobs"), 1);
}

/// A pod of kpx would wait for the same as kube-proxy's pod.
#[tokio::test]
async fn an_image_that_the_node_cannot_pull_is_not_used() {
    let world = World::new();
    world.api.with(|cluster| {
        let mut node = cluster.get("nodes", "", NODE).unwrap().clone();
        node["status"]["images"] = json!([{"names": ["registry.k8s.io/kube-proxy:v1.36.2"]}]);
        cluster.put(node);
    });
    let mut proxies = world.api.proxies().into_iter();
    let (_, name) = proxies.find(|(node, _)| node == NODE).unwrap();
    world.api.with(|cluster| {
        let mut pod = cluster.get("pods", "kube-system", &name).unwrap().clone();
        pod["spec"]["containers"][0]["image"] = json!("registry.k8s.io/kube-proxy:v1.36.9");
        pod["status"]["containerStatuses"] = json!([
            {"name": "kube-proxy", "ready": false, "state": {"waiting": {"reason": "ImagePullBackOff"}}},
        ]);
        cluster.put(pod);
    });
    world.on(NODE, &["doctor"]).await;
    let asked = world.api.asked();
    let mut asked = asked.iter();
    let job = asked.find(|request| request.method == "POST" && request.path.ends_with("/jobs"));
    let job = job.unwrap();
    let image = &job.body["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, "registry.k8s.io/kube-proxy:v1.36.2");
}

#[tokio::test]
async fn another_processor_needs_its_program() {
    let world = World::new();
    let config = world.path("kubeconfig");
    let options = ["--kubeconfig", config.to_str().unwrap(), "--node", NODE];
    let ran = kpx(&[&options[..], &["doctor"]].concat()).await;
    is_error(&ran, &[PROCESSOR, "--programs DIR"]);
    assert_eq!(world.asked("POST", "/jobs"), 0);
    // A folder without it.
    let empty = tempfile::tempdir().unwrap();
    let programs = ["--programs", empty.path().to_str().unwrap(), "doctor"];
    let ran = kpx(&[&options[..], &programs[..]].concat()).await;
    is_error(&ran, &["cannot read", &format!("kpx-linux-{PROCESSOR}")]);
    assert_eq!(world.asked("POST", "/jobs"), 0);
}

/// The program itself is what is copied, to a node with the same processor.
#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn the_running_program_is_copied() {
    let world = World::new();
    let own = if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    };
    world.edit_node(|node| node["status"]["nodeInfo"]["architecture"] = json!(own));
    let child = world.process(&["diff", "-o", "json"]);
    let done = child.wait_with_output().unwrap();
    let err = String::from_utf8(done.stderr).unwrap();
    let report: Value =
        serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {err}"));
    assert!(report.is_object(), "{report}");
    world.is_clean().await;
}

#[tokio::test]
async fn probes_and_questions_are_sent_from_the_node() {
    let world = World::new();
    for (args, tells) in [
        (&["trace", "shop/cart", "--probe"][..], "answered"),
        (&["why", "shop/cart", "--probe"], "answered"),
        (
            &["why", "shop/cart", "--probe=pod"],
            "a connection from a new pod",
        ),
        (&["resolve", "cart", "--namespace", "shop"], "no answer"),
    ] {
        let ran = world.on(NODE, args).await;
        assert!(ran.out.contains(tells), "{tells}: {ran}");
        let queries = world.nodes.ran().into_iter();
        let queries = queries.filter(|(_, words)| words.last().unwrap().starts_with("--query="));
        assert!(queries.count() > 0, "{args:?}");
        world.is_clean().await;
    }
    let ran = world
        .on(
            NODE,
            &["trace", "shop/cart", "--probe", "--source", "outside"],
        )
        .await;
    assert_eq!(ran.code, 2, "{ran}");
}
