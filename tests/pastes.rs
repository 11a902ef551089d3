//! `--from` with pasted texts and with support bundles of other tools.

use std::fs;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};
use std::io::Write as _;

use crate::support::{kpx, root};

mod alone;
pub(crate) mod answers;
mod tables;

fn sample(name: &str) -> String {
    root()
        .join("testdata/pastes")
        .join(name)
        .display()
        .to_string()
}

/// Returns a page without its line breaks.
fn flat(page: &str) -> String {
    page.split_whitespace().collect::<Vec<_>>().join(" ")
}

const MIXED: &str = "90-mixed-iptables-nodeport.txt";
const IPVS: &str = "91-mixed-ipvs.txt";

#[tokio::test]
async fn a_paste_of_two_moments_gives_the_endpoints_of_both() {
    let from = sample(MIXED);
    let ran = kpx(&[
        "--from",
        &from,
        "trace",
        "10.97.54.248:80",
        "--source",
        "10.244.1.20",
    ])
    .await;
    for endpoint in ["10.244.1.14:80", "10.244.1.16:80", "10.244.1.17:80"] {
        assert!(ran.out.contains(&format!("33.3%  {endpoint}")), "{ran}");
    }
    // The filter is not in the text.
    assert_eq!(ran.code, 3, "{ran}");
    assert!(
        flat(&ran.out).contains("raw, mangle, filter that the evidence does not show"),
        "{ran}"
    );
    assert!(
        ran.err.contains("node master: rules (nat)") && ran.err.contains("node1"),
        "{ran}"
    );
    let later = kpx(&["--from", &from, "trace", "nodeport:31082"]).await;
    assert!(later.out.contains("KUBE-SVC-XKWTKZBTDCMU3FHC"), "{later}");
    for endpoint in ["10.244.1.14:80", "10.244.1.16:80", "10.244.1.17:80"] {
        assert!(later.out.contains(&format!("33.3%  {endpoint}")), "{later}");
    }
    assert!(
        later
            .out
            .contains("192.0.2.1 stands for an address of the node"),
        "{later}"
    );
}

#[tokio::test]
async fn why_answers_a_paste_as_far_as_it_goes() {
    let ran = kpx(&["--from", &sample(MIXED), "why", "default/nginx-svc"]).await;
    assert_eq!(ran.code, 3, "{ran}");
    assert!(
        flat(&ran.out).contains("does not show all chains of raw, mangle, filter"),
        "{ran}"
    );
    assert!(ran.out.contains("10.244.1.17:80  ready"), "{ran}");
}

#[tokio::test]
async fn a_paste_of_ipvs_gives_its_virtual_servers() {
    let from = sample(IPVS);
    let shown = kpx(&["--from", &from, "show", "ipvs"]).await;
    assert!(
        shown.out.contains("172.17.0.1:30001") && shown.out.contains("10.244.4.29:8000"),
        "{shown}"
    );
    let other = kpx(&[
        "--from",
        &from,
        "--node",
        "master1",
        "trace",
        "10.106.71.137:80",
    ])
    .await;
    assert!(other.out.contains("100%  10.244.3.214:80"), "{other}");
    // Only one of its virtual servers is shown.
    let unseen = kpx(&[
        "--from",
        &from,
        "--node",
        "master1",
        "trace",
        "10.106.71.138:80",
    ])
    .await;
    assert!(unseen.out.contains("only some virtual servers"), "{unseen}");
    let none = kpx(&["--from", &from, "--node", "elsewhere", "show", "ipvs"]).await;
    assert_eq!(none.code, 2, "{none}");
}

#[tokio::test]
async fn checks_decide_nothing_from_a_part() {
    for name in [
        MIXED,
        IPVS,
        "03-iptables-nat-L.txt",
        "17-iptables-nvL-grep.txt",
        "18-iptables-nvL-cut.txt",
    ] {
        let ran = kpx(&["--from", &sample(name), "doctor", "-o", "json"]).await;
        let report: serde_json::Value =
            serde_json::from_str(&ran.out).unwrap_or_else(|why| panic!("{why}: {ran}"));
        let findings = report["findings"].as_array().unwrap();
        let about_rules = findings
            .iter()
            .filter(|finding| finding["severity"] == "error")
            .collect::<Vec<_>>();
        assert!(about_rules.is_empty(), "{name}: {about_rules:#?}");
    }
}

