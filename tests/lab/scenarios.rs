//! Actions of an operator, and events of a cluster meanwhile.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::corners::CORNERS;
use crate::faults::FAULTS;
use crate::lab::{Lab, NODES, STATIC};
use crate::more::MORE;
use crate::row;
use crate::run::{must, uncounted, wait_for};
use crate::traffic::{Report, Traffic};
use crate::ways::WAYS;
use crate::why::BROKEN;

pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Panics where something is wrong; returns its figures. The cluster is in mode iptables before and after.
    pub(crate) run: fn(&Lab) -> String,
}

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "doctor",
        about: "nothing is found on a healthy cluster, from each node",
        run: doctor,
    },
    Scenario {
        name: "remote",
        about: "each node is read from another machine, as on the node; nothing stays behind",
        run: remote,
    },
    Scenario {
        name: "remote-changes",
        about: "from another machine: all nodes, a broken Service, a repair that goes on without kpx, a policy",
        run: remote_changes,
    },
    Scenario {
        name: "why",
        about: "Services that do not work, each of another cause, are explained, and mended as is printed",
        run: why,
    },
    Scenario {
        name: "faults",
        about: "real connections fail, each for another reason: the verdict agrees with them, names it, and mends it as is printed",
        run: faults,
    },
    Scenario {
        name: "faults-nftables",
        about: "the same with all nodes in mode nftables",
        run: faults_nftables,
    },
    Scenario {
        name: "findings",
        about: "the doctor finds what is broken",
        run: findings,
    },
    Scenario {
        name: "one-node",
        about: "one node there and back, on the node",
        run: one_node,
    },
    Scenario {
        name: "refused",
        about: "what cannot go well is refused before anything changes",
        run: refused,
    },
    Scenario {
        name: "staged",
        about: "all nodes, staged, and back",
        run: staged,
    },
    Scenario {
        name: "rollouts",
        about: "all nodes and back, while Deployments roll",
        run: rollouts,
    },
    Scenario {
        name: "in-place",
        about: "all nodes without a bridge, and back",
        run: in_place,
    },
    Scenario {
        name: "by-hand",
        about: "all nodes by hand, in a terminal",
        run: by_hand,
    },
    Scenario {
        name: "gitops",
        about: "prepare, commit, delete the pod, finish; and back",
        run: gitops,
    },
    Scenario {
        name: "api-down",
        about: "the API server is away for 30 s",
        run: api_down,
    },
    Scenario {
        name: "coordinator",
        about: "the coordinator is killed, Deployments roll, resumed, rolled back",
        run: coordinator,
    },
    Scenario {
        name: "half-copied",
        about: "the coordinator is killed before kube-proxy's copies are there, the ConfigMap is edited, resumed, rolled back",
        run: half_copied,
    },
    Scenario {
        name: "asked",
        about: "the coordinator is asked to stop, and gives its Lease back",
        run: asked,
    },
    Scenario {
        name: "journal-lost",
        about: "nodes lose their journals in the middle; one migration is resumed, and one is rolled back",
        run: journal_lost,
    },
    Scenario {
        name: "node-pods",
        about: "the pods on the nodes are killed",
        run: node_pods,
    },
    Scenario {
        name: "drain",
        about: "nodes are drained, a budget blocks and opens",
        run: drain,
    },
    Scenario {
        name: "ipvs",
        about: "one node between all modes, on a kernel with ip_vs",
        run: ipvs,
    },
    Scenario {
        name: "no-proxy",
        about: "a node without kube-proxy, or with one that hangs, served by kpx while Deployments roll; then kube-proxy takes over",
        run: no_proxy,
    },
    Scenario {
        name: "serve",
        about: "kpx serve as a DaemonSet under traffic; lost rules are noticed, on their node alone",
        run: serve,
    },
    Scenario {
        name: "crash-loop",
        about: "kube-proxy crash-loops in the new mode: rolls back automatically",
        run: crash_loop,
    },
];

const IMAGE: &str = "lab.local/kpx:1";
const TO_NFTABLES: [&str; 8] = [
    "kpx",
    "migrate",
    "--to",
    "nftables",
    "--all-nodes",
    "--yes",
    "--soak",
    "5s",
];

/// The end of a command: its status, its output and its errors.
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
    took: Duration,
}

impl Ran {
    fn of(mut command: Command) -> Self {
        let began = Instant::now();
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
            took: began.elapsed(),
        }
    }

    fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "\n{}\n{}", self.out, self.err);
        self
    }

    fn says(self, words: &str) -> Self {
        let said = self.out.contains(words) || self.err.contains(words);
        assert!(said, "does not say {words:?}:\n{}\n{}", self.out, self.err);
        self
    }

    fn never_says(self, words: &str) -> Self {
        let said = self.out.contains(words) || self.err.contains(words);
        assert!(!said, "says {words:?}:\n{}\n{}", self.out, self.err);
        self
    }
}

/// Runs kpx on a node as in the README: with the credentials of the service account, and without --node.
fn on(lab: &Lab, node: &str, arguments: &[&str]) -> Ran {
    Ran::of(
        lab.on(
            node,
            &kpx(lab, arguments)
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>(),
        ),
    )
}

fn kpx(lab: &Lab, arguments: &[&str]) -> Vec<String> {
    let kubeconfig = lab.folder.join("pki/kpx.conf").to_str().unwrap().to_owned();
    let first = ["kpx".to_owned(), "--kubeconfig".to_owned(), kubeconfig];
    first
        .into_iter()
        .chain(arguments.iter().map(|word| (*word).to_owned()))
        .collect()
}

fn laptop(lab: &Lab, words: &[&str]) -> Ran {
    Ran::of(lab.laptop("kpx", words))
}

/// Moves all nodes in pods of an image that contains kpx.
fn by_image(more: &[&str]) -> Vec<String> {
    let image = ["--image", IMAGE];
    let words = TO_NFTABLES.iter().chain(&image).chain(more);
    words.map(|word| (*word).to_owned()).collect()
}

/// Moves all nodes in pods of kube-proxy's image, into which kpx copies itself.
fn by_copies(more: &[&str]) -> Vec<String> {
    let words = [STATIC].iter().chain(&TO_NFTABLES[1..]).chain(more);
    words.map(|word| (*word).to_owned()).collect()
}

