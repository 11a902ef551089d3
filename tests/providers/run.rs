//! Runs the commands of a page against a model of its provider.
//!
//! Commands of kpx that read run on a bundle of the model's node. `kpx migrate --to` prints its plan there, whose steps on
//! the configuration are then carried out on the model. `prepare`, `finish` and `rollback --until-restart` change the kernel,
//! which a bundle cannot: their plan is made, and the order of the page is checked. Migrations of all nodes run on a fake API
//! server. Every other command runs in a shell.

use std::collections::BTreeSet;
use std::fs;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use kpx::provider::Provider;
use kpx_judge::plan::{ConfigSource, Undo};
use kpx_node::action::Action;
use kpx_node::backend::Mode;
use kpx_node::cluster::edit::Fields;
use kpx_node::evidence::{ITEMS, load};
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use super::model::Model;
use super::tools::{self, shell};
use crate::fleet::World;
use crate::page::{Line, lines, words};
use crate::support::{Ran, kpx, parse};

/// A page at work.
struct Page {
    model: Model,
    /// The mode for which the node is prepared.
    prepared: Option<&'static str>,
    /// Undo of the steps that were carried out, in order.
    undo: Vec<Action>,
    world: Option<World>,
}

/// Runs every command of the page of provider `id`.
pub(super) async fn page(id: &str) {
    text(id, Provider::named(id).unwrap().text).await;
}

/// Runs every command in `text`, a page of provider `id`.
async fn text(id: &str, text: &str) {
    let tools = tools::of(id);
    let mut used = BTreeSet::new();
    let mut page = Page {
        model: Model::new(id),
        prepared: None,
        undo: Vec::new(),
        world: None,
    };
    assert_eq!(
        text.matches("```").count(),
        2 * text.matches("```console\n").count(),
        "a block that no test runs"
    );
    let lines = lines(text);
    assert!(lines.len() > 1);
    for (at, line) in lines.iter().enumerate() {
        let Line {
            section, command, ..
        } = line;
        assert_eq!(line.output, "", "{command} has output");
        if command.starts_with("kpx ") {
            page.kpx(command).await;
        } else {
            used.extend(shell(command, &tools, &mut page.model));
        }
        let next = lines.get(at + 1).map(|line| line.section);
        if next != Some(*section) {
            page.check(section);
        }
    }
    let unused = (0..tools.len()).filter(|number| !used.contains(number));
    let unused: Vec<_> = unused.map(|number| tools[number].line).collect();
    assert!(unused.is_empty(), "{id} does not use {unused:?}");
}

/// Returns the mode after `--to`.
fn to(words: &[&str]) -> Option<&'static str> {
    let at = words.iter().position(|word| *word == "--to")?;
    let mode = Mode::ALL.iter().find(|mode| mode.name() == words[at + 1]);
    Some(mode.unwrap().name())
}

impl Page {
    /// Checks the model at the end of a section.
    fn check(&self, section: &str) {
        let mode = match section {
            _ if section.starts_with("Switch") => "nftables",
            _ if section.starts_with("Go back") => "iptables",
            _ => return,
        };
        let model = &self.model;
        assert_eq!(model.configured(), mode, "{}: {section}", model.id);
        assert_eq!(model.live, mode, "{}: {section}", model.id);
        if let Some(source) = model.source() {
            assert_eq!(source, mode, "{}: {section}: its source", model.id);
        }
        assert_eq!(
            self.prepared, None,
            "{}: {section} is not finished",
            model.id
        );
    }

