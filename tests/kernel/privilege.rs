//! Reading without privileges, and writing to a full or read-only disk.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;

use kpx_host::Journals;
use kpx_node::evidence::{self, Evidence, Gap, ITEMS, Item, Privilege};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::netns::{Netns, run};

/// Returns a copy of kpx in `dir` that every user may run.
fn program(dir: &Path) -> String {
    let copy = dir.join("kpx");
    fs::copy(env!("CARGO_BIN_EXE_kpx"), &copy).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    copy.display().to_string()
}

/// Returns what a user with `capabilities`, as setpriv takes them, reads of a node with a table, a chain and a set.
fn read_as_nobody(capabilities: &str) -> Evidence {
    let netns = Netns::new();
    netns.run("nft add table ip kube-proxy");
    netns.run("iptables-nft -t nat -N KUBE-SERVICES");
    netns.run("ipset create KUBE-CLUSTER-IP hash:ip,port");
    let dir = tempfile::tempdir().unwrap();
    let (kpx, bundle) = (program(dir.path()), dir.path().join("bundle"));
    let all: String = ["inh-caps", "ambient-caps", "bounding-set"]
        .map(|set| format!("--{set}=-all{capabilities} "))
        .concat();
    let command = format!(
        "setpriv --reuid 65534 --regid 65534 --clear-groups {all}{kpx} --no-api snapshot --file {}; [ $? = 3 ]\n",
        bundle.display()
    );
    netns.feed("sh", &command);
    evidence::load(&bundle, ITEMS).unwrap()
}

#[test]
#[ignore = "needs root, to run kpx as another user"]
fn with_net_admin_alone_everything_is_read_but_what_is_for_root() {
    let evidence = read_as_nobody(",+net_admin");
    for &item in ITEMS {
        let denied = matches!(evidence.text(item), Err(Gap::Denied(..)));
        assert!(!denied || item.privilege() == Privilege::Root, "{item}");
    }
    for item in [Item::Nft, Item::Iptables4, Item::Ipset, Item::Conntrack] {
        assert!(evidence.text(item).is_ok(), "{item}");
    }
}

#[test]
#[ignore = "needs root, to run kpx as another user"]
fn an_unprivileged_user_reads_public_items_and_each_other_gap_names_the_privilege() {
    let evidence = read_as_nobody("");
    let mut denied = 0;
    for &item in ITEMS {
        match evidence.text(item) {
            Ok(_) => {}
            Err(Gap::Denied(_, why)) => {
                assert!(
                    why.contains("root") || why.contains("CAP_"),
                    "{item}: {why}"
                );
                denied += 1;
            }
            Err(gap) => assert!(
                !gap.to_string().contains("ermission denied")
                    && !gap.to_string().contains("not permitted"),
                "{gap}"
            ),
        }
    }
    for item in [Item::Nft, Item::Ipset] {
        assert!(
            matches!(evidence.text(item), Err(Gap::Denied(..))),
            "{item}"
        );
    }
    assert!(denied >= 2, "only {denied} items were denied");
    for item in [Item::Links, Item::Routes, Item::Sysctl, Item::Sockets] {
        assert!(evidence.text(item).is_ok(), "{item}");
    }
}

#[test]
#[ignore = "needs root, to mount a small file system"]
fn a_snapshot_to_a_full_disk_fails_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/nodes/full-iptables");
    for to in ["bundle", "bundle.tar.gz"] {
        let script = format!(
            "mount -t tmpfs -o size=16k none {dir} && {kpx} --from {from} snapshot --file {dir}/{to} 2>&1; echo \"status $?\"\n",
            dir = dir.path().display(),
            kpx = env!("CARGO_BIN_EXE_kpx"),
        );
        let said = run(&["unshare", "--mount", "sh"], &script);
        assert!(said.contains("No space left on device"), "{said}");
        assert!(said.trim_end().ends_with("status 4"), "{said}");
    }
}

/// Does `work` on a thread that has a small file system at `dir`.
fn on_a_small_disk(dir: &Path, work: impl FnOnce() + Send) {
    let mounted = || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let (none, private) = (None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE);
        mount(none, "/", none, private, none).unwrap();
        mount(none, dir, Some("tmpfs"), MsFlags::empty(), Some("size=32k")).unwrap();
        work();
    };
    thread::scope(|scope| scope.spawn(mounted).join().unwrap());
}

#[test]
#[ignore = "needs root, to mount a small file system"]
fn a_journal_on_a_full_disk_has_only_whole_lines() {
    let dir = tempfile::tempdir().unwrap();
    on_a_small_disk(dir.path(), || {
        let journals = Journals::below(dir.path());
        let mut journal = journals.create("a").unwrap();
        let line = "x".repeat(3000);
        let lines = std::iter::repeat_with(|| journal.add(&line)).take_while(Result::is_ok);
        let whole = format!("{line}\n").repeat(lines.count());
        assert_eq!(journals.read("a").unwrap(), whole);
        let why = journal.add(&line).unwrap_err();
        assert_eq!(why.kind(), ErrorKind::StorageFull);
        assert_eq!(journals.read("a").unwrap(), whole);
    });
}

#[test]
#[ignore = "needs root, to mount a read-only file system"]
fn a_read_only_state_folder_is_an_error_before_a_migration() {
    let dir = tempfile::tempdir().unwrap();
    on_a_small_disk(dir.path(), || {
        let none = None::<&str>;
        let read_only = MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(none, dir.path(), none, read_only, none).unwrap();
        let why = Journals::below(dir.path()).create("a").unwrap_err();
        assert_eq!(why.kind(), ErrorKind::ReadOnlyFilesystem);
    });
}
