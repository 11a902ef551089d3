//! `kpx access`: its permissions, the manifests in `deploy/`, and the requests of each command.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use kpx::cli;
use kpx_host::{Environment, Options, Selection, Watch};
use kpx_node::access::{COMMANDS, Level, RULES, deployed};
use kpx_node::net::Family;
use serde_json::Value;
use tempfile::TempDir;

use crate::fake_api::{Api, Fault, What};
use crate::fleet;
use crate::remote::{self, NODE, VIOLATION};
use crate::support::{Ran, kpx, root};

#[test]
fn the_manifests_in_deploy_are_written_from_the_permissions() {
    #[expect(clippy::disallowed_methods, reason = "the one setting of this test")]
    let bless = std::env::var("KPX_BLESS").is_ok();
    for level in Level::ALL {
        let text = deployed(level);
        // Kustomize reads nothing outside the folder of a base.
        let name = level.file().trim_start_matches("deploy/");
        let base = name.trim_end_matches(".yaml");
        for file in [
            level.file().to_owned(),
            format!("deploy/kustomize/{base}/{name}"),
        ] {
            let path = root().join(&file);
            if bless {
                fs::write(&path, &text).unwrap();
            }
            let have = fs::read_to_string(&path).unwrap();
            assert!(
                have == text,
                "{file} is stale. Run `KPX_BLESS=1 cargo test --test suite access` and commit it."
            );
        }
    }
    let files = fs::read_dir(root().join("deploy")).unwrap();
    let files = files.filter(|file| file.as_ref().unwrap().path().is_file());
    assert_eq!(files.count(), Level::ALL.len());
}

#[test]
fn every_permission_has_a_purpose_and_names_commands() {
    let line = cli::command();
    for rule in RULES {
        let words = rule.grouped();
        assert!(
            !rule.purpose.is_empty() && !rule.verbs.is_empty(),
            "{words}"
        );
        assert!(!rule.commands.is_empty(), "{words}");
        for name in rule.commands.iter().chain(rule.remote) {
            assert!(COMMANDS.contains(name), "{words}: {name}");
        }
        assert!(
            rule.preflight.iter().all(|verb| rule.verbs.contains(verb)),
            "{words}"
        );
    }
    for name in COMMANDS {
        assert!(line.find_subcommand(name).is_some(), "{name}");
    }
}

/// Permissions of kpx on a node that migrates, which the fake kubelets only pretend to run.
const UNSEEN: &[&str] = &[
    // The test `drain_node` has the roles of a migration.
    "create pods/eviction  all",
    // Read to build the new mode and the bridge, as by `preflight` and `bridge`.
    "list services  all",
    "watch services  all",
    "list endpointslices discovery.k8s.io all",
    "watch endpointslices discovery.k8s.io all",
    "list servicecidrs networking.k8s.io all",
];

/// How the test runs a command.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Way {
    /// Through a pod on the node.
    Pod,
    /// On this machine, whose root is an empty folder.
    Here,
    /// For all nodes.
    All,
}

use Way::{All, Here, Pod};