#[tokio::test]
async fn a_cut_listing_is_unknown_behind_the_cut() {
    let from = sample("18-iptables-nvL-cut.txt");
    let ran = kpx(&["--from", &from, "show", "chains", "-o", "json"]).await;
    assert!(ran.out.contains("KPX-NOT-SHOWN") || ran.code != 0, "{ran}");
}

#[tokio::test]
async fn prose_and_nothing_are_no_evidence() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mail.txt");
    fs::write(&file, "Hello,\n\nmy Service does not work.\n").unwrap();
    let ran = kpx(&[
        "--from",
        &file.display().to_string(),
        "trace",
        "10.0.0.1:80",
    ])
    .await;
    assert!(
        ran.err.contains("no output of a command that kpx knows"),
        "{ran}"
    );
    assert_ne!(ran.code, 0, "{ran}");
    // Standard input is empty here.
    let ran = kpx(&["--from", "-", "show", "ipvs"]).await;
    assert!(ran.err.contains("no output of a command"), "{ran}");
}

#[tokio::test]
async fn several_inputs_are_joined() {
    let rules = sample("09-iptables-nat-S.txt");
    let services = sample("56-kubectl-list.yaml");
    let ran = kpx(&["--from", &rules, "--from", &services, "show", "services"]).await;
    assert!(ran.out.contains("shop/cart"), "{ran}");
    assert!(ran.err.contains("kpx: pasted texts: "), "{ran}");
}

#[tokio::test]
async fn a_paste_becomes_a_bundle_without_a_time() {
    let dir = tempfile::tempdir().unwrap();
    for redact in [false, true] {
        let bundle = dir
            .path()
            .join(format!("{redact}.tar.gz"))
            .display()
            .to_string();
        let from = sample(MIXED);
        let mut args = vec!["--from", &from, "snapshot", "--file", &bundle];
        if redact {
            args.push("--redact");
        }
        let ran = kpx(&args).await;
        // Some items are known in part.
        assert_eq!(ran.code, 3, "{ran}");
        let folder = dir.path().join(format!("{redact}"));
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(
            fs::File::open(&bundle).unwrap(),
        ));
        archive.unpack(&folder).unwrap();
        let inner = fs::read_dir(&folder)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let manifest = fs::read_to_string(inner.join("manifest.json")).unwrap();
        assert!(
            manifest.contains("\"time\": \"unknown\"") && manifest.contains("\"partial\""),
            "{manifest}"
        );
        let rules = fs::read_to_string(inner.join("node/iptables-save.txt")).unwrap();
        assert_eq!(rules.contains("10.97.54.248"), !redact, "{rules}");
        assert!(rules.starts_with("# kpx: shown in part"), "{rules}");
        // It is still a part when it is read again.
        let checked = kpx(&["--from", &bundle, "diff", "--mode", "iptables"]).await;
        assert_ne!(checked.code, 0, "{checked}");
    }
}

