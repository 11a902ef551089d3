//! `man/` and `completions/` are what `kpx man` and `kpx completions` print, byte for byte.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use kpx::cli;

use crate::support::{kpx, root};

/// The advice for a stale file.
const REMEDY: &str = "is stale. Run `KPX_BLESS=1 cargo test --test suite generated` and commit the files.\n\
    After a conflict in these files, take either side and run it again.";

#[tokio::test]
async fn generated_files_are_current() {
    let wanted = wanted().await;
    #[expect(clippy::disallowed_methods, reason = "the one setting of this test")]
    let bless = std::env::var("KPX_BLESS").is_ok();
    for (path, text) in &wanted {
        let path = root().join(path);
        if bless {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
        }
    }
    for dir in ["man", "completions"] {
        for entry in fs::read_dir(root().join(dir)).unwrap() {
            let name = entry.unwrap().file_name();
            let path = PathBuf::from(dir).join(name);
            if bless && !wanted.contains_key(&path) {
                fs::remove_file(root().join(&path)).unwrap();
            } else {
                assert!(wanted.contains_key(&path), "{} {REMEDY}", path.display());
            }
        }
    }
    for (path, text) in &wanted {
        let have = fs::read_to_string(root().join(path)).unwrap_or_default();
        assert!(have == *text, "{} {REMEDY}", path.display());
    }
}

async fn wanted() -> BTreeMap<PathBuf, String> {
    let mut files = BTreeMap::new();
    let mut names = vec!["kpx".to_owned()];
    below(&cli::command(), "kpx", &mut names);
    for name in names {
        let path = format!("man/{name}.1");
        files.insert(path.into(), printed(&["man", &name]).await);
    }
    let checks = printed(&["man", "checks"]).await;
    files.insert("man/kpx-checks.7".into(), checks);
    let metrics = printed(&["man", "metrics"]).await;
    files.insert("man/kpx-metrics.7".into(), metrics);
    for (shell, name) in [("bash", "kpx.bash"), ("fish", "kpx.fish"), ("zsh", "_kpx")] {
        let script = printed(&["completions", shell]).await;
        files.insert(format!("completions/{name}").into(), script);
    }
    files
}

fn below(command: &clap::Command, path: &str, names: &mut Vec<String>) {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let name = format!("{path}-{}", sub.get_name());
        names.push(name.clone());
        below(sub, &name, names);
    }
}

async fn printed(args: &[&str]) -> String {
    let ran = kpx(args).await;
    assert_eq!(ran.code, 0, "{ran}");
    ran.out
}

/// The words that bash offers for the last of `words`, with kpx as a program in PATH.
#[expect(
    clippy::disallowed_methods,
    reason = "the shell that asks for completions"
)]
fn offered(words: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_kpx"), dir.path().join("kpx")).unwrap();
    let script = format!(
        "PATH={}:$PATH; source completions/kpx.bash; COMP_WORDS=({}); COMP_CWORD={}; \
         _kpx_names kpx \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; echo \"${{COMPREPLY[*]}}\"",
        dir.path().display(),
        words.join(" "),
        words.len() - 1,
    );
    let ran = std::process::Command::new("bash")
        .args(["-c", &script])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(
        ran.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    String::from_utf8(ran.stdout).unwrap()
}

#[test]
fn bash_completes_services_checks_and_views() {
    let from = ["kpx", "--from", "testdata/nodes/seed-ipvs"];
    let with = |more: &[&str]| offered(&[&from[..], more].concat());
    assert_eq!(
        with(&["trace", "default/ng"]),
        "default/nginx-svc default/nginx-svc-nodeport\n"
    );
    assert_eq!(
        with(&["show", "services", "kube-system/"]),
        "kube-system/kube-dns\n"
    );
    assert!(!with(&["explain", "MX"]).contains("default/"));
    assert_eq!(
        offered(&["kpx", "explain", "MX0"]).split(' ').next(),
        Some("MX01")
    );
    assert_eq!(
        offered(&["kpx", "doctor", "--only", "DV1"]).trim(),
        "DV10 DV11 DV12"
    );
    assert_eq!(offered(&["kpx", "show", "nodep"]).trim(), "nodeports");
    assert_eq!(offered(&["kpx", "doctor", "-o", "jun"]).trim(), "junit");
}

#[tokio::test]
async fn services_that_cannot_be_read_are_no_error() {
    let ran = kpx(&["complete", "--", "--from", "/nowhere", "why", ""]).await;
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "", ""));
    let ran = kpx(&["complete", "--", "--no-api", "why", ""]).await;
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "", ""));
    for shell in ["zsh", "fish"] {
        let script = printed(&["completions", shell]).await;
        assert!(
            script.contains("kpx complete -- ") && !script.contains("screen"),
            "{shell}"
        );
    }
    let zsh = printed(&["completions", "zsh"]).await;
    assert!(zsh.matches(":_kpx_names' ").count() >= 4, "{zsh}");
}

#[tokio::test]
async fn the_last_word_is_completed_by_what_it_may_be() {
    let of = async |words: &[&str]| {
        let from = ["complete", "--", "--from", "testdata/nodes/full-iptables"];
        let ran = kpx(&[&from[..], words].concat()).await;
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran}");
        ran.out
    };
    for (words, found) in [
        (&["why", "ca"][..], "shop/cart\n"),
        (&["why", "svc/ca"], "svc/cart\n"),
        (&["why", "service", "ca"], "shop/cart\n"),
        (&["trace", "-n", "shop", "ca"], "cart\n"),
        (&["why", "-n", "s"], "shop\n"),
        (
            &["show", "sysctls", "net.ipv4.ip_f"],
            "net.ipv4.ip_forward\n",
        ),
        (&["doctor", "node1"], "node1\n"),
        (&["why", "-o", "js"], ""),
    ] {
        assert_eq!(of(words).await, found, "{words:?}");
    }
    let sources = of(&["trace", "shop/cart", "--source", ""]).await;
    assert!(sources.starts_with("host\noutside\ndefault/"), "{sources}");
    let chains = of(&["show", "chains", "KUBE-SERV"]).await;
    assert_eq!(chains, "KUBE-SERVICES\n");
}

#[tokio::test]
async fn kubectl_completes_the_plugin() {
    let ran = kpx(&["complete", "--all", "--", "sh"]).await;
    assert_eq!(ran.out, "show\tShow one view of the live state\n:4\n");
    let ran = kpx(&["complete", "--all", "--", "why", "-o", "js"]).await;
    assert_eq!(ran.out, "json\t\n:4\n");
    let ran = kpx(&["complete", "--all", "--", "doctor", "--all-n"]).await;
    assert!(ran.out.starts_with("--all-nodes\t"), "{ran}");
    let ran = kpx(&["complete", "--all", "--", "--from", "x"]).await;
    assert_eq!(ran.out, ":0\n");
    let script = fs::read_to_string(root().join("deploy/dist/kubectl_complete-kpx")).unwrap();
    assert!(
        script.contains("kubectl-kpx complete --all -- \"$@\""),
        "{script}"
    );
}
