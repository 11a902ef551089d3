//! Rules that have a maker: the fix is where the maker keeps them.

use serde_json::json;

use super::{PODS, RULES, SLICES, filter, found, object, path};
use crate::doctor::ends::{HEALTHY, LINKS, ROUTES, json, lead_pods, says};
use crate::doctor::incidents::{answer, copy, write};
use crate::doctor::links::{add_policy_rules, add_routes};
use crate::doctor::machines::balance;
use crate::doctor::meant::add_rule;

/// The fix of the first cause of `service`.
async fn fix_of(dir: &tempfile::TempDir, service: &str) -> String {
    let answer = answer(path(dir), service).await;
    format!("{} {}", answer["fate"], answer["causes"][0]["fix"])
}

#[tokio::test]
async fn the_fix_is_where_the_maker_of_the_rule_keeps_it() {
    let dir = copy(HEALTHY);
    filter(
        &dir,
        "FORWARD",
        &[
            "-A FORWARD -m comment --comment \"cali:vjrMJCRpqwy5oRoX\" -j cali-from-hep-forward",
            "-A cali-from-hep-forward -i eth0 -g cali-fhfw-eth0",
            "-A cali-fhfw-eth0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            "-A cali-fhfw-eth0 -m comment --comment \"Drop if no policies passed packet\" -j DROP",
        ],
    );
    let fix = fix_of(&dir, "demo/web-nodeport").await;
    assert!(
        fix.contains("HostEndpoint") && fix.contains("globalnetworkpolicies"),
        "{fix}"
    );

    let marked = |mark: &str| {
        let dir = copy(HEALTHY);
        filter(
            &dir,
            "FORWARD",
            &[
                "-A FORWARD -m comment --comment \"kube-router netpol - TEMCG2JMVZWTNDTN\" -j KUBE-ROUTER-FORWARD",
                "-A KUBE-ROUTER-FORWARD -d 10.244.2.2/32 -j KUBE-POD-FW-AAAABBBBCCCCDDDD",
                &format!("-A KUBE-POD-FW-AAAABBBBCCCCDDDD -j MARK --set-xmark {mark}"),
            ],
        );
        dir
    };
    let fix = fix_of(&marked("0x0/0xffffffff"), "demo/web-nodeport").await;
    assert!(
        fix.contains("1.1 or newer") && !fix.contains("get networkpolicies"),
        "{fix}"
    );
    let fix = fix_of(&marked("0x0/0x10000"), "demo/web-nodeport").await;
    assert!(fix.contains("works"), "{fix}");
}

#[tokio::test]
async fn a_rule_of_docker_before_its_container_is_docker_s() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        SLICES,
        json(|slices| {
            let mut all = slices["items"].as_array_mut().unwrap().iter_mut();
            let api = all
                .find(|slice| slice["metadata"]["name"] == "api-h9h2g")
                .unwrap();
            api["endpoints"] =
                json!([{"addresses": ["172.18.0.2"], "conditions": {"ready": true}}]);
        }),
    );
    write(&dir, RULES, |text| {
        text.replace("10.244.0.2:", "172.18.0.2:")
            .replace("10.244.2.3:", "172.18.0.2:")
    });
    write(
        &dir,
        LINKS,
        json(|links| {
            links.as_array_mut().unwrap().push(json!({"ifindex": 40, "ifname": "br-5f0c2a7d11aa", "flags": ["UP", "LOWER_UP"], "mtu": 1500,
            "operstate": "UP", "address": "02:42:ac:12:00:01", "linkinfo": {"info_kind": "bridge"}}));
        }),
    );
    write(
        &dir,
        ROUTES,
        json(|routes| {
            routes.as_array_mut().unwrap().push(
                json!({"dst": "172.18.0.0/16", "dev": "br-5f0c2a7d11aa", "protocol": "kernel",
            "scope": "link", "prefsrc": "172.18.0.1", "flags": []}),
            );
        }),
    );
    filter(
        &dir,
        "FORWARD",
        &[
            "-A FORWARD -j DOCKER-FORWARD",
            "-A DOCKER-FORWARD -o br-5f0c2a7d11aa -j DOCKER",
            "-A DOCKER ! -i br-5f0c2a7d11aa -o br-5f0c2a7d11aa -j DROP",
        ],
    );
    let answer = answer(path(&dir), "demo/api:http").await;
    let text = answer.to_string();
    assert!(
        text.contains("owner of the rule: Docker") && text.contains("DOCKER-USER"),
        "{text}"
    );
}

