//! Reading and writing bundles of all nodes.

use std::fs;
use std::io::Read as _;
use std::ops::ControlFlow;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use kpx_node::evidence::{
    BundleError, Evidence, Gap, ITEMS, Item, Manifest, NodesWriter, each_node, load, load_node,
    save,
};
use tar::{Builder, Header};

use super::{TIME, bundle_of, manifest, recorded};
use crate::support::kpx;

const ENDS: [&str; 4] = ["", ".tar", ".tar.gz", ".tgz"];

/// A node of a bundle: its evidence, or the reason why it was not read.
type Read = (String, Result<Evidence, String>);

/// The nodes of a bundle, each with its evidence or the reason why it was not read; and why nodes are missing.
fn all(path: &Path) -> (Vec<Read>, Option<String>) {
    let mut nodes = Vec::new();
    let missing = each_node(path, ITEMS, &mut |_, name, read| {
        nodes.push((name.to_owned(), read));
        ControlFlow::Continue(())
    });
    (nodes, missing.unwrap())
}

fn same(a: &Evidence, b: &Evidence) -> bool {
    a.iter().eq(b.iter())
}

/// An ordinary bundle of a recording with the manifest that it has in a bundle of all nodes.
fn alone(dir: &Path, recording: &str) -> std::path::PathBuf {
    let path = dir.join(recording);
    let evidence = load(&recorded(recording), ITEMS).unwrap();
    save(&evidence, &manifest(recording), &path).unwrap();
    path
}

/// The texts of an archive's members, by name.
fn members(path: &Path) -> Vec<(String, String)> {
    let mut bytes = fs::read(path).unwrap();
    if bytes.starts_with(b"\x1f\x8b") {
        let mut plain = Vec::new();
        GzDecoder::new(bytes.as_slice())
            .read_to_end(&mut plain)
            .unwrap();
        bytes = plain;
    }
    let mut archive = tar::Archive::new(bytes.as_slice());
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name, text)
    });
    entries.collect()
}

fn pack(path: &Path, members: &[(String, String)]) {
    let mut tar = Builder::new(Vec::new());
    for (name, text) in members {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        tar.append_data(&mut header, name, text.as_bytes()).unwrap();
    }
    fs::write(path, tar.into_inner().unwrap()).unwrap();
}

