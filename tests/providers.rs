//! Providers: recognised from the evidence of their nodes, and their pages, whose commands run against a model of each.

mod model;
mod objects;
pub(crate) mod run;
mod tools;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kpx::provider::{INDEX, PROVIDERS, Provider};
use serde_json::{Value, json};

use crate::fleet::World;
use crate::support::{Ran, kpx, root};
use model::Model;

/// Asks kpx for a plan of a migration on the model's node.
async fn planned(model: &Model) -> (Ran, Value) {
    planned_from(&model.bundle()).await
}

/// Asks kpx for a plan of a migration of the node in `bundle`.
async fn planned_from(bundle: &Path) -> (Ran, Value) {
    let args = ["--from", bundle.to_str().unwrap()];
    let asked = ["migrate", "--to", "nftables", "--dry-run", "-o", "json"];
    let ran = kpx(&[&args[..], &asked[..]].concat()).await;
    let report = serde_json::from_str(&ran.out).unwrap_or_default();
    (ran, report)
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn each_provider_is_recognised_by_a_dry_run_and_its_page_is_named() {
    for provider in PROVIDERS {
        let model = Model::new(provider.id);
        let (ran, report) = planned(&model).await;
        if provider.id == "openshift" {
            // Nothing can be planned without a kube-proxy.
            assert_eq!(ran.code, 4, "{ran}");
            assert!(ran.err.contains("`kpx explain openshift`"), "{ran}");
            continue;
        }
        let known = &report["plan"]["provider"]["known"];
        assert_eq!(known["id"], provider.id, "{ran}");
        assert_eq!(known["page"], provider.page(), "{ran}");
        let evidence = known["evidence"].as_array().unwrap();
        assert!(!evidence.is_empty(), "{}: {known}", provider.id);
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_provider_is_recognised_from_a_redacted_bundle() {
    for provider in PROVIDERS {
        let model = Model::new(provider.id);
        let bundle = model.bundle();
        let redacted = bundle.with_file_name("redacted");
        let [from, to] = [&bundle, &redacted].map(|path| path.to_str().unwrap());
        let ran = kpx(&["--from", from, "snapshot", "--redact", "--file", to]).await;
        assert_eq!(ran.code, 0, "{ran}");
        let (before, report) = planned(&model).await;
        let known = &report["plan"]["provider"]["known"];
        let (after, report) = planned_from(&redacted).await;
        assert_eq!(after.code, before.code, "{after}");
        if provider.id == "openshift" {
            assert!(after.err.contains("`kpx explain openshift`"), "{after}");
            continue;
        }
        let found = &report["plan"]["provider"]["known"];
        assert_eq!(found["id"], provider.id, "{after}");
        let count = |known: &Value| known["evidence"].as_array().unwrap().len();
        assert_eq!(count(found), count(known), "{found} {known}");
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn evidence_that_is_missing_or_contradicts_itself_names_no_provider() {
    let unknown = async |model: &Model, tells: &str| {
        let (ran, report) = planned(model).await;
        let found = &report["plan"]["provider"];
        let why = found["unknown"].as_str().unwrap_or_else(|| panic!("{ran}"));
        assert!(why.contains(tells), "{why}");
    };
    let mut model = Model::new("kubeadm");
    model.edit_nodes(|node| {
        let metadata = node["metadata"].as_object_mut().unwrap();
        metadata.remove("annotations");
    });
    unknown(&model, "has no evidence of a provider").await;
    // Two providers, neither of which builds on the other.
    for (id, label) in [
        ("eks", "kops.k8s.io/instancegroup"),
        ("kubeadm", "microk8s.io/cluster"),
    ] {
        let mut model = Model::new(id);
        model.edit_nodes(|node| node["metadata"]["labels"][label] = json!("x"));
        unknown(&model, "evidence of several providers: ").await;
    }
    // A machine of another cloud.
    let mut model = Model::new("eks");
    model.edit_nodes(|node| node["spec"]["providerID"] = json!("gce://project/zone/node1"));
    unknown(&model, "but the node's providerID begins with gce://").await;
}

#[tokio::test]
async fn a_cluster_that_kpx_cannot_migrate_has_its_page_in_the_error() {
    for (id, why) in [
        ("aks", "is managed by AKS"),
        ("k3s", "has no kube-proxy pod"),
    ] {
        let world = World::recorded(&Model::new(id).bundle());
        let asked = ["migrate", "--to", "nftables", "--all-nodes", "--dry-run"];
        let ran = world.kpx(&asked).await;
        assert_eq!(ran.code, 4, "{id}: {ran}");
        assert!(ran.err.contains(why), "{id}: {ran}");
        let page = format!("`kpx explain {id}`");
        assert!(ran.err.contains(&page), "{id}: {ran}");
    }
}

#[tokio::test]
async fn the_pages_are_printed_offline() {
    for provider in PROVIDERS {
        let ran = kpx(&["explain", provider.id]).await;
        let title = provider
            .text
            .lines()
            .next()
            .unwrap()
            .trim_start_matches("# ");
        assert_eq!((ran.out.lines().next(), ran.code), (Some(title), 0));
        assert!(
            !ran.out.contains("<!--") && !ran.out.contains("|---"),
            "{ran}"
        );
        let page = fs::read_to_string(root().join(provider.page())).unwrap();
        assert_eq!(page, provider.text);
        let ran = kpx(&["explain", provider.id, "-o", "json"]).await;
        let page: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(page["text"], provider.text);
    }
    let ran = kpx(&["explain", "providers"]).await;
    let title = INDEX.lines().next().unwrap().trim_start_matches("# ");
    assert_eq!((ran.out.lines().next(), ran.code), (Some(title), 0));
    let ran = kpx(&["explain", "nosuch"]).await;
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("kpx explain providers"), "{ran}");
}

#[test]
fn every_page_has_its_provider_its_row_and_the_same_parts() {
    let folder = fs::read_dir(root().join("docs/migrate")).unwrap();
    let files: BTreeSet<String> = folder
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    let pages = PROVIDERS
        .iter()
        .map(|provider| format!("{}.md", provider.id));
    let pages: BTreeSet<String> = pages.chain(["README.md".to_owned()]).collect();
    assert_eq!(files, pages);
    let cost = |text: &str| {
        let (_, rest) = text.split_once("\n## Cost\n").unwrap();
        let table = rest.lines().filter(|line| line.starts_with('|'));
        table.map(str::to_owned).collect::<Vec<_>>()
    };
    for Provider { id, name, text, .. } in PROVIDERS {
        let row = format!("({id}.md) | `{id}` |");
        assert!(INDEX.contains(&row), "no row for {name}");
        assert!(
            text.starts_with(&format!("# {name}\n\n- ")),
            "{id} has no head"
        );
        let mut parts = vec!["\n- Recognised by: ", "\n## Not verified\n", "\n## Check\n"];
        // These two offer no choice of the mode.
        if !["gke", "openshift"].contains(id) {
            parts.extend(["\n## Network plug-in\n", "\n## Switch"]);
            parts.extend(["\n## Verify\n", "\n## Go back"]);
        }
        for part in parts {
            assert!(text.contains(part), "{id} lacks {part:?}");
        }
        assert_eq!(cost(text), cost(INDEX), "{id}");
    }
    for (document, link) in [
        ("README.md", "(docs/migrate/README.md)"),
        ("docs/migrate.md", "(migrate/README.md)"),
    ] {
        let text = fs::read_to_string(root().join(document)).unwrap();
        assert!(text.contains(link), "{document}");
    }
}

macro_rules! pages {
    ($($id:ident)*) => {
        $(
            mod $id {
                #[tokio::test]
#[ignore = "takes long: make test-loops"]
                async fn every_command_of_the_page_works() {
                    super::run::page(stringify!($id)).await;
                }
            }
        )*

        #[test]
        fn the_commands_of_every_page_run() {
            let ran = [$(stringify!($id)),*];
            let all: Vec<&str> = PROVIDERS.iter().map(|provider| provider.id).collect();
            assert_eq!(ran.as_slice(), all);
        }
    };
}

pages! { kubeadm kubespray kubeone k3s rke2 microk8s talos kops eks aks gke openshift }
