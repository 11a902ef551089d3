use std::time::Duration;

use lzma_rust2::{XzOptions, XzWriter};
use tempfile::TempDir;

use super::*;
use crate::{Environment, Options, Selection};
use kpx_node::net::Family;

/// A made-up root of the host; the kernel must not load anything from it.
struct Root(TempDir);

impl Root {
    fn new() -> Self {
        let root = Self(TempDir::new().unwrap());
        root.write("proc/sys/kernel/osrelease", "6.1.0\n");
        root.write("proc/modules", "nf_defrag_ipv4 16384 0 - Live 0x0\n");
        root.write("lib/modules/6.1.0/modules.builtin", "kernel/net/dummy.ko\n");
        root.write(
            "lib/modules/6.1.0/modules.dep",
            "kernel/ip_vs.ko.xz: kernel/nf-conntrack.ko kernel/nf_defrag_ipv4.ko\n\
             kernel/nf-conntrack.ko: kernel/nf_defrag_ipv4.ko\n\
             kernel/nf_defrag_ipv4.ko:\n\
             kernel/ip_vs_rr.ko.gz: kernel/ip_vs.ko.xz kernel/nf-conntrack.ko kernel/nf_defrag_ipv4.ko\n",
        );
        root
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn context(&self) -> Arc<Context> {
        Context::new(&Options {
            netns: None,
            root: self.0.path().to_owned(),
            node: None,
            families: Family::BOTH.to_vec(),
            timeout: Duration::from_secs(60),
            kubeconfig: None,
            context: None,
            selection: Selection::default(),
            no_api: true,
            environment: Environment::default(),
        })
    }

    fn rules(&self) -> Rules {
        Rules::read(&self.context()).unwrap()
    }

    fn tree(&self) -> Tree {
        Tree::read(&self.context(), &mut Rules::default()).unwrap()
    }

    async fn load(&self, name: &str) -> Result<(), StepError> {
        load(&self.context(), name, &mut Vec::new()).await
    }
}

#[tokio::test]
async fn what_is_loaded_or_built_in_is_no_error() {
    let root = Root::new();
    assert_eq!(root.load("nf-defrag-ipv4").await, Ok(()));
    assert_eq!(root.load("dummy").await, Ok(()));
}

#[tokio::test]
async fn a_missing_module_names_the_kernel() {
    let root = Root::new();
    let error = root.load("ip_vs_wrr").await.unwrap_err();
    let what = "this kernel has no module ip_vs_wrr (/lib/modules/6.1.0)";
    assert_eq!(error, StepError::Absent(what.to_owned()));
}

#[tokio::test]
async fn a_module_that_modprobe_d_forbids_is_refused() {
    let root = Root::new();
    root.write(
        "etc/modprobe.d/hard.conf",
        "install nf-conntrack /bin/false\n",
    );
    let what = "loading nf_conntrack is forbidden by /etc/modprobe.d/hard.conf";
    let refused = Err(StepError::Refused(what.to_owned()));
    assert_eq!(root.load("nf_conntrack").await, refused);
    // A module that depends on it is refused as well.
    assert_eq!(root.load("ip_vs").await, refused);
}

#[test]
fn dependencies_are_named_nearest_first() {
    let tree = Root::new().tree();
    assert_eq!(
        tree.needs("ip_vs_rr"),
        ["ip_vs", "nf_conntrack", "nf_defrag_ipv4"]
    );
    let path = tree.path("nf_conntrack").unwrap();
    assert!(path.ends_with("lib/modules/6.1.0/kernel/nf-conntrack.ko"));
}

#[test]
fn rules_are_read_as_modprobe_does() {
    let root = Root::new();
    root.write(
        "etc/modprobe.d/a.conf",
        "# a comment\n\
         options ip_vs conn_tab_bits=15\n\
         alias lvs* ip-vs\n\
         alias balance ip_vs_rr\n\
         blacklist ip_vs_rr\n\
         install nf_nat /sbin/modprobe --ignore-install nf_nat\n\
         softdep ip_vs pre: nf_conntrack crc32c post: ip_vs_rr\n",
    );
    root.write("lib/modprobe.d/a.conf", "options ip_vs conn_tab_bits=8\n");
    root.write(
        "proc/cmdline",
        "quiet ip_vs.debug=1 modprobe.blacklist=sctp,dccp\n",
    );
    let rules = root.rules();
    // The file in /etc replaces the one with the same name in /lib.
    assert_eq!(rules.options("ip_vs"), "conn_tab_bits=15 debug=1");
    assert_eq!(rules.aliased("lvs_module"), ["ip_vs"]);
    assert!(rules.aliased("balance").is_empty());
    assert!(rules.is_blacklisted("dccp"));
    let command = Install::Command("/etc/modprobe.d/a.conf".to_owned());
    assert_eq!(rules.install("nf_nat"), Some(command));
    let soft = rules.soft("ip_vs");
    assert_eq!(soft.before, ["nf_conntrack", "crc32c"]);
    assert_eq!(soft.after, ["ip_vs_rr"]);
}

#[test]
fn an_alias_that_a_module_brings_is_followed_unless_blacklisted() {
    let root = Root::new();
    root.write(
        "lib/modules/6.1.0/modules.alias",
        "# Aliases extracted from modules themselves.\n\
         alias crypto-crc32c crc32c_intel\n\
         alias crypto-crc32c crc32c_generic\n",
    );
    let mut rules = Rules::default();
    let tree = root.tree();
    let found = tree.aliased("crypto_crc32c", &rules);
    assert_eq!(found, ["crc32c_intel", "crc32c_generic"]);
    rules.add("test", "blacklist crc32c-intel");
    assert_eq!(tree.aliased("crypto_crc32c", &rules), ["crc32c_generic"]);
}

#[tokio::test]
async fn without_a_tree_modprobe_is_asked() {
    let root = Root::new();
    fs::remove_dir_all(root.0.path().join("lib/modules")).unwrap();
    let mut context = root.context();
    // Without this machine's modprobe, which might load the module.
    Arc::get_mut(&mut context).unwrap().programs.clear();
    let error = load(&context, "ip_vs", &mut Vec::new()).await.unwrap_err();
    let StepError::Refused(said) = error else {
        panic!("{error:?}");
    };
    assert!(
        said.contains("/lib/modules/6.1.0/modules.dep does not exist"),
        "{said}"
    );
    assert!(said.contains("modprobe failed as well"), "{said}");
}

/// Data that no kernel accepts as a module, in each compression format.
#[test]
fn compressed_modules_are_unwrapped() {
    let text = b"a module";
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gz, text).unwrap();
    fs::write(at("a.ko.gz"), gz.finish().unwrap()).unwrap();
    let mut xz = XzWriter::new(Vec::new(), XzOptions::default()).unwrap();
    std::io::Write::write_all(&mut xz, text).unwrap();
    fs::write(at("a.ko.xz"), xz.finish().unwrap()).unwrap();
    let zst = ruzstd::encoding::compress_to_vec(
        text.as_slice(),
        ruzstd::encoding::CompressionLevel::Fastest,
    );
    fs::write(at("a.ko.zst"), zst).unwrap();
    fs::write(at("a.ko"), text).unwrap();
    for name in ["a.ko.gz", "a.ko.xz", "a.ko.zst"] {
        let read = file::read(&at(name)).unwrap();
        assert_eq!(read.as_deref(), Some(text.as_slice()), "{name}");
    }
    assert_eq!(file::read(&at("a.ko")).unwrap(), None);
    fs::write(at("b.ko.xz"), text).unwrap();
    assert!(file::read(&at("b.ko.xz")).is_err());
}