/// Resumes or rolls back what `program` began.
fn go_on<'p>(program: &'p str, part: &'p str) -> [&'p str; 5] {
    [program, "migrate", part, "--all-nodes", "--yes"]
}

fn words(owned: &[String]) -> Vec<&str> {
    owned.iter().map(String::as_str).collect()
}

/// Waits until every pod is as its controller wants it, and kube-proxy has heard of it on each node.
fn settled(lab: &Lab) {
    lab.settled();
    for (node, _) in NODES {
        let mut last = String::new();
        // A ConfigMap that was edited reaches the files of a node after up to 90 s.
        for _ in 0..100 {
            let ran = on(lab, node, &["diff"]);
            if ran.code == Some(0) {
                last.clear();
                break;
            }
            last = ran.out;
            thread::sleep(Duration::from_secs(1));
        }
        assert!(last.is_empty(), "{node} differs: {last}");
    }
}

/// All is as it should be: each node serves in `mode` alone, and kpx has left nothing anywhere.
pub(crate) fn healthy(lab: &Lab, mode: &str) {
    settled(lab);
    for (node, _) in NODES {
        on(lab, node, &["doctor"]).exits(0);
        on(lab, node, &["diff", "--packets"]).exits(0);
        let tables = lab.sh(node, "nft list tables");
        assert_eq!(
            tables.contains("kube-proxy"),
            mode == "nftables",
            "{node}: {tables}"
        );
        let rules = lab.sh(node, "iptables-save");
        assert_eq!(
            rules.contains("KUBE-SVC-"),
            mode == "iptables",
            "{node}: {rules}"
        );
        assert!(!tables.contains("kpx"), "{node}: {tables}");
        let routes = lab.sh(
            node,
            "ip -N route show table local; ip -6 -N route show table local",
        );
        assert!(!routes.contains("proto 107"), "{node}: {routes}");
    }
    let pods = lab.kubectl("-n kube-system get pods -o name");
    assert!(!pods.contains("kpx"), "{pods}");
    let sets = lab.kubectl("-n kube-system get daemonsets -o name");
    assert_eq!(sets.trim(), "daemonset.apps/kube-proxy");
    let labels = lab.kubectl("get nodes -o jsonpath='{.items[*].metadata.labels}'");
    assert!(!labels.contains("kpx"), "{labels}");
    let holder = holder(lab);
    assert!(holder.is_empty(), "the Lease is held: {holder}");
}

/// Returns the holder of kpx's Lease; empty if there is no holder or no Lease.
fn holder(lab: &Lab) -> String {
    let holder = "-n kube-system get lease kpx-migrate --ignore-not-found -o jsonpath='{.spec.holderIdentity}'";
    lab.kubectl(holder).trim().to_owned()
}

