//! The control plane, and what it trusts.

use std::fs;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{API, CONTROL, Lab, NODES, ip};
use crate::run::{must, output, wait_for};

impl Lab {
    fn certificate(&self, name: &str, subject: &str, names: &str) {
        let file = |kind: &str| self.path(&format!("pki/{name}.{kind}"));
        must(&[
            "openssl",
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            &file("key"),
            "-out",
            &file("csr"),
            "-subj",
            subject,
        ]);
        fs::write(file("ext"), format!("subjectAltName={names}\n")).unwrap();
        must(&[
            "openssl",
            "x509",
            "-req",
            "-in",
            &file("csr"),
            "-CA",
            &self.path("pki/ca.crt"),
            "-CAkey",
            &self.path("pki/ca.key"),
            "-CAcreateserial",
            "-days",
            "30",
            "-extfile",
            &file("ext"),
            "-out",
            &file("crt"),
        ]);
    }

    fn kubeconfig(&self, user: &str) -> String {
        let authority = base64(&self.path("pki/ca.crt"));
        format!(
            "apiVersion: v1\nkind: Config\n\
             clusters: [{{name: lab, cluster: {{server: \"https://{API}:6443\", certificate-authority-data: {authority}}}}}]\n\
             contexts: [{{name: lab, context: {{cluster: lab, user: user}}}}]\ncurrent-context: lab\n\
             users: [{{name: user, user: {{{user}}}}}]\n"
        )
    }

    pub(super) fn credentials(&self) {
        must(&[
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            &self.path("pki/ca.key"),
            "-out",
            &self.path("pki/ca.crt"),
            "-days",
            "30",
            "-subj",
            "/CN=kubernetes",
        ]);
        let (key, public) = (self.path("pki/sa.key"), self.path("pki/sa.pub"));
        must(&["openssl", "genrsa", "-out", &key, "2048"]);
        must(&["openssl", "rsa", "-in", &key, "-pubout", "-out", &public]);
        let names = format!("DNS:kubernetes,DNS:localhost,IP:127.0.0.1,IP:{API},IP:10.96.0.1");
        self.certificate("apiserver", "/CN=kube-apiserver", &names);
        self.certificate(
            "kubelet-client",
            "/O=system:masters/CN=kubelet-client",
            "DNS:client",
        );
        let mut clients = vec![
            ("admin", "/O=system:masters/CN=admin".to_owned()),
            (
                "controller-manager",
                "/CN=system:kube-controller-manager".to_owned(),
            ),
            ("scheduler", "/CN=system:kube-scheduler".to_owned()),
        ];
        for (node, _) in NODES {
            clients.push((node, format!("/O=system:nodes/CN=system:node:{node}")));
        }
        for (name, subject) in clients {
            self.certificate(name, &subject, "DNS:client");
            let [crt, key] =
                ["crt", "key"].map(|kind| base64(&self.path(&format!("pki/{name}.{kind}"))));
            let user = format!("client-certificate-data: {crt}, client-key-data: {key}");
            let file = self.folder.join(format!("pki/{name}.conf"));
            fs::write(file, self.kubeconfig(&user)).unwrap();
        }
    }

    /// A kubeconfig for the service account kube-system/`account`.
    pub(crate) fn kubeconfig_of(&self, account: &str) -> String {
        let token = self.kubectl(&format!(
            "-n kube-system create token {account} --duration=24h"
        ));
        self.kubeconfig(&format!("token: {}", token.trim()))
    }

    pub(crate) fn start_api(&self) {
        let pki = |name: &str| self.path(&format!("pki/{name}"));
        self.daemon(
            "api",
            &[
                "ip",
                "netns",
                "exec",
                CONTROL,
                &self.program("kube-apiserver"),
                "--etcd-servers=http://127.0.0.1:2379",
                "--bind-address=0.0.0.0",
                "--secure-port=6443",
                &format!("--advertise-address={API}"),
                &format!("--tls-cert-file={}", pki("apiserver.crt")),
                &format!("--tls-private-key-file={}", pki("apiserver.key")),
                &format!("--client-ca-file={}", pki("ca.crt")),
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                &format!("--service-account-key-file={}", pki("sa.pub")),
                &format!("--service-account-signing-key-file={}", pki("sa.key")),
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                "--service-cluster-ip-range=10.96.0.0/12",
                &format!("--kubelet-client-certificate={}", pki("kubelet-client.crt")),
                &format!("--kubelet-client-key={}", pki("kubelet-client.key")),
                "--allow-privileged=true",
                "--kubelet-preferred-address-types=InternalIP",
                "--v=1",
            ],
        );
    }

    pub(crate) fn wait_for_api(&self) {
        wait_for("the API server", Duration::from_secs(90), || {
            output(&["sh", "-c", &self.admin("get --raw /readyz")]).ok()
        });
    }

    /// Ends the API server as a crash would.
    pub(crate) fn kill_api(&self) {
        let recorded = fs::read_to_string(self.folder.join("pids/api")).unwrap();
        let pid: i32 = recorded.split_once(' ').unwrap().0.parse().unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }

    /// Starts etcd and the API server, and waits for it.
    pub(crate) fn api(&self) {
        must(&["ip", "netns", "add", CONTROL]);
        ip(&format!("-n {CONTROL} link set lo up"));
        ip(&format!("-n {CONTROL} link add br0 type bridge"));
        ip(&format!("-n {CONTROL} addr add {API}/24 dev br0"));
        ip(&format!("-n {CONTROL} link set br0 up"));
        must(&[
            "ip",
            "netns",
            "exec",
            CONTROL,
            "sysctl",
            "-qw",
            "net.ipv4.ip_forward=1",
        ]);
        self.daemon(
            "etcd",
            &[
                "ip",
                "netns",
                "exec",
                CONTROL,
                "etcd",
                "--data-dir",
                &self.path("etcd"),
                "--listen-client-urls",
                "http://127.0.0.1:2379",
                "--advertise-client-urls",
                "http://127.0.0.1:2379",
                "--unsafe-no-fsync",
                "--log-level",
                "warn",
            ],
        );
        self.start_api();
        self.wait_for_api();
    }

    pub(super) fn control_plane(&self) {
        self.api();
        let manager = self.path("pki/controller-manager.conf");
        self.daemon(
            "controller-manager",
            &[
                "ip",
                "netns",
                "exec",
                CONTROL,
                &self.program("kube-controller-manager"),
                &format!("--kubeconfig={manager}"),
                &format!("--authentication-kubeconfig={manager}"),
                &format!("--authorization-kubeconfig={manager}"),
                &format!("--root-ca-file={}", self.path("pki/ca.crt")),
                &format!(
                    "--service-account-private-key-file={}",
                    self.path("pki/sa.key")
                ),
                "--use-service-account-credentials=true",
                "--leader-elect=false",
                // The default of 50 s and the reconnection of all watches, up to 30 s, race after the API server was away:
                // nodes that serve would then become NotReady, and their endpoints with them.
                "--node-monitor-grace-period=120s",
                "--cluster-cidr=10.244.0.0/16",
                "--bind-address=127.0.0.1",
            ],
        );
        let scheduler = self.path("pki/scheduler.conf");
        self.daemon(
            "scheduler",
            &[
                "ip",
                "netns",
                "exec",
                CONTROL,
                &self.program("kube-scheduler"),
                &format!("--kubeconfig={scheduler}"),
                &format!("--authentication-kubeconfig={scheduler}"),
                &format!("--authorization-kubeconfig={scheduler}"),
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
            ],
        );
    }
}

fn base64(file: &str) -> String {
    must(&["base64", "-w0", file])
}
