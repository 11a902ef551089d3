//! A Kubernetes cluster of three nodes on this machine: etcd, the control plane, containerd, kubelet and kube-proxy as
//! kubeadm deploys it, in namespaces of its own.
//!
//! Its state is in `target/lab`; what is named `kpx-lab-*` belongs to it. It stays until [`Lab::down`].

mod control;
mod nodes;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;
use std::{env, fs};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::image::Image;
use crate::run::{command, must, output, output_with, start, wait_for};

/// The nodes, each with its address. Pods of the first, second, third are in 10.244.0.0/24, 10.244.1.0/24, 10.244.2.0/24.
pub(crate) const NODES: [(&str, &str); 3] = [
    ("cp1", "10.210.0.15"),
    ("w1", "10.210.0.16"),
    ("w2", "10.210.0.17"),
];

/// The namespace of the control plane, which is also the switch between the nodes, and a place outside.
pub(crate) const CONTROL: &str = "kpx-lab-control";
pub(crate) const OUTSIDE: &str = "kpx-lab-outside";

/// The static program, which runs everywhere and copies itself into pods of kube-proxy's image: `make static`.
pub(crate) const STATIC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/static/kpx");

/// An external address and that of a load balancer; both lead to w1.
pub(crate) const EXTERNAL: &str = "10.210.0.77";
pub(crate) const BALANCER: &str = "10.210.0.200";

const API: &str = "10.210.0.2";

const PROGRAMS: [&str; 6] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
];

/// Debian packages of the tools that `make packages` does not install.
const TOOLS: [(&str, &str); 9] = [
    ("etcd", "etcd-server"),
    ("containerd", "containerd"),
    ("runc", "runc"),
    ("openssl", "openssl"),
    ("ip", "iproute2"),
    ("iptables", "iptables"),
    ("nft", "nftables"),
    ("ipset", "ipset"),
    ("conntrack", "conntrack"),
];

pub(crate) struct Lab {
    /// The folder of the cluster's state.
    pub(crate) folder: PathBuf,
    programs: PathBuf,
}

/// Runs `ip` with these words.
fn ip(words: &str) {
    let words: Vec<_> = ["ip"].into_iter().chain(words.split(' ')).collect();
    must(&words);
}

/// The namespace of a node.
fn netns(node: &str) -> String {
    format!("kpx-lab-{node}")
}

