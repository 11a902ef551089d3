//! Breaks one thing at a time on a live node, with standard tools. The doctor must report exactly that, and nothing
//! once it is fixed: by the command that it printed, if it printed one.
//!
//! The node is a namespace with a recording's rules, links and addresses, the recorded cluster beside it, and a program
//! that answers as kube-proxy does.

mod iptables;
mod ipvs;
mod machine;
mod nftables;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::netns::{Netns, run};

const KPX: &str = env!("CARGO_BIN_EXE_kpx");

/// One fault.
#[derive(Clone)]
struct Fault {
    name: &'static str,
    /// The commands of bash that break it.
    broken_by: &'static str,
    /// The check that must tell.
    id: &'static str,
    /// Checks that tell of the same fault from their own side.
    also: &'static [&'static str],
    /// The commands that undo it, where the doctor prints none that does.
    undone_by: &'static str,
}

impl Fault {
    /// Iterates over the checks that tell.
    fn ids(&self) -> impl Iterator<Item = &'static str> {
        self.also.iter().copied().chain([self.id])
    }
}

/// Answers as kube-proxy does, from files: what is asked for is the file's name.
const STAND_IN: &str = r#"
use IO::Socket::INET; use IO::Select;
my ($dir, @ports) = @ARGV;
# Who asked may be gone by the time a stopped one goes on.
$SIG{PIPE} = "IGNORE";
my $all = IO::Select->new(map { IO::Socket::INET->new(LocalAddr => "0.0.0.0", LocalPort => $_, Listen => 64, ReuseAddr => 1) or die "$_: $!" } @ports);
open my $ready, ">", "$dir/ready"; close $ready;
while (my @ready = $all->can_read) {
    for (@ready) {
        my $client = $_->accept or next;
        sysread $client, my $asked, 4096;
        my ($name) = $asked =~ m{^GET /(\w+)};
        open my $noted, ">>", "$dir/asked"; print $noted "$name\n"; close $noted;
        my $text = do { local $/; open my $file, "<", "$dir/$name"; <$file> } // "";
        print $client "HTTP/1.1 200 OK\r\nContent-Length: " . length($text) . "\r\nConnection: close\r\n\r\n$text";
        close $client;
    }
}
"#;

/// Functions for the scripts of faults. `$R` is the recording, `$D` a scratch folder of the node.
const TOOLS: &str = r#"
PATH=$PATH:/usr/sbin:/sbin
# What findings print is typed as it is.
kpx() { "$KPX" "$@"; }
# What kube-proxy had written, again.
rules() {
    iptables-nft-restore <$R/node/iptables-save.txt
    ip6tables-nft-restore <$R/node/ip6tables-save.txt
}
tables() {
    { echo flush ruleset; cat $R/node/nft.txt; } | nft -f -
}
# The number of the first rule of a table's chain that has these words.
number() { iptables-nft -t $1 -S $2 | grep -e ^-A | grep -n -F -e "$3" | head -n 1 | cut -d: -f1; }
# Deletes it.
delete() { iptables-nft -t $1 -D $2 $(number "$@"); }
# The rule itself, as a command would add it.
rule() { iptables-nft -t $1 -S $2 | grep -F -e "$3" | head -n 1; }
# Writes it again with a part of it replaced: table, chain, words, sed's script.
rewrite() {
    at=$(number "$1" "$2" "$3")
    eval "iptables-nft -t $1 $(rule "$1" "$2" "$3" | sed -e "$4" -e "s/^-A $2/-R $2 $at/")"
}
# Starts the program called $1 on these ports, and waits until it listens.
start() {
    name=$1; shift
    rm -f $D/ready
    setsid $D/$name $D/stand-in $D "$@" </dev/null >/dev/null 2>&1 &
    echo $! >$D/pid-$1
    for _ in $(seq 200); do [ ! -e $D/ready ] || return 0; sleep 0.05; done
    echo "$name does not listen" >&2; return 1
}
# Ends the one that was started on the port.
stop() { kill $(cat $D/pid-$1); while [ -e /proc/$(cat $D/pid-$1) ]; do sleep 0.02; done; rm $D/pid-$1; }
# kube-proxy's figures, as of now. Its syncs are fast: the doctor waits for one before it reports drift.
metrics() {
    now=$(date +%s)
    sed -E -e "s/^(kubeproxy_sync_proxy_rules_last_(queued_)?timestamp_seconds.*) .*/\1 $now/" \
        -e "s/^(kubeproxy_sync_proxy_rules_duration_seconds_sum.*) .*/\1 0.1/" $R/kube-proxy/metrics.txt >$D/metrics
}
"#;

/// A node in a namespace.
struct Node {
    netns: Netns,
    recording: PathBuf,
    scratch: tempfile::TempDir,
}

/// The findings of the doctor, each as id, subject and message; an unknown check as id, `unknown` and reason.
type Findings = BTreeSet<(String, String, String)>;