/// Writes files into a folder.
fn folder(dir: &Path, files: &[(&str, String)]) -> PathBuf {
    for (path, text) in files {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    dir.to_owned()
}

fn text(name: &str) -> String {
    fs::read_to_string(sample(name)).unwrap()
}

fn saved(name: &str) -> String {
    fs::read_to_string(root().join("testdata/nodes/seed-iptables").join(name)).unwrap()
}

/// Files of an EKS log collector.
fn eks() -> Vec<(&'static str, String)> {
    vec![
        ("system/script-params.txt", "x\n".to_owned()),
        (
            "networking/iptables-save.txt",
            saved("node/iptables-save.txt"),
        ),
        (
            "networking/iptables-nat.txt",
            text("63-eks-iptables-nat-footer.txt"),
        ),
        ("networking/iproute.txt", text("41-ip-route-table-all.txt")),
        (
            "networking/conntrack.txt",
            text("64-eks-conntrack-headers.txt"),
        ),
        (
            "networking/ipvsadm.txt",
            text("62-eks-ipvsadm-three-in-one.txt"),
        ),
        (
            "kernel/uname.txt",
            "Linux ip-192-0-2-10 6.1.0-eks #1 SMP x86_64 GNU/Linux\n".to_owned(),
        ),
    ]
}

fn tar_gz(path: &Path, files: &[(&str, String)]) {
    let mut archive = tar::Builder::new(GzEncoder::new(
        fs::File::create(path).unwrap(),
        Compression::fast(),
    ));
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        archive
            .append_data(&mut header, format!("./{name}"), text.as_bytes())
            .unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap();
}

/// Writes a zip archive with deflated members.
fn zip(path: &Path, files: &[(&str, String)]) {
    let (mut all, mut list) = (Vec::new(), Vec::new());
    for (name, text) in files {
        let mut deflate = DeflateEncoder::new(Vec::new(), Compression::fast());
        deflate.write_all(text.as_bytes()).unwrap();
        let packed = deflate.finish().unwrap();
        let offset = u32::try_from(all.len()).unwrap();
        let sizes = [packed.len(), text.len()]
            .map(|size| u32::try_from(size).unwrap().to_le_bytes())
            .concat();
        let name_length = u16::try_from(name.len()).unwrap().to_le_bytes();
        // Version, flags, method 8, time, date, checksum (which kpx does not look at).
        let common = [20, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        all.extend(b"PK\x03\x04");
        all.extend(common);
        all.extend(&sizes);
        all.extend(name_length);
        all.extend([0, 0]);
        all.extend(name.as_bytes());
        all.extend(packed);
        list.extend(b"PK\x01\x02\x14\x00");
        list.extend(common);
        list.extend(&sizes);
        list.extend(name_length);
        list.extend([0; 12]);
        list.extend(offset.to_le_bytes());
        list.extend(name.as_bytes());
    }
    let (start, length) = (
        u32::try_from(all.len()).unwrap(),
        u32::try_from(list.len()).unwrap(),
    );
    let count = u16::try_from(files.len()).unwrap().to_le_bytes();
    all.extend(list);
    all.extend(b"PK\x05\x06\0\0\0\0");
    all.extend(count);
    all.extend(count);
    all.extend(length.to_le_bytes());
    all.extend(start.to_le_bytes());
    all.extend([0, 0]);
    fs::write(path, all).unwrap();
}

#[tokio::test]
async fn a_support_bundle_is_recognised_in_every_packing() {
    let dir = tempfile::tempdir().unwrap();
    let name = "eks_i-0123456789abcdef0_2026-11-26_1928-UTC_0.7.9";
    let files = eks();
    let packed = dir.path().join(format!("{name}.tar.gz"));
    tar_gz(&packed, &files);
    let zipped = dir.path().join(format!("{name}.zip"));
    zip(&zipped, &files);
    let plain = folder(&dir.path().join(name), &files);
    for path in [packed, zipped, plain] {
        let ran = kpx(&["--from", &path.display().to_string(), "show", "chains"]).await;
        assert!(ran.err.contains("EKS log collector of i-0123456789abcdef0, node ip-192-0-2-10: rules (filter, mangle, nat)"), "{ran}");
        assert!(ran.err.contains("no Services"), "{ran}");
        assert!(ran.out.contains("KUBE-SVC-"), "{ran}");
        let ipvs = kpx(&["--from", &path.display().to_string(), "show", "ipvs"]).await;
        assert!(ipvs.out.contains("10.96.0.1:443"), "{ipvs}");
    }
}

#[tokio::test]
async fn bundles_of_several_nodes_are_several_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let save = saved("node/iptables-save.txt");
    let files = [
        (
            "calico-diagnostics-1/nodes/w1/iptables-legacy-save.txt",
            save.clone(),
        ),
        ("calico-diagnostics-1/nodes/w2/iptables-nft-save.txt", save),
        (
            "calico-diagnostics-1/nodes/w2/ip-addr.txt",
            text("36-ip-addr.txt"),
        ),
        (
            "calico-diagnostics-1/cluster/kubernetes/services.yaml",
            text("56-kubectl-list.yaml"),
        ),
    ];
    let path = dir.path().join("calico-diagnostics-1.tar.gz");
    tar_gz(&path, &files);
    let from = path.display().to_string();
    let one = kpx(&["--from", &from, "--node", "w1", "show", "chains"]).await;
    assert!(
        one.err.contains("calicoctl cluster diags, node w1") && one.out.contains("KUBE-SVC-"),
        "{one}"
    );
    let all = kpx(&["--from", &from, "show", "services", "--all-nodes"]).await;
    assert!(all.out.contains("2 nodes"), "{all}");
    let doctor = kpx(&["--from", &from, "doctor", "--all-nodes", "-o", "json"]).await;
    assert!(
        doctor.out.contains("\"w1\"") && doctor.out.contains("\"w2\""),
        "{doctor}"
    );
}

#[tokio::test]
async fn a_bundle_of_the_cluster_alone_has_no_node() {
    let dir = tempfile::tempdir().unwrap();
    let path = folder(
        dir.path(),
        &[
            (
                "must-gather.local.1/quay/namespaces/shop/core/services.yaml",
                text("56-kubectl-list.yaml"),
            ),
            (
                "must-gather.local.1/quay/cluster-scoped-resources/core/nodes/n1.yaml",
                "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n".to_owned(),
            ),
        ],
    );
    let ran = kpx(&["--from", &path.display().to_string(), "show", "services"]).await;
    assert!(ran.err.contains("must-gather: 1 Service"), "{ran}");
    assert!(ran.out.contains("shop/cart"), "{ran}");
}

#[cfg(unix)]
#[tokio::test]
async fn what_cannot_be_read_is_named() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::symlink;

    let dir = tempfile::tempdir().unwrap();
    let path = folder(dir.path(), &eks());
    fs::write(
        path.join("networking")
            .join(OsStr::from_bytes(b"caf\xe9.txt")),
        "x",
    )
    .unwrap();
    fs::remove_file(path.join("networking/ipvsadm.txt")).unwrap();
    symlink("/etc/passwd", path.join("networking/ipvsadm.txt")).unwrap();
    fs::write(path.join("pods.tar.gz"), "x").unwrap();
    let ran = kpx(&["--from", &path.display().to_string(), "show", "chains"]).await;
    assert!(ran.err.contains("its name is not UTF-8"), "{ran}");
    let nested =
        "pods.tar.gz (it is an archive in this one: unpack it, and name it with another --from)";
    assert!(ran.err.contains(nested), "{ran}");
    assert!(
        ran.err
            .contains("networking/ipvsadm.txt (refused: it is a symbolic link)"),
        "{ran}"
    );
    assert!(!ran.to_string().contains("root:"), "{ran}");
}

