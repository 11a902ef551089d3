//! The answers that tables of kubectl, some rules and some settings prove together, and those that they leave open.

use serde_json::Value;

use super::answers::ask;
use super::flat;

const WIDE: &str =
    "NAME          TYPE           CLUSTER-IP    EXTERNAL-IP   PORT(S)         AGE   SELECTOR\n";

/// Returns a Service `demo/web` with this type, external address and ports, and these endpoints.
fn web(kind: &str, external: &str, ports: &str, endpoints: &str) -> String {
    format!(
        "$ kubectl get svc,ep -n demo -o wide\n{WIDE}service/web   {kind}   10.96.7.7   {external}   {ports}   9d   app=web\n\n\
         NAME            ENDPOINTS   AGE\nendpoints/web   {endpoints}   9d\n"
    )
}

/// Rules of node w1 for `demo/web`, whose endpoint is a pod of another node; `forward` are those of FORWARD.
fn rules(forward: &str) -> String {
    format!(
        "root@w1:~# iptables-save\n*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n{forward}COMMIT\n*nat\n\
         :PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n\
         :KUBE-MARK-MASQ - [0:0]\n:KUBE-POSTROUTING - [0:0]\n:KUBE-SVC-AAAAAAAAAAAAAAAA - [0:0]\n:KUBE-SEP-BBBBBBBBBBBBBBBB - [0:0]\n\
         -A PREROUTING -j KUBE-SERVICES\n-A OUTPUT -j KUBE-SERVICES\n-A POSTROUTING -j KUBE-POSTROUTING\n\
         -A KUBE-SERVICES -d 10.96.7.7/32 -p tcp -m comment --comment \"demo/web cluster IP\" -m tcp --dport 80 -j KUBE-SVC-AAAAAAAAAAAAAAAA\n\
         -A KUBE-SVC-AAAAAAAAAAAAAAAA ! -s 10.244.0.0/16 -d 10.96.7.7/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ\n\
         -A KUBE-SVC-AAAAAAAAAAAAAAAA -m comment --comment \"demo/web -> 10.244.2.4:8080\" -j KUBE-SEP-BBBBBBBBBBBBBBBB\n\
         -A KUBE-SEP-BBBBBBBBBBBBBBBB -p tcp -m comment --comment \"demo/web\" -m tcp -j DNAT --to-destination 10.244.2.4:8080\n\
         -A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000\n-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN\n\
         -A KUBE-POSTROUTING -j MASQUERADE\nCOMMIT\n{ROUTES}"
    )
}

const ROUTES: &str = "root@w1:~# ip route\ndefault via 10.210.0.2 dev eth0\n\
                      10.210.0.0/24 dev eth0 proto kernel scope link src 10.210.0.16\n10.244.2.0/24 via 10.210.0.17 dev eth0\n\
                      10.244.1.0/24 dev cni0 proto kernel scope link src 10.244.1.1\n";

#[tokio::test]
async fn a_table_never_proves_that_a_port_has_no_endpoint() {
    for (ports, endpoints) in [
        ("53/UDP,53/TCP", "10.244.1.6:53,10.244.1.6:53"),
        ("514/UDP", "10.244.1.6:1514"),
        (
            "80/TCP,443/TCP",
            "10.244.1.6:8443,10.244.1.7:8443,10.244.1.8:8443 + 3 more...",
        ),
    ] {
        let ran = ask(
            &web("ClusterIP", "<none>", ports, endpoints),
            &["why", "demo/web"],
        )
        .await;
        assert_eq!(ran.code, 3, "{ran}");
        assert!(!ran.out.contains("no endpoint"), "{ran}");
        assert!(!ran.out.contains("endpointslice "), "{ran}");
    }
    let none = ask(
        &web("ClusterIP", "<none>", "53/UDP,53/TCP", "<none>"),
        &["why", "demo/web"],
    )
    .await;
    assert!(none.out.contains("has no ready endpoint"), "{none}");
    assert_eq!(none.code, 1, "{none}");
}