#[tokio::test]
async fn a_firewall_that_stops_health_checks_from_everywhere_is_a_warning() {
    let closed = |rules: &[&str]| {
        let dir = copy(HEALTHY);
        let drop = ["-A INPUT -i eth0 -p tcp -m conntrack --ctstate NEW -j DROP"];
        filter(&dir, "INPUT", &[rules, &drop].concat());
        dir
    };
    let all = found(&closed(&[]), "NP06").await;
    assert!(all.iter().any(|finding| finding.0 == "warning"), "{all:?}");
    let all = found(&closed(&["-A INPUT -s 10.210.0.0/24 -j ACCEPT"]), "NP06").await;
    assert!(all.iter().any(|finding| finding.0 == "info"), "{all:?}");
}

/// Lets Calico carry the packets to pods of other nodes, and announce these addresses.
fn calico(dir: &tempfile::TempDir, own: &str) {
    write(
        dir,
        LINKS,
        json(|links| {
            let all = links.as_array_mut().unwrap();
            all.push(json!({"ifindex": 30, "ifname": "vxlan.calico", "flags": ["UP", "LOWER_UP"], "mtu": 1450, "operstate": "UNKNOWN",
            "address": "66:0c:77:01:aa:02", "linkinfo": {"info_kind": "vxlan", "info_data": {"id": 4096, "port": 4789}}}));
            all.push(json!({"ifindex": 44, "ifname": "lxdbr0", "flags": ["UP", "LOWER_UP"], "mtu": 1500, "operstate": "UP",
            "address": "00:16:3e:5d:11:22", "linkinfo": {"info_kind": "bridge"}}));
        }),
    );
    write(
        dir,
        "node/ip-addr.json",
        json(|links| {
            links
                .as_array_mut()
                .unwrap()
                .push(json!({"ifindex": 44, "ifname": "lxdbr0", "addr_info": [
            {"family": "inet", "local": "172.16.100.1", "prefixlen": 24, "scope": "global"}]}));
        }),
    );
    lead_pods(dir, "vxlan.calico", &["10.244.0.0/24", "10.244.2.0/24"]);
    let bridged = json!({"dst": "172.16.100.0/24", "dev": "lxdbr0", "protocol": "kernel", "scope": "link", "prefsrc": "172.16.100.1",
        "flags": []});
    add_routes(dir, &[bridged]);
    write(
        dir,
        "cluster/nodes.json",
        json(|nodes| {
            for node in nodes["items"].as_array_mut().unwrap() {
                let (at, tunnel) = match node["metadata"]["name"].as_str().unwrap() {
                    "cp1" => ("10.210.0.15/24", "10.244.0.0"),
                    "w1" => (own, "10.244.1.0"),
                    _ => ("10.210.0.17/24", "10.244.2.0"),
                };
                node["metadata"]["annotations"]["projectcalico.org/IPv4Address"] = at.into();
                node["metadata"]["annotations"]["projectcalico.org/IPv4VXLANTunnelAddr"] =
                    tunnel.into();
            }
        }),
    );
}

#[tokio::test]
async fn the_address_of_a_bridge_of_containers_is_no_end_of_a_tunnel() {
    let dir = copy(HEALTHY);
    calico(&dir, "172.16.100.1/24");
    says(
        &dir,
        "demo/web:http",
        "partly",
        &["took 172.16.100.1 of lxdbr0", "kubernetes-internal-ip"],
    )
    .await;
    let dir = copy(HEALTHY);
    calico(&dir, "10.210.0.16/24");
    says(&dir, "demo/web:http", "works", &[]).await;
}

#[tokio::test]
async fn a_bridge_that_filters_vlans_is_in_doubt_where_its_ports_are_in_none() {
    for (pvid, fate) in [(0, "unknown"), (1, "works")] {
        let dir = copy(HEALTHY);
        write(
            &dir,
            LINKS,
            json(|links| {
                let mut all = links.as_array_mut().unwrap().iter_mut();
                let bridge = all.find(|link| link["ifname"] == "cni0").unwrap();
                bridge["linkinfo"]["info_data"] =
                    json!({"vlan_filtering": 1, "vlan_default_pvid": pvid});
            }),
        );
        let answer = answer(path(&dir), "demo/edge:http").await;
        assert_eq!(answer["fate"], fate, "{answer}");
    }
}

