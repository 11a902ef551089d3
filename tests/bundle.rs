//! Loading, refusing and writing bundles.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use kpx_node::evidence::{
    BundleError, Evidence, Gap, ITEMS, Item, Limits, Manifest, load, load_within, save,
};
use nix::sys::stat::Mode;
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use crate::support::{Ran, kpx, root};

const SYSCTL: &str = "node/sysctl.txt";
const KERNEL: &str = "node/kernel-release.txt";

/// A folder with one valid member; tests add hostile ones.
fn folder() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for sub in ["node", "cluster", "kube-proxy"] {
        fs::create_dir(dir.path().join(sub)).unwrap();
    }
    fs::write(dir.path().join(KERNEL), "6.1.0\n").unwrap();
    dir
}

/// A tar with one valid member and the members that `fill` adds.
fn archive(fill: impl FnOnce(&mut Builder<Vec<u8>>)) -> (TempDir, PathBuf) {
    let mut tar = Builder::new(Vec::new());
    member(&mut tar, KERNEL, EntryType::Regular, b"6.1.0\n");
    fill(&mut tar);
    in_file(&tar.into_inner().unwrap())
}

fn in_file(bytes: &[u8]) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bundle.tar");
    fs::write(&path, bytes).unwrap();
    (dir, path)
}

/// Appends a member with any name, valid or not.
fn member(tar: &mut Builder<Vec<u8>>, name: &str, kind: EntryType, content: &[u8]) {
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    if matches!(kind, EntryType::Symlink | EntryType::Link) {
        header.set_link_name("/etc/passwd").unwrap();
    }
    header.set_cksum();
    tar.append(&header, content).unwrap();
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(text).unwrap();
    gzip.finish().unwrap()
}

/// Loads a bundle with a valid kernel release, and returns why it has no sysctl.
fn refusal(path: &Path) -> String {
    let evidence = load(path, ITEMS).unwrap();
    assert_eq!(evidence.text(Item::KernelRelease), Ok("6.1.0\n"));
    match evidence.text(Item::Sysctl).unwrap_err() {
        Gap::Failed(Item::Sysctl, reason) => reason,
        other => panic!("{other:?}"),
    }
}

fn same(a: &Evidence, b: &Evidence) -> bool {
    a.iter().eq(b.iter())
}

#[test]
fn every_recording_loads_alike_from_folder_tar_and_gzipped_tar() {
    let nodes = fs::read_dir(root().join("testdata/nodes")).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for node in nodes {
        let node = node.unwrap().path();
        let name = node.file_name().unwrap().to_str().unwrap();
        let from_folder = load(&node, ITEMS).unwrap();
        assert!(from_folder.text(Item::ProxyConfig).is_ok(), "{name}");
        // Items missing from a recording made by hand were not collected; only a manifest gives other reasons.
        let says_why = from_folder.manifest().is_some();
        for (item, read) in from_folder.iter() {
            assert!(
                says_why || matches!(read, Ok(_) | Err(Gap::NotCollected(_))),
                "{name}: {item}"
            );
        }
        // As `tar -cf x.tar NODE`, `tar -C NODE -cf x.tar .` and `tar -C NODE -cf x.tar node cluster …` write it.
        for (end, top) in [("tar", name), ("tar.gz", "."), ("tgz", "")] {
            let mut tar = Builder::new(Vec::new());
            tar.append_dir_all(top, &node).unwrap();
            let mut bytes = tar.into_inner().unwrap();
            if end != "tar" {
                bytes = gzip(&bytes);
            }
            let path = scratch.path().join(format!("{name}.{end}"));
            fs::write(&path, bytes).unwrap();
            let from_archive = load(&path, ITEMS).unwrap();
            assert!(same(&from_folder, &from_archive), "{name}.{end}");
        }
        seen += 1;
    }
    assert!(seen >= 20, "{seen} recordings");
}

#[test]
fn every_recording_survives_saving() {
    let scratch = tempfile::tempdir().unwrap();
    for name in ["full-ipvs", "scale-2000x10-iptables"] {
        let before = load(&root().join("testdata/nodes").join(name), ITEMS).unwrap();
        let manifest = Manifest::of(&before, "2026-11-20T14:00:00Z".to_owned(), None);
        for end in ["", ".tar", ".tar.gz", ".tgz"] {
            let path = scratch.path().join(format!("{name}{end}"));
            save(&before, &manifest, &path).unwrap();
            let after = load(&path, ITEMS).unwrap();
            assert!(same(&before, &after), "{name}{end}");
            assert_eq!(after.manifest(), Some(&manifest));
            let mode = path.metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, if end.is_empty() { 0o700 } else { 0o600 });
        }
    }
    let left = fs::read_dir(scratch.path()).unwrap().count();
    assert_eq!(left, 8, "nothing but the bundles is left");
}