#[tokio::test]
async fn pods_that_do_not_run_are_named_where_a_service_has_no_endpoint() {
    let pods = "$ kubectl get pods -n demo\nNAME        READY   STATUS             RESTARTS      AGE\n\
                web-7c9-a   0/1     CrashLoopBackOff   7 (32s ago)   12m\nweb-7c9-b   0/1     ImagePullBackOff   0             12m\n\
                web-7c9-c   0/1     Pending            0             12m\ndb-0        1/1     Running            0             12m\n";
    let text = web("ClusterIP", "<none>", "80/TCP", "<none>") + pods;
    let ran = ask(&text, &["why", "demo/web"]).await;
    let page = flat(&ran.out);
    assert!(
        page.contains("matches its selector app=web")
            || page.contains("match its selector app=web"),
        "{ran}"
    );
    assert!(
        page.contains(
            "pods of its namespace are not ready: pod demo/web-7c9-a: it is waiting (CrashLoopBackOff) after 7 restarts; pod \
             demo/web-7c9-b: it is waiting (ImagePullBackOff); pod demo/web-7c9-c: its phase is Pending"
        ),
        "{ran}"
    );
}

#[tokio::test]
async fn a_load_balancer_that_is_pending_is_named() {
    let text = web(
        "LoadBalancer",
        "<pending>",
        "80:30378/TCP",
        "10.244.2.4:8080",
    );
    let ran = ask(&text, &["why", "demo/web"]).await;
    assert!(
        flat(&ran.out).contains(
            "no load balancer has given demo/web an address (EXTERNAL-IP is <pending>): clients outside reach it only at NodePort \
             30378 of the nodes"
        ),
        "{ran}"
    );
    let text = web(
        "LoadBalancer",
        "192.0.2.9",
        "80:30378/TCP",
        "10.244.2.4:8080",
    );
    let ran = ask(&text, &["why", "demo/web"]).await;
    assert!(!ran.out.contains("pending"), "{ran}");
}

#[tokio::test]
async fn a_setting_that_is_shown_counts_and_pods_need_not_be_shown() {
    let all = |value: u8| {
        format!(
            "{}root@w1:~# sysctl net.ipv4.ip_forward\nnet.ipv4.ip_forward = {value}\n{}",
            rules(""),
            web("ClusterIP", "<none>", "80/TCP", "10.244.2.4:8080")
        )
    };
    let off = ask(&all(0), &["why", "demo/web"]).await;
    assert_eq!(off.code, 1, "{off}");
    assert!(flat(&off.out).contains("net.ipv4.ip_forward is 0"), "{off}");
    assert!(off.out.contains("PODS"), "{off}");
    let on = ask(&all(1), &["why", "demo/web"]).await;
    assert_eq!(on.code, 3, "{on}");
    assert!(!on.out.contains("ip_forward"), "{on}");
    let traced = ask(&all(0), &["trace", "demo/web", "--source", "10.244.1.9"]).await;
    assert!(
        flat(&traced.out).contains("net.ipv4.ip_forward is 0"),
        "{traced}"
    );
    assert!(traced.out.contains("from a pod (10.244.1.9)"), "{traced}");
}

#[tokio::test]
async fn what_is_forwarded_never_comes_in_by_lo() {
    let text = rules(
        "-A FORWARD -i lo -j ACCEPT\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited\n",
    );
    let ran = ask(&text, &["trace", "10.96.7.7:80", "--source", "10.244.1.9"]).await;
    assert!(!ran.out.contains("the link is lo"), "{ran}");
    assert!(ran.out.contains("rejected"), "{ran}");
}

#[tokio::test]
async fn a_route_shows_an_address_of_the_node() {
    let text = rules("") .replace(
        "-A KUBE-SERVICES -d 10.96.7.7/32",
        "-A KUBE-SERVICES -p tcp -m tcp --dport 30080 -m addrtype --dst-type LOCAL -j KUBE-SVC-AAAAAAAAAAAAAAAA\n\
         -A KUBE-SERVICES -d 10.96.7.7/32",
    );
    let ran = ask(
        &text,
        &["trace", "10.210.0.16:30080", "--source", "outside"],
    )
    .await;
    assert!(!ran.out.contains("is an address of this host"), "{ran}");
    assert!(ran.out.contains("10.244.2.4:8080"), "{ran}");
}

