//! The nodes, and the place outside.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::{API, BALANCER, CONTROL, EXTERNAL, Lab, NODES, OUTSIDE, ip, netns};
use crate::run::{must, start, wait_for};

impl Lab {
    pub(super) fn node(&self, index: usize, node: &str, address: &str) {
        let (netns, link) = (netns(node), format!("kl-{node}"));
        ip(&format!("netns add {netns}"));
        ip(&format!(
            "link add {link} netns {CONTROL} type veth peer name eth0 netns {netns}"
        ));
        ip(&format!("-n {CONTROL} link set {link} master br0 up"));
        ip(&format!("-n {netns} addr add {address}/24 dev eth0"));
        ip(&format!("-n {netns} link set lo up"));
        ip(&format!("-n {netns} link set eth0 up"));
        ip(&format!("-n {netns} route add default via {API}"));
        for (other, (_, via)) in NODES.into_iter().enumerate() {
            if other != index {
                ip(&format!(
                    "-n {netns} route add 10.244.{other}.0/24 via {via}"
                ));
            }
        }
        must(&[
            "ip",
            "netns",
            "exec",
            &netns,
            "sysctl",
            "-qw",
            "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1",
            "net.bridge.bridge-nf-call-iptables=1",
            "net.bridge.bridge-nf-call-ip6tables=1",
        ]);
        self.node_files(index, node);

        // In a group of each controller, so that the node's own root group is this one.
        let join = "if [ -e /sys/fs/cgroup/cgroup.controllers ]; then all=/sys/fs/cgroup; else all=/sys/fs/cgroup/*/; fi; \
            for controller in $all; do \
                [ -e $controller/cgroup.procs ] || continue; \
                group=$controller/$0; mkdir -p $group; \
                for set in cpuset.cpus cpuset.mems; do \
                    [ ! -e $group/$set ] || cat $controller/$set >$group/$set; done; \
                echo $$ >$group/cgroup.procs; done; exec \"$@\"";
        let settings = [
            format!("LAB={}", self.folder.display()),
            format!("LAB_NODE={node}"),
            format!("LAB_ADDRESS={address}"),
            format!("KUBE_BIN={}", self.programs.display()),
        ];
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/node");
        let mut words = vec!["sh", "-c", join, &netns, "env"];
        words.extend(settings.iter().map(String::as_str));
        let inside = format!("--net=/run/netns/{netns}");
        let app = Self::app();
        words.extend([
            "nsenter", &inside, "unshare", "-m", "-u", "-i", "-C", "-p", "--fork",
        ]);
        words.extend([
            "--propagation",
            "private",
            &app,
            "init",
            script.to_str().unwrap(),
        ]);
        let child = start(&words, &self.log(node));
        let pid = child.id();
        thread::spawn(move || {
            let mut child = child;
            child.wait()
        });
        let first = wait_for("a node's first process", Duration::from_secs(20), || {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
            // The shell before it has children, too.
            let first: u32 = children.split_whitespace().next()?.parse().ok()?;
            let words = fs::read_to_string(format!("/proc/{first}/cmdline")).ok()?;
            words.starts_with(&format!("{app}\0init")).then_some(first)
        });
        // Its end is the end of every process of the node.
        self.record(node, first);
    }

    fn node_files(&self, index: usize, node: &str) {
        let etc = self.folder.join(format!("nodes/{node}/root/etc"));
        for folder in [
            "cni/net.d",
            "containerd",
            "kubernetes/pki",
            "kubernetes/manifests",
        ] {
            fs::create_dir_all(etc.join(folder)).unwrap();
        }
        for folder in ["var/log", "var/lib", "root"] {
            fs::create_dir_all(etc.parent().unwrap().join(folder)).unwrap();
        }
        for name in [
            "passwd",
            "group",
            "nsswitch.conf",
            "protocols",
            "services",
            "os-release",
            "alternatives",
            "ld.so.cache",
        ] {
            let from = format!("/etc/{name}");
            must(&["cp", "-a", &from, etc.to_str().unwrap()]);
        }
        let random = must(&["openssl", "rand", "-hex", "16"]);
        let hosts: String = NODES
            .map(|(name, address)| format!("{address} {name}\n"))
            .concat();
        let network = format!(
            r#"{{"cniVersion":"0.4.0","name":"pods","plugins":[{{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":false,"hairpinMode":true,"ipam":{{"type":"host-local","ranges":[[{{"subnet":"10.244.{index}.0/24"}}]],"routes":[{{"dst":"0.0.0.0/0"}}]}}}},{{"type":"portmap","capabilities":{{"portMappings":true}}}}]}}"#
        );
        for (name, text) in [
            ("machine-id", random.as_str()),
            ("hostname", &format!("{node}\n")),
            ("hosts", &format!("127.0.0.1 localhost\n{hosts}")),
            ("resolv.conf", "nameserver 127.0.0.1\n"),
            ("cni/net.d/10-pods.conflist", &network),
            ("containerd/config.toml", CONTAINERD),
            ("kubernetes/kubelet.yaml", KUBELET),
        ] {
            fs::write(etc.join(name), text).unwrap();
        }
        let pki = self.folder.join("pki");
        fs::copy(pki.join("ca.crt"), etc.join("kubernetes/pki/ca.crt")).unwrap();
        fs::copy(
            pki.join(format!("{node}.conf")),
            etc.join("kubernetes/kubelet.conf"),
        )
        .unwrap();
        if node == "cp1" {
            fs::copy(pki.join("admin.conf"), etc.join("kubernetes/admin.conf")).unwrap();
        }
        let mounts = etc.join("mtab");
        drop(fs::remove_file(&mounts));
        symlink("/proc/mounts", mounts).unwrap();
    }

    pub(super) fn outside() {
        ip(&format!("netns add {OUTSIDE}"));
        ip(&format!(
            "link add kl-out netns {CONTROL} type veth peer name eth0 netns {OUTSIDE}"
        ));
        ip(&format!("-n {CONTROL} link set kl-out master br0 up"));
        ip(&format!("-n {OUTSIDE} addr add 10.210.0.99/24 dev eth0"));
        ip(&format!("-n {OUTSIDE} link set lo up"));
        ip(&format!("-n {OUTSIDE} link set eth0 up"));
        for address in [EXTERNAL, BALANCER] {
            ip(&format!(
                "-n {OUTSIDE} route add {address}/32 via {}",
                NODES[1].1
            ));
        }
    }
}

const CONTAINERD: &str = r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "lab.local/pause:1"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "/etc/cni/net.d"
"#;

const KUBELET: &str = r"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true, cacheTTL: 0s}, x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
staticPodPath: /etc/kubernetes/manifests
";