#[tokio::test]
async fn a_mesh_that_set_up_the_node_itself_names_the_pod() {
    let dir = copy(HEALTHY);
    object(&dir, PODS, "kube-proxy-lg2lh", |pod| {
        pod["metadata"]["labels"]["linkerd.io/control-plane-ns"] = "linkerd".into();
    });
    write(&dir, RULES, |text| {
        let text = text.replacen("*nat\n", "*nat\n:PROXY_INIT_REDIRECT - [0:0]\n", 1);
        let first = text.find("-A PREROUTING").unwrap();
        let start = text[..first].rfind('\n').unwrap() + 1;
        let rules = "[0:0] -A PREROUTING -m comment --comment \"proxy-init/install-proxy-init-prerouting\" -j PROXY_INIT_REDIRECT\n\
                     [0:0] -A PROXY_INIT_REDIRECT -p tcp -m comment --comment \"proxy-init/redirect-all-incoming-to-proxy-port\" -j REDIRECT --to-ports 4143\n";
        format!("{}{rules}{}", &text[..start], &text[start..])
    });
    let answer = answer(path(&dir), "demo/web").await;
    let text = answer.to_string();
    assert!(
        text.contains("kube-system/kube-proxy-lg2lh") && text.contains("-F PROXY_INIT_REDIRECT"),
        "{text}"
    );
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_route_that_a_daemon_makes_again_is_changed_there() {
    let cases = [
        (json!("bird"), "kubectl get blockaffinities"),
        (json!("zebra"), "vtysh"),
        (json!("dhcp"), "returns with the next message"),
        (json!("openr"), "openr made the route"),
        (json!("static"), "ip route del blackhole 10.244.2.0/26"),
    ];
    for (protocol, command) in cases {
        let dir = copy(HEALTHY);
        let route =
            json!({"type": "blackhole", "dst": "10.244.2.0/26", "protocol": protocol, "flags": []});
        add_routes(&dir, &[route]);
        says(
            &dir,
            "demo/web:http",
            "partly",
            &["blackhole route", command],
        )
        .await;
        let found = found(&dir, "SY16").await;
        assert!(
            found.iter().any(|finding| finding.2.contains(command)),
            "{found:?}"
        );
    }
}

#[tokio::test]
async fn a_blackhole_route_of_bird_is_explained_by_what_it_covers() {
    let blackhole =
        |to: &str| json!({"type": "blackhole", "dst": to, "protocol": "bird", "flags": []});
    let dir = copy(HEALTHY);
    balance(&dir);
    add_routes(&dir, &[blackhole("10.210.0.192/26")]);
    says(
        &dir,
        "demo/edge-balanced:http",
        "partly",
        &[
            "serviceLoadBalancerIPs",
            "get bgpconfigurations",
            "cluster IP",
        ],
    )
    .await;
    let fix = &found(&dir, "SY16").await[0].2;
    assert!(fix.contains("serviceLoadBalancerIPs"), "{fix}");

    // The block of this node, from which pods of another one have their addresses.
    let dir = copy(HEALTHY);
    object(&dir, PODS, "client-vfxvm", |pod| {
        pod["status"]["podIP"] = "10.244.2.40".into();
        pod["status"]["podIPs"] = json!([{"ip": "10.244.2.40"}]);
    });
    add_routes(&dir, &[blackhole("10.244.2.0/26")]);
    says(
        &dir,
        "demo/edge:http",
        "partly",
        &["The more specific route", "-n demo delete pod client-vfxvm"],
    )
    .await;
    let own = json!({"dst": "10.244.2.40", "dev": "cni0", "scope": "link", "flags": []});
    add_routes(&dir, &[own]);
    says(
        &dir,
        "demo/edge:http",
        "partly",
        &[
            "borrowed",
            "strictAffinity",
            "-n demo delete pod edge-69jhk",
        ],
    )
    .await;
}

/// Filters reverse paths on eth0, and leads packets of the pod edge to outside by another link.
fn on_second_interface(dir: &tempfile::TempDir) {
    write(dir, "node/sysctl.txt", |text| {
        text.replace("conf.eth0.rp_filter = 0", "conf.eth0.rp_filter = 1")
    });
    write(
        dir,
        LINKS,
        json(|links| {
            links.as_array_mut().unwrap().push(
                json!({"ifindex": 50, "ifname": "eth1", "flags": ["UP", "LOWER_UP"], "mtu": 1500,
            "operstate": "UP", "address": "02:00:00:00:01:01"}),
            );
        }),
    );
    let away = json!({"dst": "default", "gateway": "10.211.0.1", "dev": "eth1", "table": "2", "flags": ["onlink"]});
    add_routes(dir, &[away]);
    let to_cluster = |dst: &str, length: u8| json!({"priority": 512, "src": "all", "dst": dst, "dstlen": length, "table": "main"});
    add_policy_rules(
        dir,
        &[
            to_cluster("10.244.0.0", 16),
            to_cluster("10.210.0.0", 24),
            json!({"priority": 1536, "src": "10.244.1.4", "table": "2"}),
        ],
    );
}

#[tokio::test]
async fn a_filter_of_reverse_paths_is_the_network_plugin_s_where_it_leads_pods_by_their_own_interface()
 {
    let dir = copy(HEALTHY);
    on_second_interface(&dir);
    let fix = fix_of(&dir, "demo/edge-local").await;
    assert!(fix.contains("eth0.rp_filter=2"), "{fix}");
    add_agent(&dir, "aws-node", "amazon-k8s-cni:v1.22.3");
    let fix = fix_of(&dir, "demo/edge-local").await;
    assert!(fix.contains("AWS_VPC_CNI_NODE_PORT_SUPPORT=true"), "{fix}");
}

#[tokio::test]
async fn a_source_that_the_node_does_not_have_becomes_its_own() {
    let dir = copy(HEALTHY);
    let rule = "-A POSTROUTING -s 10.244.0.0/16 -o eth0 -j SNAT --to-source";
    add_rule(&dir, "nat", &format!("{rule} 10.210.0.99"));
    let fix = fix_of(&dir, "demo/edge:http").await;
    assert!(
        fix.contains("-R POSTROUTING 1 -s 10.244.0.0/16 -o eth0 -j MASQUERADE"),
        "{fix}"
    );
    let found = found(&dir, "SY16").await;
    assert!(
        found
            .iter()
            .all(|finding| finding.2.contains("-j MASQUERADE")),
        "{found:?}"
    );
    // With the rule that the fix writes, all connections work.
    let dir = copy(HEALTHY);
    add_rule(
        &dir,
        "nat",
        "-A POSTROUTING -s 10.244.0.0/16 -o eth0 -j MASQUERADE",
    );
    says(&dir, "demo/edge:http", "works", &[]).await;
    says(&dir, "default/kubernetes", "works", &[]).await;
}

#[tokio::test]
async fn a_rule_that_clears_kube_proxy_s_mark_is_to_blame_and_not_another_mark() {
    let dir = copy(HEALTHY);
    let other =
        "-A PREROUTING -i eth0 -m conntrack --ctstate NEW -j MARK --set-xmark 0x1bd20/0xffffffff";
    add_rule(&dir, "mangle", other);
    let clears = "-A POSTROUTING -m mark --mark 0x20/0x20 -j MARK --set-xmark 0x0/0x4000";
    add_rule(&dir, "mangle", clears);
    let answer = answer(path(&dir), "demo/web-nodeport:http").await;
    let causes = answer["causes"].to_string();
    assert!(causes.contains("POSTROUTING"), "{causes}");
    assert!(!causes.contains("0x1bd20"), "{causes}");
    let all = found(&dir, "IR16").await;
    assert!(
        all.iter().any(|finding| finding.0 == "warning"
            && finding.1.contains("clears kube-proxy's mark 0x4000")),
        "{all:?}"
    );
    // Another mark alone does no harm.
    let dir = copy(HEALTHY);
    add_rule(&dir, "mangle", other);
    assert!(found(&dir, "IR16").await.is_empty());
}

#[tokio::test]
async fn a_policy_that_drops_is_kept_and_pods_are_accepted() {
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        let (before, filter) = text.split_once("*filter\n").unwrap();
        let filter = filter.replacen(":FORWARD ACCEPT", ":FORWARD DROP", 1);
        format!("{before}*filter\n{filter}")
    });
    let words = [
        "its policy drops them",
        "-I FORWARD -s 10.244.0.0/16 -j ACCEPT",
        "-I FORWARD -d 10.244.0.0/16 -j ACCEPT",
    ];
    let answer = answer(path(&dir), "demo/web").await.to_string();
    for word in words {
        assert!(answer.contains(word), "{word}: {answer}");
    }
    assert!(!answer.contains("-P FORWARD ACCEPT"), "{answer}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_rule_by_time_of_day_takes_packets_at_its_times() {
    for (times, fate) in [
        ("--timestart 01:00:00 --timestop 03:00:00", "works"),
        ("--timestart 04:00:00 --timestop 05:00:00", "partly"),
        ("--timestart 22:00:00 --timestop 05:00:00", "partly"),
        ("--weekdays Mon,Tue", "works"),
        ("--weekdays Sat", "partly"),
        ("--kerneltz --timestart 01:00:00", "unknown"),
    ] {
        let dir = copy(HEALTHY);
        let rule =
            format!("-A FORWARD -p tcp -m time {times} --datestop 2038-01-19T03:14:07 -j DROP");
        filter(&dir, "FORWARD", &[&rule]);
        let of = answer(path(&dir), "demo/web:http").await;
        assert_eq!(of["fate"], fate, "{times}: {of}");
    }
}

