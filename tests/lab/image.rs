//! Container images, written as archives that containerd imports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use crate::run::output;

/// The files of an image: where each comes from, by its path in the image; symbolic links; texts.
#[derive(Default)]
pub(crate) struct Image {
    files: BTreeMap<String, String>,
    links: BTreeMap<String, String>,
    texts: BTreeMap<String, String>,
}

impl Image {
    /// Adds the file or folder `source` at `path`, with the libraries that a program needs.
    pub(crate) fn add(mut self, source: &str, path: &str) -> Self {
        self.put(source, path);
        self
    }

    fn put(&mut self, source: &str, path: &str) {
        if Path::new(source).is_dir() {
            for entry in fs::read_dir(source).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                self.put(&format!("{source}/{name}"), &format!("{path}/{name}"));
            }
            return;
        }
        let known = self.files.insert(path.to_owned(), source.to_owned());
        if known.is_some() {
            return;
        }
        self.put_libraries(source);
    }

    fn put_libraries(&mut self, program: &str) {
        // It fails for what is no dynamic program, and then there is nothing to add.
        for line in output(&["ldd", program]).unwrap_or_default().lines() {
            let library = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some(library) = library {
                self.put(library, library);
            }
        }
    }

    /// Adds the libraries that `program` needs, which runs in the image without being part of it: none if it is static.
    pub(crate) fn libraries_of(mut self, program: &str) -> Self {
        self.put_libraries(program);
        self
    }

    /// Adds a symbolic link.
    pub(crate) fn link(mut self, target: &str, path: &str) -> Self {
        self.links.insert(path.to_owned(), target.to_owned());
        self
    }

    /// Adds an executable file with `text`.
    pub(crate) fn text(mut self, text: &str, path: &str) -> Self {
        self.texts.insert(path.to_owned(), text.to_owned());
        self
    }

    /// The rest of the official image of kube-proxy: its tools and a shell.
    pub(crate) fn tools(mut self) -> Self {
        for tool in [
            "/usr/sbin/xtables-nft-multi",
            "/usr/sbin/xtables-legacy-multi",
            "/usr/sbin/nft",
            "/usr/sbin/ipset",
            "/usr/sbin/conntrack",
            "/bin/kmod",
            "/bin/dash",
            "/bin/cat",
            "/bin/chmod",
            "/bin/grep",
            "/bin/sleep",
            "/etc/protocols",
            "/etc/services",
            "/usr/lib/x86_64-linux-gnu/xtables",
        ] {
            self.put(tool, tool);
        }
        for tool in ["iptables", "ip6tables"] {
            for part in ["", "-save", "-restore"] {
                for (flavour, program) in [("", "nft"), ("-nft", "nft"), ("-legacy", "legacy")] {
                    let path = format!("/usr/sbin/{tool}{flavour}{part}");
                    self = self.link(&format!("xtables-{program}-multi"), &path);
                }
            }
        }
        self.link("dash", "/bin/sh")
            .link("/bin/kmod", "/sbin/modprobe")
    }

    /// Writes the image `name` that starts `command` to the archive `out`.
    pub(crate) fn write(self, name: &str, command: &[&str], out: &Path) {
        let mut layer = Builder::new(Vec::new());
        let mut folders = BTreeSet::new();
        for folder in [
            "tmp",
            "run",
            "etc",
            "var",
            "lib/modules",
            "proc",
            "sys",
            "dev",
        ] {
            make_folder(&mut layer, &mut folders, folder);
        }
        for (path, source) in &self.files {
            let path = path.trim_start_matches('/');
            make_parent(&mut layer, &mut folders, path);
            let mut file = File::open(source).unwrap();
            let mut header = header(EntryType::Regular, file.metadata().unwrap().len());
            layer.append_data(&mut header, path, &mut file).unwrap();
        }
        let passwd = (
            "/etc/passwd".to_owned(),
            "root:x:0:0:root:/root:/bin/sh\n".to_owned(),
        );
        for (path, text) in self.texts.iter().chain([(&passwd.0, &passwd.1)]) {
            let path = path.trim_start_matches('/');
            make_parent(&mut layer, &mut folders, path);
            let mut header = header(EntryType::Regular, text.len() as u64);
            layer
                .append_data(&mut header, path, text.as_bytes())
                .unwrap();
        }
        for (path, target) in &self.links {
            let path = path.trim_start_matches('/');
            make_parent(&mut layer, &mut folders, path);
            let mut header = header(EntryType::Symlink, 0);
            layer.append_link(&mut header, path, target).unwrap();
        }
        let layer = layer.into_inner().unwrap();
        let hash = |bytes: &[u8]| {
            let mut text = String::new();
            for byte in Sha256::digest(bytes) {
                write!(text, "{byte:02x}").unwrap();
            }
            text
        };
        let layer_hash = hash(&layer);
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {
                "Entrypoint": command,
                "Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_hash}")] },
        })
        .to_string();
        let config_name = format!("{}.json", hash(config.as_bytes()));
        let layer_name = format!("{layer_hash}/layer.tar");
        let manifest =
            json!([{ "Config": config_name, "RepoTags": [name], "Layers": [layer_name] }]);
        let mut archive = Builder::new(File::create(out).unwrap());
        for (path, bytes) in [
            (config_name.as_str(), config.as_bytes()),
            (&layer_name, &layer),
            ("manifest.json", manifest.to_string().as_bytes()),
        ] {
            let mut header = header(EntryType::Regular, bytes.len() as u64);
            archive.append_data(&mut header, path, bytes).unwrap();
        }
        archive.finish().unwrap();
    }
}

fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_size(size);
    header
}

fn make_parent(layer: &mut Builder<Vec<u8>>, made: &mut BTreeSet<String>, path: &str) {
    if let Some((parent, _)) = path.rsplit_once('/') {
        make_folder(layer, made, parent);
    }
}

fn make_folder(layer: &mut Builder<Vec<u8>>, made: &mut BTreeSet<String>, path: &str) {
    make_parent(layer, made, path);
    if made.insert(path.to_owned()) {
        let mut header = header(EntryType::Directory, 0);
        layer
            .append_data(&mut header, path, std::io::empty())
            .unwrap();
    }
}