impl Node {
    /// A node with the rules of the recording `name`, made ready by `script`.
    fn new(name: &str, script: &str) -> Self {
        let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/nodes");
        let node = Self {
            netns: Netns::new(),
            recording: recording.join(name),
            scratch: tempfile::tempdir().unwrap(),
        };
        fs::write(node.scratch.path().join("stand-in"), STAND_IN).unwrap();
        node.bash("links", LINKS);
        node.bash("settings", &node.settings());
        node.bash(
            "kube-proxy",
            "cp $(readlink -f /usr/bin/perl) $D/kube-proxy; cp $D/kube-proxy $D/squatter
             cp $R/kube-proxy/healthz.json $D/healthz; cp $R/kube-proxy/proxy-mode.txt $D/proxyMode; metrics
             echo '{\"kubeproxy.config.k8s.io\":{}}' >$D/configz
             start kube-proxy 10249 10256; start kube-proxy 32000 32001",
        );
        node.bash("rules", script);
        node
    }

    /// Runs a script inside; `what` is shown when it fails.
    fn bash(&self, what: &str, script: &str) {
        let at = |path: &Path| path.to_str().unwrap().to_owned();
        let (r, d) = (at(&self.recording), at(self.scratch.path()));
        let text = format!("set -euo pipefail\nR={r} D={d} KPX={KPX}\n{TOOLS}\n{script}\n");
        let name = self.netns.options().netns.unwrap();
        run(&["ip", "netns", "exec", &name, "bash", "-s", what], &text);
    }

    /// The settings of the recording that a namespace has of its own.
    fn settings(&self) -> String {
        let text = fs::read_to_string(self.recording.join("node/sysctl.txt")).unwrap();
        let of_link = |line: &str| line.contains(".eth0.") || line.contains(".lo.");
        let own = [
            "net.ipv4.conf.",
            "net.ipv6.conf.",
            "net.bridge.",
            "net.ipv4.vs.",
            "net.netfilter.nf_conntrack_",
        ];
        let lines = text
            .lines()
            .filter(|line| !of_link(line) && own.iter().any(|prefix| line.starts_with(prefix)));
        let mut script = "sysctl -q -e -p - <<'END'\n".to_owned();
        for line in lines.filter(|line| {
            !["buckets", "_count", "_max "]
                .iter()
                .any(|word| line.contains(word))
        }) {
            writeln!(script, "{line}").unwrap();
        }
        // The recorded node routes for pods of its own kind; this one is a router as the catalogue wants it.
        script + "net.ipv4.ip_forward = 1\nnet.ipv6.conf.all.forwarding = 1\nEND\n"
    }

    fn doctor(&self) -> Value {
        self.doctor_with(&["--fail-on", "never"])
    }

    /// Runs the doctor, which must not report the finding, but may report it as unknown.
    fn doctor_with(&self, words: &[&str]) -> Value {
        let name = self.netns.options().netns.unwrap();
        let recording = self.recording.to_str().unwrap();
        let mut line = vec!["bash", "-c", "\"$@\" || [ $? = 3 ]", "bash", KPX];
        line.extend([
            "--netns",
            &name,
            "--cluster-from",
            recording,
            "--node",
            "node1",
        ]);
        // An emulated machine that is short of time takes long for everything.
        line.extend(["--timeout", "120s", "doctor", "-o", "json"]);
        line.extend(words);
        serde_json::from_str(&run(&line, "")).unwrap()
    }
}

/// Ends what was started in the node.
impl Drop for Node {
    fn drop(&mut self) {
        self.bash(
            "end",
            "for file in $D/pid-*; do [ ! -e $file ] || kill -KILL $(cat $file) || true; done",
        );
    }
}

/// Links and addresses of the recorded node, with a pod behind a bridge.
const LINKS: &str = "
ip link add eth0 type veth peer name far0
ip link add cni0 type bridge mcast_snooping 0
ip link add pod0 type veth peer name far1
ip link set pod0 master cni0
ip link set pod0 type bridge_slave hairpin on
for link in eth0 far0 cni0 pod0 far1; do ip link set $link up; done
ip addr add 10.0.2.15/24 dev eth0
ip addr add 10.244.1.1/24 dev cni0
ip route add default via 10.0.2.2
ip route add 10.244.2.0/24 via 10.0.2.16
ip -6 route add fd00:10:244:1::/64 dev cni0
ip -6 route add default via fe80::2 dev eth0
# Where these are modules; bridge-nf-call-iptables is there with the first.
modprobe -q br_netfilter || true
modprobe -q nf_conntrack || true
sysctl -qw net.bridge.bridge-nf-call-iptables=1
nfacct add ct_state_invalid_dropped_pkts
nfacct add localhost_nps_accepted_pkts
";