#[tokio::test]
async fn a_path_out_of_an_archive_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.zip");
    let mut files = eks();
    files.push((
        "../../networking/iptables-save.txt",
        "*nat\nCOMMIT\n".to_owned(),
    ));
    zip(&path, &files);
    let ran = kpx(&["--from", &path.display().to_string(), "show", "chains"]).await;
    assert!(ran.err.contains("leads outside"), "{ran}");
    assert!(ran.out.contains("KUBE-SVC-"), "{ran}");
}

/// A log of kube-proxy as a container runtime keeps it.
fn log(node: &str) -> String {
    format!(
        "2026-11-20T12:44:05.123456789Z stderr F I1120 12:44:05.123456       1 server.go:1] \"Log of {node}\"\n"
    )
}

#[tokio::test]
async fn each_node_of_kind_has_its_log_and_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = vec![("kind-version.txt", "kind v0.32.0\n".to_owned())];
    for (name, file) in [
        (
            "w1",
            [
                "w1/kubernetes-version.txt",
                "w1/pods/kube-system_kube-proxy-aaaaa_1/kube-proxy/0.log",
            ],
        ),
        (
            "w2",
            [
                "w2/kubernetes-version.txt",
                "w2/pods/kube-system_kube-proxy-bbbbb_1/kube-proxy/0.log",
            ],
        ),
    ] {
        files.push((file[0], "v1.33.1\n".to_owned()));
        files.push((file[1], log(name)));
    }
    // A container that was started again.
    files.push((
        "w2/pods/kube-system_kube-proxy-bbbbb_1/kube-proxy/1.log",
        log("w2 again"),
    ));
    let path = folder(dir.path(), &files).display().to_string();
    for (node, of) in [("w1", "w1"), ("w2", "w2 again")] {
        let bundle = dir.path().join(format!("{node}.tar"));
        let bundle = bundle.display().to_string();
        let ran = kpx(&[
            "--from", &path, "--node", node, "snapshot", "--file", &bundle,
        ])
        .await;
        assert!(
            ran.err
                .contains(&format!("kind logs, node {node}: kube-proxy's log")),
            "{ran}"
        );
        let recorded = String::from_utf8_lossy(&fs::read(&bundle).unwrap()).into_owned();
        let line = format!("I1120 12:44:05.123456       1 server.go:1] \"Log of {of}\"\n");
        assert!(
            recorded.contains(&line) && !recorded.contains("stderr F"),
            "{recorded}"
        );
        let config = kpx(&["--from", &path, "--node", node, "show", "config"]).await;
        assert!(config.out.contains("v1.33.1"), "{config}");
    }
}