    /// Runs a command of kpx.
    async fn kpx(&mut self, command: &str) {
        let command = command.replace("NODE", "node1");
        let parts = words(&command);
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        parse(&parts).unwrap_or_else(|error| panic!("{command}: {error}"));
        match parts[1..] {
            ["migrate", .., "--all-nodes"]
            | ["migrate", .., "--all-nodes", "--staged"]
            | ["migrate", .., "--all-nodes", "--staged", "--dry-run"] => {
                self.all_nodes(&parts[1..]).await;
            }
            ["migrate", "prepare", ..] => {
                assert_eq!(self.prepared, None, "{command}");
                self.prepared = to(&parts);
                let plan = self.plan(&parts[1..]).await;
                assert!(
                    plan["provider"]["known"]["id"] == self.model.id.as_str(),
                    "{plan}"
                );
                let stages = plan["stages"].as_array().unwrap();
                let external = |of: &&Value| of["notes"] == json!(["done externally"]);
                assert_eq!(stages.iter().filter(external).count(), 2, "{plan}");
            }
            ["migrate", "rollback", "--until-restart"] => {
                assert_eq!(self.model.live, "nftables", "{command}");
                self.prepared = Some("iptables");
            }
            ["migrate", "finish"] => {
                // It would wait for ever if the mode were another.
                let mode = self.prepared.take().expect("nothing is prepared");
                assert_eq!(self.model.live, mode, "{command}");
                let ran = self.read(&["migrate", "--to", mode, "--dry-run"]).await;
                self.confirms(&ran, mode);
            }
            ["migrate", "rollback"] => {
                let steps = std::mem::take(&mut self.undo);
                assert!(!steps.is_empty(), "{command}");
                for action in steps.iter().rev() {
                    self.model.carry_out(action);
                }
                self.model.restart();
            }
            ["migrate", "--to", mode] => self.migrate(mode).await,
            ["migrate", "--to", mode, "--dry-run"] => {
                let ran = self.read(&parts[1..]).await;
                if self.model.live == mode {
                    self.confirms(&ran, mode);
                } else {
                    let page = format!("`kpx explain {}`", self.model.id);
                    let text = ran.to_string();
                    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                    assert!(text.contains(&page), "{ran}");
                }
            }
            _ => {
                let ran = self.read(&parts[1..]).await;
                assert!(matches!(ran.code, 0 | 1 | 3), "{command}: {ran}");
                if parts.contains(&"doctor") && !parts.contains(&"--to") {
                    let first = ran.out.lines().next().unwrap_or_default();
                    let mode = format!(", {}", self.model.live);
                    assert!(first.ends_with(&mode), "{command}: {ran}");
                    for leftovers in ["MX01", "MX02", "MX03", "MX11"] {
                        assert!(!ran.out.contains(leftovers), "{command}: {ran}");
                    }
                }
            }
        }
    }

    /// Runs a command of kpx on the bundle of the node.
    async fn read(&self, args: &[&str]) -> Ran {
        let bundle = self.model.bundle();
        kpx(&[&["--from", bundle.to_str().unwrap()], args].concat()).await
    }

    /// Checks that kube-proxy runs in `mode`, according to kpx.
    fn confirms(&self, ran: &Ran, mode: &str) {
        let said = format!("kube-proxy already runs in mode {mode}");
        assert!(
            ran.code == 0 && ran.out.contains(&said),
            "{}: {ran}",
            self.model.id
        );
    }