fn word(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

fn findings(report: &Value) -> Findings {
    let mut found = Findings::new();
    for finding in report["findings"].as_array().unwrap() {
        let folded = finding["consequences"].as_array().into_iter().flatten();
        // Nothing listens at the endpoint of this Service, which is in the host's network.
        let is_of_test = |of: &Value| of["id"] == "SV01" && of["subject"] == "shop/hostnet";
        for part in folded.chain([finding]).filter(|folded| !is_of_test(folded)) {
            found.insert((
                word(&part["id"]),
                word(&part["subject"]),
                word(&part["message"]),
            ));
        }
    }
    for check in report["checks"].as_array().unwrap() {
        // Whether there is a list of modules is the machine's affair.
        let modules = |reason: &Value| word(reason).starts_with("node/modules-");
        if check["status"] == "unknown" && !modules(&check["reason"]) {
            found.insert((
                word(&check["id"]),
                "unknown".to_owned(),
                word(&check["reason"]),
            ));
        }
    }
    found
}

/// The commands in the findings of `id`, without duplicates; kubectl's cannot be run here.
fn printed(report: &Value, id: &str, before: &Findings) -> Vec<String> {
    let mut commands = Vec::new();
    for finding in report["findings"].as_array().unwrap() {
        let key = (
            word(&finding["id"]),
            word(&finding["subject"]),
            word(&finding["message"]),
        );
        let Some(command) = finding["fix"]["command"].as_str() else {
            continue;
        };
        let command = command.to_owned();
        if key.0 == id
            && !before.contains(&key)
            && !command.starts_with("kubectl ")
            && !commands.contains(&command)
        {
            commands.push(command);
        }
    }
    commands
}

/// Each third fault.
fn some(all: &[Fault]) -> Vec<Fault> {
    all.iter().step_by(3).cloned().collect()
}

/// Makes and fixes each fault on `node`, and fails with every unexpected finding. `healthy` has the checks that are unknown, too:
/// the recorded cluster has no pods but those of kube-proxy (AP06), and kube-proxy has no log (KP21, IS01).
///
/// One run of the doctor covers the new fault and the one fixed before it, unless the same checks find both.
fn through(node: &Node, healthy: &[&str], faults: &[Fault]) {
    let before = findings(&node.doctor());
    let ids: BTreeSet<&str> = before.iter().map(|(id, _, _)| id.as_str()).collect();
    let known: BTreeSet<&str> = healthy.iter().copied().collect();
    assert_eq!(ids, known, "before anything is broken: {before:#?}");
    // Neighbours in the table are often found by the same check, so the order alternates between both halves.
    let (some, others) = faults.split_at(faults.len().div_ceil(2));
    let mut others = others.iter();
    let order = some.iter().flat_map(|fault| [Some(fault), others.next()]);
    let mut wrong = String::new();
    let mut last: Option<&Fault> = None;
    for fault in order.flatten() {
        if last.is_some_and(|last| {
            fault
                .ids()
                .any(|id| last.ids().any(|last_id| last_id == id))
        }) {
            whole(node, &before, last, &mut wrong);
            last = None;
        }
        node.bash(fault.name, fault.broken_by);
        let report = node.doctor();
        let now = findings(&report);
        let is_of_mode = now.difference(&before).any(|(id, _, _)| id == "KP01");
        // Without rules of the mode, nothing is known of their contents; in another mode, some checks do not apply.
        let expected = |of: &(String, String, String)| {
            let (id, status, why) = of;
            let is_gone = why.ends_with(": see KP01") || !now.contains(of);
            fault.ids().any(|fault_id| fault_id == id)
                || is_of_mode && status == "unknown" && is_gone
        };
        for id in fault.ids() {
            if !now.difference(&before).any(|(new, _, _)| new == id) {
                writeln!(wrong, "{}: {id} does not tell it", fault.name).unwrap();
            }
        }
        let names = || (last.map_or("", |last| last.name), fault.name);
        for other in now
            .symmetric_difference(&before)
            .filter(|changed| !expected(changed))
        {
            let (mended, broken) = names();
            let is = if now.contains(other) {
                "reported"
            } else {
                "not reported"
            };
            writeln!(
                wrong,
                "after mending {mended:?} and breaking {broken:?} {is}: {other:?}"
            )
            .unwrap();
        }
        // A repair of all differences asks for confirmation; it mends what has no way of its own.
        let commands = printed(&report, fault.id, &before).into_iter();
        let commands = commands
            .filter(|command| fault.undone_by.is_empty() || !command.ends_with(" --apply"))
            .map(|command| {
                let asks = command.ends_with(" --apply");
                command + if asks { " --yes" } else { "" }
            });
        let commands: Vec<_> = commands.collect();
        let how = match (commands.is_empty(), fault.undone_by.is_empty()) {
            (false, true) => commands.join("\n"),
            (true, false) => fault.undone_by.to_owned(),
            (false, false) => panic!(
                "{}: printed what mends it: {commands:?}\n{wrong}",
                fault.name
            ),
            (true, true) => panic!("{}: nothing mends it: {report:#}\n{wrong}", fault.name),
        };
        node.bash(&format!("{}, mended by {how}", fault.name), &how);
        last = Some(fault);
    }
    whole(node, &before, last, &mut wrong);
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Adds to `wrong` unless the doctor reports the same findings as `before`.
fn whole(node: &Node, before: &Findings, last: Option<&Fault>, wrong: &mut String) {
    let now = findings(&node.doctor());
    if now != *before {
        let left: Vec<_> = now.symmetric_difference(before).collect();
        let name = last.map_or("", |last| last.name);
        writeln!(wrong, "{name}: after it is mended: {left:#?}").unwrap();
    }
}