/// The text of kube-proxy's configuration, and the annotations of its ConfigMap.
fn configuration(lab: &Lab) -> String {
    let path = "jsonpath='{.data}{.metadata.labels}{.metadata.annotations.kpx*}'";
    let text = lab.kubectl(&format!(
        "-n kube-system get configmap kube-proxy -o {path}"
    ));
    let notes =
        lab.objects("-n kube-system get configmap --field-selector metadata.name=kube-proxy");
    let notes = notes[0]["metadata"]["annotations"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let ours: Vec<_> = notes.keys().filter(|key| key.contains("kpx")).collect();
    format!("{text}{ours:?}")
}

fn seconds(time: Duration) -> String {
    format!("{:.0} s", time.as_secs_f32())
}

/// Runs `act` under traffic, and two seconds more, once all nodes have heard of every endpoint.
fn under_traffic<T>(lab: &Lab, act: impl FnOnce() -> T) -> (T, Report) {
    settled(lab);
    let traffic = Traffic::start(lab);
    thread::sleep(Duration::from_secs(2));
    let value = act();
    thread::sleep(Duration::from_secs(2));
    traffic.at_least(Duration::from_secs(10));
    let mut report = traffic.stop();
    if report.failed + report.broken > 0 {
        report.circumstances = circumstances(lab);
    }
    (value, report)
}

/// Other possible reasons for cut connections: the cluster's last events, and the time since when each node and pod is
/// ready.
fn circumstances(lab: &Lab) -> String {
    let events = lab.kubectl(
        "get events -A --no-headers --sort-by=.metadata.creationTimestamp \
         -o custom-columns=LAST:.lastTimestamp,REASON:.reason,OBJECT:.involvedObject.name,MESSAGE:.message",
    );
    let last: Vec<_> = events.lines().rev().take(40).collect();
    let ready = lab.kubectl(
        r#"get nodes,pods -A -o jsonpath='{range .items[*]}{.status.conditions[?(@.type=="Ready")].lastTransitionTime} {.status.conditions[?(@.type=="Ready")].status} {.metadata.name}{"\n"}{end}'"#,
    );
    format!(
        "last events, newest first:\n{}\nready since:\n{ready}",
        last.join("\n")
    )
}

fn doctor(lab: &Lab) -> String {
    healthy(lab, "iptables");
    // By the credentials of the node, which may not read all that is asked for.
    for (node, _) in NODES {
        let told = Ran::of(lab.on(node, &["kpx", "doctor"]));
        let known = matches!(told.code, Some(0 | 3));
        assert!(known, "{node}: {:?}\n{}\n{}", told.code, told.out, told.err);
    }
    let ((), report) = under_traffic(lab, || thread::sleep(Duration::from_secs(8)));
    report.unharmed().to_string()
}

/// kpx on a machine that is no node, about `node`.
fn from_afar(node: &str, arguments: &[&str]) -> Vec<String> {
    let first = [STATIC, "--node", node].into_iter();
    first
        .chain(arguments.iter().copied())
        .map(str::to_owned)
        .collect()
}

fn remote(lab: &Lab) -> String {
    let far = |node: &str, arguments: &[&str]| laptop(lab, &words(&from_afar(node, arguments)));
    let left =
        || lab.kubectl("-n kube-system get jobs,pods -l app.kubernetes.io/managed-by=kpx -o name");
    healthy(lab, "iptables");
    let mut slowest = Duration::ZERO;
    let commands: [&[&str]; 7] = [
        &["doctor"],
        &["diff"],
        &["diff", "--packets"],
        &["show", "services"],
        &["trace", "demo/web:http"],
        &["preflight", "--to", "nftables"],
        &["reconcile"],
    ];
    for (node, _) in NODES {
        for command in commands {
            let there = on(lab, node, command);
            let ran = far(node, command);
            assert_eq!(
                ran.code, there.code,
                "{node} {command:?}\n{}\n{}",
                ran.out, ran.err
            );
            // Ages and counters differ; the counts of checks do not.
            let counts = |text: &str| {
                let lines = text.lines().filter(|line| line.contains(" checks: "));
                lines.map(str::to_owned).collect::<Vec<_>>()
            };
            assert_eq!(counts(&ran.out), counts(&there.out), "{node} {command:?}");
            slowest = slowest.max(ran.took);
        }
    }
    far("w1", &["--image", IMAGE, "diff"]).exits(0);
    far("w3", &["diff"])
        .exits(2)
        .says("the cluster has no Node w3");
    let stuck = far("w1", &["--image", "lab.local/none:1", "diff"])
        .exits(4)
        .says("ErrImage");
    assert!(stuck.took < Duration::from_secs(60), "{:?}", stuck.took);
    lab.sh("w2", "pkill -STOP -x kubelet");
    lab.kubectl(
        "patch node w2 --subresource=status -p \
         '{\"status\":{\"conditions\":[{\"type\":\"Ready\",\"status\":\"Unknown\",\"message\":\"gone\"}]}}'",
    );
    far("w2", &["diff"])
        .exits(4)
        .says("node w2 is not ready: gone");
    lab.sh("w2", "pkill -CONT -x kubelet");
    wait_for("node w2", Duration::from_secs(60), || {
        let ready = "get node w2 -o jsonpath='{.status.conditions[?(@.type==\"Ready\")].status}'";
        (lab.kubectl(ready) == "True").then_some(())
    });
    assert_eq!(left(), "");

    // Each ends while the pod is in use: the pod, then kpx.
    let waits = from_afar("w1", &["doctor", "--fail-on", "warning", "--wait", "60s"]);
    let spawn = || {
        let mut command = lab.laptop("kpx", &words(&waits));
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        child.spawn().unwrap()
    };
    let start = || {
        let child = spawn();
        let pod = wait_for("the pod", Duration::from_secs(30), || {
            left()
                .lines()
                .find(|name| name.starts_with("pod/"))
                .map(str::to_owned)
        });
        thread::sleep(Duration::from_secs(3));
        (child, pod)
    };
    let (child, pod) = start();
    lab.kubectl(&format!(
        "-n kube-system delete {pod} --grace-period=0 --force"
    ));
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(4), "{said}");
    let (mut child, _) = start();
    child.kill().unwrap();
    child.wait().unwrap();
    // In its first second, kpx does not hold the standard input of its pod yet.
    for millis in [100, 300, 600, 900] {
        let mut child = spawn();
        thread::sleep(Duration::from_millis(millis));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    wait_for("no Job and no pod of kpx", Duration::from_secs(30), || {
        left().is_empty().then_some(())
    });
    format!("21 commands, slowest {}", seconds(slowest))
}

fn remote_changes(lab: &Lab) -> String {
    settled(lab);
    let afar = |arguments: &[&str]| laptop(lab, &[&[STATIC], arguments].concat());
    let left =
        || lab.kubectl("-n kube-system get jobs,pods -l app.kubernetes.io/managed-by=kpx -o name");
    let all = afar(&["doctor", "--all-nodes"]).exits(0).says("3 nodes");
    afar(&["diff", "-l", "kubernetes.io/hostname=w1"]).exits(0);
    // The user has exactly the printed roles.
    afar(&["access", "doctor", "--all-nodes"])
        .exits(0)
        .says(": all allowed");
    afar(&["access", "migrate", "--all-nodes"]).exits(0);

    afar(&["--node", "w1", "why", "demo/web:http"]).exits(0);
    lab.kubectl("-n demo create service clusterip broken --tcp=80:80");
    afar(&["--node", "w1", "why", "demo/broken"])
        .exits(1)
        .says("no endpoints");
    lab.kubectl("-n demo delete service broken");
    settled(lab);

    // kube-proxy does not see that its rules went until its next full sync.
    let flush = || lab.sh("w1", "iptables -t nat -F KUBE-SERVICES");
    let repair = ["--node", "w1", "reconcile", "--apply", "--yes"];
    flush();
    let repaired = afar(&repair).exits(0).says("step 1");
    on(lab, "w1", &["diff"]).exits(0);
    lab.sh("w2", "iptables -t nat -F KUBE-SERVICES");
    afar(&["why", "demo/web:http", "--all-nodes"])
        .exits(1)
        .says("fix: kpx --node w2 reconcile --apply");
    afar(&["reconcile", "--all-nodes", "--apply", "--yes"])
        .exits(0)
        .says("1 changed, 2 without changes");
    afar(&["diff", "--all-nodes"]).exits(0);
    for from in ["--probe", "--probe=pod"] {
        afar(&["--node", "w1", "why", "demo/web:http", from])
            .exits(0)
            .says("the trace agrees");
    }
    flush();
    // kpx is killed as soon as the pod has the plan.
    let words = [&[STATIC][..], &repair].concat();
    let (code, _) = stopped_at(lab, &words, "step 1", Signal::SIGKILL);
    assert_eq!(code, None);
    wait_for("the repair without kpx", Duration::from_secs(30), || {
        (on(lab, "w1", &["diff"]).code == Some(0)).then_some(())
    });
    lab.kubectl("-n kube-system delete jobs -l app.kubernetes.io/managed-by=kpx");

    // Pod Security refuses pods that use the node's network.
    let label = "label namespace kube-system pod-security.kubernetes.io/enforce";
    lab.kubectl(&format!("{label}=restricted --overwrite"));
    let refused = afar(&["--node", "w1", "diff"]);
    let advised = refused
        .err
        .contains(&format!("{label}=privileged --overwrite"));
    lab.kubectl(&format!("{label}-"));
    let refused = refused.exits(4).says("violates PodSecurity");
    assert!(advised, "{}", refused.err);
    assert!(refused.took < Duration::from_secs(10), "{:?}", refused.took);
    wait_for("no Job and no pod of kpx", Duration::from_secs(30), || {
        left().is_empty().then_some(())
    });
    format!(
        "3 nodes in {}, a repair in {}",
        seconds(all.took),
        seconds(repaired.took)
    )
}

fn why(lab: &Lab) -> String {
    settled(lab);
    let broken = row::try_all(lab, BROKEN, "iptables");
    healthy(lab, "iptables");
    format!("{broken} Services")
}

/// Tries every fault in this mode, and returns how many there were.
fn try_faults(lab: &Lab, mode: &str) -> usize {
    let all = [FAULTS, MORE, CORNERS, WAYS].into_iter().flatten();
    row::try_all(lab, all, mode)
}

fn faults(lab: &Lab) -> String {
    settled(lab);
    let faults = try_faults(lab, "iptables");
    healthy(lab, "iptables");
    format!("{faults} faults")
}

fn faults_nftables(lab: &Lab) -> String {
    settled(lab);
    let before = configuration(lab);
    laptop(lab, &words(&by_image(&[]))).exits(0);
    let tried = catch_unwind(AssertUnwindSafe(|| {
        let faults = try_faults(lab, "nftables");
        healthy(lab, "nftables");
        faults
    }));
    laptop(lab, &go_on(TO_NFTABLES[0], "rollback")).exits(0);
    assert_eq!(configuration(lab), before);
    let faults = tried.unwrap_or_else(|why| resume_unwind(why));
    format!("{faults} faults")
}

fn findings(lab: &Lab) -> String {
    settled(lab);
    let found = |node: &str, id: &str| {
        on(lab, node, &["doctor"]).exits(1).says(id);
    };
    // A rule of another's that drops what goes to the pods of a Service.
    let pod = lab.kubectl("-n demo get pods -l app=edge --field-selector spec.nodeName=w1 -o jsonpath='{.items[0].status.podIP}'");
    lab.sh(
        "w1",
        &format!("iptables -I FORWARD -d {pod} -p tcp --dport 8080 -j DROP"),
    );
    found("w1", "IR16");
    lab.sh(
        "w1",
        &format!("iptables -D FORWARD -d {pod} -p tcp --dport 8080 -j DROP"),
    );
    let web = lab.address("web");
    lab.sh("w1", &format!("nft add table ip mine; nft 'add chain ip mine early {{ type filter hook prerouting priority -150; }}'; nft add rule ip mine early ip daddr {web} tcp dport 80 drop"));
    found("w1", "IR16");
    lab.sh("w1", "nft delete table ip mine");
    lab.sh(
        "w1",
        &format!("iptables-legacy -I FORWARD -d {pod} -p tcp --dport 8080 -j DROP"),
    );
    found("w1", "IR16");
    lab.sh(
        "w1",
        &format!("iptables-legacy -D FORWARD -d {pod} -p tcp --dport 8080 -j DROP"),
    );
    lab.sh("w1", "for table in nat filter; do iptables-legacy -t $table -F; done; nft list tables >/dev/null");
    // kube-proxy does not run on.
    lab.sh("w2", "pkill -STOP -x kube-proxy");
    found("w2", "KP05");
    lab.sh("w2", "pkill -CONT -x kube-proxy");
    // Rules that went.
    lab.sh("w1", "iptables -t nat -F KUBE-SERVICES");
    found("w1", "KP01");
    on(lab, "w1", &["reconcile", "--apply", "--yes"]).exits(0);
    on(lab, "w1", &["diff"]).exits(0);
    "5 faults".to_owned()
}

fn one_node(lab: &Lab) -> String {
    let before = configuration(lab);
    on(lab, "w1", &["migrate", "--to", "nftables", "--dry-run"]).exits(0);
    let ((there, back), report) = under_traffic(lab, || {
        let there = on(lab, "w1", &["migrate", "--to", "nftables", "--yes"]).exits(0);
        on(lab, "w1", &["doctor"]).exits(0);
        on(lab, "w1", &["diff"]).exits(0);
        let back = on(lab, "w1", &["migrate", "rollback", "--yes"]).exits(0);
        (
            there.took,
            back.never_says("the migration of the first node failed")
                .took,
        )
    });
    assert_eq!(configuration(lab), before);
    let by_name = on(
        lab,
        "w1",
        &[
            "--node",
            "w1",
            "migrate",
            "--to",
            "nftables",
            "--this-node",
            "--yes",
        ],
    )
    .exits(0);
    on(
        lab,
        "w1",
        &[
            "--node",
            "w1",
            "migrate",
            "rollback",
            "--this-node",
            "--yes",
        ],
    )
    .exits(0);
    let report = report.unharmed();
    format!(
        "{}, back {}, by name {}; {report}",
        seconds(there),
        seconds(back),
        seconds(by_name.took)
    )
}

fn refused(lab: &Lab) -> String {
    let before = configuration(lab);
    on(
        lab,
        "w1",
        &[
            "--node",
            "w2",
            "migrate",
            "--to",
            "nftables",
            "--this-node",
            "--yes",
        ],
    )
    .exits(4)
    .says("not node w2");
    let by_hand = [&TO_NFTABLES[..], &["--by-hand"]].concat();
    laptop(lab, &by_hand)
        .exits(4)
        .says("standard input is not a terminal");
    assert_eq!(configuration(lab), before);
    "2 commands".to_owned()
}

/// All nodes to nftables, and back.
fn there_and_back(lab: &Lab, there: &[String]) -> (Duration, Duration) {
    let before = configuration(lab);
    let program = &there[0];
    let there = laptop(lab, &words(there)).exits(0);
    healthy(lab, "nftables");
    let back = laptop(lab, &go_on(program, "rollback")).exits(0);
    back.never_says_of(&before, lab, there.took)
}

impl Ran {
    /// The end of a way back, after which the configuration is as `before`.
    fn never_says_of(self, before: &str, lab: &Lab, there: Duration) -> (Duration, Duration) {
        let took = self
            .never_says("the migration of the first node failed")
            .took;
        assert_eq!(configuration(lab), before);
        (there, took)
    }
}

fn staged(lab: &Lab) -> String {
    laptop(lab, &words(&by_copies(&["--dry-run"]))).exits(0);
    let ((there, back), report) =
        under_traffic(lab, || there_and_back(lab, &by_copies(&["--staged"])));
    format!(
        "{}, back {}; {}",
        seconds(there),
        seconds(back),
        report.unharmed()
    )
}

fn rollouts(lab: &Lab) -> String {
    let ((there, back), report) = under_traffic(lab, || {
        thread::scope(|scope| {
            let rolled = scope.spawn(|| {
                for _ in 0..4 {
                    roll(lab);
                }
            });
            let times = there_and_back(lab, &by_image(&[]));
            rolled.join().unwrap();
            times
        })
    });
    format!(
        "{}, back {}, 4 rollouts; {}",
        seconds(there),
        seconds(back),
        report.all_new_ones_served()
    )
}

/// Replaces every pod of both Deployments.
fn roll(lab: &Lab) {
    lab.kubectl("-n demo rollout restart deployment/web deployment/api");
    for name in ["web", "api"] {
        lab.kubectl(&format!(
            "-n demo rollout status deployment/{name} --timeout=180s"
        ));
    }
}

fn in_place(lab: &Lab) -> String {
    let ((there, back), report) = under_traffic(lab, || {
        there_and_back(lab, &by_copies(&["--strategy", "in-place"]))
    });
    format!(
        "{}, back {}; {}",
        seconds(there),
        seconds(back),
        report.unharmed()
    )
}

/// Types on each node the command that kpx on the laptop asks for.
fn by_hand(lab: &Lab) -> String {
    let (took, report) = under_traffic(lab, || {
        let began = Instant::now();
        terminal(lab, &[&TO_NFTABLES[..], &["--by-hand"]].concat());
        healthy(lab, "nftables");
        terminal(lab, &go_on("kpx", "rollback"));
        began.elapsed()
    });
    format!("{} there and back; {}", seconds(took), report.unharmed())
}

/// Runs `words` on the laptop in a terminal, and does on the nodes what it says there; it must end well.
fn terminal(lab: &Lab, words: &[&str]) {
    let inner = words.join(" ");
    let mut command = lab.laptop("kpx", &["script", "-qefc", &inner, "/dev/null"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut all = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = Vec::new();
    let mut node = String::new();
    while output.read_until(b'\n', &mut line).unwrap() > 0 {
        let text = String::from_utf8_lossy(&line).into_owned();
        line.clear();
        all.push_str(&text);
        if let Some((_, name)) = text.trim_end().split_once("kpx: run this on node ") {
            node = name.trim_end_matches(':').to_owned();
        }
        let Some((_, told)) = text.split_once("$ kpx ") else {
            continue;
        };
        let arguments: Vec<&str> = told.split_whitespace().collect();
        on(lab, &node, &arguments).exits(0);
        input.write_all(b"y\n").unwrap();
    }
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{words:?}: {status}\n{all}{rest}");
}

/// Sets kube-proxy's mode as the controller of a `GitOps` repository does.
fn commit(lab: &Lab, mode: &str) {
    lab.configure("mode", &format!("\"{mode}\""));
}

fn gitops(lab: &Lab) -> String {
    let delete = || {
        lab.kubectl(
            "-n kube-system delete pod -l k8s-app=kube-proxy --field-selector spec.nodeName=w1",
        )
    };
    let (times, report) = under_traffic(lab, || {
        let leg = |mode: &str| {
            let began = Instant::now();
            on(lab, "w1", &["migrate", "prepare", "--to", mode, "--yes"]).exits(0);
            commit(lab, mode);
            delete();
            on(lab, "w1", &["migrate", "finish", "--yes"]).exits(0);
            began.elapsed()
        };
        let there = leg("nftables");
        let back = leg("iptables");
        (there, back)
    });
    commit(lab, "");
    lab.kubectl("-n kube-system rollout restart daemonset/kube-proxy");
    format!(
        "{}, back {}; {}",
        seconds(times.0),
        seconds(times.1),
        report.unharmed()
    )
}

fn api_down(lab: &Lab) -> String {
    let (took, report) = under_traffic(lab, || {
        let all = kpx(lab, &["migrate", "--to", "nftables", "--yes"]);
        let mut command = lab.on("w1", &words(&all));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut text = String::new();
        let mut lines = BufReader::new(child.stderr.take().unwrap())
            .lines()
            .map(Result::unwrap);
        for line in lines.by_ref() {
            text.push_str(&line);
            if line.starts_with("kpx: ") && line.contains("restart kube-proxy") {
                break;
            }
        }
        lab.kill_api();
        let began = Instant::now();
        thread::sleep(Duration::from_secs(30));
        lab.start_api();
        lab.wait_for_api();
        for line in lines {
            text.push_str(&line);
            text.push('\n');
        }
        let status = child.wait().unwrap();
        assert!(status.success(), "{status}: {text}");
        let took = began.elapsed();
        on(lab, "w1", &["migrate", "rollback", "--yes"]).exits(0);
        took
    });
    format!(
        "{} after the API server's end; {}",
        seconds(took),
        report.unharmed()
    )
}

/// Starts the move of all nodes, and ends the coordinator by `signal` as soon as it has said `moment`; returns its status.
fn stopped_at(
    lab: &Lab,
    arguments: &[&str],
    moment: &str,
    signal: Signal,
) -> (Option<i32>, String) {
    // It is kpx itself: each program before it becomes the next.
    let mut command = lab.laptop("kpx", arguments);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    let mut sent = false;
    for line in BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map(Result::unwrap)
    {
        text.push_str(&line);
        text.push('\n');
        if !sent && line.starts_with("kpx: ") && line.contains(moment) {
            kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
            sent = true;
        }
    }
    let mut out = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut out)
        .unwrap();
    let status = child.wait().unwrap();
    assert!(sent, "never said {moment:?}: {text}");
    (status.code(), text + &out)
}

fn coordinator(lab: &Lab) -> String {
    let start = by_copies(&[]);
    let resume = go_on(STATIC, "resume");
    let ((), report) = under_traffic(lab, || {
        let (code, _) = stopped_at(lab, &words(&start), "w1:   build", Signal::SIGKILL);
        assert_eq!(code, None);
        roll(lab);
        let (code, _) = stopped_at(lab, &resume, "w2: restart", Signal::SIGKILL);
        assert_eq!(code, None);
        roll(lab);
        laptop(lab, &resume).exits(0);
        healthy(lab, "nftables");
        laptop(lab, &go_on(STATIC, "rollback")).exits(0);
    });
    format!("2 kills, 2 rollouts; {}", report.all_new_ones_served())
}

/// The API server asks about each new DaemonSet at an address that no host has, and creates it 3 s later.
const SLOW: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: slow}
webhooks:
- name: slow.lab.local
  rules: [{operations: [CREATE], apiGroups: [apps], apiVersions: [v1], resources: [daemonsets]}]
  clientConfig: {url: "https://10.210.0.250/"}
  failurePolicy: Ignore
  sideEffects: None
  admissionReviewVersions: [v1]
"#;

fn half_copied(lab: &Lab) -> String {
    let affinity = || {
        let path = "jsonpath='{.spec.template.spec.affinity}'";
        lab.kubectl(&format!(
            "-n kube-system get daemonset kube-proxy -o {path}"
        ))
    };
    let before = affinity();
    lab.apply(SLOW);
    let start = by_copies(&["--staged"]);
    let ((), report) = under_traffic(lab, || {
        let mut command = lab.laptop("kpx", &words(&start));
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_for("a narrowed DaemonSet", Duration::from_secs(60), || {
            (affinity() != before).then_some(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        lab.kubectl("delete validatingwebhookconfiguration slow");
        let sets = lab.kubectl("-n kube-system get daemonsets -o name");
        assert_eq!(sets.trim(), "daemonset.apps/kube-proxy");
        lab.configure("oomScoreAdj", "-998");
        laptop(lab, &go_on(STATIC, "resume")).exits(0);
        healthy(lab, "nftables");
        assert_eq!(affinity(), before);
        laptop(lab, &go_on(STATIC, "rollback")).exits(0);
    });
    assert_eq!(affinity(), before);
    assert!(configuration(lab).contains("oomScoreAdj: -998"));
    lab.configure("oomScoreAdj", "null");
    format!("1 kill, 1 edit; {}", report.unharmed())
}

fn asked(lab: &Lab) -> String {
    let before = configuration(lab);
    let start = by_image(&[]);
    let (times, report) = under_traffic(lab, || {
        let (code, said) = stopped_at(lab, &words(&start), "w2:   build", Signal::SIGTERM);
        assert_eq!(code, Some(4), "{said}");
        assert!(said.contains("kpx migrate resume --all-nodes"), "{said}");
        let holder = holder(lab);
        assert!(
            holder.trim().is_empty(),
            "the Lease is held: {holder}\n{said}"
        );
        roll(lab);
        laptop(lab, &go_on("kpx", "rollback")).exits(0).took
    });
    assert_eq!(configuration(lab), before);
    format!(
        "back in {}; {}",
        seconds(times),
        report.all_new_ones_served()
    )
}

/// The first node is prepared and loses its journal: the cluster's state of the migration takes its place, bridge included.
fn journal_lost(lab: &Lab) -> String {
    let start = by_image(&[]);
    let ((), report) = under_traffic(lab, || {
        for command in ["rollback", "resume"] {
            let (code, said) = stopped_at(lab, &words(&start), "w1: restart", Signal::SIGTERM);
            assert_eq!(code, Some(4), "{said}");
            lab.sh("w1", "rm -rf /var/lib/kpx");
            let ran = laptop(lab, &go_on("kpx", command)).exits(0);
            let said = format!("{}{}", ran.err, ran.out);
            assert!(said.contains("lost this migration"), "{said}");
            assert!(said.contains("observed loss: unknown"), "{said}");
        }
        healthy(lab, "nftables");
        laptop(lab, &go_on("kpx", "rollback")).exits(0);
    });
    healthy(lab, "iptables");
    format!("2 journals lost; {}", report.all_new_ones_served())
}

fn node_pods(lab: &Lab) -> String {
    let start = by_copies(&[]);
    let (killed, report) = under_traffic(lab, || {
        thread::scope(|scope| {
            let moved = scope.spawn(|| laptop(lab, &words(&start)).exits(0));
            let mut killed = 0;
            while !moved.is_finished() && killed < 3 {
                let pods = lab.kubectl("-n kube-system get pods -o name");
                let ours = pods.lines().find(|pod| {
                    pod.contains("kpx") && !pod.contains("guard") && !pod.contains("preview")
                });
                if let Some(pod) = ours {
                    thread::sleep(Duration::from_millis(700));
                    let gone = format!(
                        "-n kube-system delete {pod} --grace-period=0 --force --ignore-not-found"
                    );
                    lab.kubectl(&gone);
                    killed += 1;
                    thread::sleep(Duration::from_secs(5));
                }
                thread::sleep(Duration::from_millis(100));
            }
            moved.join().unwrap();
            killed
        })
    });
    assert!(killed > 0, "no pod of a node was seen");
    laptop(lab, &go_on(STATIC, "rollback")).exits(0);
    format!("{killed} pods killed; {}", report.unharmed())
}

fn drain(lab: &Lab) -> String {
    let node = |budget: u32| {
        lab.kubectl(&format!("-n demo patch poddisruptionbudget web --type=merge -p '{{\"spec\":{{\"minAvailable\":{budget}}}}}'"));
        let move_it = [
            "migrate",
            "--to",
            "nftables",
            "--strategy",
            "drain-node",
            "--drain-timeout",
            "40s",
            "--yes",
        ];
        on(lab, "w1", &move_it)
    };
    let cordoned = || {
        lab.kubectl("get node w1 -o jsonpath='{.spec.unschedulable}'")
            .contains("true")
    };
    let blocked = node(4);
    assert_eq!(blocked.code, Some(4), "{}\n{}", blocked.out, blocked.err);
    let blocked = blocked.says("web");
    assert!(!cordoned());
    let moved = node(2).exits(0);
    assert!(!cordoned());
    on(lab, "w1", &["migrate", "rollback", "--yes"]).exits(0);
    wait_for("the budget", Duration::from_secs(60), || {
        let web = lab.kubectl("-n demo get deployment web -o jsonpath='{.status.readyReplicas}'");
        (web.trim() == "4").then_some(())
    });
    lab.kubectl(
        "-n demo patch poddisruptionbudget web --type=merge -p '{\"spec\":{\"minAvailable\":3}}'",
    );
    format!(
        "blocked and reverted in {}, moved in {}",
        seconds(blocked.took),
        seconds(moved.took)
    )
}

fn crash_loop(lab: &Lab) -> String {
    let image = |tag: &str| {
        let container = format!("kube-proxy=lab.local/kube-proxy:{tag}");
        lab.kubectl(&format!(
            "-n kube-system set image daemonset/kube-proxy {container}"
        ));
        lab.settled();
    };
    image("broken");
    let before = configuration(lab);
    let tell = |ran: Ran| {
        let ran = ran
            .exits(4)
            .says("crash loop: container kube-proxy ended with exit status 1")
            .says("its log ends: ");
        assert!(
            ran.took < Duration::from_secs(120),
            "{:?}\n{}",
            ran.took,
            ran.err
        );
        ran.took
    };
    let ((one, all), report) = under_traffic(lab, || {
        let one = tell(on(lab, "w1", &["migrate", "--to", "nftables", "--yes"]));
        assert_eq!(configuration(lab), before);
        let all = tell(laptop(lab, &words(&by_image(&[]))));
        assert_eq!(configuration(lab), before);
        (one, all)
    });
    image(&lab.version());
    format!(
        "node reverted in {}, cluster in {}; {}",
        seconds(one),
        seconds(all),
        report.unharmed()
    )
}

/// Whether the DaemonSet of kube-proxy has a pod on w1.
fn proxy_on_w1(lab: &Lab, wanted: bool) {
    let label = if wanted {
        "no-kube-proxy-"
    } else {
        "no-kube-proxy=yes"
    };
    lab.kubectl(&format!("label node w1 {label}"));
    wait_for("kube-proxy on w1", Duration::from_secs(60), || {
        let mut look = lab.on("w1", &["pgrep", "-x", "kube-proxy"]);
        (look.output().unwrap().status.success() == wanted).then_some(())
    });
}

/// Failures while Deployments roll, grow and shrink.
fn rolled(lab: &Lab) -> Report {
    let scale = |count: u32| {
        lab.kubectl(&format!("-n demo scale deployment/web --replicas={count}"));
        lab.kubectl("-n demo rollout status deployment/web --timeout=180s");
    };
    let traffic = Traffic::start(lab);
    thread::sleep(Duration::from_secs(2));
    for _ in 0..2 {
        roll(lab);
        scale(7);
        scale(4);
    }
    // Pods that end serve for some time.
    thread::sleep(Duration::from_secs(20));
    traffic.stop()
}

/// The Service's health check answers on w1.
fn health_checked(lab: &Lab) {
    let port =
        lab.kubectl("-n demo get service edge-balanced -o jsonpath='{.spec.healthCheckNodePort}'");
    let target = format!("health-check=http={}:{port}", NODES[1].1);
    let place = ("outside".to_owned(), Lab::outside_network(), vec![target]);
    let checks = Traffic::of(lab, vec![place], Duration::from_millis(100));
    thread::sleep(Duration::from_secs(2));
    let checks = checks.stop();
    assert!(checks.failed == 0, "{}", checks.details());
}

/// The rules of w1.
fn rules(lab: &Lab) -> Vec<String> {
    let text = lab.sh(
        "w1",
        "iptables-save; ip6tables-save; nft list tables; \
         for family in ip ip6; do nft -s list table $family kube-proxy 2>/dev/null || true; done",
    );
    uncounted(&text)
}

/// A kube-proxy that does not serve w1.
#[derive(Clone, Copy, PartialEq)]
enum Away {
    Removed,
    /// Its process is stopped by a signal: it holds its ports, and answers nothing.
    Hangs,
}

impl Away {
    fn goes(self, lab: &Lab) {
        match self {
            Self::Removed => proxy_on_w1(lab, false),
            Self::Hangs => drop(lab.sh("w1", "pkill -STOP -x kube-proxy")),
        }
    }

    fn comes_back(self, lab: &Lab) {
        match self {
            Self::Removed => proxy_on_w1(lab, true),
            Self::Hangs => drop(lab.sh("w1", "pkill -CONT -x kube-proxy || true")),
        }
    }
}

fn no_proxy(lab: &Lab) -> String {
    settled(lab);
    let tried = catch_unwind(AssertUnwindSafe(|| without_proxy(lab)));
    if tried.is_err() {
        Away::Hangs.comes_back(lab);
        lab.kubectl("label node w1 no-kube-proxy-");
    }
    commit(lab, "");
    lab.kubectl("-n kube-system rollout restart daemonset/kube-proxy");
    let said = tried.unwrap_or_else(|why| resume_unwind(why));
    format!("\n  {}", said.join("\n  "))
}

fn without_proxy(lab: &Lab) -> Vec<String> {
    let mut said = Vec::new();
    for (mode, away) in [
        ("iptables", Away::Removed),
        ("nftables", Away::Removed),
        ("nftables", Away::Hangs),
    ] {
        commit(lab, mode);
        proxy_on_w1(lab, false);
        proxy_on_w1(lab, true);
        wait_for("the mode", Duration::from_secs(60), || {
            (on(lab, "w1", &["diff", "--mode", mode]).code == Some(0)).then_some(())
        });
        let theirs = rolled(lab);
        health_checked(lab);
        away.goes(lab);
        let all = kpx(
            lab,
            &["reconcile", "--watch", "--apply", "--yes", "--mode", mode],
        );
        let mut child = lab
            .on("w1", &words(&all))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.find(|line| line.as_ref().unwrap().contains(" start: "));
        assert!(first.is_some(), "{:?}", child.wait_with_output());
        let count = thread::spawn(move || lines.count());
        let ours = rolled(lab);
        if away == Away::Removed {
            health_checked(lab);
        }
        if child.try_wait().unwrap().is_some() {
            let ended = child.wait_with_output().unwrap();
            panic!("ended early: {}", String::from_utf8_lossy(&ended.stderr));
        }
        assert!(
            ours.failed <= theirs.failed && ours.broken <= theirs.broken,
            "with kube-proxy {theirs}; with kpx {ours}\n{}",
            ours.details()
        );
        let before = rules(lab);
        away.comes_back(lab);
        let began = Instant::now();
        let ended = child.wait_with_output().unwrap();
        let took = began.elapsed();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(4), "{err}");
        assert!(err.contains("runs: stopped; the rules stay"), "{err}");
        // One that hangs holds the ports of the health checks.
        let served = !err.contains("not served");
        assert!(
            !err.contains("failed") && served == (away == Away::Removed),
            "{err}"
        );
        wait_for("the first sync", Duration::from_secs(60), || {
            (on(lab, "w1", &["doctor"]).code == Some(0)).then_some(())
        });
        // One that hung may sync what it missed later than that, and all of it at the end of its period.
        thread::sleep(Duration::from_secs(35));
        assert_eq!(rules(lab), before);
        let lines = count.join().unwrap();
        assert!(lines > 5, "only {lines} changes");
        let how = match away {
            Away::Removed => "no kube-proxy",
            Away::Hangs => "a hung kube-proxy",
        };
        said.push(format!(
            "{mode}, {how}: {lines} changes, with kube-proxy {theirs}; with kpx {ours}; ended after {} ms",
            took.as_millis()
        ));
    }
    said
}

/// Reads a page of `kpx serve` on `node`: its status, and its text. Waits for it to listen.
fn page(lab: &Lab, node: &str, path: &str) -> (String, String) {
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/10266 || exit 0; printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    );
    let text = wait_for("kpx serve's answer", Duration::from_secs(30), || {
        let text = lab.sh(node, &format!("bash -c \"{script}\""));
        (!text.is_empty()).then_some(text)
    });
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_owned(), body.to_owned())
}

/// The sum of the values of a metric on `node`, over the lines that contain `label`.
fn metric(lab: &Lab, node: &str, name: &str, label: &str) -> f64 {
    let (_, text) = page(lab, node, "/metrics");
    let lines = text.lines().filter(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with([' ', '{'])) && line.contains(label)
    });
    let values = lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap());
    values.sum()
}