#[tokio::test]
async fn logs_of_a_must_gather_are_those_of_the_nodes_of_their_pods() {
    let dir = tempfile::tempdir().unwrap();
    let pods = "apiVersion: v1\nkind: PodList\nitems:\n\
        - {apiVersion: v1, kind: Pod, metadata: {name: openshift-kube-proxy-aaaaa, namespace: openshift-kube-proxy}, spec: {nodeName: w1}}\n\
        - {apiVersion: v1, kind: Pod, metadata: {name: openshift-kube-proxy-bbbbb, namespace: openshift-kube-proxy}, spec: {nodeName: w2}}\n";
    let logs = "must-gather.local.1/q/namespaces/openshift-kube-proxy/pods/openshift-kube-proxy";
    let (one, two) = (
        format!("{logs}-aaaaa/kube-proxy/kube-proxy/logs/current.log"),
        format!("{logs}-bbbbb/kube-proxy/kube-proxy/logs/current.log"),
    );
    let line = |node: &str| {
        format!(
            "2026-11-20T12:44:05.123456789Z I1120 12:44:05.123456       1 server.go:1] \"Log of {node}\"\n"
        )
    };
    let path = folder(
        dir.path(),
        &[
            (
                "must-gather.local.1/q/namespaces/openshift-kube-proxy/core/pods.yaml",
                pods.to_owned(),
            ),
            (&one, line("w1")),
            (&two, line("w2")),
            (
                "must-gather.local.1/q/cluster-scoped-resources/core/nodes/w1.yaml",
                "apiVersion: v1\nkind: Node\nmetadata: {name: w1}\n".to_owned(),
            ),
        ],
    );
    let from = path.display().to_string();
    let bundle = dir.path().join("w2.tar").display().to_string();
    let ran = kpx(&[
        "--from", &from, "--node", "w2", "snapshot", "--file", &bundle,
    ])
    .await;
    assert!(
        ran.err.contains("must-gather, node w2: kube-proxy's log"),
        "{ran}"
    );
    let recorded = String::from_utf8_lossy(&fs::read(&bundle).unwrap()).into_owned();
    assert!(
        recorded.contains("\nI1120") || recorded.contains("\0I1120"),
        "{recorded}"
    );
    assert!(
        recorded.contains("Log of w2") && !recorded.contains("Log of w1"),
        "{recorded}"
    );
}