    /// Returns the plan that kpx prints for a migration.
    async fn plan(&self, args: &[&str]) -> Value {
        let ran = self
            .read(&[args, &["--dry-run", "-o", "json"]].concat())
            .await;
        let mut report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran}"));
        assert!(report["plan"].is_object(), "kpx has no plan: {ran}");
        report["plan"].take()
    }

    /// Carries out what `kpx migrate --to MODE` plans for the configuration.
    async fn migrate(&mut self, mode: &str) {
        let plan = self.plan(&["migrate", "--to", mode]).await;
        let evidence = load(&self.model.bundle(), ITEMS).unwrap();
        let node = NodeSnapshot::new(&evidence);
        let store = ConfigSource::find(&node, "node1").unwrap();
        let wanted = Mode::ALL
            .into_iter()
            .find(|known_mode| known_mode.name() == mode)
            .unwrap();
        let fields = Fields {
            mode: wanted,
            scheduler: None,
            strict_arp: None,
        };
        let mut steps = store.configure(&fields).unwrap().steps;
        assert!(!steps.is_empty());
        steps.extend(store.restart("node1").unwrap().steps);
        let planned: Vec<&Value> = plan["stages"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|stage| stage["steps"].as_array().into_iter().flatten())
            .map(|step| &step["action"])
            .collect();
        for step in steps {
            let text = json!(step.action.to_string());
            assert!(planned.contains(&&text), "kpx does not plan {text}");
            self.model.carry_out(&step.action);
            if let Undo::Do(undo) = step.undo {
                self.undo.push(undo);
            }
        }
    }

    /// Migrates all nodes of a cluster on a fake API server.
    async fn all_nodes(&mut self, args: &[&str]) {
        let bundle = self.model.bundle();
        let world = self.world.get_or_insert_with(|| {
            // The plug-in's pods are no part of that cluster.
            let path = bundle.join("cluster/daemonsets.json");
            let mut sets: Value =
                serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            sets["items"].as_array_mut().unwrap().truncate(1);
            fs::write(path, sets.to_string()).unwrap();
            World::recorded(&bundle)
        });
        let begins = to(args).is_some();
        let mut all = args.to_vec();
        if begins {
            all.extend(["--image", "kpx:1", "--soak", "0s", "--ready-timeout", "5s"]);
        }
        let dry = args.contains(&"--dry-run");
        if !dry {
            all.push("--yes");
        }
        let ran = world.kpx(&all).await;
        assert_eq!(ran.code, 0, "{args:?}: {ran}");
        if dry {
            assert!(ran.out.contains(" provider: "), "{ran}");
            assert!(ran.out.contains("`kpx explain "), "{ran}");
            return;
        }
        let (name, key) = self.model.map();
        let text = world.api.with(|cluster| {
            let map = cluster.get("configmaps", "kube-system", name).unwrap();
            map["data"][key].as_str().unwrap().to_owned()
        });
        let modes = world.modes();
        self.model.config = text;
        self.model.restart();
        assert!(
            modes.iter().all(|mode| *mode == self.model.live),
            "{modes:?}"
        );
        if !begins {
            self.world = None;
        }
    }
}

/// Runs a page with `from` replaced by `to`; returns the message of the failure.
async fn failure(id: &str, from: &str, to: &str) -> String {
    let page = Provider::named(id).unwrap().text;
    let wrong = page.replacen(from, to, 1);
    assert_ne!(wrong, page);
    let ran = AssertUnwindSafe(text(id, &wrong)).catch_unwind().await;
    let why = ran.expect_err("the page does not fail");
    let text = why.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| (*why.downcast_ref::<&str>().unwrap()).to_owned())
}

const RESTART: &str = "$ kubectl -n kube-system delete pod -l k8s-app=kube-proxy --field-selector spec.nodeName=NODE\n";

/// A page, a change that breaks it, and what the test of the page then says.
pub(crate) const WRONG: &[(&str, &str, &str, &str)] = &[
    (
        "eks",
        "{\"mode\":\"nftables\"}",
        "{\"mode\":\"ipvs\"}",
        "unexpected: aws eks",
    ),
    (
        "eks",
        RESTART,
        "",
        "assertion `left == right` failed: kpx migrate finish",
    ),
    (
        "eks",
        "$ kpx migrate prepare --to nftables\n",
        "",
        "nothing is prepared",
    ),
    ("aks", "\"NFTABLES\"", "\"IPTABLES\"", "kpx migrate finish"),
    (
        "k3s",
        "proxy-mode=nftables\"]",
        "proxy-mode=ipvs\"]",
        "kpx migrate finish",
    ),
    ("k3s", "# systemctl restart k3s\n", "", "kpx migrate finish"),
    (
        "microk8s",
        "$ kpx migrate rollback\n",
        "",
        "kpx has no plan",
    ),
    (
        "kops",
        "proxyMode=nftables",
        "proxyMode=iptables",
        "its source",
    ),
    (
        "talos",
        "$ talosctl -n CONTROL_PLANE upgrade-k8s --to VERSION\n",
        "",
        "talos: Switch",
    ),
    (
        "rke2",
        "$ kpx doctor\n",
        "$ kpx doctors\n",
        "unrecognized subcommand",
    ),
];

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_page_with_a_wrong_command_fails() {
    wrong_pages_fail(&WRONG[..3]).await;
}

pub(crate) async fn wrong_pages_fail(wrong: &[(&str, &str, &str, &str)]) {
    for (id, from, to, says) in wrong {
        let why = failure(id, from, to).await;
        assert!(why.contains(says), "{id}: {why}");
    }
}
