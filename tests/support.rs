//! Shared by the suite.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::sync::OnceCell;

use crate::schema;

/// Recordings of healthy nodes, whose rules and cluster belong together; the others lack parts or were broken on purpose.
pub(crate) const HEALTHY: &[&str] = &[
    "dual-iptables",
    "dual-ipvs",
    "dual-nftables",
    "full-iptables",
    "full-iptables-masqall",
    "full-iptables-v1.30",
    "full-ipvs",
    "full-ipvs-lc-strictarp",
    "full-ipvs-v1.30",
    "full-nftables",
    "scale-2000x10-iptables",
    "scale-2000x10-nftables",
    "seed-iptables",
    "seed-ipvs",
    "seed-nftables",
];

/// Recordings on which a test that takes long looks: every mode, both families, leftovers of another mode, faults of rules,
/// settings and traffic, other software. `matrix` looks at all recordings.
pub(crate) const CHOSEN: &[&str] = &[
    "dual-nftables",
    "faults-iptables",
    "faults-ipvs",
    "faults-traffic",
    "ir16-foreign-drops",
    "leftover-ipvs-to-nftables",
    "sy16-obstacles",
    "up08-lenient-addresses",
    "userspace-1.25",
];

/// The same as names that a test owns.
pub(crate) fn chosen() -> Vec<String> {
    CHOSEN.iter().map(ToString::to_string).collect()
}

/// Every recorded node but the large ones, whose Services are alike.
pub(crate) fn every() -> Vec<String> {
    let mut names = recordings();
    names.retain(|name| !name.starts_with("scale-"));
    names
}

/// The output of a command, and its exit status.
pub(crate) struct Ran {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) code: u8,
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.out)?;
        if !self.err.is_empty() {
            write!(f, "--- stderr ---\n{}", self.err)?;
        }
        write!(f, "--- exit {} ---", self.code)
    }
}

/// Parses `words`, a command line that begins with `kpx`, as the program does.
pub(crate) fn parse(words: &[&str]) -> Result<kpx::cli::Cli, clap::Error> {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    kpx::cli::Cli::parse_from_words(&words)
}

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The files of `make coverage`, for a kpx with an environment of its own.
pub(crate) fn profile() -> Option<(&'static str, OsString)> {
    const NAME: &str = "LLVM_PROFILE_FILE";
    std::env::var_os(NAME).map(|files| (NAME, files))
}

/// Runs kpx offline. JSON that it prints has the form of its schema.
pub(crate) async fn kpx(args: &[&str]) -> Ran {
    kpx_as("kpx", args).await
}

/// The same by another name of the program.
pub(crate) async fn kpx_as(program: &str, args: &[&str]) -> Ran {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let args = std::iter::once(program).chain(args.iter().copied());
    let code = kpx::run(
        args.map(OsString::from),
        &mut kpx::Io {
            out: &mut out,
            err: &mut err,
            input: &mut std::io::empty(),
            interactive: false,
            width: 80,
            err_width: None,
            terminal: false,
            color: false,
            ascii: false,
            progress: false,
            confine: false,
        },
    )
    .await;
    let out = String::from_utf8(out).unwrap();
    schema::hold(&out);
    Ran {
        out,
        err: String::from_utf8(err).unwrap(),
        code,
    }
}

/// Runs kpx offline, on the bundle `testdata/nodes/NAME`: a relative path, which is the same on every machine.
pub(crate) async fn kpx_on(name: &str, args: &[&str]) -> Ran {
    let dir = format!("testdata/nodes/{name}");
    let mut all = vec!["--from", &dir];
    all.extend_from_slice(args);
    kpx(&all).await
}

/// The same, run once for all tests that look at it.
pub(crate) async fn kpx_once_on(name: &str, args: &[&str]) -> Arc<Ran> {
    type Known = Mutex<BTreeMap<Vec<String>, Arc<OnceCell<Arc<Ran>>>>>;
    static KNOWN: Known = Mutex::new(BTreeMap::new());
    let key = [&[name], args].concat();
    let key = key.into_iter().map(str::to_owned).collect();
    let ran = Arc::clone(KNOWN.lock().unwrap().entry(key).or_default());
    let run = async || Arc::new(kpx_on(name, args).await);
    Arc::clone(ran.get_or_init(run).await)
}

/// Names of every recorded node, sorted.
pub(crate) fn recordings() -> Vec<String> {
    let dirs = std::fs::read_dir(root().join("testdata/nodes")).unwrap();
    let mut names: Vec<_> = dirs
        .map(|dir| dir.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Text of `file` in the recording `name`, decompressed; `None` if it was not recorded.
pub(crate) fn recorded(name: &str, file: &str) -> Option<String> {
    use std::io::Read as _;
    let path = root().join("testdata/nodes").join(name).join(file);
    let zipped = path.with_file_name(format!("{}.gz", path.file_name()?.to_str()?));
    if zipped.exists() {
        let mut text = String::new();
        let file = std::fs::File::open(zipped).unwrap();
        flate2::read::GzDecoder::new(file)
            .read_to_string(&mut text)
            .unwrap();
        return Some(text);
    }
    path.exists()
        .then(|| std::fs::read_to_string(path).unwrap())
}

/// From the text of a file to another.
pub(crate) type Change<'a> = &'a dyn Fn(&str) -> String;

/// Copies a recording, with `change` applied to some of its files.
pub(crate) fn broken(name: &str, changes: &[(&str, Change<'_>)]) -> tempfile::TempDir {
    let from = root().join("testdata/nodes").join(name);
    let to = tempfile::tempdir().unwrap();
    for part in ["node", "cluster", "kube-proxy"] {
        std::fs::create_dir(to.path().join(part)).unwrap();
        for file in std::fs::read_dir(from.join(part)).unwrap() {
            let file = file.unwrap();
            let below = to.path().join(part).join(file.file_name());
            std::fs::copy(file.path(), below).unwrap();
        }
    }
    for (file, change) in changes {
        let path = to.path().join(file);
        let old = std::fs::read_to_string(&path).unwrap();
        let new = change(&old);
        assert_ne!(old, new, "{file} did not change");
        std::fs::write(path, new).unwrap();
    }
    to
}

/// Removes the lines of `text` that contain `what`.
pub(crate) fn without(text: &str, what: &str) -> String {
    let lines = text.lines().filter(|line| !line.contains(what));
    lines.flat_map(|line| [line, "\n"]).collect()
}