/// Command lines of each command.
const RUNS: &[(&str, Way, &[&str])] = &[
    ("doctor", Pod, &["doctor"]),
    ("doctor", Pod, &["doctor", "--to", "nftables"]),
    ("doctor", All, &["doctor", "--all-nodes"]),
    ("resolve", All, &["resolve", "cart", "--all-nodes"]),
    ("diff", Pod, &["diff"]),
    ("diff", All, &["diff", "--all-nodes"]),
    ("snapshot", Pod, &["snapshot", "--file", "BUNDLE"]),
    ("report", Pod, &["report", "--file", "-"]),
    ("show", Pod, &["show", "services"]),
    ("show", Pod, &["show", "services", "shop/cart"]),
    ("show", Pod, &["show", "config"]),
    ("show", Pod, &["show", "nodeports"]),
    ("show", Pod, &["show", "chains"]),
    ("show", Pod, &["show", "conntrack"]),
    ("show", All, &["show", "services", "--all-nodes"]),
    ("top", Here, &["top", "--count", "1", "--interval", "1ms"]),
    ("watch", Here, &["watch", "--count", "1"]),
    ("serve", Here, &["serve", "--reading"]),
    (
        "serve",
        Here,
        &["serve", "--count", "1", "--listen", "127.0.0.1:0"],
    ),
    ("trace", Pod, &["trace", "shop/cart"]),
    ("trace", All, &["trace", "shop/cart", "--all-nodes"]),
    ("why", Pod, &["why", "shop/cart"]),
    ("render", Here, &["render"]),
    ("preflight", Pod, &["preflight", "--to", "nftables"]),
    (
        "preflight",
        All,
        &["preflight", "--to", "nftables", "--all-nodes"],
    ),
    ("reconcile", Pod, &["reconcile"]),
    ("reconcile", Pod, &["reconcile", "--apply", "--yes"]),
    ("reconcile", Pod, &["reconcile", "--cleanup", "ipvs"]),
    (
        "reconcile",
        Pod,
        &[
            "reconcile",
            "--cleanup",
            "iptables",
            "--force",
            "--apply",
            "--yes",
        ],
    ),
    ("bridge", Here, &["bridge", "show"]),
];