#[test]
fn only_requested_items_are_read() {
    let node = root().join("testdata/nodes/full-ipvs");
    let evidence = load(&node, &[Item::Sysctl]).unwrap();
    assert_eq!(evidence.iter().count(), 1);
}

#[test]
fn a_folder_around_the_bundle_does_not_matter() {
    let dir = folder();
    let outer = tempfile::tempdir().unwrap();
    fs::rename(dir.path(), outer.path().join("node1")).unwrap();
    let evidence = load(outer.path(), ITEMS).unwrap();
    assert_eq!(evidence.text(Item::KernelRelease), Ok("6.1.0\n"));
}

#[test]
fn several_bundles_at_once_are_named() {
    let outer = tempfile::tempdir().unwrap();
    let mut tar = Builder::new(Vec::new());
    for node in ["node1", "node2"] {
        fs::create_dir_all(outer.path().join(node).join("node")).unwrap();
        fs::write(outer.path().join(node).join(KERNEL), "6.1.0\n").unwrap();
        member(
            &mut tar,
            &format!("{node}/{KERNEL}"),
            EntryType::Regular,
            b"6.1.0\n",
        );
    }
    let (_dir, path) = in_file(&tar.into_inner().unwrap());
    for path in [outer.path(), &path] {
        let error = load(path, ITEMS).unwrap_err().to_string();
        assert!(
            error.contains("several bundles") && error.contains("node2"),
            "{error}"
        );
    }
}

#[test]
fn links_in_a_folder_are_not_followed() {
    let dir = folder();
    symlink("/etc/passwd", dir.path().join(SYSCTL)).unwrap();
    assert_eq!(refusal(dir.path()), "refused: it is a symbolic link");

    fs::remove_file(dir.path().join(SYSCTL)).unwrap();
    fs::write(dir.path().join("elsewhere"), "x").unwrap();
    fs::hard_link(dir.path().join("elsewhere"), dir.path().join(SYSCTL)).unwrap();
    assert!(refusal(dir.path()).starts_with("refused: it is a hard link"));

    let outside = folder();
    fs::write(outside.path().join("cluster/services.json"), "{}").unwrap();
    fs::remove_dir(dir.path().join("cluster")).unwrap();
    symlink(outside.path().join("cluster"), dir.path().join("cluster")).unwrap();
    let gap = load(dir.path(), ITEMS)
        .unwrap()
        .text(Item::Services)
        .unwrap_err();
    assert!(
        gap.to_string().contains("its folder is a symbolic link"),
        "{gap}"
    );
}

#[test]
fn a_fifo_does_not_block_and_a_folder_is_no_member() {
    let dir = folder();
    let fifo = dir.path().join(SYSCTL);
    nix::unistd::mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    assert_eq!(
        refusal(dir.path()),
        "refused: it is a device, pipe or socket"
    );
    let error = load(&fifo, ITEMS).unwrap_err().to_string();
    assert!(error.contains("it is a device, pipe or socket"), "{error}");
    fs::remove_file(&fifo).unwrap();
    fs::create_dir(&fifo).unwrap();
    assert_eq!(refusal(dir.path()), "refused: it is a folder");
}

#[test]
fn damaged_members_are_gaps() {
    let dir = folder();
    let (plain, packed) = (
        dir.path().join(SYSCTL),
        dir.path().join(format!("{SYSCTL}.gz")),
    );
    fs::write(&plain, b"a = 1\n\xff\xfe").unwrap();
    assert_eq!(
        refusal(dir.path()),
        "it is not text: invalid UTF-8 at byte 6"
    );
    fs::remove_file(&plain).unwrap();

    let good = gzip(&b"net.ipv4.ip_forward = 1\n".repeat(1000));
    for cut in [0, 5, good.len() / 2, good.len() - 1] {
        fs::write(&packed, &good[..cut]).unwrap();
        let reason = refusal(dir.path());
        assert!(reason.contains("truncated"), "{cut}: {reason}");
    }
    fs::write(&packed, "this is not gzip").unwrap();
    assert!(refusal(dir.path()).contains("damaged"));

    fs::write(&packed, &good).unwrap();
    fs::write(&plain, "a = 1\n").unwrap();
    assert_eq!(refusal(dir.path()), "the bundle contains it more than once");
}