/// Adds the pod of a network plugin's agent, whose container is called `name`, to the node.
pub(in crate::doctor) fn add_agent(dir: &tempfile::TempDir, name: &str, image: &str) {
    write(
        dir,
        PODS,
        json(|pods| {
            let all = pods["items"].as_array_mut().unwrap();
            let mut agent = all[0].clone();
            agent["metadata"] =
                json!({"name": format!("{name}-x7k2p"), "namespace": "kube-system"});
            agent["spec"]["nodeName"] = "w1".into();
            agent["spec"]["hostNetwork"] = true.into();
            agent["spec"]["containers"] = json!([{"name": name, "image": image}]);
            all.push(agent);
        }),
    );
}

#[tokio::test]
async fn a_plugin_without_rules_for_a_pod_is_restarted() {
    let dir = copy(HEALTHY);
    add_agent(&dir, "calico-node", "calico/node");
    filter(
        &dir,
        "FORWARD",
        &[
            "-A FORWARD -j cali-FORWARD",
            "-A cali-FORWARD -d 10.244.1.0/24 -j cali-to-wl-dispatch",
            "-A cali-to-wl-dispatch -m comment --comment \"Unknown interface\" -j DROP",
        ],
    );
    let words = [
        "cali-to-wl-dispatch",
        "delete pod calico-node-x7k2p",
        "no NetworkPolicy does",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
}

#[tokio::test]
async fn a_table_of_the_vpc_cni_has_a_rule_that_leads_to_it() {
    let dir = copy(HEALTHY);
    add_agent(&dir, "aws-node", "amazon-k8s-cni:v1.20.0");
    assert!(found(&dir, "CN09").await.is_empty());
    write(
        &dir,
        ROUTES,
        json(|routes| {
            let all = routes.as_array_mut().unwrap();
            all.push(json!({"dst": "default", "gateway": "10.210.0.2", "dev": "eth1", "table": "2", "flags": []}));
        }),
    );
    let all = found(&dir, "CN09").await;
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].2.contains("delete pod aws-node-x7k2p"), "{all:?}");
    write(&dir, "node/ip-rule.json", |text| {
        text.replacen(
            "[{",
            "[{\"priority\": 512, \"src\": \"all\", \"dst\": \"10.244.1.4\", \"table\": \"main\"}, {",
            1,
        )
    });
    assert!(found(&dir, "CN09").await.is_empty());
}

