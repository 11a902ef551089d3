//! Rows of faults in the cluster: real connections show the effect on a Service. `kpx why` on a laptop must report the same,
//! with the cause, and a fix that repairs it as printed.

use std::fmt::Write as _;
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::Value;

use crate::lab::{Lab, NODES, STATIC};
use crate::run::must;

/// A step that breaks something, or takes that back.
pub(crate) enum Act {
    /// A shell script on node w1.
    Node(&'static str),
    /// A shell script on this node.
    On(&'static str, &'static str),
    /// Arguments of kubectl in namespace demo.
    Kubectl(&'static str),
    /// Objects that kubectl applies.
    Objects(&'static str),
    /// Sets a field of kube-proxy's configuration, and starts kube-proxy of node w1 again.
    Configure(&'static str, &'static str),
    /// Arguments of kpx on node w1.
    Kpx(&'static str),
}

/// The repair of a row.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Mend {
    /// The command that kpx prints: kpx and kubectl on the laptop, other programs on node w1.
    AsPrinted,
    /// No command can: the row is undone.
    Back,
}

/// How many connections fail.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Lost {
    Nobody,
    Some,
    All,
}

/// Connections that are opened and counted: their source, their address, and their fate.
pub(crate) struct Sent(pub(crate) From, pub(crate) &'static str, pub(crate) Lost);

pub(crate) enum From {
    /// The pod of client on this node.
    Pod(&'static str),
    /// This node.
    Host(&'static str),
}

pub(crate) struct Row {
    /// Empty for a row that its cause names.
    pub(crate) name: &'static str,
    /// The mode in which the row is a fault; every mode if `None`.
    pub(crate) mode: Option<&'static str>,
    pub(crate) breaks: &'static [Act],
    /// Undoes the row, whether it was fixed or not.
    pub(crate) back: &'static [Act],
    /// The node, the target, and more options.
    pub(crate) node: &'static str,
    pub(crate) asked: &'static [&'static str],
    /// Whether the states of all nodes are read: `--all-nodes`, of which the answer of `node` counts.
    pub(crate) over: bool,
    pub(crate) sent: Option<Sent>,
    /// Whether the evidence of kpx leaves open what failed connections show: then `unknown` is right, if it names the open
    /// part.
    pub(crate) open: bool,
    /// Whether the answers may come from pods of another Service, which are not lost.
    pub(crate) misled: bool,
    /// The type of the first cause.
    pub(crate) cause: Option<&'static str>,
    /// Parts of what is printed: of the sentence, of the causes and fixes.
    pub(crate) says: &'static [&'static str],
    pub(crate) mend: Mend,
}

/// The common parts of most rows.
pub(crate) const ROW: Row = Row {
    name: "",
    mode: None,
    breaks: &[],
    back: &[],
    node: "w1",
    asked: &[],
    over: false,
    sent: None,
    open: false,
    misled: false,
    cause: None,
    says: &[],
    mend: Mend::AsPrinted,
};

/// How many connections are opened.
const MANY: usize = 40;

/// Times that kpx is asked: kube-proxy hears of objects after a while.
const TRIES: usize = 4;

/// Addresses by their names in rows: `{web}` is the cluster IP of Service web, `{near}` and `{far}` are the pods of edge on w1 and
/// w2, `{near-web}` is one of web on w1, `{client}` is the pod of client on w1, `{w2}` is a node, `{lab}` is the folder of the cluster.
struct Names(Vec<(String, String)>);

impl Names {
    fn of(lab: &Lab) -> Self {
        let pod = |app: &str, node: &str| {
            lab.kubectl(&format!(
                "-n demo get pods -l app={app} --field-selector spec.nodeName={node} \
                 -o jsonpath='{{.items[0].status.podIP}}'"
            ))
        };
        let services = ["web", "edge", "api"].map(|name| (name, lab.address(name)));
        let pods = [
            ("near", pod("edge", "w1")),
            ("near-web", pod("web", "w1")),
            ("far", pod("edge", "w2")),
            ("client", pod("client", "w1")),
        ];
        let nodes = NODES.map(|(name, address)| (name, address.to_owned()));
        let folder = ("lab", lab.folder.to_str().unwrap().to_owned());
        let all = services
            .into_iter()
            .chain(pods)
            .chain(nodes)
            .chain([folder]);
        Self(all.map(|(name, of)| (format!("{{{name}}}"), of)).collect())
    }

    fn put(&self, text: &str) -> String {
        let put = |text: String, (name, of): &(String, String)| text.replace(name, of);
        self.0.iter().fold(text.to_owned(), put)
    }
}

/// The answer of kpx to a row.
struct Said {
    status: Option<i32>,
    report: Value,
    took: Duration,
}

impl Said {
    fn text<'s>(&'s self, path: &str) -> &'s str {
        self.report
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }
}

/// A row as it is tried in a cluster.
struct Trial<'t> {
    lab: &'t Lab,
    names: Names,
    row: &'t Row,
    /// The network of the client, as it was before anything broke.
    network: Option<String>,
}