#[test]
fn every_recording_is_in_a_bundle_of_all_nodes_what_it_is_alone() {
    let scratch = tempfile::tempdir().unwrap();
    let names = [
        "full-iptables",
        "full-ipvs",
        "mx06-unfinished-migration",
        "seed-nftables",
    ];
    let nodes: Vec<_> = names.iter().map(|name| (*name, Ok(*name))).collect();
    for end in ENDS {
        let (_dir, path) = bundle_of(end, &nodes);
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if end.is_empty() { 0o700 } else { 0o600 });
        let (read, missing) = all(&path);
        assert_eq!(missing, None);
        assert_eq!(read.len(), names.len());
        for name in names {
            let own = scratch.path().join(format!("{name}{end}"));
            save(
                &load(&recorded(name), ITEMS).unwrap(),
                &manifest(name),
                &own,
            )
            .unwrap();
            let own = load(&own, ITEMS).unwrap();
            let one = load_node(&path, Some(name), ITEMS).unwrap();
            assert!(same(&own, &one), "{name}{end}");
            assert_eq!(own.manifest(), one.manifest());
            let (_, of_all) = read.iter().find(|(of, _)| of == name).unwrap();
            assert!(same(&own, of_all.as_ref().unwrap()), "{name}{end}");
        }
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_command_prints_the_same_for_a_node_alone_and_in_a_bundle_of_all_nodes() {
    let names = ["faults-iptables", "full-ipvs", "full-nftables"];
    let nodes: Vec<_> = names.iter().map(|name| (*name, Ok(*name))).collect();
    let (dir, path) = bundle_of(".tar.gz", &nodes);
    let path = path.to_str().unwrap();
    for name in names {
        let alone = alone(dir.path(), name);
        for command in [
            "doctor -v",
            "diff",
            "show services",
            "show config",
            "show ipvs",
            "trace default/nginx-svc-nodeport",
            "preflight --to nftables",
            "resolve kubernetes",
            "render",
            "reconcile",
        ] {
            let words: Vec<&str> = command.split(' ').collect();
            let own = [&["--from", alone.to_str().unwrap()], &words[..]].concat();
            let own = kpx(&own).await;
            let one = [&["--from", path, "--node", name], &words[..]].concat();
            let one = kpx(&one).await;
            // Fixes name the bundle and the node.
            let from = |path: &str| format!("--from {path} ");
            let own_text = own.to_string().replace(&from(alone.to_str().unwrap()), "");
            // With the name of the node, a command reaches it from any machine.
            let own_text = own_text.replace("on node1: kpx", "kpx");
            let text = one.to_string().replace(&from(path), "");
            let text = text.replace(&format!("--node {name} "), "");
            // The options are words, too: lines break elsewhere.
            let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            assert_eq!(words(&own_text), words(&text), "{name}: {command}");
            assert_ne!(own.code, 2, "{own}");
        }
    }
}

#[test]
fn objects_of_the_cluster_are_written_once_and_own_ones_stay() {
    let (_dir, path) = bundle_of(
        ".tar",
        &[
            ("a", Ok("full-iptables")),
            ("b", Ok("full-iptables")),
            ("c", Ok("seed-iptables")),
        ],
    );
    let members = members(&path);
    let has = |name: &str| members.iter().any(|(of, _)| of == name);
    assert!(has("cluster/cluster/services.json"));
    assert!(!has("cluster/nodes/a/cluster/services.json"));
    assert!(!has("cluster/nodes/b/cluster/services.json"));
    assert!(has("cluster/nodes/b/node/iptables-save.txt"));
    assert!(has("cluster/nodes/c/cluster/services.json"));
    let (name, list) = members.last().unwrap();
    assert_eq!(name, "cluster/kpx-nodes.json");
    assert!(
        list.contains("\"name\": \"c\"") && !list.contains("reason"),
        "{list}"
    );
}

#[test]
fn an_object_that_a_node_lacks_is_not_taken_from_the_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all.tar");
    let mut bundle = NodesWriter::create(&path).unwrap();
    let mut evidence = Evidence::default();
    evidence.insert(Item::Pods, Ok("{\"items\":[]}".to_owned()));
    evidence.insert(Item::Services, Ok("{\"items\":[]}".to_owned()));
    let add = |bundle: &mut NodesWriter, name: &str, evidence: &Evidence| {
        let manifest = Manifest::of(evidence, TIME.to_owned(), Some(name.to_owned()));
        bundle.node(name, evidence, &manifest).unwrap();
    };
    add(&mut bundle, "a", &evidence);
    let denied = Gap::Denied(Item::Pods, "not allowed".to_owned());
    evidence.insert(Item::Pods, Err(denied.clone()));
    add(&mut bundle, "b", &evidence);
    add(&mut bundle, "c", &Evidence::default());
    bundle.finish(TIME.to_owned()).unwrap();
    let (nodes, _) = all(&path);
    let text = |at: usize, item| {
        let (_, evidence) = &nodes[at];
        evidence.as_ref().unwrap().text(item)
    };
    assert_eq!(text(0, Item::Pods), Ok("{\"items\":[]}"));
    assert_eq!(text(1, Item::Pods), Err(denied));
    assert_eq!(text(1, Item::Services), Ok("{\"items\":[]}"));
    assert_eq!(text(2, Item::Pods), Err(Gap::NotCollected(Item::Pods)));
    assert_eq!(
        text(2, Item::Services),
        Err(Gap::NotCollected(Item::Services))
    );
}

#[test]
fn a_node_is_chosen_by_its_name() {
    let nodes = [
        ("w1", Ok("seed-iptables")),
        ("w2", Err("connection refused")),
    ];
    for end in ENDS {
        let (_dir, path) = bundle_of(end, &nodes);
        let error = load(&path, ITEMS).unwrap_err().to_string();
        assert!(
            error.ends_with("is a bundle of all nodes: w1, w2"),
            "{error}"
        );
        let error = load_node(&path, Some("w3"), ITEMS).unwrap_err().to_string();
        assert!(error.contains("node w3 is not in bundle"), "{error}");
        assert!(error.ends_with("which has w1, w2"), "{error}");
        let error = load_node(&path, Some("w2"), ITEMS).unwrap_err().to_string();
        assert!(error.contains("node w2 was not read"), "{error}");
        assert!(error.ends_with("connection refused"), "{error}");
        let (read, missing) = all(&path);
        assert_eq!(missing, None);
        assert_eq!(read[1].0, "w2");
        assert_eq!(read[1].1.as_ref().unwrap_err(), "connection refused");
    }
    let ordinary = recorded("seed-iptables");
    let one = load_node(&ordinary, Some("any"), ITEMS).unwrap();
    assert!(same(&one, &load(&ordinary, ITEMS).unwrap()));
    let error = each_node(&ordinary, ITEMS, &mut |_, _, _| ControlFlow::Continue(()));
    assert!(
        matches!(error, Err(BundleError::OneNode { .. })),
        "{error:?}"
    );
}