#[test]
fn a_member_that_unpacks_to_too_much_is_a_gap() {
    let limits = Limits {
        member: 1 << 20,
        kept: 3 << 20,
        archive: 8 << 20,
    };
    let reason = |path: &Path, item| {
        let evidence = load_within(path, ITEMS, limits).unwrap();
        assert_eq!(evidence.text(Item::KernelRelease), Ok("6.1.0\n"));
        evidence.text(item).unwrap_err().to_string()
    };
    let bomb = gzip(&vec![b'0'; 64 << 20]);
    let dir = folder();
    fs::write(dir.path().join(format!("{SYSCTL}.gz")), &bomb).unwrap();
    let text = reason(dir.path(), Item::Sysctl);
    assert!(text.contains("larger than 1 MiB"), "{text}");

    let (_dir, path) = archive(|tar| {
        let name = format!("{SYSCTL}.gz");
        member(tar, &name, EntryType::Regular, &bomb);
    });
    assert!(reason(&path, Item::Sysctl).contains("larger than 1 MiB"));

    // A compression bomb in a member that is not loaded.
    let (_dir, path) = archive(|tar| {
        member(tar, "other.txt", EntryType::Regular, &vec![b'0'; 16 << 20]);
        member(tar, SYSCTL, EntryType::Regular, b"a = 1\n");
    });
    fs::write(&path, gzip(&fs::read(&path).unwrap())).unwrap();
    let text = reason(&path, Item::Sysctl);
    assert!(text.contains("the archive is larger than 8 MiB"), "{text}");

    // Names are limited in length as well.
    let (_dir, path) = archive(|tar| {
        member(
            tar,
            "././@LongLink",
            EntryType::GNULongName,
            &vec![b'0'; 4 << 20],
        );
        member(tar, SYSCTL, EntryType::Regular, b"a = 1\n");
    });
    assert!(reason(&path, Item::Sysctl).contains("was not collected"));
}

#[test]
fn all_members_together_are_limited() {
    let dir = folder();
    let limits = Limits {
        member: 1000,
        kept: 1500,
        archive: 1 << 20,
    };
    for file in ["ip-addr.json", "ip-link.json"] {
        fs::write(dir.path().join("node").join(file), "x".repeat(900)).unwrap();
    }
    let evidence = load_within(dir.path(), ITEMS, limits).unwrap();
    assert!(evidence.text(Item::Addresses).is_ok());
    let gap = evidence.text(Item::Links).unwrap_err().to_string();
    assert!(gap.contains("the most that kpx reads"), "{gap}");
}

#[test]
fn hostile_members_of_an_archive_are_gaps() {
    let cases = [
        ("../node/sysctl.txt", EntryType::Regular, "leads outside"),
        (
            "node/../../node/sysctl.txt",
            EntryType::Regular,
            "leads outside",
        ),
        ("/node/sysctl.txt", EntryType::Regular, "leads outside"),
        ("/tmp/node/sysctl.txt", EntryType::Regular, "leads outside"),
        (SYSCTL, EntryType::Symlink, "a symbolic link"),
        (SYSCTL, EntryType::Link, "a hard link"),
        (SYSCTL, EntryType::Fifo, "a device or pipe"),
        (SYSCTL, EntryType::Char, "a device or pipe"),
        (SYSCTL, EntryType::Block, "a device or pipe"),
        (SYSCTL, EntryType::Directory, "a folder"),
        (SYSCTL, EntryType::GNUSparse, "not a plain file"),
    ];
    for (name, kind, expected) in cases {
        let (_dir, path) = archive(|tar| member(tar, name, kind, b""));
        let reason = refusal(&path);
        assert!(reason.contains(expected), "{name} {kind:?}: {reason}");
    }
    let (_dir, path) = archive(|tar| {
        member(tar, SYSCTL, EntryType::Regular, b"a = 1\n");
        member(tar, SYSCTL, EntryType::Regular, b"a = 2\n");
    });
    assert_eq!(refusal(&path), "the bundle contains it more than once");
    let (_dir, path) = archive(|tar| member(tar, SYSCTL, EntryType::Regular, b"\xff"));
    assert!(refusal(&path).contains("invalid UTF-8 at byte 0"));
}

