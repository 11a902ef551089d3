//! Modules are loaded and unloaded as modprobe does it.

use std::fs;
use std::path::{Path, PathBuf};

use kpx_host::{self as host, Live};
use kpx_node::action::Action;
use kpx_node::apply::{Apply as _, StepError};

use super::ipvs::{modules, unload};
use super::netns::{Netns, run};

/// A file of modprobe.d that is gone when the test ends.
pub(super) struct Rule(PathBuf);

impl Rule {
    pub(super) fn new(text: &str) -> Self {
        let path = PathBuf::from("/etc/modprobe.d/kpx-test.conf");
        fs::create_dir_all("/etc/modprobe.d").unwrap();
        fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for Rule {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

fn live() -> Live {
    live_below(Path::new("/"))
}

fn live_below(root: &Path) -> Live {
    let options = host::Options {
        netns: None,
        root: root.to_owned(),
        ..Netns::new().options()
    };
    Live::new(&options).unwrap()
}

fn load(name: &str) -> Action {
    let names = vec![name.to_owned()];
    Action::LoadModules { names }
}

fn unload_of(name: &str) -> Action {
    let names = vec![name.to_owned()];
    Action::UnloadModules { names }
}

fn loaded(name: &str) -> bool {
    modules().iter().any(|module| module == name)
}

#[tokio::test]
#[ignore = "needs root and ip_vs that is not loaded"]
async fn vm_a_scheduler_is_loaded_with_all_it_needs_and_unloaded_again() {
    unload();
    let before = modules();
    let mut node = live();
    node.apply(&load("ip_vs_wrr")).await.unwrap();
    assert!(loaded("ip_vs") && loaded("ip_vs_wrr"));
    assert_eq!(
        node.loaded().last(),
        Some(&"ip_vs_wrr"),
        "{:?}",
        node.loaded()
    );
    // A second time is no error, and loads nothing.
    let count = node.loaded().len();
    node.apply(&load("ip-vs-wrr")).await.unwrap();
    assert_eq!(node.loaded().len(), count);
    node.apply(&unload_of("ip-vs-wrr")).await.unwrap();
    assert!(loaded("ip_vs_wrr"), "the second load had loaded nothing");
    node.apply(&unload_of("ip_vs_wrr")).await.unwrap();
    assert_eq!(modules(), before);
    // It is gone, as requested.
    live_unload("ip_vs_wrr").await.unwrap();
}

#[tokio::test]
#[ignore = "needs root and ip_vs"]
async fn vm_a_module_in_use_stays() {
    unload();
    let mut node = live();
    node.apply(&load("ip_vs_rr")).await.unwrap();
    let error = live_unload("ip_vs").await.unwrap_err();
    assert_eq!(
        error,
        StepError::Refused("cannot unload ip_vs: it is in use by ip_vs_rr".to_owned())
    );
    let netns = Netns::new();
    netns.run("ipvsadm -A -t 10.96.0.1:443 -s rr");
    let error = live_unload("ip_vs_rr").await.unwrap_err();
    assert_eq!(
        error,
        StepError::Refused("cannot unload ip_vs_rr: it is in use".to_owned())
    );
    netns.run("ipvsadm -C");
    live_unload("ip_vs_rr").await.unwrap();
    assert!(!loaded("ip_vs_rr") && loaded("ip_vs"));
}

/// Unloads without the lock of another [`Live`].
async fn live_unload(name: &str) -> Result<(), StepError> {
    let root = tempfile::tempdir().unwrap();
    for dir in ["proc", "sys", "lib", "usr", "etc"] {
        std::os::unix::fs::symlink(Path::new("/").join(dir), root.path().join(dir)).unwrap();
    }
    fs::create_dir(root.path().join("run")).unwrap();
    live_below(root.path()).apply(&unload_of(name)).await
}

#[tokio::test]
#[ignore = "needs root and ip_vs that is not loaded"]
async fn vm_modprobe_d_forbids_and_gives_options() {
    unload();
    {
        let _rule = Rule::new("install ip_vs /bin/false\n");
        let error = live().apply(&load("ip_vs_rr")).await.unwrap_err();
        let what = "loading ip_vs is forbidden by /etc/modprobe.d/kpx-test.conf";
        assert_eq!(error, StepError::Refused(what.to_owned()));
        assert!(!loaded("ip_vs"));
    }
    {
        let _rule = Rule::new("options ip_vs conn_tab_bits=9\nalias balance ip_vs\n");
        live().apply(&load("balance")).await.unwrap();
        let bits = fs::read_to_string("/sys/module/ip_vs/parameters/conn_tab_bits").unwrap();
        assert_eq!(bits.trim(), "9");
    }
    unload();
    {
        // A command instead of the file is for modprobe.
        let _rule = Rule::new("install ip_vs /sbin/modprobe --ignore-install ip_vs\n");
        live().apply(&load("ip_vs")).await.unwrap();
        assert!(loaded("ip_vs"));
    }
}

#[tokio::test]
#[ignore = "needs root and ip_vs that is not loaded"]
async fn vm_a_module_that_is_not_there_is_absent() {
    let error = live().apply(&load("ip_vs_none")).await.unwrap_err();
    let StepError::Absent(what) = error else {
        panic!("{error:?}");
    };
    assert!(
        what.starts_with("this kernel has no module ip_vs_none (/lib/modules/"),
        "{what}"
    );
}

/// Modules from another root, each compressed in another way.
#[tokio::test]
#[ignore = "needs root and ip_vs that is not loaded"]
async fn vm_compressed_modules_are_loaded_from_another_root() {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let real = Path::new("/lib/modules").join(release.trim());
    for (end, command) in [
        ("gz", "gzip -kc"),
        ("xz", "xz -kc --check=crc32"),
        ("zst", "zstd -kc -q"),
    ] {
        unload();
        let root = tempfile::tempdir().unwrap();
        for dir in ["proc", "sys"] {
            std::os::unix::fs::symlink(Path::new("/").join(dir), root.path().join(dir)).unwrap();
        }
        fs::create_dir(root.path().join("run")).unwrap();
        let tree = root.path().join("lib/modules").join(release.trim());
        fs::create_dir_all(&tree).unwrap();
        let deps = fs::read_to_string(real.join("modules.dep")).unwrap();
        let line = deps.lines().find(|line| line.contains("/ip_vs.ko"));
        let (file, needs) = line.unwrap().split_once(':').unwrap();
        let mut lines = String::new();
        for path in needs.split_ascii_whitespace().chain([file]) {
            let to = tree.join(format!("{path}.{end}"));
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            let from = real.join(path);
            let (from, to) = (from.display(), to.display());
            run(&["sh", "-c", &format!("{command} {from} > {to}")], "");
            lines = lines + path + "." + end + ":";
            if path == file {
                for need in needs.split_ascii_whitespace() {
                    lines = lines + " " + need + "." + end;
                }
            }
            lines += "\n";
        }
        fs::write(tree.join("modules.dep"), lines).unwrap();
        let mut node = live_below(root.path());
        node.apply(&load("ip_vs")).await.unwrap();
        assert!(node.loaded().contains(&"ip_vs"), "{end}");
        assert!(loaded("ip_vs"), "{end}");
    }
}