#[test]
fn an_archive_packed_in_any_order_is_read() {
    let (dir, path) = bundle_of(
        ".tar",
        &[("a", Ok("full-iptables")), ("b", Ok("full-iptables"))],
    );
    let (expected, _) = all(&path);
    let mut members = members(&path);
    // As `tar` packs a folder whose entries come in another order.
    members.sort_by(|a, b| b.0.cmp(&a.0));
    assert!(members[0].0.contains("/nodes/b/"), "{}", members[0].0);
    let other = dir.path().join("other.tar");
    pack(&other, &members);
    let (mut read, missing) = all(&other);
    read.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(missing, None);
    assert_eq!(read.len(), 2);
    for ((_, a), (_, b)) in expected.iter().zip(&read) {
        assert!(same(a.as_ref().unwrap(), b.as_ref().unwrap()));
    }
    // As `tar` packs the folder's contents, with and without `./`.
    for (old, new) in [("cluster/", "./"), ("cluster/", "")] {
        let renamed: Vec<_> = members
            .iter()
            .map(|(name, text)| (name.replacen(old, new, 1), text.clone()))
            .collect();
        pack(&other, &renamed);
        assert_eq!(all(&other).0.len(), 2);
    }
}

#[test]
fn nodes_in_pieces_and_late_objects_are_reported() {
    let (dir, path) = bundle_of(
        ".tar",
        &[("a", Ok("seed-iptables")), ("b", Ok("seed-iptables"))],
    );
    let whole = members(&path);
    let other = dir.path().join("other.tar");
    let mut pieces = whole.clone();
    let at = pieces
        .iter()
        .position(|(name, _)| name.contains("/nodes/a/"))
        .unwrap();
    let piece = pieces.remove(at);
    pieces.push(piece);
    pack(&other, &pieces);
    let (nodes, missing) = all(&other);
    assert_eq!(nodes.len(), 2);
    let missing = missing.unwrap();
    assert!(
        missing.starts_with("the files of node a are not in one place"),
        "{missing}"
    );
    // One node is read from anywhere.
    assert!(
        load_node(&other, Some("a"), ITEMS)
            .unwrap()
            .manifest()
            .is_some()
    );

    let mut late = whole;
    let at = late
        .iter()
        .position(|(name, _)| name.contains("cluster/cluster/"))
        .unwrap();
    let object = late.remove(at);
    late.push(object);
    pack(&other, &late);
    let missing = all(&other).1.unwrap();
    assert!(
        missing.starts_with("the files of cluster/ are not in one place"),
        "{missing}"
    );
}

#[test]
fn an_archive_that_ends_early_says_so_and_keeps_the_nodes_before() {
    let nodes = [
        ("a", Ok("seed-iptables")),
        ("b", Ok("seed-iptables")),
        ("c", Ok("seed-iptables")),
    ];
    let (dir, path) = bundle_of(".tar", &nodes);
    let whole = fs::read(&path).unwrap();
    let cut = dir.path().join("cut.tar");
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let (read, missing) = all(&cut);
    assert!(missing.unwrap().contains("the archive is truncated"));
    assert!(!read.is_empty() && read.len() < 3, "{}", read.len());
    let (name, first) = &read[0];
    assert_eq!(name, "a");
    let first = first.as_ref().unwrap();
    assert!(same(first, &load_node(&path, Some("a"), ITEMS).unwrap()));
    // Cut or changed anywhere, it never panics.
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    std::io::Write::write_all(&mut gzip, &whole).unwrap();
    for bytes in [whole, gzip.finish().unwrap()] {
        for at in (0..bytes.len()).step_by(bytes.len() / 60) {
            let mut bad = bytes.clone();
            bad[at] ^= 0x55;
            for bytes in [&bad[..], &bytes[..at]] {
                fs::write(&cut, bytes).unwrap();
                drop(each_node(&cut, ITEMS, &mut |_, _, _| {
                    ControlFlow::Continue(())
                }));
                drop(load_node(&cut, Some("b"), ITEMS));
            }
        }
    }
}