#[test]
fn a_truncated_archive_is_a_gap_with_the_reason() {
    let (_dir, path) = archive(|tar| member(tar, SYSCTL, EntryType::Regular, &[b'x'; 5000]));
    let whole = fs::read(&path).unwrap();
    // In the header of the second member, in its content, and in its padding.
    for length in [1024 + 100, 1536 + 700] {
        fs::write(&path, &whole[..length]).unwrap();
        let reason = refusal(&path);
        assert!(
            reason.contains("the archive is truncated") || reason.contains("the archive ends"),
            "{length}: {reason}"
        );
    }
    fs::write(&path, &gzip(&whole)[..60]).unwrap();
    // The data before the cut may load; the rest causes no panic and is not invented.
    if let Ok(evidence) = load(&path, ITEMS) {
        assert!(evidence.text(Item::Sysctl).is_err());
    }
}

#[test]
fn an_archive_cut_or_changed_anywhere_never_panics() {
    let (_dir, path) = archive(|tar| {
        member(tar, SYSCTL, EntryType::Regular, b"a = 1\n");
        member(
            tar,
            "x",
            EntryType::XHeader,
            b"27 path=cluster/nodes.json\n",
        );
        member(tar, "y", EntryType::Regular, b"{}");
    });
    let good = fs::read(&path).unwrap();
    let nodes = load(&path, ITEMS).unwrap();
    assert_eq!(nodes.text(Item::Nodes), Ok("{}"));
    for bytes in [good.clone(), gzip(&good)] {
        for place in (0..bytes.len()).step_by(7) {
            let mut bad = bytes.clone();
            bad[place] ^= 0x55;
            fs::write(&path, &bad).unwrap();
            drop(load(&path, ITEMS));
            fs::write(&path, &bytes[..place]).unwrap();
            drop(load(&path, ITEMS));
        }
    }
}