#[tokio::test]
async fn a_filter_that_ends_every_way_decides_without_a_nat_table() {
    let text = format!(
        "root@w1:~# iptables -S\n-P INPUT ACCEPT\n-P FORWARD DROP\n-P OUTPUT ACCEPT\n{ROUTES}{}",
        web("ClusterIP", "<none>", "80/TCP", "10.244.2.4:8080")
    );
    let ran = ask(
        &text,
        &["trace", "10.244.2.4:8080", "--source", "10.244.1.4"],
    )
    .await;
    let page = flat(&ran.out);
    assert!(
        page.contains("dropped by the policy of filter FORWARD"),
        "{ran}"
    );
    assert!(
        page.contains("nat")
            && page.contains("that the evidence does not show let the packet pass"),
        "{ran}"
    );
    // If the table may translate the packet, nothing is decided.
    let ran = ask(&text, &["trace", "demo/web", "--source", "10.244.1.4"]).await;
    assert!(
        flat(&ran.out).contains("does not show chain PREROUTING of table nat"),
        "{ran}"
    );
}

#[tokio::test]
async fn ports_without_names_are_traced_by_number_and_protocol() {
    let text = web(
        "ClusterIP",
        "<none>",
        "53/UDP,53/TCP",
        "10.244.1.6:53,10.244.1.6:53",
    );
    let ran = ask(&text, &["trace", "web"]).await;
    assert_ne!(ran.code, 2, "{ran}");
    assert!(
        ran.out.contains("53/udp") && ran.out.contains("53/tcp"),
        "{ran}"
    );
    let ran = ask(&text, &["trace", "web:9"]).await;
    assert!(flat(&ran.err).contains("it has 53/UDP, 53/TCP"), "{ran}");
    let text = rules("") + &web("NodePort", "<none>", "80:30001/TCP", "10.244.2.4:8080");
    let local = ask(&text, &["why", "localhost:30001"]).await;
    let address = ask(&text, &["why", "127.0.0.1:30001"]).await;
    assert_eq!(
        (local.code, &local.out),
        (address.code, &address.out),
        "{local}"
    );
    assert_ne!(local.code, 2, "{local}");
}

#[tokio::test]
async fn the_journal_of_a_unit_with_kube_proxy_is_its_log() {
    let line = "F1025 05:51:21.210993    3121 server.go:361] unable to create proxier: no default routes found";
    for unit in [
        "snap.microk8s.daemon-proxy",
        "snap.microk8s.daemon-kubelite",
        "k3s",
        "kube-proxy",
    ] {
        let text = format!(
            "root@w1:~# journalctl -u {unit} -n 20\nOct 25 05:51:21 w1 {unit}[3121]: {line}\n\
             root@w1:~# ip route\ndefault via 10.210.0.2 dev eth0\n"
        );
        let ran = ask(&text, &["doctor"]).await;
        assert!(ran.err.contains("kube-proxy's log"), "{unit}: {ran}");
    }
    let text = format!("root@w1:~# journalctl -u docker\nOct 25 05:51:21 w1 docker[3]: {line}\n");
    let ran = ask(&text, &["doctor"]).await;
    assert!(!ran.err.contains("kube-proxy's log"), "{ran}");
}

#[tokio::test]
async fn the_log_of_kube_proxy_is_known_by_its_messages() {
    let message = "E1102 23:10:04.959564    6315 proxier.go:1507] Failed to execute iptables-restore: exit status 2 (iptables-restore v1.8.7 (nf_tables): Couldn't load match `recent':No such file or directory)";
    let line = format!("Nov 02 23:10:04 node1 kube-proxy[6315]: {message}\n");
    let logs =
        "-- Logs begin at Thu 2023-11-02 20:00:00 UTC, end at Thu 2023-11-02 23:38:04 UTC. --\n";
    for count in [1, 4, 5, 8] {
        for head in ["$ journalctl -u kube-proxy\n", ""] {
            let ran = ask(&format!("{head}{}", line.repeat(count)), &["doctor"]).await;
            assert!(ran.out.contains("KP21"), "{head}{count}: {ran}");
        }
        let text = format!("$ journalctl -u kube-proxy\n{logs}{}", line.repeat(count));
        let ran = ask(&text, &["doctor"]).await;
        assert!(ran.out.contains("KP21"), "{count}: {ran}");
        let ran = ask(&format!("{message}\n").repeat(count), &["doctor"]).await;
        assert!(ran.out.contains("KP21"), "{count}: {ran}");
    }
    // Another program's messages are none of it.
    let other = line.replace("proxier.go", "kubelet.go").repeat(5);
    let ran = ask(&other, &["doctor"]).await;
    assert!(ran.err.contains("is not a bundle"), "{ran}");
}

