//! The answers from each output of a command alone: the last column of the table in `docs/pastes.md` is measured.

use std::fs;

use serde_json::Value;

use super::{sample, text};
use crate::docs::bless;
use crate::support::{kpx, recorded, root};

/// An output of a command, as it is pasted.
enum Output {
    /// A file of `testdata/pastes`.
    Sample(&'static str),
    /// The command, and a file of a recording that is its output.
    Recorded(&'static str, &'static str, &'static str),
    /// The first chain of a sample, below its command.
    Chain(&'static str, &'static str),
    /// The text.
    Text(&'static str),
}

use Output::{Chain, Recorded, Sample, Text};

/// The rows of the table, by their first column.
const ROWS: &[(&str, &[Output])] = &[
    (
        "`iptables-save`, `-c` or not",
        &[Recorded(
            "iptables-save",
            "seed-iptables",
            "node/iptables-save.txt",
        )],
    ),
    ("`iptables -S`, `-vS`", &[Sample("09-iptables-nat-S.txt")]),
    (
        "`iptables -nvL`, `-nvxL`, `--line-numbers`, `-vL`",
        &[Sample("02-iptables-nat-nvL-1.8.9-numeric.txt")],
    ),
    ("`iptables -L`, `-nL`", &[Sample("03-iptables-nat-L.txt")]),
    (
        "`iptables -L CHAIN`",
        &[Chain(
            "iptables -t nat -nvL KUBE-SERVICES",
            "02-iptables-nat-nvL-1.8.9-numeric.txt",
        )],
    ),
    ("`ipset list`, `ipset save`", &[Sample("33-ipset-list.txt")]),
    (
        "`ipvsadm -Ln`, `/proc/net/ip_vs`",
        &[Sample("22-ipvsadm-Ln.txt")],
    ),
    (
        "`ipvsadm -Sn`",
        &[Recorded(
            "ipvsadm -Sn",
            "seed-ipvs",
            "node/ipvsadm-save.txt",
        )],
    ),
    (
        "`ipvsadm -L`, `--save` without `-n`",
        &[Sample("25-ipvsadm-L-names.txt")],
    ),
    (
        "`ipvsadm -Ln --stats`, `--timeout`, `-Lnc`",
        &[
            Sample("26-ipvsadm-Ln-stats.txt"),
            Sample("28-ipvsadm-Lnc.txt"),
        ],
    ),
    (
        "`ip addr`, `ip -o addr`, `ip -br addr`",
        &[Sample("36-ip-addr.txt")],
    ),
    ("`ip -d link`", &[Sample("40-ip-s-d-link.txt")]),
    (
        "`ip route show table all`, `ip rule`",
        &[
            Sample("41-ip-route-table-all.txt"),
            Sample("42-ip-rule.txt"),
        ],
    ),
    ("`ip route`, `route -n`", &[Sample("44-route-n.txt")]),
    ("`ifconfig`", &[Sample("43-ifconfig.txt")]),
    (
        "`ss -lntup`, `netstat -lntup`",
        &[Sample("45-ss-lntup.txt")],
    ),
    ("`lsmod`", &[Sample("59-lsmod.txt")]),
    (
        "`sysctl -a`, `sysctl -n NAME`, `cat /proc/sys/…`",
        &[Recorded("sysctl -a", "seed-iptables", "node/sysctl.txt")],
    ),
    (
        "`conntrack -L`, `/proc/net/nf_conntrack`",
        &[Sample("47-conntrack-L.txt")],
    ),
    (
        "`conntrack -S`",
        &[Text(
            "$ conntrack -S\ncpu=0 found=0 invalid=12 insert=0 insert_failed=3 drop=3 early_drop=0 error=0 search_restart=1\n",
        )],
    ),
    (
        "`nft list ruleset`, `-a` or not",
        &[Sample("49-nft-a-kube-proxy.txt")],
    ),
    (
        "`nft list table`, `map`, `chain`",
        &[Sample("51-nft-list-map.txt")],
    ),
    (
        "`kubectl get -o yaml` or `json`",
        &[Sample("56-kubectl-list.yaml")],
    ),
    (
        "`kubectl get svc`, `-o wide`",
        &[Sample("52-kubectl-get-svc-wide.txt")],
    ),
    (
        "`kubectl get endpoints`, `endpointslices`",
        &[Sample("55-kubectl-get-endpoints.txt")],
    ),
    (
        "`kubectl get pods -o wide`, `nodes -o wide`",
        &[Text(
            "$ kubectl get nodes -o wide\n\
             NAME    STATUS   ROLES           AGE   VERSION   INTERNAL-IP   EXTERNAL-IP   OS-IMAGE   KERNEL-VERSION   CONTAINER-RUNTIME\n\
             node1   Ready    control-plane   10d   v1.33.1   192.0.2.10    <none>        Debian     6.1.0            containerd://2.0\n",
        )],
    ),
    (
        "`kubectl get ds -o wide`",
        &[Text(
            "$ kubectl get ds -n kube-system -o wide\n\
             NAME         DESIRED   CURRENT   READY   UP-TO-DATE   AVAILABLE   NODE SELECTOR            AGE   CONTAINERS   IMAGES                               SELECTOR\n\
             kube-proxy   3         3         3       3            3           kubernetes.io/os=linux   10d   kube-proxy   registry.k8s.io/kube-proxy:v1.32.4   k8s-app=kube-proxy\n",
        )],
    ),
    (
        "`kubectl describe svc`, `endpoints`, `endpointslice`",
        &[Sample("54-kubectl-describe-svc.txt")],
    ),
    (
        "`kubectl describe node`",
        &[Text(
            "$ kubectl describe node node1\nName:               node1\nRoles:              control-plane\nAddresses:\n  InternalIP:  192.0.2.10\n\
             System Info:\n  Kubelet Version:            v1.33.1\nPodCIDR:                      10.244.0.0/24\nPodCIDRs:                     10.244.0.0/24\n",
        )],
    ),
    (
        "`cilium-dbg service list`, `bpf lb list`",
        &[Text(
            "$ cilium-dbg service list\nID   Frontend            Service Type   Backend\n\
             1    10.96.0.1:443/TCP   ClusterIP      1 => 192.0.2.10:6443/TCP (active)\n",
        )],
    ),
    (
        "`kubectl logs` of kube-proxy, `journalctl -u` of its unit, or of K3s, RKE2, K0s, MicroK8s",
        &[Recorded(
            "kubectl logs -n kube-system kube-proxy-abcde",
            "seed-ipvs",
            "kube-proxy/kube-proxy.log",
        )],
    ),
    (
        "`systemctl status` of that unit, lines of that log alone",
        &[Text(
            "$ systemctl status kube-proxy\n● kube-proxy.service - kube-proxy\n   Active: active (running)\n\n\
             Nov 02 23:38:04 node1 kube-proxy[6315]: E1102 23:38:04.959564    6315 proxier.go:1507] \"Failed to execute iptables-restore\" \
             err=\"exit status 4\"\n",
        )],
    ),
    (
        "`dmesg`, `journalctl -k`",
        &[Text(
            "$ dmesg\n[   12.345678] nf_conntrack: default automatic helper assignment has been turned off\n",
        )],
    ),
];

/// Views of `kpx show` that list what a text has.
const VIEWS: [&str; 9] = [
    "services",
    "chains",
    "ipvs",
    "sets",
    "addresses",
    "nodeports",
    "conntrack",
    "modules",
    "sysctls",
];

impl Output {
    fn text(&self) -> String {
        match self {
            Sample(name) => text(name),
            Recorded(command, name, file) => {
                let text = recorded(name, file);
                format!(
                    "$ {command}\n{}",
                    text.unwrap_or_else(|| panic!("{name} has no {file}"))
                )
            }
            Chain(command, name) => {
                let text = text(name);
                let at = text.find("Chain KUBE-SERVICES").unwrap();
                let chain = text[at..].split("\n\n").next().unwrap();
                format!("$ {command}\n{chain}\n")
            }
            Text(text) => (*text).to_owned(),
        }
    }
}

/// Returns the report that a command prints about `from`; null if it fails.
async fn report(from: &str, command: &[&str]) -> (u8, Value) {
    let ran = kpx(&[&["--from", from], command, &["-o", "json"]].concat()).await;
    (ran.code, serde_json::from_str(&ran.out).unwrap_or_default())
}

/// Returns the address and port of the first Service or virtual server in `rows`.
fn target(rows: &Value) -> Option<String> {
    let first = rows.as_array()?.iter().find_map(|row| {
        if let Some(server) = row["server"].as_str() {
            return Some(server.split('/').next()?.to_owned());
        }
        let address = row["addresses"].get(0)?["address"].as_str()?;
        Some(format!("{address}:{}", row["port"]))
    });
    first.filter(|target| target.contains('.'))
}

/// Returns the commands that answer from `outputs` alone.
async fn answers(outputs: &[Output]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("paste.txt");
    let all: Vec<String> = outputs.iter().map(Output::text).collect();
    fs::write(&path, all.join("\n")).unwrap();
    let from = path.display().to_string();
    let mut answers = Vec::new();
    let mut at = None;
    let mut views = Vec::new();
    for view in VIEWS {
        let (_, shown) = report(&from, &["show", view]).await;
        let key = match view {
            "ipvs" => "servers",
            "nodeports" => "nodePorts",
            "conntrack" => "connections",
            other => other,
        };
        if shown[key].as_array().is_some_and(|rows| !rows.is_empty()) {
            views.push(format!("`show {view}`"));
            at = at.or_else(|| target(&shown[key]));
        }
    }
    if let Some(at) = at {
        let (code, traced) = report(&from, &["trace", &at]).await;
        let backend = |of: &Value| {
            of["outcomes"]
                .as_array()
                .is_some_and(|all| all.iter().any(|one| one["backend"].is_object()))
        };
        let is_known = backend(&traced)
            || traced["paths"]
                .as_array()
                .is_some_and(|paths| paths.iter().any(backend));
        match code {
            0 | 1 => answers.push("`trace`".to_owned()),
            _ if is_known => answers.push("`trace`, to the endpoint".to_owned()),
            _ => {}
        }
    }
    if report(&from, &["diff"]).await.0 < 2 {
        answers.push("`diff`".to_owned());
    }
    answers.extend(views);
    let (_, doctor) = report(&from, &["doctor"]).await;
    let count = |key: &str| doctor["summary"][key].as_u64().unwrap_or_default();
    match count("passed") + count("failed") {
        0 => {}
        1 => answers.push("1 check".to_owned()),
        several => answers.push(format!("{several} checks")),
    }
    match answers.as_slice() {
        [] => "nothing".to_owned(),
        some => some.join(", "),
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn the_column_of_answers_is_measured() {
    let page = root().join("docs/pastes.md");
    let old = fs::read_to_string(&page).unwrap();
    let mut new = String::new();
    let mut seen = 0;
    let mut is_inside = false;
    for line in old.lines() {
        is_inside = match line {
            "| command | read as | lost | answers alone |" => true,
            _ if line.starts_with('|') => is_inside,
            _ => false,
        };
        let cells: Vec<&str> = line.split(" | ").collect();
        let is_row = is_inside
            && cells.len() == 4
            && !line.starts_with("| command")
            && !line.starts_with("|---");
        if is_row {
            let name = cells[0].trim_start_matches("| ");
            let row = ROWS.iter().find(|(of, _)| *of == name);
            let (_, outputs) = row.unwrap_or_else(|| panic!("no sample for the row {name}"));
            let answers = answers(outputs).await;
            new.push_str(&[cells[0], cells[1], cells[2], &answers].join(" | "));
            new.push_str(" |\n");
            seen += 1;
        } else {
            new.push_str(line);
            new.push('\n');
        }
    }
    assert_eq!(seen, ROWS.len(), "rows of docs/pastes.md");
    if bless() {
        fs::write(&page, &new).unwrap();
    } else {
        assert!(
            old == new,
            "docs/pastes.md is stale. Run `KPX_BLESS=1 cargo test --test suite pastes` and read the diff:\n{new}"
        );
    }
    assert!(std::path::Path::new(&sample("22-ipvsadm-Ln.txt")).exists());
}