#[test]
fn the_error_for_a_path_that_is_no_bundle_describes_bundles() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    fs::write(&empty, "").unwrap();
    let text = dir.path().join("notes.txt");
    fs::write(&text, "hello ".repeat(500)).unwrap();
    let zip = dir.path().join("a.zip");
    fs::write(&zip, b"PK\x03\x04rest").unwrap();
    let (_tar, other) = in_file(&Builder::new(Vec::new()).into_inner().unwrap());
    for (path, why) in [
        (dir.path(), "no file of a bundle"),
        (&empty, "it is empty"),
        (&text, "not a tar archive"),
        (&zip, "unpack it first"),
        (&other, "it is empty"),
        (Path::new("/dev/null"), "device"),
    ] {
        let error = load(path, ITEMS).unwrap_err();
        assert!(matches!(error, BundleError::NotOne { .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains(why), "{error}");
        assert!(
            error.contains("A bundle is a folder, .tar or .tar.gz"),
            "{error}"
        );
    }
    let missing = load(&dir.path().join("missing"), ITEMS).unwrap_err();
    assert!(matches!(missing, BundleError::Open { .. }));
}

#[test]
fn a_recorded_gap_is_read_as_the_same_gap() {
    let mut evidence = Evidence::default();
    evidence.insert(Item::KernelRelease, Ok("6.1.0\n".to_owned()));
    let gaps = [
        Gap::Denied(Item::Sysctl, "root reads it".to_owned()),
        Gap::NotApplicable("there is no ip_vs".to_owned()),
        Gap::Absent(Item::Links, "looked for ip".to_owned()),
    ];
    for (item, gap) in [Item::Sysctl, Item::Ipvs, Item::Links]
        .into_iter()
        .zip(&gaps)
    {
        evidence.insert(item, Err(gap.clone()));
    }
    let manifest = Manifest::of(&evidence, String::new(), Some("node1".to_owned()));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("b");
    save(&evidence, &manifest, &path).unwrap();
    let loaded = load(&path, ITEMS).unwrap();
    assert_eq!(loaded.text(Item::Sysctl).as_ref(), Err(&gaps[0]));
    assert_eq!(loaded.text(Item::Ipvs).as_ref(), Err(&gaps[1]));
    assert_eq!(loaded.text(Item::Links).as_ref(), Err(&gaps[2]));
    assert_eq!(loaded.text(Item::Nft), Err(Gap::NotCollected(Item::Nft)));
    assert_eq!(loaded.manifest().unwrap().kernel.as_deref(), Some("6.1.0"));
}

#[test]
fn an_unusable_manifest_is_an_error_with_the_reason() {
    let dir = folder();
    for (text, why) in [
        (r#"{"format":2}"#, "its format is 2, but this kpx"),
        (r"{}", "no format version"),
        ("gaps:", "it is not JSON"),
        (r#"{"format":1}"#, "missing field"),
    ] {
        fs::write(dir.path().join("manifest.json"), text).unwrap();
        let error = load(dir.path(), ITEMS).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let later = r#"{"format":1,"kpx":"9","time":"","new":1,"gaps":[
        {"item":"node/of-the-future.txt","reason":"x","gap":{}},
        {"item":"node/sysctl.txt","reason":"a new reason","gap":{"kind":"new"}}]}"#;
    fs::write(dir.path().join("manifest.json"), later).unwrap();
    assert_eq!(refusal(dir.path()), "a new reason");
}

#[test]
fn saving_overwrites_no_file_and_leaves_no_partial_bundle() {
    let dir = tempfile::tempdir().unwrap();
    let evidence = Evidence::default();
    let manifest = Manifest::of(&evidence, String::new(), None);
    for name in ["b", "b.tar", "b.tgz"] {
        let path = dir.path().join(name);
        File::create(&path).unwrap().write_all(b"mine").unwrap();
        let error = save(&evidence, &manifest, &path).unwrap_err().to_string();
        assert!(error.contains("does not overwrite"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        let nowhere = dir.path().join("missing").join(name);
        let error = save(&evidence, &manifest, &nowhere)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("cannot write bundle"), "{error}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[tokio::test]
async fn a_bundle_is_read_in_the_name_of_its_own_node_alone() {
    let bundle = root().join("testdata/nodes/seed-ipvs");
    let bundle = bundle.to_str().unwrap();
    let of = async |name: &str| kpx_with(bundle, &["--node", name, "show", "config"]).await;
    assert_eq!(of("node1").await.code, 0);
    for (name, parts) in [
        (
            "node2",
            &[
                "is a recording of node1, not of node2",
                "an interface has 10.0.2.15 of node1",
                "omit --node to read node1",
            ][..],
        ),
        (
            "help",
            &[
                "is a recording of node1, not of help",
                "`--help` prints the options",
            ],
        ),
        ("10.0.2.15", &["is a recording of node1, not of 10.0.2.15"]),
        (
            "node1.example.com",
            &["is a recording of node1, not of node1.example.com"],
        ),
        (
            "NODE1",
            &["\"NODE1\" is not the name of a node", "type `--node node1`"],
        ),
        (
            "node/node1",
            &[
                "\"node/node1\" is not the name of a node",
                "type `--node node1`",
            ],
        ),
        (
            "default/web",
            &[
                "\"default/web\" is not the name of a node",
                "`kpx why default/web` explains",
            ],
        ),
        ("", &["\"\" is not the name of a node"]),
    ] {
        let ran = of(name).await;
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran}");
        let text = ran.err.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in parts {
            assert!(text.contains(part), "no {part:?} in\n{ran}");
        }
    }
    let ran = kpx_with(bundle, &["doctor", bundle]).await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(
        ran.err.contains(&format!("type `--from {bundle}`")),
        "{ran}"
    );
    // The name of a node in the place of a bundle.
    let ran = kpx_with("node1", &["doctor"]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(ran.err.contains("--node takes the name of a node"), "{ran}");
    // Every command that reads a node asks.
    for command in [
        &["why", "default/kubernetes"][..],
        &["trace", "10.96.0.1:443"],
        &["doctor"],
        &["diff"],
        &["render"],
        &["reconcile"],
        &["preflight", "--to", "nftables"],
        &["resolve", "kubernetes", "--namespace", "default"],
        &["snapshot", "--file", "/dev/null/x"],
        &["report", "--file", "/dev/null/x"],
    ] {
        let ran = kpx_with(bundle, &[&["--node", "node2"], command].concat()).await;
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{command:?} {ran}");
        assert!(ran.err.contains("not of node2"), "{command:?} {ran}");
    }
}

async fn kpx_with(bundle: &str, args: &[&str]) -> Ran {
    kpx(&[&["--from", bundle], args].concat()).await
}