fn serve(lab: &Lab) -> String {
    const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/serve/kustomize");
    settled(lab);
    lab.kubectl(&format!("apply -k {FOLDER}"));
    lab.kubectl("-n kube-system rollout status daemonset/kpx-serve --timeout=120s");
    let count = |node: &str, name: &str| metric(lab, node, name, "");
    let errors = |node: &str| metric(lab, node, "kpx_doctor_findings", "severity=\"error\"");
    let healthy = |node: &str| page(lab, node, "/healthz").0.contains(" 200 ");
    let workers = ["w1", "w2"];
    for node in workers {
        wait_for("the first reading", Duration::from_secs(60), || {
            (count(node, "kpx_doctor_timestamp_seconds") > 0.0).then_some(())
        });
        assert!(healthy(node), "{node}: {:?}", page(lab, node, "/healthz"));
        assert_eq!(
            errors(node),
            0.0,
            "{node}: {}",
            page(lab, node, "/metrics").1
        );
    }

    let (seen, report) = under_traffic(lab, || {
        let before = workers.map(|node| count(node, "kpx_processor_seconds_total"));
        let began = Instant::now();
        thread::sleep(Duration::from_secs(60));
        let took = began.elapsed().as_secs_f64();
        let after = workers.map(|node| count(node, "kpx_processor_seconds_total"));
        let memory = workers.map(|node| count(node, "kpx_resident_memory_bytes"));
        let per_node = (0..2).map(|at| {
            format!(
                "{}: {:.2}% of a processor, {:.1} MiB",
                workers[at],
                100.0 * (after[at] - before[at]) / took,
                memory[at] / f64::from(1 << 20),
            )
        });
        per_node.collect::<Vec<_>>().join("; ")
    });
    let harm = report.unharmed();

    // One node loses the rules of a Service.
    let web = lab.address("web");
    let chain = format!(
        "iptables -t nat -S KUBE-SERVICES | sed -n 's/.* -d {web}.32 .* --dport 80 .*-j \\(KUBE-SVC-[A-Z0-9]*\\).*/\\1/p'"
    );
    lab.sh("w1", &format!("iptables -t nat -F $({chain})"));
    let began = Instant::now();
    wait_for("the finding", Duration::from_secs(120), || {
        (errors("w1") > 0.0).then_some(())
    });
    let noticed = began.elapsed();
    assert_eq!(errors("w2"), 0.0);
    on(lab, "w1", &["reconcile", "--apply", "--yes"]).exits(0);
    let began = Instant::now();
    wait_for("its end", Duration::from_secs(120), || {
        (errors("w1") == 0.0).then_some(())
    });
    let gone = began.elapsed();

    lab.kubectl(&format!("delete -k {FOLDER}"));
    wait_for("the pods' end", Duration::from_secs(60), || {
        let pods = "-n kube-system get pods -l app.kubernetes.io/name=kpx-serve";
        lab.objects(pods).is_empty().then_some(())
    });
    format!(
        "{seen}; {harm}; lost rules were noticed after {}, their repair after {}",
        seconds(noticed),
        seconds(gone)
    )
}

fn ipvs(_: &Lab) -> String {
    let runner = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vm/run");
    let printed = must(&["env", "KPX_VM_NAME=lab", runner, &Lab::app(), "ipvs"]);
    let legs: Vec<_> = printed
        .lines()
        .filter(|line| line.contains(" new connections failed"))
        .collect();
    // The migrations, and the time without a kube-proxy.
    assert_eq!(legs.len(), 6 + 1, "{printed}");
    format!("\n  {}", legs.join("\n  "))
}