#[tokio::test]
async fn a_chain_of_kube_router_without_any_policy_is_no_policys() {
    let jump = "-A KUBE-POD-FW-YKJ3IUWOVTXSDNQ2 -d 10.244.1.3/32 -j KUBE-NWPLCY-DEFAULT";
    let rules = |more: &[&str]| {
        let dir = copy(HEALTHY);
        let first = ["-A FORWARD -d 10.244.1.3/32 -j KUBE-POD-FW-YKJ3IUWOVTXSDNQ2"];
        let last = [
            "-A KUBE-POD-FW-YKJ3IUWOVTXSDNQ2 -m mark ! --mark 0x10000/0x10000 -j REJECT --reject-with icmp-port-unreachable",
            "-A KUBE-NWPLCY-DEFAULT -s 203.0.113.1/32 -j MARK --set-xmark 0x10000/0x10000",
        ];
        filter(&dir, "FORWARD", &[&first, more, &last].concat());
        dir
    };
    let of = answer(path(&rules(&[])), "demo/web:http").await.to_string();
    assert!(of.contains("no NetworkPolicy does"), "{of}");
    let of = answer(path(&rules(&[jump])), "demo/web:http")
        .await
        .to_string();
    assert!(!of.contains("no NetworkPolicy does"), "{of}");
}