#[tokio::test]
async fn a_log_is_known_below_a_status_and_below_a_command_without_a_prompt() {
    let refused = "E0502 07:09:07.788271 214 ipset.go:168] Failed to add entry: 10.0.0.1,tcp:53 to ip set: KUBE-CLUSTER-IP, error: \
        error adding entry 10.0.0.1,tcp:53, error: exit status 1";
    let line = format!("May 02 07:09:07 w1 kube-proxy[214]: {refused}\n");
    let status = "● kube-proxy.service - Kubernetes Proxy\n   Active: active (running)\n Main PID: 214 (kube-proxy)\n   CGroup: \
        /system.slice/kube-proxy.service\n           └─214 /usr/bin/kube-proxy --proxy-mode=ipvs\n\n";
    let taken = "I0617 17:21:57.807762 1 server_others.go:206] \"Using iptables Proxier\"\nE0617 17:22:10.817762 1 proxier.go:1600] \
        \"can't open port, skipping it\" err=\"listen tcp4 :31234: bind: address already in use\" port={Description:nodePort for \
        default/web IP: IPFamily:4 Port:31234 Protocol:TCP}\n";
    for (text, words) in [
        (
            format!("$ systemctl status kube-proxy\n{status}{}", line.repeat(2)),
            "adding entry",
        ),
        (
            format!(
                "w1:/$ service kube-proxy status\n{status}{}",
                line.repeat(6)
            ),
            "adding entry",
        ),
        (format!("{status}{}", line.repeat(2)), "adding entry"),
        (
            format!("kubectl logs kube-proxy-7bxk7 -n kube-system\n{taken}"),
            "port 31234 of default/web (IPv4), on which another process listens",
        ),
    ] {
        let ran = ask(&text, &["doctor", "-o", "json"]).await;
        let report: Value =
            serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{text}{ran}"));
        let first = &report["findings"][0];
        assert_eq!(first["id"], "KP21", "{text}{ran}");
        assert!(first["message"].as_str().unwrap().contains(words), "{ran}");
    }
    // A status without such a message proves nothing.
    let quiet = "I0502 07:09:07.788271 214 proxier.go:168] \"SyncProxyRules complete\"";
    let text = format!(
        "$ systemctl status kube-proxy\n{status}May 02 07:09:07 w1 kube-proxy[214]: {quiet}\n"
    );
    let ran = ask(&text, &["doctor", "--only", "KP21", "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["checks"][0]["status"], "unknown", "{ran}");
}

#[tokio::test]
async fn a_log_of_windows_is_named_and_not_taken_for_one_of_linux() {
    let log = "E1109 15:13:55.097793 4228 proxier.go:1067] \"Source Vip endpoint creation failed\" err=\"hcnCreateEndpoint failed in Win32: \
        IP address is either invalid or not part of any configured subnet(s). (0x803b001e)\"\n\
        I1109 15:13:55.097793 4228 proxier.go:1008] \"Syncing proxy rules complete\" elapsed=\"12.5995ms\"\n";
    for text in [
        format!("$ kubectl logs kube-proxy-windows-tq8bx\n{log}"),
        log.to_owned(),
    ] {
        let ran = ask(&text, &["doctor"]).await;
        assert!(format!("{ran}").contains("kube-proxy on Windows"), "{ran}");
        assert_eq!(ran.code, 3, "{ran}");
    }
}

#[tokio::test]
async fn outputs_of_a_node_of_windows_leave_the_question_open() {
    let text = "PS C:\\> Get-HnsPolicyList\n\nID    : abc\nState : 2\n";
    let ran = ask(text, &["why", "shop/web"]).await;
    assert_eq!(ran.code, 3, "{ran}");
    assert!(
        format!("{ran}").contains("its rules are those of HNS"),
        "{ran}"
    );
}

#[tokio::test]
async fn what_a_pasted_log_of_the_kernel_says_is_found() {
    for text in [
        "$ dmesg | tail -2\n[ 1300.1] nf_conntrack: nf_conntrack: table full, dropping packet\n[ 1361.0] cni0: port 1 entered disabled state\n",
        "$ journalctl -k\nNov 28 04:01:02 w1 kernel: nf_conntrack: nf_conntrack: table full, dropping packet\n",
    ] {
        let ran = ask(text, &["doctor", "-o", "json"]).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(report["findings"][0]["id"], "SY18", "{ran}");
    }
}

#[tokio::test]
async fn endpoints_that_contradict_the_slices_are_named() {
    let slices = |ip: &str| {
        format!(
            "$ kubectl get endpoints web -n shop -o yaml\napiVersion: v1\nkind: Endpoints\nmetadata:\n  name: web\n  namespace: shop\nsubsets:\n\
             - addresses:\n  - ip: 10.244.1.9\n  ports:\n  - port: 8080\n$ kubectl get endpointslices web-abc -n shop -o yaml\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-abc\n  namespace: shop\n  labels:\n    \
             kubernetes.io/service-name: web\naddressType: IPv4\nendpoints:\n- addresses: [{ip}]\n  conditions: {{ready: true}}\n"
        )
    };
    let words = "the Endpoints object of shop/web, whose ready addresses (10.244.1.9) are not those of its EndpointSlices (10.244.1.5)";
    let ran = ask(&slices("10.244.1.5"), &["doctor"]).await;
    assert!(format!("{ran}").contains(words), "{ran}");
    let ran = ask(&slices("10.244.1.9"), &["doctor"]).await;
    assert!(!format!("{ran}").contains("whose ready addresses"), "{ran}");
}

#[tokio::test]
async fn the_log_of_the_kernel_is_read() {
    let line = "ipvs: Each Mode of ipvs";
    for text in [
        format!("$ dmesg -T\n[Sat Nov 28 04:08:40 2026] {line}\n"),
        format!("$ journalctl -k\nNov 28 04:08:40 w1 kernel: {line}\n"),
        format!("Nov 28 04:08:40 w1 kernel: {line}\nNov 28 04:08:41 w1 kernel: {line}\n"),
    ] {
        let ran = ask(&text, &["doctor"]).await;
        assert!(format!("{ran}").contains("kernel log"), "{text}{ran}");
    }
}

#[tokio::test]
async fn the_ports_of_a_table_have_the_names_of_their_slices() {
    let slice = |ports: &str| {
        format!(
            "$ kubectl get endpointslices -n demo -o yaml\napiVersion: v1\nitems:\n- apiVersion: discovery.k8s.io/v1\n  kind: EndpointSlice\n  \
             addressType: IPv4\n  metadata:\n    name: web-abcde\n    namespace: demo\n    labels:\n      kubernetes.io/service-name: web\n  \
             endpoints:\n  - addresses: [10.244.2.4]\n    conditions: {{ready: true}}\n    nodeName: w2\n  ports:\n{ports}kind: List\n"
        )
    };
    let named = |name: &str, port: u16, protocol: &str| {
        format!("  - name: {name}\n    port: {port}\n    protocol: {protocol}\n")
    };
    let table = |ports: &str| {
        format!(
            "$ kubectl get svc -n demo\nNAME   TYPE        CLUSTER-IP   EXTERNAL-IP   PORT(S)   AGE\n\
             web    ClusterIP   10.96.7.7    <none>        {ports}    9d\n"
        )
    };
    // One port, or one for each protocol, or those with the same numbers.
    let http = named("http", 8080, "TCP");
    let same = [named("http", 80, "TCP"), named("metrics", 9153, "TCP")].concat();
    let each = [named("http", 8080, "TCP"), named("dns", 5353, "UDP")].concat();
    for (ports, shown) in [
        ("80/TCP", &http),
        ("80/TCP,9153/TCP", &same),
        ("80/TCP,53/UDP", &each),
    ] {
        let text = format!("{}{}{}", rules(""), table(ports), slice(shown));
        let said = ask(&text, &["why", "demo/web"]).await.out;
        assert!(!said.contains("ports named"), "{said}");
        assert!(!said.contains("REFUSED"), "{said}");
    }
    // It is open which of the two is meant.
    let two = [named("http", 8080, "TCP"), named("metrics", 9000, "TCP")].concat();
    let text = format!("{}{}{}", rules(""), table("80/TCP,9090/TCP"), slice(&two));
    let said = ask(&text, &["why", "demo/web"]).await.out;
    assert!(!said.contains("no endpoint"), "{said}");
    // Another protocol is none of its ports.
    let udp = named("dns", 5353, "UDP");
    let text = format!("{}{}{}", rules(""), table("80/TCP"), slice(&udp));
    let said = ask(&text, &["why", "demo/web"]).await.out;
    assert!(said.contains("no endpoint"), "{said}");
}

#[tokio::test]
async fn files_of_settings_are_not_the_kernels_state() {
    let text = format!(
        "{}root@w1:~# cat /etc/iptables/rules.v4\n*filter\n:FORWARD DROP [0:0]\nCOMMIT\nroot@w1:~# cat /etc/sysctl.d/50-old.conf\n\
         net.ipv4.ip_forward = 0\n",
        rules("")
    );
    let said = ask(&text, &["why", "10.96.7.7:80"]).await.out;
    assert!(!said.contains("ip_forward is 0"), "{said}");
    assert!(!said.contains("FORWARD"), "{said}");
}

#[tokio::test]
async fn further_lines_of_a_message_in_a_journal_belong_to_it() {
    let message = [
        "E1102 23:10:04.959564 812 proxier.go:1507] \"Failed to execute iptables-restore\" err=<",
        "\texit status 2: iptables-restore v1.8.7 (nf_tables): Couldn't load match `recent':No such file or directory",
        "\tError occurred at line: 76",
        " > ipFamily=\"IPv4\"",
    ];
    let nftables = [
        "E1102 23:10:04.959564 812 proxier.go:1890] \"nftables sync failed\" err=<",
        "\tCould not process rule: No such file or directory",
        "\tadd rule ip kube-proxy services fib daddr type local",
        " > ipFamily=\"IPv4\"",
    ];
    let sets = [
        "E1102 23:10:04.959564 812 ipset.go:168] Failed to add entry: 10.0.0.1,tcp:53 to ip set: KUBE-CLUSTER-IP, error: \
        error adding entry 10.0.0.1,tcp:53, error: exit status 1",
    ];
    let around = [
        "I1102 23:10:03.100000 812 kubelet.go:55] \"SyncLoop\"",
        "time=\"2023-11-02T23:10:03Z\" level=info msg=\"Running kube-proxy\"",
    ];
    let after = [
        "E1102 23:10:05.000000 812 kubelet.go:99] \"Failed\" err=<",
        "\tCouldn't load match `other'",
        " >",
    ];
    for (lines, words) in [
        (&message[..], "Couldn't load match `recent'"),
        (
            &nftables[..],
            "Could not process rule: No such file or directory",
        ),
        (&sets[..], "error adding entry"),
    ] {
        for (unit, program) in [
            ("k3s", "k3s"),
            ("rke2-server", "rke2"),
            ("snap.microk8s.daemon-kubelite", "microk8s.daemon-kubelite"),
        ] {
            let head = format!("Nov 02 23:10:04 w1 {program}[812]: ");
            let all = around.iter().chain(lines).chain(&after);
            let logged: Vec<String> = all.map(|line| format!("{head}{line}\n")).collect();
            let text = logged.concat();
            let text = format!("root@w1:~# journalctl -u {unit}\n{text}");
            let ran = ask(&text, &["doctor", "--only", "KP21", "-o", "json"]).await;
            let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran}"));
            let said = report["findings"].to_string();
            assert!(
                said.contains(words) && !said.contains("`other'"),
                "{unit}: {said}"
            );
        }
    }
}