impl Trial<'_> {
    fn act(&self, act: &Act) -> Result<(), String> {
        let lab = self.lab;
        let run = |mut command: std::process::Command| {
            let ran = command.stdin(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            ran.status.success().then_some(()).ok_or(said)
        };
        let node =
            |node: &str, script: &str| run(lab.on(node, &["sh", "-c", &self.names.put(script)]));
        match act {
            Act::Node(script) => node("w1", script),
            Act::On(on, script) => node(on, script),
            Act::Kubectl(words) => {
                run(lab.kubectl_as_admin(&format!("-n demo {}", self.names.put(words))))
            }
            Act::Objects(objects) => {
                lab.apply(&self.names.put(objects));
                // kube-proxy hears of them.
                thread::sleep(Duration::from_secs(2));
                Ok(())
            }
            Act::Configure(field, value) => {
                lab.configure(field, value);
                lab.kubectl("-n kube-system delete pod -l k8s-app=kube-proxy --field-selector spec.nodeName=w1");
                lab.kubectl("-n kube-system rollout status daemonset/kube-proxy --timeout=180s");
                Ok(())
            }
            Act::Kpx(words) => {
                let kubeconfig = lab.folder.join("pki/kpx.conf");
                let first = ["kpx", "--kubeconfig", kubeconfig.to_str().unwrap()];
                let all: Vec<_> = first.into_iter().chain(words.split(' ')).collect();
                run(lab.on("w1", &all))
            }
        }
    }

    /// Opens connections and returns how many failed, and what the first of them said.
    fn count(&self, sent: &Sent) -> (usize, String) {
        let inside = format!("--net={}", self.network.as_deref().unwrap());
        let to = self.names.put(sent.1);
        let said = must(&[
            "nsenter",
            &inside,
            &Lab::app(),
            "connect",
            &MANY.to_string(),
            &to,
        ]);
        let (failed, first) = said
            .trim_end()
            .split_once(' ')
            .unwrap_or((said.trim_end(), ""));
        (failed.parse().unwrap(), first.to_owned())
    }

    /// Opens connections until they fail as `wanted`, for a while.
    fn counted(&self, sent: &Sent, wanted: Lost, limit: Duration) -> (usize, String) {
        let begun = Instant::now();
        loop {
            let counted = self.count(sent);
            if lost(counted.0) == wanted || begun.elapsed() > limit {
                return counted;
            }
            thread::sleep(Duration::from_millis(500));
        }
    }

    fn ask(&self) -> Said {
        let asked: Vec<String> = self
            .row
            .asked
            .iter()
            .map(|word| self.names.put(word))
            .collect();
        let mut words = vec![STATIC, "-o", "json", "why"];
        words.extend(asked.iter().map(String::as_str));
        if self.row.over {
            words.push("--all-nodes");
        } else {
            words.extend(["--node", self.row.node]);
        }
        let begun = Instant::now();
        let ran = self.lab.laptop("kpx", &words).stdin(Stdio::null()).output();
        let (ran, took) = (ran.unwrap(), begun.elapsed());
        let report: Value = serde_json::from_slice(&ran.stdout)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&ran.stderr).into_owned()));
        let mut nodes = report["nodes"].as_array().into_iter().flatten();
        let own = nodes.find(|node| self.row.over && node["node"] == self.row.node);
        Said {
            status: ran.status.code(),
            report: own.map_or_else(|| report.clone(), |node| node["report"].clone()),
            took,
        }
    }

    /// Returns what is said of the connections that are counted; of all if they are not distinguished.
    fn fates(&self, said: &Said) -> Vec<String> {
        let Some(sent) = &self.row.sent else {
            return Vec::new();
        };
        let (client, to) = match sent.0 {
            From::Pod(_) => ("pod", self.names.put(sent.1)),
            From::Host(node) if node == self.row.node => ("host", self.names.put(sent.1)),
            From::Host(_) => ("outside", self.names.put(sent.1)),
        };
        let paths = said.report["paths"].as_array().cloned().unwrap_or_default();
        // The typical pod does not stand for one that something tells apart from the others.
        let sender = format!("({},", self.names.put("{client}"));
        let is_sender = |path: &&Value| {
            path["client"] == "single"
                && path["from"]
                    .as_str()
                    .is_some_and(|path| path.contains(&sender))
        };
        let is_apart = client == "pod" && paths.iter().any(|path| is_sender(&path));
        let is_ours = |path: &&Value| {
            if is_apart {
                is_sender(path)
            } else {
                path["client"] == client
            }
        };
        let ours = paths.iter().filter(is_ours);
        let ours = ours.filter(|path| path["to"] == to.as_str());
        let ours: Vec<String> = ours
            .map(|path| path["fate"].as_str().unwrap_or_default().to_owned())
            .collect();
        if ours.is_empty() {
            return vec![said.text("/fate").to_owned()];
        }
        ours
    }

    /// Returns the errors in the answer about connections that fail so.
    fn wrong(&self, said: &Said, lost: Option<Lost>) -> Vec<String> {
        let mut wrong = Vec::new();
        let (fate, of_client) = (said.text("/fate"), self.fates(said));
        let fits = |fate: &String| match lost {
            Some(_) if self.row.open && fate == "unknown" => true,
            // The connections are answered, by pods of one of two Services: by which is chance.
            Some(Lost::Nobody) if self.row.misled => matches!(fate.as_str(), "misled" | "works"),
            None => true,
            Some(Lost::Nobody) => fate == "works",
            Some(Lost::Some) => fate == "partly",
            Some(Lost::All) => matches!(fate.as_str(), "lost" | "refused" | "misled"),
        };
        let is_hidden = fate == "works" && lost.is_some_and(|lost| lost != Lost::Nobody);
        if is_hidden || !of_client.iter().all(fits) {
            wrong.push(format!("fate {fate}, of this client {of_client:?}"));
        }
        let cause = said.text("/causes/0/cause");
        if let Some(wanted) = self.row.cause
            && cause != wanted
        {
            wrong.push(format!("cause {cause}, not {wanted}"));
        }
        let text = said.report.to_string().replace("\\\"", "\"");
        for part in self.row.says {
            let part = self.names.put(part);
            if !text.contains(&part) {
                wrong.push(format!("does not say {part:?}"));
            }
        }
        wrong
    }

    /// Types the command that was printed; returns what is wrong with it.
    fn mend(&self, said: &Said) -> Option<String> {
        let command = said.text("/causes/0/fix/command");
        let typed = match command.split_once(' ') {
            _ if command.is_empty() => Err("no fix is printed".to_owned()),
            Some(("kpx", _)) => self.act_kpx(command),
            Some(("kubectl", words)) => {
                let mut command = self.lab.kubectl_as_admin(words);
                let ran = command.stdin(Stdio::null()).output().unwrap();
                let said = String::from_utf8_lossy(&ran.stderr).into_owned();
                ran.status.success().then_some(()).ok_or(said)
            }
            _ => {
                // A cause on another node has its fix there.
                let node = said.text("/causes/0/node");
                let node = if node.is_empty() { self.row.node } else { node };
                let ran = self.lab.on(node, &["sh", "-c", command]).output();
                let ran = ran.unwrap();
                let said = String::from_utf8_lossy(&ran.stderr).into_owned();
                ran.status.success().then_some(()).ok_or(said)
            }
        };
        if let Err(said) = typed {
            return Some(format!("the fix `{command}` fails: {}", said.trim()));
        }
        let limit = Duration::from_secs(10);
        if let Some(sent) = &self.row.sent {
            let (failed, _) = self.counted(sent, Lost::Nobody, limit);
            if failed > 0 {
                return Some(format!("{failed} still fail after `{command}`"));
            }
        }
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if self.ask().status == Some(0) {
                return None;
            }
        }
        Some(format!("kpx does not say that it works after `{command}`"))
    }

    fn act_kpx(&self, command: &str) -> Result<(), String> {
        let words = command.split(' ').skip(1).chain(["--yes"]);
        let all: Vec<_> = [STATIC].into_iter().chain(words).collect();
        let ran = self.lab.laptop("kpx", &all).stdin(Stdio::null()).output();
        let ran = ran.unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        ran.status.success().then_some(()).ok_or(said)
    }

    fn take_back(&self) {
        for act in self.row.back {
            // A fixed fault cannot be undone.
            drop(self.act(act));
        }
    }

    /// Breaks, asks, mends, and takes back; returns the line of the table, and what is wrong.
    fn run(&self) -> (String, Vec<String>) {
        let row = self.row;
        if let Some(said) = row.breaks.iter().find_map(|act| self.act(act).err()) {
            self.take_back();
            let said = format!("it cannot be made here: {said}");
            return (format!("{:24} {said}\n", row.title()), vec![said]);
        }
        let mut wrong = Vec::new();
        let mut seen = "-".to_owned();
        let mut lost_of = None;
        if let Some(sent) = &row.sent {
            let (failed, first) = self.counted(sent, sent.2, Duration::from_secs(15));
            seen = format!("{failed}/{MANY} {first}");
            lost_of = Some(lost(failed));
            if lost_of != Some(sent.2) {
                wrong.push(format!("not the fault that it should be: {seen}"));
            }
        }
        let mut said = self.ask();
        for _ in 1..TRIES {
            if self.wrong(&said, lost_of).is_empty() {
                break;
            }
            said = self.ask();
        }
        wrong.extend(self.wrong(&said, lost_of));
        if row.mend == Mend::AsPrinted {
            wrong.extend(self.mend(&said));
        }
        self.take_back();
        if let Some(sent) = &row.sent
            && sent.2 != Lost::Nobody
            && row.address_stays()
        {
            let (failed, first) = self.counted(sent, Lost::Nobody, Duration::from_secs(60));
            assert_eq!(failed, 0, "{}: not taken back: {first}", self.row.title());
        }
        let mut line = format!("{:24} {seen}\n", self.row.title());
        let sentence = match said.report.as_str() {
            Some(error) => error.trim(),
            None => said.text("/sentence"),
        };
        writeln!(line, "    {}: {sentence}", said.text("/fate")).unwrap();
        if row.over {
            writeln!(line, "    after {} ms", said.took.as_millis()).unwrap();
        }
        for (name, path) in [
            ("cause", "/causes/0/cause"),
            ("fix", "/causes/0/fix/command"),
        ] {
            let text = said.text(path);
            if !text.is_empty() {
                writeln!(line, "    {name}: {text}").unwrap();
            }
        }
        for wrong in &wrong {
            writeln!(line, "    WRONG: {wrong}").unwrap();
        }
        (line, wrong)
    }
}

