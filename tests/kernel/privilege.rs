//! Reading without privileges, and writing where there is no room.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use kpx::evidence::{self, Gap, ITEMS};

use super::netns::{Netns, run};

/// Returns a copy of kpx that everybody may run, in `dir`.
fn program(dir: &Path) -> String {
    let copy = dir.join("kpx");
    fs::copy(env!("CARGO_BIN_EXE_kpx"), &copy).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    copy.display().to_string()
}

#[test]
#[ignore = "needs root, to become nobody"]
fn nobody_reads_what_everybody_may_and_is_told_what_the_rest_takes() {
    let netns = Netns::new();
    netns.run("nft add table ip kube-proxy");
    netns.run("ipset create KUBE-CLUSTER-IP hash:ip,port");
    let dir = tempfile::tempdir().unwrap();
    let (kpx, bundle) = (program(dir.path()), dir.path().join("bundle"));
    let command = format!(
        "setpriv --reuid 65534 --regid 65534 --clear-groups {kpx} --no-api snapshot -o {}; [ $? = 3 ]\n",
        bundle.display()
    );
    netns.feed("sh", &command);
    let evidence = evidence::load(&bundle, ITEMS).unwrap();
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
    for item in [evidence::Item::Nft, evidence::Item::Ipset] {
        assert!(
            matches!(evidence.text(item), Err(Gap::Denied(..))),
            "{item}"
        );
    }
    assert!(denied >= 2, "only {denied} items were denied");
    for item in [
        evidence::Item::Links,
        evidence::Item::Routes,
        evidence::Item::Sysctl,
        evidence::Item::Sockets,
    ] {
        assert!(evidence.text(item).is_ok(), "{item}");
    }
}

#[test]
#[ignore = "needs root, to mount a small file system"]
fn a_full_disk_fails_a_snapshot_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let from = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/nodes/full-iptables");
    for to in ["bundle", "bundle.tar.gz"] {
        let script = format!(
            "mount -t tmpfs -o size=16k none {dir} && {kpx} --from {from} snapshot -o {dir}/{to} 2>&1; echo \"status $?\"\n",
            dir = dir.path().display(),
            kpx = env!("CARGO_BIN_EXE_kpx"),
        );
        let said = run(&["unshare", "--mount", "sh"], &script);
        assert!(said.contains("No space left on device"), "{said}");
        assert!(said.trim_end().ends_with("status 4"), "{said}");
    }
}