/// A user with exactly the printed roles is denied nothing, and each permission is used.
#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn each_command_needs_the_printed_permissions_and_no_others() {
    let mut wrong = Vec::new();
    for command in COMMANDS.iter().filter(|command| **command != "migrate") {
        // A repair needs something to repair.
        let world = match *command {
            "reconcile" => remote::World::drifted(),
            _ => remote::World::new(),
        };
        world.api.bind(&printed(&[command, "--all-nodes"]).await);
        world.lose_log();
        let runs = RUNS.iter().filter(|(of, ..)| of == command);
        let runs: Vec<_> = runs.collect();
        assert!(!runs.is_empty(), "{command} is not run");
        for (_, way, args) in &runs {
            let ran = world.run(*way, args).await;
            // The folder has no connection table, which is read after everything else.
            let codes: &[_] = if *command == "top" { &[4] } else { &[0, 1, 3] };
            assert!(codes.contains(&ran.code), "{args:?}: {ran}");
        }
        // The reason why a pod is refused is read as well.
        if let Some((_, way, args)) = runs.iter().find(|(_, way, _)| *way != Here) {
            world.api.with(|cluster| cluster.refuse_pods(VIOLATION));
            let ran = world.run(*way, args).await;
            assert!(ran.to_string().contains("violates PodSecurity"), "{ran}");
        }
        if ["bridge", "doctor", "reconcile"].contains(command) {
            watch(&world).await;
        }
        wrong.extend(differences(command, &[&world.api]));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

impl remote::World {
    /// Runs `args`, in which `BUNDLE` is a new path.
    async fn run(&self, way: Way, args: &[&str]) -> Ran {
        let word = |path: PathBuf| path.to_str().unwrap().to_owned();
        let bundle = word(self.path(&format!("bundle{}", self.api.asked().len())));
        let root = self.path("empty");
        fs::create_dir_all(&root).unwrap();
        let root = word(root);
        let args = args.iter().map(|arg| match *arg {
            "BUNDLE" => bundle.as_str(),
            arg => arg,
        });
        let args: Vec<&str> = args.collect();
        match way {
            Pod => self.on(NODE, &args).await,
            Here => {
                self.on(NODE, &[&["--root", &root], &args[..]].concat())
                    .await
            }
            All => {
                let options = self.options();
                let options: Vec<&str> = options.iter().map(String::as_str).collect();
                kpx(&[&options[..], &args].concat()).await
            }
        }
    }
}

/// Watches the cluster as `kpx bridge follow`, `kpx doctor --watch` and `kpx reconcile --watch` do.
async fn watch(world: &remote::World) {
    let options = Options {
        netns: None,
        root: PathBuf::from("/"),
        node: Some(NODE.to_owned()),
        families: Family::BOTH.to_vec(),
        timeout: Duration::from_secs(5),
        kubeconfig: Some(world.path("kubeconfig")),
        context: None,
        selection: Selection::default(),
        no_api: false,
        environment: Environment::default(),
    };
    Watch::start(&options).await.unwrap();
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_migration_needs_the_printed_permissions_and_no_others() {
    let manifest = printed(&["migrate", "--all-nodes"]).await;
    let (plain, staged) = (fleet::World::new(), fleet::World::new());
    for (world, more) in [(&plain, &[][..]), (&staged, &["--staged"])] {
        world.api.bind(&manifest);
        let ran = world.all_copied(more).await;
        assert_eq!(ran.code, 0, "{ran}");
        let ran = world.roll_back_copied().await;
        assert_eq!(ran.code, 0, "{ran}");
    }
    let wrong = differences("migrate", &[&plain.api, &staged.api]);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the requests on `apis` that the roles deny, and the permissions that no request used.
fn differences(command: &str, apis: &[&Api]) -> Vec<String> {
    let mut unused: Option<BTreeSet<String>> = None;
    let mut wrong = Vec::new();
    for api in apis {
        let (denied, left) = api.authorized();
        wrong.extend(denied.iter().map(|what| format!("{command} needs {what}")));
        unused = Some(match unused {
            None => left,
            Some(before) => before.intersection(&left).cloned().collect(),
        });
    }
    let unused = unused.unwrap_or_default();
    let known = |what: &&String| UNSEEN.contains(&what.as_str()) && command == "migrate";
    let unused = unused.iter().filter(|what| !known(what));
    wrong.extend(unused.map(|what| format!("{command} does not use {what}")));
    wrong
}

/// Returns the manifest that `kpx access --manifest` prints with `args`.
async fn printed(args: &[&str]) -> String {
    let ran = kpx(&[&["access", "--manifest"], args].concat()).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran}");
    ran.out
}

/// An API server, and a kubeconfig for it.
struct Server {
    api: Api,
    dir: TempDir,
}

impl Server {
    fn new() -> Self {
        let (api, dir) = (Api::new(), tempfile::tempdir().unwrap());
        fs::write(dir.path().join("kubeconfig"), api.kubeconfig()).unwrap();
        Self { api, dir }
    }

    async fn access(&self, args: &[&str]) -> Ran {
        let config = self.dir.path().join("kubeconfig");
        let first = ["--kubeconfig", config.to_str().unwrap(), "access"];
        let mut ran = kpx(&[&first[..], args].concat()).await;
        ran.out = ran.out.replace(self.dir.path().to_str().unwrap(), "DIR");
        ran.out = ran.out.replace(&self.api.url(), "URL");
        ran
    }

    async fn json(&self, args: &[&str]) -> (Value, u8) {
        let ran = self.access(&[args, &["-o", "json"]].concat()).await;
        let report = serde_json::from_str(&ran.out);
        (report.unwrap_or_else(|e| panic!("{e}: {ran}")), ran.code)
    }

    fn reviews(&self) -> usize {
        let asked = self.api.asked().into_iter();
        let asked = asked.filter(|request| request.path.ends_with("/selfsubjectaccessreviews"));
        asked.count()
    }
}

#[tokio::test]
async fn applying_the_manifest_of_a_command_leaves_nothing_missing() {
    for command in COMMANDS {
        for more in [&[][..], &["--all-nodes"]] {
            let args = [&[*command], more].concat();
            let server = Server::new();
            server.api.bind(&printed(&args).await);
            let (report, code) = server.json(&args).await;
            assert_eq!((code, &report["missing"]), (0, &0.into()), "{report:#}");
            let number: usize = report["levels"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|level| level["rules"].as_array().unwrap())
                .map(|rule| {
                    let names = rule["names"].as_array().map_or(1, Vec::len);
                    rule["verbs"].as_array().unwrap().len() * names
                })
                .sum();
            assert_eq!(server.reviews(), number);
        }
    }
}

#[tokio::test]
async fn missing_permissions_are_listed_with_the_command_that_grants_them() {
    let server = Server::new();
    server.api.bind(&printed(&["doctor"]).await);
    server.api.fault(Fault::forbidden("list", "servicecidrs"));
    insta::assert_snapshot!(server.access(&["doctor", "--node", "w1"]).await);
    // Of several names, all are needed.
    let server = Server::new();
    let manifest = printed(&["doctor"]).await;
    server
        .api
        .bind(&manifest.replace("kube-proxy, kube-proxy-config", "kube-proxy"));
    let (report, code) = server.json(&["doctor"]).await;
    assert_eq!((code, &report["missing"]), (1, &1.into()), "{report:#}");
    assert_eq!(report["nodes"], false);
}

#[tokio::test]
async fn a_permission_without_an_answer_is_unknown_and_not_missing() {
    let total = RULES.iter().map(|rule| rule.verbs.len()).sum::<usize>();
    let silent = What::Slow(Duration::from_secs(5));
    for (fault, why) in [
        (silent, "no answer within the time limit"),
        (
            What::Status(403, "not for you"),
            "answered 403: not for you",
        ),
        (What::Status(401, "Unauthorized"), "401 Unauthorized"),
    ] {
        let server = Server::new();
        server
            .api
            .fault(Fault::of("create", "selfsubjectaccessreviews", fault));
        let (report, code) = server.json(&["--timeout", "300ms"]).await;
        assert_eq!(code, 3, "{report:#}");
        assert_eq!(
            (&report["missing"], &report["unknown"]),
            (&0.into(), &total.into())
        );
        let reasons = report["reasons"].to_string();
        assert!(reasons.contains(why), "{reasons}");
        // Not one per permission.
        assert!(server.reviews() <= 8, "{}", server.reviews());
    }
    let server = Server::new();
    server.api.with(|cluster| cluster.set_away(true));
    let ran = server.access(&["--timeout", "300ms"]).await;
    assert!(ran.out.contains("cannot reach the API server"), "{ran}");
    assert_eq!(ran.code, 3);
    let ran = server.access(&["--no-api"]).await;
    assert!(ran.out.contains("unknown: not queried: --no-api"), "{ran}");
    assert_eq!(ran.code, 3);
}

#[tokio::test]
async fn a_manifest_binds_its_subject_and_changes_no_other_binding() {
    let own = printed(&["doctor", "--all-nodes"]).await;
    insta::assert_snapshot!(own);
    for (subject, words) in [
        (
            "user:oidc:jane@example.com",
            "kind: User\n    name: \"oidc:jane@example.com\"",
        ),
        (
            "group:https://issuer/ops",
            "kind: Group\n    name: \"https://issuer/ops\"",
        ),
        (
            "serviceaccount:tools/kpx",
            "kind: ServiceAccount\n    name: kpx\n    namespace: tools",
        ),
    ] {
        let text = printed(&["--subject", subject, "--user", "other"]).await;
        assert!(text.contains(words), "{text}");
        assert!(!text.contains("kind: ServiceAccount\nmetadata"), "{text}");
        let name = subject.replace('/', "-");
        assert!(
            text.contains(&format!("  name: \"kpx:{name}\"\n")),
            "{text}"
        );
        assert!(
            !text.contains("Binding\nmetadata:\n  name: kpx\n"),
            "{text}"
        );
        Api::new().bind(&text);
    }
    for subject in [
        "jane",
        "user:",
        "serviceaccount:kpx",
        "serviceaccount:a/b/c",
        "pod:a/b",
    ] {
        let ran = kpx(&["access", "--manifest", "--subject", subject]).await;
        assert_eq!(ran.code, 2, "{ran}");
        assert!(ran.err.contains("serviceaccount:NAMESPACE/NAME"), "{ran}");
    }
}

#[tokio::test]
async fn options_that_access_cannot_use_are_refused() {
    for (args, why) in [
        (&["--manifest", "-o", "json"][..], "omit -o"),
        (&["--from", "x.tar.gz"], "omit --from"),
        (&["explain"], "[possible values: doctor"),
        (&["--subject", "user:jane"], "--manifest"),
    ] {
        let ran = kpx(&[&["access"], args].concat()).await;
        assert_eq!(ran.code, 2, "{ran}");
        assert!(ran.err.contains(why), "{ran}");
    }
}