impl Row {
    fn title(&self) -> String {
        match (self.name, self.cause) {
            ("", Some(cause)) => cause.to_owned(),
            (name, _) => name.to_owned(),
        }
    }

    /// Returns whether the address that is asked stays when the row is undone.
    fn address_stays(&self) -> bool {
        let is_of_row =
            |sent: &Sent| sent.1.starts_with("10.96.77.") || sent.1.starts_with("10.96.0.");
        self.sent.as_ref().is_some_and(|sent| !is_of_row(sent))
    }
}

const fn lost(failed: usize) -> Lost {
    match failed {
        0 => Lost::Nobody,
        MANY => Lost::All,
        _ => Lost::Some,
    }
}

/// Tries each of `rows` that is one in `mode`, which all nodes are in; fails at the end with all that are wrong. `ONLY` in the
/// environment names the rows to try.
pub(crate) fn try_all<'r>(lab: &Lab, rows: impl IntoIterator<Item = &'r Row>, mode: &str) -> usize {
    let only = only();
    let mut table = String::new();
    let (mut tried, mut wrong) = (0, Vec::new());
    for row in rows {
        let is_named = only.is_empty() || only.contains(&row.title());
        if !is_named || row.mode.is_some_and(|row_mode| row_mode != mode) {
            continue;
        }
        let network = row.sent.as_ref().map(|sent| match sent.0 {
            From::Pod(node) => lab.pod_network(node),
            From::Host(node) => Lab::node_network(node),
        });
        let trial = Trial {
            lab,
            names: Names::of(lab),
            row,
            network,
        };
        tried += 1;
        let (line, of_row) = trial.run();
        eprint!("{line}");
        table.push_str(&line);
        if !of_row.is_empty() {
            wrong.push(row.title());
        }
    }
    fs::write(lab.log("rows"), &table).unwrap();
    assert!(
        wrong.is_empty(),
        "{} of {tried} rows are wrong: {}",
        wrong.len(),
        wrong.join(", ")
    );
    tried
}

#[expect(
    clippy::disallowed_methods,
    reason = "the harness has no other settings"
)]
fn only() -> Vec<String> {
    let text = std::env::var("ONLY").unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}
