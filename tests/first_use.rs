//! First mistakes of a new user: wrong options, names and files, and the way on from there.

use std::process::Command;

use serde_json::Value;

use crate::support::{every, kpx, kpx_as, kpx_on, root};
use crate::terminal::{Session, lines};

const BIN: &str = env!("CARGO_BIN_EXE_kpx");

/// Runs kpx as a process with `variables`; returns its exit status and what it writes to standard error.
#[expect(
    clippy::disallowed_methods,
    reason = "variables are those of the whole process"
)]
fn with_variables(variables: &[(&str, &str)], args: &[&str]) -> (i32, String) {
    let ran = Command::new(BIN)
        .args(args)
        .current_dir(root())
        .env("KPX_CONFIG", "")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let err = String::from_utf8(ran.stderr).unwrap();
    (ran.status.code().unwrap(), err)
}

#[tokio::test]
async fn an_option_without_effect_on_a_bundle_is_refused() {
    for option in [
        &["--root", "/"][..],
        &["--netns", "none"],
        &["--image", "kpx:1"],
        &["--programs", "/"],
        &["--proxy-credentials"],
        &["--as", "somebody"],
    ] {
        let ran = kpx_on("seed-ipvs", &[option, &["doctor"]].concat()).await;
        let says = format!(
            "{} has no effect on a bundle, which --from reads",
            option[0]
        );
        assert_eq!(ran.code, 2, "{ran}");
        assert!(ran.err.contains(&says), "{ran}");
    }
    let from = "testdata/nodes/seed-ipvs";
    let (code, err) = with_variables(&[("KPX_FROM", from)], &["--root", "/", "doctor"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("which KPX_FROM reads"), "{err}");
    // A variable is a default, which a bundle does not need.
    let (code, err) = with_variables(&[("KPX_ROOT", "/")], &["--from", from, "show", "config"]);
    assert_eq!(code, 0, "{err}");
}

#[tokio::test]
async fn a_root_and_a_kubeconfig_that_cannot_be_used_are_errors_with_their_cause() {
    let ran = kpx(&["--root", "/nonexistent", "doctor"]).await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(
        ran.err
            .contains("cannot use --root /nonexistent: No such file"),
        "{ran}"
    );

    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = file(
        "good",
        "clusters: [{name: a, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n\
         users: [{name: a, user: {token: x}}]\ncurrent-context: a\n",
    );
    let broken = file("broken", "a: [");
    for (options, cause, hint) in [
        (
            &["--kubeconfig", "/nonexistent"][..],
            "cannot read /nonexistent: No such file",
            "takes the path of a file",
        ),
        (
            &["--kubeconfig", &good, "--context", "b"],
            "has no context \"b\"; available: a",
            "choose an available one with --context",
        ),
        (
            &["--kubeconfig", &broken],
            "is not a kubeconfig",
            "correct the file",
        ),
    ] {
        for command in [&["why", "shop/cart"][..], &["doctor"]] {
            let ran = kpx(&[options, command].concat()).await;
            assert_eq!(ran.code, 4, "{ran}");
            assert!(ran.err.contains(cause) && ran.err.contains(hint), "{ran}");
        }
        // It completes the bundle.
        let ran = kpx_on("seed-ipvs", &[options, &["doctor"]].concat()).await;
        assert!(ran.code == 4 && ran.err.contains(cause), "{ran}");
    }
    // What is given is not asked for.
    let ran = kpx(&["--kubeconfig", &good, "doctor", "--all-nodes"]).await;
    let says = "check that the API server answers: `kubectl get nodes`";
    assert!(ran.code == 4 && ran.err.contains(says), "{ran}");
}

#[test]
fn an_error_names_the_variable_that_set_the_value() {
    for (variable, value, command) in [
        ("KPX_ASCII", "maybe", "doctor"),
        ("KPX_TIMEOUT", "5", "doctor"),
        ("KPX_COLOR", "blue", "doctor"),
        ("KPX_OUTPUT", "xml", "doctor"),
        ("KPX_FROM", "/nonexistent", "doctor"),
        ("KPX_NODE", "Node_1", "doctor"),
        ("KPX_KUBECONFIG", "/nonexistent", "doctor"),
    ] {
        let (code, err) = with_variables(&[(variable, value)], &[command]);
        assert!([2, 4].contains(&code), "{variable}: {err}");
        assert!(err.contains(variable), "{variable}: {err}");
    }
    // Of a command without formats, it is no error.
    let (code, err) = with_variables(&[("KPX_OUTPUT", "json")], &["completions", "bash"]);
    assert_eq!((code, err.as_str()), (0, ""));
    // A variable does not change what is missing.
    let from = [("KPX_FROM", "testdata/nodes/seed-ipvs")];
    let (code, err) = with_variables(&from, &["show"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("VIEW is one of services, chains"), "{err}");
    assert!(err.contains("Usage: kpx show [OPTIONS] <VIEW>"), "{err}");
    let (code, err) = with_variables(&from, &[]);
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("Diagnose:") && !err.contains("screen"),
        "{err}"
    );
}

#[tokio::test]
async fn advice_of_the_parser_is_about_what_was_typed() {
    let ran = kpx(&["doctor", "-w"]).await;
    assert!(!ran.err.contains("as a value"), "{ran}");
    let ran = kpx(&["completions", "tcsh"]).await;
    assert!(!ran.err.contains("similar"), "{ran}");
    for (words, tip) in [
        (&["doctor", "-n", "shop"][..], "`kpx why -n NAMESPACE NAME`"),
        (&["get", "services"], "`kpx show services` does this"),
        (&["nonsense"], "tip: `kpx help` lists the commands"),
        (&["why"], "TARGET is a Service, such as shop/cart"),
        (&["doctor", "shop/cart"], "`kpx why shop/cart` explains"),
    ] {
        let ran = kpx(words).await;
        assert!(ran.code == 2 && ran.err.contains(tip), "{ran}");
    }
    let ran = kpx(&["completions", "bsh"]).await;
    assert!(ran.err.contains("similar value exists: 'bash'"), "{ran}");
    for (word, meant) in [("iptables", "modes"), ("ek", "eks"), ("IR3", "IR03")] {
        let ran = kpx(&["explain", word]).await;
        let says = format!("did you mean {meant}");
        assert!(ran.err.contains(&says), "{word}: {ran}");
    }
}

#[tokio::test]
async fn pages_of_markdown_are_text() {
    for page in [
        "modes",
        "schedulers",
        "affinity",
        "chains",
        "pastes",
        "config",
        "mcp",
        "eks",
        "providers",
    ] {
        let ran = kpx(&["explain", page]).await;
        for mark in ["<!--", "|---", "```", "]("] {
            assert!(!ran.out.contains(mark), "{mark}: {ran}");
        }
        // Tables and commands may be wider.
        let is_text = |line: &&str| !line.contains("  ");
        let long = ran
            .out
            .lines()
            .filter(is_text)
            .find(|line| line.chars().count() > 80 && line.contains(' '));
        assert_eq!(long, None, "{page}");
    }
}

#[test]
fn errors_are_wrapped_at_the_width_of_the_terminal() {
    let from = "/nonexistent/a/long/path/of/a/bundle/that/is/not/there";
    let kpx = ["--ctty", BIN, "--from", from, "doctor"];
    let session = Session::on((24, 60), "setsid", &[], &kpx);
    let (status, seen) = session.end();
    assert_eq!(status.code(), Some(4));
    let shown = lines(&seen.glass);
    let hint = shown.iter().position(|line| line.starts_with("  hint: "));
    let after = &shown[hint.unwrap() + 1];
    // A line goes on below its text, and no word is cut.
    assert!(after.starts_with("    "), "{shown:#?}");
    for word in shown[hint.unwrap()].split(' ').chain(after.split(' ')) {
        let known = "check the path: --from takes a bundle of `kpx snapshot`, a support bundle, or a file with outputs of \
                     commands hint:";
        assert!(
            known.split(' ').any(|split| split == word) || word.is_empty(),
            "{word}: {shown:#?}"
        );
    }
}

#[tokio::test]
async fn what_does_not_exist_has_one_status() {
    for command in [&["why"][..], &["trace"], &["show", "services"]] {
        for name in ["shop/crt", "crt", "edge/web:99"] {
            let ran = kpx_on("full-iptables", &[command, &[name]].concat()).await;
            assert_eq!(ran.code, 1, "{command:?} {name}: {ran}");
        }
        let ran = kpx_on("full-iptables", &[command, &["shop/crt"]].concat()).await;
        let says = format!("{}{}", ran.out, ran.err);
        assert!(says.contains("did you mean shop/cart"), "{ran}");
        let ran = kpx_on("full-iptables", &[command, &["edge/web."]].concat()).await;
        assert!(
            ran.code == 2
                && ran
                    .err
                    .contains("\"edge/web.\" is not the name of a Service"),
            "{ran}"
        );
    }
    let ran = kpx_on(
        "full-iptables",
        &["trace", "edge/web:80", "--source", "none"],
    )
    .await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(ran.err.contains("or a pod such as default/"), "{ran}");
    // The bundle may lack what was asked for.
    let ran = kpx_on(
        "fallback-no-ipvs-modules",
        &["show", "ipvs", "default/ngnix-svc"],
    )
    .await;
    assert_eq!(ran.code, 3, "{ran}");
}

#[tokio::test]
async fn a_file_of_another_kind_is_not_written() {
    for (args, says) in [
        (
            &["report", "-o", "json"][..],
            "`kpx doctor -o json` has the findings",
        ),
        (
            &["report", "-o", "a.html"],
            "--file names the file: --file a.html",
        ),
        (&["report", "--file", "a.pdf"], "pass a.html"),
        (
            &["snapshot", "-o", "x.tgz"],
            "--file names the file: --file x.tgz",
        ),
        (&["snapshot", "--file", "x.zip"], "pass x.tar.gz"),
        (&["completions", "bash", "-o", "json"], "omit -o"),
    ] {
        let ran = kpx_on("seed-ipvs", args).await;
        assert_eq!(ran.code, 2, "{ran}");
        assert!(ran.err.contains(says), "{ran}");
    }
    let ran = kpx(&["version", "-o", "json"]).await;
    let version: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert!(version["kubeProxy"]["newest"].is_string(), "{ran}");
}

#[tokio::test]
async fn a_namespace_selects_the_rows_of_its_services() {
    for view in ["services", "chains", "nodeports"] {
        let all = kpx_on("full-iptables", &["show", view]).await;
        let some = kpx_on("full-iptables", &["show", view, "-n", "shop"]).await;
        assert_eq!(some.code, all.code, "{some}");
        assert!(
            some.out.contains("shop/") && !some.out.contains("edge/"),
            "{some}"
        );
        assert!(all.out.contains("edge/"), "{all}");
    }
    let ran = kpx_on("full-iptables", &["show", "services", "-n", "nope"]).await;
    assert_eq!(ran.code, 1, "{ran}");
    let ran = kpx_on("full-iptables", &["show", "sysctls", "-n", "shop"]).await;
    assert_eq!(ran.code, 2, "{ran}");
}

#[tokio::test]
async fn the_plugin_names_itself() {
    let from = "testdata/nodes/full-iptables";
    let on = async |args: &[&str]| kpx_as("kubectl-kpx", args).await;
    let ran = on(&["help", "doctor"]).await;
    assert!(ran.out.contains("Usage: kubectl kpx doctor"), "{ran}");
    let ran = on(&["--from", from, "trace", "shop/crt"]).await;
    assert!(ran.err.contains("`kubectl kpx show services`"), "{ran}");
    let ran = on(&["explain"]).await;
    assert!(ran.out.ends_with("next: kubectl kpx explain ID\n"), "{ran}");
}

/// Commands that only show something, by how they begin.
const LOOKS: [&str; 19] = [
    "ip -br",
    "kubectl get",
    "kubectl -n kube-system describe",
    "kubectl -n kube-system exec",
    "kubectl -n kube-system get",
    "kubectl -n kube-system logs",
    "curl",
    "grep",
    "iptables --version",
    "iptables-save",
    "iptables-nft-save",
    "ipset list",
    "ufw status",
    "dmesg",
    "uname",
    "for m in",
    "sysctl net.",
    "ss ",
    "nft --version",
];

/// The next step is a look where only the operator can decide or act.
const DECIDED_BY_LOOKING: [(&str, &str); 6] = [
    (
        "ap13-shared-by-nodes",
        "which other address the machine has, and where the kubelet's option is",
    ),
    ("faults-setup", "why kube-proxy exits"),
    (
        "ib01-both-backends",
        "which back end kube-proxy uses: the other one's chains are removed",
    ),
    ("mx04-no-kube-proxy", "why the pod does not run"),
    (
        "mx07-first-sync",
        "whether the sync goes on: then it only takes time",
    ),
    (
        "sy18-kernel-log",
        "how near the neighbours are to the limit now",
    ),
];

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn the_next_command_is_another_one_and_decides_or_repairs() {
    let mut looking = Vec::new();
    for name in every() {
        let ran = kpx_on(&name, &["doctor"]).await;
        let last = ran.out.lines().last().unwrap_or_default();
        let next = last
            .strip_prefix("next: ")
            .unwrap_or_else(|| panic!("{name}: {ran}"));
        let command = next
            .split_once(": ")
            .filter(|(on, _)| on.starts_with("on "));
        let command = command.map_or(next, |(_, command)| command);
        assert!(!command.ends_with(" doctor"), "{name}: {next}");
        if LOOKS.iter().any(|look| command.starts_with(look)) {
            looking.push((name.clone(), next.to_owned()));
        }
        // The findings of one check do not lead to themselves.
        let own = command.strip_prefix(&format!("kpx --from testdata/nodes/{name} "));
        if let Some(own) = own.filter(|own| own.starts_with("doctor ")) {
            let words: Vec<&str> = own.split(' ').collect();
            let again = kpx_on(&name, &words).await;
            let last = again.out.lines().last().unwrap_or_default();
            assert!(!last.ends_with(own), "{name}: {last}");
        }
    }
    let known = |name: &str| DECIDED_BY_LOOKING.iter().any(|(of, _)| *of == name);
    looking.retain(|(name, _)| !known(name));
    assert!(looking.is_empty(), "{looking:#?}");
}

#[tokio::test]
async fn a_plan_goes_on_with_the_plan() {
    for name in ["seed-ipvs", "full-ipvs", "dp09-no-mode", "dual-ipvs"] {
        let ran = kpx_on(name, &["doctor", "--to", "nftables"]).await;
        let last = ran.out.lines().last().unwrap_or_default();
        let plan = format!("kpx --from testdata/nodes/{name} migrate --to nftables --dry-run");
        assert!(!last.contains("migrate --to iptables"), "{last}");
        assert!(!LOOKS.iter().any(|look| last.contains(look)), "{last}");
        if name != "dual-ipvs" {
            assert_eq!(last, format!("next: {plan}"), "{ran}");
        }
    }
    // Who cannot write rules is upgraded.
    for name in ["kb01-newer-nft", "kp16-newer-nft"] {
        let ran = kpx_on(name, &["doctor"]).await;
        assert!(ran.out.ends_with(" doctor --release 1.37\n"), "{ran}");
    }
    for id in ["AP14", "KP21"] {
        let name = if id == "AP14" {
            "ap14-shared-by-services"
        } else {
            "kp21-refused-rules"
        };
        let ran = kpx_on(name, &["doctor", id]).await;
        assert!(!ran.out.ends_with(&format!(" doctor {id}\n")), "{ran}");
    }
}

#[tokio::test]
async fn an_unknown_answer_says_what_decides_it() {
    let ran = kpx_on("dp08-external-ips-off", &["why", "default/kubernetes"]).await;
    assert_eq!(ran.code, 3, "{ran}");
    let last = ran.out.lines().last().unwrap();
    assert_eq!(
        last, "next: on node1: kpx why default/kubernetes --probe",
        "{ran}"
    );
}

/// Returns the last line of what `command` prints of a broken node, as a plugin of kubectl.
async fn last_line(command: &str) -> String {
    let from = "--from testdata/nodes/ir03-missing-rule ";
    let line = format!("{from}{command}");
    let words: Vec<&str> = line.split(' ').collect();
    let ran = kpx_as("kubectl-kpx", &words).await;
    assert!(matches!(ran.code, 0 | 1 | 3), "{command}: {ran}");
    ran.out.lines().last().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_command_that_leaves_something_to_do_ends_with_the_next_one() {
    let repair = "next: on node1: kpx reconcile --apply";
    let reads = "next: kubectl kpx --from testdata/nodes/ir03-missing-rule";
    for (command, next) in [
        ("doctor", repair.to_owned()),
        ("why redis-master", repair.to_owned()),
        ("trace redis-master", repair.to_owned()),
        ("diff", repair.to_owned()),
        ("diff --packets", repair.to_owned()),
        ("reconcile", repair.to_owned()),
        (
            "diff --mode nftables",
            format!("{reads} doctor --to nftables"),
        ),
        ("show services", format!("{reads} why default/redis-master")),
        (
            "migrate --to nftables --dry-run",
            // Some checks have no data.
            "next: on node1: kpx migrate --to nftables --dry-run".to_owned(),
        ),
    ] {
        assert_eq!(last_line(command).await, next, "{command}");
    }
    // Nothing is to do.
    let ran = kpx_on("full-iptables", &["diff"]).await;
    assert!(!ran.out.contains("next:"), "{ran}");
}

#[tokio::test]
async fn rules_of_a_service_that_exists_are_not_said_to_be_of_none() {
    let ran = kpx_on("faults-traffic", &["doctor", "--only", "IR03"]).await;
    let extra = "the chains of this Service port have extra rules";
    assert!(
        ran.out
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .contains(extra),
        "{ran}"
    );
    assert!(!ran.out.contains("no longer exists"), "{ran}");
    assert!(
        ran.out
            .contains("iptables (configured, reported, observed)"),
        "{ran}"
    );
}

#[tokio::test]
async fn commands_that_change_a_machine_or_a_cluster_refuse_a_recording() {
    for args in [
        &["migrate", "status", "--all-nodes"][..],
        &["migrate", "resume", "--all-nodes"],
        &["migrate", "rollback", "--all-nodes"],
        &["migrate", "--to", "ipvs", "--all-nodes"],
        &["migrate", "resume"],
        &["migrate", "rollback"],
        &["bridge", "guard"],
        &["bridge", "guard", "--detach"],
        &["bridge", "follow"],
        &["bridge", "up", "--apply"],
        &["reconcile", "--apply"],
        &["reconcile", "--watch", "--apply"],
        &["serve"],
        &["top"],
        &["watch"],
    ] {
        let ran = kpx_on("seed-iptables", args).await;
        assert_eq!(ran.code, 2, "{args:?}: {ran}");
        assert!(ran.err.contains("--from"), "{args:?}: {ran}");
    }
    let from = [("KPX_FROM", "testdata/nodes/seed-iptables")];
    let (code, err) = with_variables(&from, &["bridge", "guard", "--detach"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("but KPX_FROM reads a bundle"), "{err}");
}

#[tokio::test]
async fn what_a_service_excludes_itself_is_by_design_unless_it_was_asked_for() {
    let ran = kpx_on("full-iptables", &["why", "edge/web-restricted"]).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert!(
        ran.out.contains("\nBY DESIGN: edge/web-restricted:https "),
        "{ran}"
    );
    assert!(
        ran.out.contains("\noption: kubectl -n edge edit service"),
        "{ran}"
    );
    let asked = ["why", "203.0.113.11:443", "--source", "198.18.0.1"];
    let ran = kpx_on("full-iptables", &asked).await;
    assert_eq!(ran.code, 1, "{ran}");
    assert!(ran.out.contains("\nLOST: "), "{ran}");
}

#[tokio::test]
async fn pasted_texts_answer_by_short_names_and_each_text_is_in_the_next_command() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let rules = file(
        "rules.txt",
        "# iptables -t nat -S\n-P PREROUTING ACCEPT\n-P INPUT ACCEPT\n-P OUTPUT ACCEPT\n-P POSTROUTING ACCEPT\n-N KUBE-SERVICES\n\
         -N KUBE-SVC-AAAAAAAAAAAAAAAA\n-N KUBE-SEP-AAAAAAAAAAAAAAAA\n-A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n\
         -A KUBE-SERVICES -d 10.96.0.9/32 -p tcp -m comment --comment \"shop/web:http cluster IP\" -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA\n\
         -A KUBE-SVC-AAAAAAAAAAAAAAAA -m comment --comment \"shop/web:http -> 10.244.1.9:8080\" -j KUBE-SEP-AAAAAAAAAAAAAAAA\n\
         -A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m comment --comment \"shop/web:http\" -m tcp -j DNAT --to-destination 10.244.1.9:8080\n",
    );
    let ran = kpx(&["--from", &rules, "why", "web"]).await;
    assert!(ran.out.contains("shop/web"), "{ran}");
    assert!(ran.out.starts_with("unknown node, pasted text\n"), "{ran}");
    let services = file(
        "services.txt",
        "$ kubectl get svc,ep -A\nNAMESPACE   NAME          TYPE        CLUSTER-IP   EXTERNAL-IP   PORT(S)   AGE\n\
         shop        service/web   ClusterIP   10.96.0.9    <none>        80/TCP    9d\n\
         shop        service/lost  ClusterIP   10.96.0.8    <none>        80/TCP    9d\n\n\
         NAMESPACE   NAME             ENDPOINTS         AGE\n\
         shop        endpoints/web    10.244.1.9:8080   9d\n\
         shop        endpoints/lost   10.244.1.8:8080   9d\n",
    );
    let both = ["--from", &rules, "--from", &services];
    let next = format!("next: kpx --from {rules} --from {services} why shop/lost");
    for command in [&["show", "services"][..], &["doctor"]] {
        let ran = kpx(&[&both[..], command].concat()).await;
        assert_eq!(ran.out.lines().last(), Some(next.as_str()), "{ran}");
    }
}