impl Lab {
    /// The cluster of this project, with the Kubernetes programs from the folder that `KUBE_BIN` names; else why there can
    /// be none.
    #[expect(
        clippy::disallowed_methods,
        reason = "the harness has no other settings"
    )]
    pub(crate) fn new() -> Result<Self, String> {
        let programs = env::var("KUBE_BIN").unwrap_or_default();
        if programs.is_empty() {
            return Err("KUBE_BIN does not name the folder of the Kubernetes programs".to_owned());
        }
        let programs = fs::canonicalize(&programs).map_err(|e| format!("{programs}: {e}"))?;
        for name in PROGRAMS {
            if !programs.join(name).is_file() {
                return Err(format!("{} has no {name}", programs.display()));
            }
        }
        for (tool, package) in TOOLS {
            if output(&["sh", "-c", &format!("command -v {tool}")]).is_err() {
                return Err(format!("{tool} is missing: apt-get install {package}"));
            }
        }
        if !Path::new("/usr/lib/cni/bridge").is_file() {
            let package = "containernetworking-plugins";
            return Err(format!(
                "/usr/lib/cni/bridge is missing: apt-get install {package}"
            ));
        }
        if must(&["id", "-u"]).trim() != "0" {
            return Err("root is needed".to_owned());
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/lab");
        Ok(Self { folder, programs })
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("log/{name}.log"))
    }

    /// Copies the logs of the cluster to a folder for the failed scenario `name`; returns the folder.
    pub(crate) fn keep_logs(&self, name: &str) -> PathBuf {
        let kept = self.folder.with_file_name(format!("lab-failed-{name}"));
        drop(fs::remove_dir_all(&kept));
        must(&["mkdir", "-p", kept.to_str().unwrap()]);
        must(&["cp", "-r", &self.path("log"), kept.to_str().unwrap()]);
        for (node, _) in NODES {
            let log = self.path(&format!("nodes/{node}/root/var/log"));
            must(&["cp", "-r", &log, kept.join(node).to_str().unwrap()]);
        }
        kept
    }

    pub(crate) fn program(&self, name: &str) -> String {
        self.programs.join(name).to_str().unwrap().to_owned()
    }

    /// The version of the Kubernetes programs, such as `v1.36.2`.
    pub(crate) fn version(&self) -> String {
        let said = must(&[&self.program("kube-proxy"), "--version"]);
        said.split_whitespace().last().unwrap().to_owned()
    }

    /// Makes the cluster, and waits until it serves.
    pub(crate) fn up(&self) {
        self.ready();
        self.images();
        self.control_plane();
        for (index, (node, address)) in NODES.into_iter().enumerate() {
            self.node(index, node, address);
        }
        Self::outside();
        for (node, _) in NODES {
            let limit = Duration::from_secs(120);
            wait_for(&format!("node {node}"), limit, || {
                output(&["sh", "-c", &self.admin(&format!("get node {node}"))]).ok()
            });
        }
        self.kubectl("label node cp1 node-role.kubernetes.io/control-plane=");
        let proxy = include_str!("kube-proxy.yaml").replace("VERSION", &self.version());
        self.apply(&proxy);
        self.apply(include_str!("objects.yaml"));
        for base in ["rbac", "rbac-migrate", "rbac-nodes"] {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/kustomize");
            self.apply(&self.kubectl(&format!("kustomize {folder}/{base}")));
        }
        self.kubectl(&format!(
            "-n demo patch service edge-balanced --subresource=status --type=merge \
             -p '{{\"status\":{{\"loadBalancer\":{{\"ingress\":[{{\"ip\":\"{BALANCER}\"}}]}}}}}}'"
        ));
        let kubeconfig = self.kubeconfig_of("kpx");
        fs::write(self.folder.join("pki/kpx.conf"), kubeconfig).unwrap();
        self.settled();
    }

    /// Ends an earlier cluster, if there is one, and makes the start of a new one.
    pub(crate) fn ready(&self) {
        self.down();
        drop(fs::remove_dir_all(&self.folder));
        for folder in ["log", "pids", "pki", "images", "bin"] {
            fs::create_dir_all(self.folder.join(folder)).unwrap();
        }
        self.credentials();
    }

    /// Waits until every pod is as its controller wants it.
    pub(crate) fn settled(&self) {
        self.kubectl("-n kube-system rollout status daemonset/kube-proxy --timeout=180s");
        for what in [
            "deployment/web",
            "deployment/api",
            "daemonset/edge",
            "daemonset/client",
        ] {
            self.kubectl(&format!("-n demo rollout status {what} --timeout=180s"));
        }
    }

    /// Ends every process of the cluster and removes its namespaces.
    pub(crate) fn down(&self) {
        if let Ok(entries) = fs::read_dir(self.folder.join("pids")) {
            for entry in entries {
                let path = entry.unwrap().path();
                let recorded = fs::read_to_string(&path).unwrap();
                let (pid, began) = recorded.split_once(' ').unwrap();
                let pid: i32 = pid.parse().unwrap();
                // Another process may have got its number.
                if began_of(pid).as_deref() == Some(began) {
                    kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
                    wait_for("the end of a process", Duration::from_secs(20), || {
                        (began_of(pid).as_deref() != Some(began)).then_some(())
                    });
                }
                fs::remove_file(path).unwrap();
            }
        }
        for (node, _) in NODES {
            drop(output(&["ip", "netns", "del", &netns(node)]));
            for controller in fs::read_dir("/sys/fs/cgroup").into_iter().flatten() {
                let group = controller.unwrap().path().join(netns(node));
                // Those of its containers go with their processes, which takes a moment; what stays is empty.
                drop(output(&[
                    "find",
                    group.to_str().unwrap(),
                    "-depth",
                    "-type",
                    "d",
                    "-delete",
                ]));
            }
        }
        for name in [CONTROL, OUTSIDE] {
            drop(output(&["ip", "netns", "del", name]));
        }
    }

    fn record(&self, name: &str, pid: u32) {
        let began = began_of(pid.cast_signed()).unwrap_or_else(|| panic!("{name} ended"));
        fs::write(
            self.folder.join("pids").join(name),
            format!("{pid} {began}"),
        )
        .unwrap();
    }

    pub(crate) fn daemon(&self, name: &str, words: &[&str]) {
        let child = start(words, &self.log(name));
        self.record(name, child.id());
        // It is ended by `down`, perhaps of another process.
        thread::spawn(move || {
            let mut child = child;
            child.wait()
        });
    }

    /// The program of the harness itself, which the pods of the traffic run.
    pub(crate) fn app() -> String {
        let path = fs::read_link("/proc/self/exe").unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn images(&self) {
        let (app, images) = (Self::app(), self.folder.join("images"));
        let of_app = || Image::default().add(&app, "/app");
        of_app().write(
            "lab.local/pause:1",
            &["/app", "idle"],
            &images.join("pause.tar"),
        );
        of_app().write("lab.local/app:1", &["/app"], &images.join("app.tar"));
        let kube_proxy = self.program("kube-proxy");
        let name = format!("lab.local/kube-proxy:{}", self.version());
        let path = "/usr/local/bin/kube-proxy";
        // kpx copies itself into pods of this image; a debug build, which saves time while one works on it, is not static.
        let image = Image::default().add(&kube_proxy, path).tools();
        let image = image.libraries_of(STATIC);
        image.write(&name, &[path], &images.join("kube-proxy.tar"));
        // One that ends in mode nftables.
        let broken = "#!/bin/sh\n\
            if grep -q 'mode: \"*nftables' /var/lib/kube-proxy/config.conf; then\n\
            echo 'E1122 cannot allocate what nftables needs' >&2; exit 1; fi\n\
            exec /usr/local/lib/kube-proxy \"$@\"\n";
        let image = Image::default()
            .add(&kube_proxy, "/usr/local/lib/kube-proxy")
            .tools();
        let image = image.text(broken, path);
        image.write(
            "lab.local/kube-proxy:broken",
            &[path],
            &images.join("broken.tar"),
        );
        fs::copy(STATIC, self.folder.join("bin/kpx")).expect("`make static` builds it");
        let path = "/usr/local/bin/kpx";
        let image = Image::default()
            .add(&self.path("bin/kpx"), path)
            .link(path, "/kpx")
            .tools();
        image.write("lab.local/kpx:1", &[path], &images.join("kpx.tar"));
        self.release_image(&images.join("release.tar"));
    }

    /// Writes the image of a release, which has kpx alone, as `make image` does.
    fn release_image(&self, archive: &Path) {
        let arch = match env::consts::ARCH {
            "aarch64" => "arm64",
            _ => "amd64",
        };
        let version = env!("CARGO_PKG_VERSION");
        must(&[
            "env",
            &format!("VERSION={version}"),
            "SOURCE_DATE_EPOCH=0",
            concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/dist/image"),
            &format!("kpx:{version}"),
            archive.to_str().unwrap(),
            &format!("{arch}={}", self.path("bin/kpx")),
        ]);
    }

    /// The command that runs `words` as root on a node: in its mounts, processes and network.
    pub(crate) fn on(&self, node: &str, words: &[&str]) -> Command {
        let recorded = fs::read_to_string(self.folder.join("pids").join(node));
        let recorded = recorded.unwrap_or_else(|error| panic!("node {node} does not run: {error}"));
        let pid = recorded.split_once(' ').unwrap().0;
        let path = format!(
            "PATH={}:{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            self.path("bin"),
            self.programs.display()
        );
        let mut all = vec![
            "nsenter", "-t", pid, "-m", "-u", "-i", "-n", "-p", "-C", "env", "-i",
        ];
        all.extend([path.as_str(), "HOME=/root", "TERM=xterm", "LANG=C.UTF-8"]);
        all.extend(words);
        command(&all)
    }

    /// The output of the shell command `script` on a node, where it must succeed.
    pub(crate) fn sh(&self, node: &str, script: &str) -> String {
        let output = self.on(node, &["sh", "-c", script]).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success(),
            "{node}: {script}: {}\n{out}{err}",
            output.status
        );
        out
    }

    /// The command that runs `words` where the API is reached with the kubeconfig `pki/CONFIG.conf`, and no node is.
    pub(crate) fn laptop(&self, config: &str, words: &[&str]) -> Command {
        let kubeconfig = format!("KUBECONFIG={}", self.path(&format!("pki/{config}.conf")));
        let path = format!(
            "PATH={}:{}:/usr/sbin:/usr/bin:/sbin:/bin",
            self.path("bin"),
            self.programs.display()
        );
        let mut all = vec!["ip", "netns", "exec", CONTROL, "env", &kubeconfig, &path];
        all.extend(words);
        command(&all)
    }

    fn admin(&self, arguments: &str) -> String {
        let kubeconfig = self.path("pki/admin.conf");
        let kubectl = self.program("kubectl");
        format!("ip netns exec {CONTROL} {kubectl} --kubeconfig={kubeconfig} {arguments}")
    }

    /// The output of kubectl, where it must succeed; `arguments` are words of a shell.
    pub(crate) fn kubectl(&self, arguments: &str) -> String {
        must(&["sh", "-c", &self.admin(arguments)])
    }

    /// The command of kubectl with these `arguments`, words of a shell.
    pub(crate) fn kubectl_as_admin(&self, arguments: &str) -> Command {
        command(&["sh", "-c", &self.admin(arguments)])
    }

    /// Sets a field of kube-proxy's configuration: the whole ConfigMap anew.
    pub(crate) fn configure(&self, field: &str, value: &str) {
        let file = self.folder.join("configmap.yaml");
        let text = self.kubectl("-n kube-system get configmap kube-proxy -o yaml");
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(&format!("{field}: ")))
            .unwrap();
        let indent = &line[..line.len() - line.trim_start().len()];
        fs::write(
            &file,
            text.replace(line, &format!("{indent}{field}: {value}")),
        )
        .unwrap();
        self.kubectl(&format!("replace -f {}", file.display()));
    }

    /// The objects that kubectl lists.
    pub(crate) fn objects(&self, arguments: &str) -> Vec<Value> {
        let text = self.kubectl(&format!("{arguments} -o json"));
        let list: Value = serde_json::from_str(&text).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    pub(crate) fn apply(&self, objects: &str) {
        let words = self.admin("apply -f -");
        output_with(&["sh", "-c", &words], objects).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The words that run a program in the network of the outside, of a node, or of the pod of `client` on a node.
    pub(crate) fn outside_network() -> String {
        format!("/run/netns/{OUTSIDE}")
    }

    pub(crate) fn node_network(node: &str) -> String {
        format!("/run/netns/{}", netns(node))
    }

    pub(crate) fn pod_network(&self, node: &str) -> String {
        let pods = self.objects("-n demo get pods -l app=client");
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == node);
        let pod = pod.unwrap_or_else(|| panic!("no client on {node}"));
        let address = pod["status"]["podIP"].as_str().unwrap();
        for entry in fs::read_dir("/proc").unwrap() {
            let process = entry.unwrap().path();
            let read = |name: &str| fs::read_to_string(process.join(name)).unwrap_or_default();
            let idle = read("cmdline") == "/app\0idle\0";
            if idle && read("net/fib_trie").contains(&format!("-- {address}\n")) {
                return process.join("ns/net").to_str().unwrap().to_owned();
            }
        }
        panic!("no process of the client on {node}");
    }

    /// The cluster address of a Service in namespace demo.
    pub(crate) fn address(&self, service: &str) -> String {
        self.kubectl(&format!(
            "-n demo get service {service} -o jsonpath='{{.spec.clusterIP}}'"
        ))
    }
}

/// When a process began, in the kernel's ticks; nothing where there is none or it has ended.
fn began_of(pid: i32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    (words.next()? != "Z").then_some(())?;
    words.nth(18).map(str::to_owned)
}