#[test]
fn hostile_names_and_links_are_not_followed() {
    let (dir, path) = bundle_of("", &[("a", Ok("seed-iptables"))]);
    symlink(recorded("seed-iptables"), path.join("nodes/linked")).unwrap();
    fs::create_dir_all(path.join("nodes/.hidden/node")).unwrap();
    fs::write(path.join("nodes/file"), "").unwrap();
    let (read, _) = all(&path);
    let names: Vec<_> = read.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a"]);
    assert!(load_node(&path, Some("linked"), ITEMS).is_err());
    assert!(load_node(&path, Some("../nodes/a"), ITEMS).is_err());
    let moved = dir.path().join("moved");
    fs::rename(path.join("nodes"), &moved).unwrap();
    symlink(&moved, path.join("nodes")).unwrap();
    let (read, _) = all(&path);
    assert_eq!(
        read[0].1.as_ref().unwrap_err(),
        "the bundle has no files of it"
    );

    let (_dir, path) = bundle_of(".tar", &[("a", Ok("seed-iptables"))]);
    let mut members = members(&path);
    for name in ["x/y", "..", "-rf", ".", "a b", "é"] {
        let name = format!("cluster/nodes/{name}/node/sysctl.txt");
        members.push((name, "a = 1\n".to_owned()));
    }
    let packed = path.with_extension("hostile");
    // The tar crate refuses to write `..`.
    members.retain(|(name, _)| !name.contains(".."));
    pack(&packed, &members);
    let (read, missing) = all(&packed);
    let names: Vec<_> = read.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names, missing), (vec!["a"], None));

    let evidence = Evidence::default();
    let manifest = Manifest::of(&evidence, TIME.to_owned(), None);
    let mut bundle = NodesWriter::create(&path.with_extension("new")).unwrap();
    for name in ["..", "a/b", "", "-x"] {
        let error = bundle.node(name, &evidence, &manifest).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("is not the name of a Node"), "{cause}");
    }
}

#[test]
fn a_list_of_nodes_that_cannot_be_used_is_an_error_in_words() {
    let (_dir, path) = bundle_of("", &[("a", Ok("seed-iptables"))]);
    for (text, why) in [
        (r#"{"format":2}"#, "its format is 2, but this kpx"),
        ("{}", "no format version"),
        ("nodes:", "it is not JSON"),
        (r#"{"format":1}"#, "missing field"),
    ] {
        fs::write(path.join("kpx-nodes.json"), text).unwrap();
        for error in [
            load_node(&path, Some("a"), ITEMS).map(drop).unwrap_err(),
            each_node(&path, ITEMS, &mut |_, _, _| ControlFlow::Continue(())).unwrap_err(),
        ] {
            let error = error.to_string();
            assert!(
                error.starts_with("cannot use kpx-nodes.json of bundle"),
                "{error}"
            );
            assert!(error.contains(why), "{error}");
        }
    }
    fs::remove_file(path.join("kpx-nodes.json")).unwrap();
    fs::write(path.join("nodes/a/manifest.json"), "{}").unwrap();
    let (read, _) = all(&path);
    let error = read[0].1.as_ref().unwrap_err();
    assert_eq!(error, "cannot use its manifest: it has no format version");
}

#[test]
fn an_unfinished_bundle_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    for end in ENDS {
        let path = dir.path().join(format!("all{end}"));
        let mut bundle = NodesWriter::create(&path).unwrap();
        let evidence = load(&recorded("seed-iptables"), ITEMS).unwrap();
        bundle
            .node("a", &evidence, &manifest("seed-iptables"))
            .unwrap();
        drop(bundle);
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    let path = dir.path().join("taken.tar");
    fs::write(&path, "mine").unwrap();
    let error = NodesWriter::create(&path)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(error.contains("does not overwrite"), "{error}");
}