#[tokio::test]
async fn logs_of_minikube_are_read_by_their_titles() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("logs.txt");
    let text = "\n==> Audit <==\n| start |\n\n==> describe nodes <==\nName:               minikube\nRoles:              control-plane\n\
        Addresses:\n  InternalIP:  192.168.49.2\n  Hostname:    minikube\nSystem Info:\n  Kubelet Version:            v1.33.1\n\
        PodCIDR:                      10.244.0.0/24\nPodCIDRs:                     10.244.0.0/24\n\n\
        ==> etcd [aa] <==\n-A KUBE-SERVICES -j ACCEPT\n\n\
        ==> kube-proxy [bb] <==\nI1120 12:44:05.123456       1 server.go:1] \"Using iptables Proxier\"\n\n==> kubelet <==\nx\n";
    fs::write(&path, text).unwrap();
    let from = path.display().to_string();
    let ran = kpx(&["--from", &from, "show", "config"]).await;
    assert!(
        ran.err.contains("minikube logs: kube-proxy's log, 1 Node"),
        "{ran}"
    );
    assert!(ran.out.contains("v1.33.1"), "{ran}");
    assert!(!ran.err.contains("rules"), "{ran}");
}

#[tokio::test]
async fn a_table_of_daemon_sets_has_the_release() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("paste.txt");
    let text = "$ kubectl get ds -n kube-system -o wide\n\
        NAME         DESIRED   CURRENT   READY   UP-TO-DATE   AVAILABLE   NODE SELECTOR            AGE   CONTAINERS   IMAGES                               SELECTOR\n\
        kube-proxy   3         3         3       3            3           kubernetes.io/os=linux   10d   kube-proxy   registry.k8s.io/kube-proxy:v1.32.4   k8s-app=kube-proxy\n";
    fs::write(&path, text).unwrap();
    let ran = kpx(&["--from", &path.display().to_string(), "show", "config"]).await;
    assert!(ran.out.contains("v1.32.4"), "{ran}");
}

#[tokio::test]
async fn yaml_without_its_indentation_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("paste.txt");
    let flat = "apiVersion: v1\nkind: Service\nmetadata:\nname: web\nnamespace: shop\nspec:\nclusterIP: 10.96.0.9\nports:\n- port: 80\n";
    let from = path.display().to_string();
    fs::write(&path, flat).unwrap();
    let alone = kpx(&["--from", &from, "show", "services"]).await;
    assert_eq!(alone.code, 4, "{alone}");
    assert!(
        self::flat(&alone.err).contains("not read: YAML of a Service (its indentation is lost"),
        "{alone}"
    );
    fs::write(
        &path,
        format!("{flat}\n$ ipvsadm -Ln\n{}", text("22-ipvsadm-Ln.txt")),
    )
    .unwrap();
    let beside = kpx(&["--from", &from, "show", "ipvs"]).await;
    assert!(
        self::flat(&beside.err).contains("not read: YAML of a Service (its indentation is lost"),
        "{beside}"
    );
    assert!(beside.out.contains("10.97.54.248:80"), "{beside}");
}

#[tokio::test]
async fn an_archive_of_xz_is_read() {
    use lzma_rust2::{XzOptions, XzWriter};

    let dir = tempfile::tempdir().unwrap();
    let tar = {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, text) in eks() {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            archive
                .append_data(&mut header, path, text.as_bytes())
                .unwrap();
        }
        archive.into_inner().unwrap()
    };
    let packed = |bytes: &[u8]| {
        let mut xz = XzWriter::new(Vec::new(), XzOptions::default()).unwrap();
        xz.write_all(bytes).unwrap();
        xz.finish().unwrap()
    };
    let path = dir.path().join("eks_i-0abc_2026-11-20.tar.xz");
    let whole = packed(&tar);
    fs::write(&path, &whole).unwrap();
    let from = path.display().to_string();
    let ran = kpx(&["--from", &from, "show", "chains"]).await;
    assert!(
        ran.err.contains("EKS log collector of i-0abc") && ran.out.contains("KUBE-SVC-"),
        "{ran}"
    );
    // A damaged one is named as such.
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let cut = kpx(&["--from", &from, "show", "chains"]).await;
    assert!(
        cut.code == 4 && cut.err.contains("truncated or damaged"),
        "{cut}"
    );
    // A text, too.
    let path = dir.path().join("ipvs.txt.xz");
    fs::write(&path, packed(text("22-ipvsadm-Ln.txt").as_bytes())).unwrap();
    let ran = kpx(&["--from", &path.display().to_string(), "show", "ipvs"]).await;
    assert!(ran.out.contains("10.97.54.248:80"), "{ran}");
}
