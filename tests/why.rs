//! `kpx why`: broken Services of many causes, and every healthy one.

mod cases;

use std::path::Path;

use cases::{Case, Change, OTHER_PODS, OWN_PODS, before, conditions, mutated, why_in};
use kpx_judge::check;
use kpx_judge::verdict::Fate;
use kpx_judge::why::{self, Asked, Cause, Degree, Look};
use kpx_node::backend::Mode;
use kpx_node::evidence;
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use serde_json::{Value, json};

use crate::support::{HEALTHY, broken, kpx, kpx_on, recorded, root};

const RULES: &str = "node/iptables-save.txt";
const SLICES: &str = "cluster/endpointslices.json";
const SYSCTLS: &str = "node/sysctl.txt";
const SERVICES: &str = "cluster/services.json";
const PODS: &str = "cluster/pods.json";
const NODES: &str = "cluster/nodes.json";
const NFT: &str = "node/nft.json";

/// Adds objects to a list, such as routes.
fn with_more(text: &str, routes: &[&str]) -> String {
    let mut list: Value = serde_json::from_str(text).unwrap();
    let routes = routes
        .iter()
        .map(|route| serde_json::from_str::<Value>(route).unwrap());
    list.as_array_mut().unwrap().extend(routes);
    list.to_string()
}

/// Changes every slice of Service `name`.
fn slices(text: &str, name: &str, change: fn(&mut Value)) -> String {
    let mut list: Value = serde_json::from_str(text).unwrap();
    for slice in list["items"].as_array_mut().unwrap() {
        if slice["metadata"]["labels"]["kubernetes.io/service-name"] == name {
            change(slice);
        }
    }
    list.to_string()
}

/// Changes Service `name`.
fn service(text: &str, name: &str, change: fn(&mut Value)) -> String {
    let mut list: Value = serde_json::from_str(text).unwrap();
    for service in list["items"].as_array_mut().unwrap() {
        if service["metadata"]["name"] == name {
            change(service);
        }
    }
    list.to_string()
}

/// The network of a pod with `address`, as a bundle has it.
fn network_of(pid: u32, address: &str) -> String {
    let link = json!([{"ifindex": 2, "ifname": "eth0", "flags": ["UP"], "addr_info": [
        {"family": "inet", "local": address, "prefixlen": 24, "scope": "global"},
    ]}]);
    format!("=== {pid}\n--- node/ip-addr.json\n{link}\n")
}

/// Returns the first cause of `kpx why` on a recording with `changes` in which a pod of the node has 10.244.1.99, and no other one.
async fn cause_beside_a_pod(changes: &[Change], service: &str) -> Value {
    let dir = mutated("full-iptables", changes);
    let pods = std::fs::read_to_string(dir.path().join(PODS)).unwrap();
    let pod = json!({
        "metadata": {"name": "other-0", "namespace": "shop"},
        "spec": {"nodeName": "node1", "containers": []},
        "status": {"phase": "Running", "podIP": "10.244.1.99"},
    });
    std::fs::write(dir.path().join(PODS), with_pods(&pods, [pod])).unwrap();
    let networks = network_of(7, "10.244.1.99");
    std::fs::write(dir.path().join("node/pod-networks.txt"), networks).unwrap();
    let ran = why_in(dir.path(), &[service, "-o", "json"]).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran}"));
    report["causes"][0].clone()
}

#[tokio::test]
async fn missing_endpoints_have_a_reason_where_the_networks_of_pods_are_read() {
    let cause = cause_beside_a_pod(&[], "shop/empty").await;
    assert_eq!(cause["lack"], "no-pods", "{cause}");
    assert_eq!(
        cause["fix"]["command"],
        "kubectl -n shop describe replicasets,statefulsets,daemonsets -l app=empty"
    );
}

#[tokio::test]
async fn a_slice_with_an_address_that_no_pod_has_is_corrected_where_it_is_written() {
    let of_pod = |text: &str| {
        slices(text, "cart", |slice| {
            slice["endpoints"][0]["targetRef"] =
                json!({"kind": "Pod", "name": "cart-0", "namespace": "shop"});
        })
    };
    let no_selector = |text: &str| {
        service(text, "cart", |service| {
            service["spec"]["selector"] = Value::Null;
        })
    };
    let cause = cause_beside_a_pod(&[(SLICES, of_pod)], "shop/cart").await;
    assert_eq!(
        (&cause["cause"], &cause["writer"]),
        (&json!("no-pod"), &json!("controller"))
    );
    let left = [
        (SLICES, of_pod as fn(&str) -> String),
        (SERVICES, no_selector),
    ];
    let cause = cause_beside_a_pod(&left, "shop/cart").await;
    assert_eq!(
        (&cause["cause"], &cause["writer"]),
        (&json!("no-pod"), &json!("former"))
    );
    assert_eq!(
        cause["fix"]["command"],
        "kubectl -n shop delete endpointslice cart-abcde"
    );
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn an_endpoint_that_kube_proxy_serves_itself_is_named() {
    // A NodePort of this node, and the cluster IP of another Service.
    let node_port = |text: &str| {
        slices(text, "hostnet", |slice| {
            slice["ports"][0]["port"] = json!(30080);
        })
    };
    // kube-proxy names the chains after the endpoints.
    let rules = |text: &str| {
        let text = text.replace("10.0.2.15:9100", "10.0.2.15:30080");
        let text = text.replace("10.0.2.16:9100", "10.0.2.16:30080");
        let text = text.replace("KUBE-SEP-NEDO644CK2IJFYR4", "KUBE-SEP-DRSRKCGXKMZDVJ5G");
        text.replace("KUBE-SEP-ORUYMF4JS22RS25Q", "KUBE-SEP-556MK62STSIJQM6M")
    };
    let changes = [(SLICES, node_port as fn(&str) -> String), (RULES, rules)];
    let cause = cause_beside_a_pod(&changes, "shop/hostnet").await;
    assert_eq!(
        (&cause["cause"], &cause["other"]),
        (&json!("twice"), &json!("edge/web:http"))
    );
    let cluster_ip = |text: &str| {
        slices(text, "hostnet", |slice| {
            slice["endpoints"] = json!([{"addresses": ["10.100.1.1"]}]);
            slice["ports"][0]["port"] = json!(8080);
        })
    };
    let rules = |text: &str| {
        let text = text.replace("10.0.2.15:9100", "10.100.1.1:8080");
        text.replace("10.0.2.16:9100", "10.100.1.1:8080")
    };
    let changes = [(SLICES, cluster_ip as fn(&str) -> String), (RULES, rules)];
    let cause = cause_beside_a_pod(&changes, "shop/hostnet").await;
    assert_eq!(
        (&cause["cause"], &cause["other"]),
        (&json!("twice"), &json!("shop/cart:http"))
    );
}

/// Changes a file of a bundle.
fn edit_in(dir: &Path, file: &str, change: &dyn Fn(&str) -> String) {
    let path = dir.join(file);
    let old = std::fs::read_to_string(&path).unwrap();
    std::fs::write(path, change(&old)).unwrap();
}

/// Returns the causes of `kpx why` in a bundle.
async fn causes_in(dir: &Path, args: &[&str]) -> Vec<Value> {
    let ran = why_in(dir, &[args, &["-o", "json"]].concat()).await;
    let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran}"));
    report["causes"].as_array().unwrap().clone()
}

/// Whether one of `causes` has a fix with `command`.
fn has_fix(causes: &[Value], command: &str) -> bool {
    let is_it = |of: &Value| {
        of["fix"]["command"]
            .as_str()
            .is_some_and(|it| it.contains(command))
    };
    causes.iter().any(is_it)
}

#[tokio::test]
async fn table_main_is_looked_up_by_a_rule_without_conditions() {
    let add = "ip rule add lookup main priority 32766";
    let local = r#"{"priority": 0, "src": "all", "table": "local"}"#;
    let of_one = r#"{"priority": 512, "src": "10.244.9.9", "table": "main"}"#;
    let main = r#"{"priority": 32766, "src": "all", "table": "main"}"#;
    for (rules, is_lacking) in [
        (format!("[{local}]"), true),
        (format!("[{local},{of_one}]"), true),
        (format!("[{local},{main}]"), false),
    ] {
        let dir = mutated("full-iptables", &[]);
        std::fs::write(dir.path().join("node/ip-rule.json"), &rules).unwrap();
        let causes = causes_in(dir.path(), &["shop/cart"]).await;
        assert_eq!(has_fix(&causes, add), is_lacking, "{rules}: {causes:?}");
    }
}

#[tokio::test]
async fn a_node_that_forwards_needs_accept_ra_2_for_its_default_route() {
    const ROUTES: &str = "node/ip-route.json";
    fn without_default(text: &str) -> String {
        let mut all: Value = serde_json::from_str(text).unwrap();
        let routes = all.as_array_mut().unwrap();
        routes.retain(|route| route["protocol"] != "ra");
        all.to_string()
    }
    fn forwards(text: &str) -> String {
        let eth0 = "net.ipv6.conf.eth0.accept_ra = 1\nnet.ipv6.conf.eth0.forwarding = 1\n";
        text.replace("forwarding = 0", "forwarding = 1") + eth0
    }
    let fix = "net.ipv6.conf.eth0.accept_ra=2";
    let dir = mutated(
        "dual-iptables",
        &[(ROUTES, without_default), (SYSCTLS, forwards)],
    );
    let causes = causes_in(dir.path(), &["shop/front"]).await;
    assert!(has_fix(&causes, fix), "{causes:?}");
    let dir = mutated("dual-iptables", &[(SYSCTLS, forwards)]);
    let causes = causes_in(dir.path(), &["shop/front"]).await;
    assert!(!has_fix(&causes, fix), "{causes:?}");
}

#[tokio::test]
async fn a_node_answers_for_the_gateway_of_pods_if_it_has_a_route_to_it() {
    for has_route in [false, true] {
        let dir = mutated("full-iptables", &[]);
        let edit = |file: &str, change: &dyn Fn(&str) -> String| edit_in(dir.path(), file, change);
        let link = r#"{"ifindex": 7, "link_index": 3, "ifname": "cali1", "flags": ["UP"],
            "mtu": 1500, "operstate": "UP", "linkinfo": {"info_kind": "veth"}}"#;
        edit("node/ip-link.json", &|text| with_more(text, &[link]));
        edit(SYSCTLS, &|text| {
            format!("{text}net.ipv4.conf.all.proxy_arp = 0\nnet.ipv4.conf.cali1.proxy_arp = 1\n")
        });
        edit("node/ip-route.json", &|text| {
            let mut all: Value = serde_json::from_str(text).unwrap();
            let routes = all.as_array_mut().unwrap();
            routes.retain(|route| has_route || route["dst"] != "default");
            let pod = r#"{"dst": "10.244.1.99", "dev": "cali1", "scope": "link"}"#;
            with_more(&all.to_string(), &[pod])
        });
        edit(PODS, &|text| {
            let pod = json!({
                "metadata": {"name": "other-0", "namespace": "shop"},
                "spec": {"nodeName": "node1", "containers": []},
                "status": {"phase": "Running", "podIP": "10.244.1.99"},
            });
            with_pods(text, [pod])
        });
        let link = json!([{"ifindex": 3, "link_index": 7, "ifname": "eth0", "flags": ["UP"],
            "mtu": 1500, "operstate": "UP", "linkinfo": {"info_kind": "veth"}}]);
        let routes = json!([
            {"dst": "default", "gateway": "169.254.1.1", "dev": "eth0"},
            {"dst": "169.254.1.1", "dev": "eth0", "scope": "link"},
        ]);
        let network = network_of(7, "10.244.1.99").replace("\"ifindex\":2", "\"ifindex\":3");
        let network =
            format!("{network}--- node/ip-link.json\n{link}\n--- node/ip-route.json\n{routes}\n");
        std::fs::write(dir.path().join("node/pod-networks.txt"), network).unwrap();
        let causes = causes_in(dir.path(), &["shop/cart", "--source", "10.244.1.99"]).await;
        let is_silent = has_fix(&causes, "ip route add 169.254.1.1/32");
        assert_eq!(is_silent, !has_route, "{causes:?}");
    }
}

#[tokio::test]
async fn flannel_announces_the_address_that_its_link_has() {
    let mac = "ee:8d:cf:69:b3:7c";
    for (announced, is_lost) in [("EE:8D:CF:69:B3:7C", false), ("e6:7c:02:8e:e8:7e", true)] {
        let dir = mutated("full-iptables", &[]);
        let edit = |file: &str, change: &dyn Fn(&str) -> String| edit_in(dir.path(), file, change);
        let link = json!({"ifindex": 8, "ifname": "flannel.1", "flags": ["UP"], "mtu": 1450, "address": mac,
            "linkinfo": {"info_kind": "vxlan", "info_data": {"id": 1, "port": 8472}}});
        edit("node/ip-link.json", &|text| {
            with_more(text, &[&link.to_string()])
        });
        let route = r#"{"dst": "10.244.2.0/24", "gateway": "10.244.2.0", "dev": "flannel.1"}"#;
        edit("node/ip-route.json", &|text| {
            with_more(text, &[OWN_PODS, route])
        });
        edit(NODES, &|text| {
            let mut list: Value = serde_json::from_str(text).unwrap();
            let mut nodes = list["items"].as_array_mut().unwrap().iter_mut();
            let own = nodes
                .find(|node| node["metadata"]["name"] == "node1")
                .unwrap();
            own["metadata"]["annotations"] = json!({
                "flannel.alpha.coreos.com/backend-data":
                    json!({"VNI": 1, "VtepMAC": announced}).to_string(),
            });
            list.to_string()
        });
        let causes = causes_in(dir.path(), &["shop/cart"]).await;
        assert_eq!(
            has_fix(&causes, "kubectl get node node1"),
            is_lost,
            "{causes:?}"
        );
    }
}

/// Returns the cause that a Service of a healthy node has, by its objects alone; `None` if it works.
fn expected(service: &Value, slices: &[Value]) -> Option<&'static str> {
    let spec = &service["spec"];
    if spec["type"] == "ExternalName" {
        return Some("ExternalName");
    }
    let labels = &service["metadata"]["labels"];
    if !labels["service.kubernetes.io/service-proxy-name"].is_null() {
        return Some("OtherProxy");
    }
    let of_service = |slice: &&Value| {
        slice["metadata"]["namespace"] == service["metadata"]["namespace"]
            && slice["metadata"]["labels"]["kubernetes.io/service-name"]
                == service["metadata"]["name"]
    };
    let endpoints = slices.iter().filter(of_service);
    let endpoints = endpoints.flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
    let takes = |of: &&Value| {
        let conditions = &of["conditions"];
        conditions["ready"] == true
            || conditions["serving"] == true && conditions["terminating"] == true
    };
    let usable: Vec<_> = endpoints.filter(takes).collect();
    if usable.is_empty() {
        return Some("NoEndpoints");
    }
    let is_local = ["internalTrafficPolicy", "externalTrafficPolicy"]
        .iter()
        .any(|policy| spec[policy] == "Local");
    let here = usable.iter().any(|usable| usable["nodeName"] == "node1");
    if is_local && !here {
        return Some("NoLocalEndpoints");
    }
    let ranges = &spec["loadBalancerSourceRanges"];
    if !ranges.is_null() {
        return Some("SourceRanges");
    }
    // kube-proxy does not serve such a load balancer, and no node shows it.
    let ingress = service["status"]["loadBalancer"]["ingress"].as_array();
    let mut ingress = ingress.into_iter().flatten();
    let is_unseen = |of: &Value| of["ip"].is_null() || of["ipMode"] == "Proxy";
    ingress.any(is_unseen).then_some("Balancer")
}

fn objects(name: &str, file: &str) -> Vec<Value> {
    let text = recorded(name, &format!("cluster/{file}")).unwrap();
    let list: Value = serde_json::from_str(&text).unwrap();
    list["items"].as_array().unwrap().clone()
}

/// A healthy Service is never called broken, whatever its type and the mode.
#[test]
#[ignore = "takes long: make test-loops"]
fn every_service_with_ready_endpoints_works_on_healthy_nodes() {
    let mut count = 0;
    // The large ones are slow to compare, and their Services are alike.
    for name in HEALTHY.iter().filter(|name| !name.starts_with("scale-")) {
        let dir = root().join("testdata/nodes").join(name);
        let evidence = evidence::load(&dir, evidence::ITEMS).unwrap();
        let node = NodeSnapshot::new(&evidence);
        let outcomes = outcomes(&node);
        let look = Look::new(&node, &Family::BOTH, &outcomes).unwrap();
        let slices = objects(name, "endpointslices.json");
        for service in &objects(name, "services.json") {
            let metadata = &service["metadata"];
            let full = format!(
                "{}/{}",
                metadata["namespace"].as_str().unwrap(),
                metadata["name"].as_str().unwrap()
            );
            let answer = look.why(&Asked::parse(&full).unwrap(), None).unwrap();
            let what = format!("{name} {full}: {}", answer.sentence);
            match expected(service, &slices) {
                None => {
                    assert_eq!(answer.fate, Fate::Works, "{what}");
                    assert!(answer.causes.is_empty(), "{what}");
                }
                Some(cause) => {
                    let first = answer
                        .causes
                        .first()
                        .map(|cause| format!("{:?}", cause.cause));
                    let is_it = first.as_ref().is_some_and(|text| text.starts_with(cause));
                    assert!(is_it, "{what}: {first:?}, not {cause}");
                    if cause == "Balancer" {
                        assert_eq!(answer.fate, Fate::Unknown, "{what}");
                    }
                }
            }
            count += 1;
        }
    }
    assert!(count > 200, "{count} Services");
}

fn outcomes<'n>(node: &'n NodeSnapshot<'n>) -> Vec<(&'static check::Check, check::Outcome)> {
    let facts = check::Facts::new(node, None);
    let checks = check::asked(None).into_iter();
    checks
        .map(|check| (check, check::run(check, &facts)))
        .collect()
}

/// Endpoints of `cart` that are pods and no longer ready.
const UNREADY: Change = (SLICES, |text| {
    slices(text, "cart", |slice| {
        conditions(slice, [false, false, false]);
        for (name, endpoint) in ["cart-0", "cart-1"]
            .iter()
            .zip(slice["endpoints"].as_array_mut().unwrap())
        {
            endpoint["targetRef"] = json!({"kind": "Pod", "name": name, "namespace": "shop"});
        }
    })
});

/// Adds a write of `object`, or of its `subresource` alone.
fn written(object: &mut Value, time: &str, subresource: &str) {
    let writes = &mut object["metadata"]["managedFields"];
    if writes.is_null() {
        *writes = json!([]);
    }
    let write = json!({"time": time, "subresource": subresource});
    writes.as_array_mut().unwrap().push(write);
}

const CREATED: &str = "2026-11-20T11:58:01Z";

/// Adds the write that created each object.
fn with_first_writes(text: &str) -> String {
    let mut list: Value = serde_json::from_str(text).unwrap();
    for object in list["items"].as_array_mut().unwrap() {
        written(object, CREATED, "");
    }
    list.to_string()
}

/// Removes what is known of writes, as kubectl does.
fn without_writes(object: &mut Value) {
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("managedFields").unwrap();
}

fn with_pods(text: &str, pods: impl IntoIterator<Item = Value>) -> String {
    let mut list: Value = serde_json::from_str(text).unwrap();
    list["items"].as_array_mut().unwrap().extend(pods);
    list.to_string()
}

fn unready_pods(text: &str, all: &[(&str, &str)]) -> String {
    let pods = all.iter().map(|(name, since)| {
        json!({
            "metadata": {"name": name, "namespace": "shop"},
            "status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": since}]},
        })
    });
    with_pods(text, pods)
}

/// A Service that was edited after its creation may have had the field before, endpoints move, and of several pods the last
/// one decides. Where the writes are not known, nor is the time.
#[tokio::test]
async fn since_when_is_said_of_the_field_in_question_alone() {
    type Changes = &'static [Change];
    const POLICY: &[&str] = &["edge/web-remote-only"];
    const RANGES: &[&str] = &["edge/web-restricted", "--source", "198.18.0.1"];
    const CART: &[&str] = &["shop/cart"];
    const EDITED: &str = "2026-11-20T12:05:00Z";
    const FIRST: Changes = &[(SERVICES, with_first_writes), (SLICES, with_first_writes)];
    let unknown_service: Changes = &[(SERVICES, |text| {
        service(text, "web-remote-only", without_writes)
    })];
    let unknown_slice: Changes = &[(SLICES, |text| {
        slices(text, "web-remote-only", without_writes)
    })];
    let edited_policy: Changes = &[(SERVICES, |text| {
        service(text, "web-remote-only", |service| {
            written(service, EDITED, "");
        })
    })];
    let edited_ranges: Changes = &[(SERVICES, |text| {
        service(text, "web-restricted", |service| {
            written(service, EDITED, "");
        })
    })];
    let status: Changes = &[(SERVICES, |text| {
        service(text, "web-remote-only", |service| {
            written(service, EDITED, "status");
        })
    })];
    let moved: Changes = &[(SLICES, |text| {
        slices(text, "web-remote-only", |slice| {
            written(slice, "2026-11-20T12:06:00Z", "");
        })
    })];
    let both: Changes = &[
        UNREADY,
        (PODS, |text| {
            unready_pods(
                text,
                &[
                    ("cart-0", "2026-11-20T12:01:00Z"),
                    ("cart-1", "2026-11-20T12:03:00Z"),
                ],
            )
        }),
    ];
    let one: Changes = &[
        UNREADY,
        (PODS, |text| {
            unready_pods(text, &[("cart-0", "2026-11-20T12:01:00Z")])
        }),
    ];
    for (what, args, changes, since) in [
        ("policy", POLICY, &[][..], Some(CREATED)),
        ("policy, unknown Service", POLICY, unknown_service, None),
        ("policy, unknown slice", POLICY, unknown_slice, None),
        ("policy, edited", POLICY, edited_policy, None),
        ("policy, status", POLICY, status, Some(CREATED)),
        ("policy, moved", POLICY, moved, Some("2026-11-20T12:06:00Z")),
        ("ranges, edited", RANGES, edited_ranges, None),
        ("both pods", CART, both, Some("2026-11-20T12:03:00Z")),
        // The other one is not known: its slice is.
        ("one pod", CART, one, Some("2026-11-20T12:05:00Z")),
    ] {
        let dir = mutated("full-iptables", &[FIRST, changes].concat());
        let ran = why_in(dir.path(), &[args, &["-o", "json"]].concat()).await;
        let report: Value = serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran}"));
        assert_eq!(
            report["causes"][0]["since"].as_str(),
            since,
            "{what}: {ran}"
        );
    }
}

/// Where the range of cluster IPs is known, packets to an address of no Service in it are lost.
#[tokio::test]
async fn an_address_of_no_service_in_the_service_range_is_the_cause() {
    let dir = broken("full-iptables", &[]);
    let ranges = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"metadata": {"name": "kubernetes"}, "spec": {"cidrs": ["10.96.0.0/12"]}},
    ]});
    let path = dir.path().join("cluster/servicecidrs.json");
    std::fs::write(path, ranges.to_string()).unwrap();
    let ran = why_in(dir.path(), &["10.99.99.99:80"]).await;
    assert_eq!(ran.code, 1, "{ran}");
    let lead = "LOST: no Service and no endpoint has the address 10.99.99.99:80\n\
                look: kpx show services\n";
    assert!(ran.out.contains(&format!("\n{lead}")), "{ran}");
    assert!(!ran.out.contains("also:"), "{ran}");
}

#[tokio::test]
async fn a_service_that_works_names_what_was_not_seen() {
    for mode in Mode::ALL {
        let name = format!("full-{mode}");
        let ran = kpx_on(&name, &["why", "shop/cart"]).await;
        assert_eq!(ran.code, 0, "{ran}");
        insta::assert_snapshot!(format!("works-{mode}"), ran);
    }
    // The Service's own settings keep some clients out.
    let ran = kpx_on("full-iptables", &["why", "edge/web-restricted"]).await;
    assert_eq!(ran.code, 0, "{ran}");
    assert!(ran.out.contains("\nBY DESIGN: "), "{ran}");
    insta::assert_snapshot!("limited", ran);
    let ran = kpx_on("dual-iptables", &["why", "shop/front"]).await;
    insta::assert_snapshot!("works-dual", ran);
    let ran = kpx_on("full-iptables", &["why", "shop/db"]).await;
    insta::assert_snapshot!("works-headless", ran);
    let args = ["why", "shop/cart:http", "-o", "json"];
    insta::assert_snapshot!(
        "json",
        kpx_on(
            "seed-iptables",
            &["why", "default/redis-master", "-o", "json"]
        )
        .await
    );
    let whole = Case {
        name: "",
        recording: "full-iptables",
        changes: &[
            ("node/ip-route.json", |text| {
                with_more(text, &[OWN_PODS, OTHER_PODS])
            }),
            (RULES, |text| {
                before(text, "[0:0] -A FORWARD", "[0:0] -A FORWARD -i eth0 -j DROP")
            }),
        ],
        args: &["nodeport:31082"],
        cause: "",
    };
    let ran = why_in(mutated(whole.recording, whole.changes).path(), whole.args).await;
    // The firewall of the node keeps clients outside out.
    assert_eq!(ran.code, 1, "{ran}");
    assert!(ran.out.contains("\nPARTLY: "), "{ran}");
    insta::assert_snapshot!("firewall", ran);
    let yaml = kpx_on("full-iptables", &[&args[..3], &["yaml"]].concat()).await;
    assert!(yaml.out.contains("fate: works"), "{yaml}");
}

#[tokio::test]
async fn errors_of_why_name_the_next_step() {
    let mut all = String::new();
    for args in [
        &["wep"][..],
        &["www.example.com"],
        &["shop/cart", "--source", "no-such-pod"],
        &["shop/cart", "--probe"],
    ] {
        let ran = kpx_on("full-iptables", &[&["why"], args].concat()).await;
        assert!(ran.out.is_empty(), "{ran}");
        all.extend([
            "$ kpx why ",
            &args.join(" "),
            "\n",
            &ran.to_string(),
            "\n\n",
        ]);
    }
    let ran = kpx_on("ib07-flushed", &["why", "shop/cart"]).await;
    all.extend([
        "$ kpx why shop/cart, without the cluster\n",
        &ran.to_string(),
    ]);
    insta::assert_snapshot!("errors", all);
}

/// The same cause on several nodes is one cause with its nodes; the earliest one is the answer.
#[test]
fn answers_of_several_nodes_are_merged() {
    let answer = |recording: &str, target: &str, node: &str| {
        let dir = root().join("testdata/nodes").join(recording);
        let evidence = evidence::load(&dir, evidence::ITEMS).unwrap();
        let snapshot = NodeSnapshot::new(&evidence);
        let asked = Asked::parse(target).unwrap();
        let look = Look::new(&snapshot, &Family::BOTH, &[]).unwrap();
        let mut answer = look.why(&asked, None).unwrap();
        answer.node = Some(node.to_owned());
        answer
    };
    let all = [
        answer("full-iptables", "shop/agent-remote", "w1"),
        answer("full-nftables", "shop/agent-remote", "w2"),
        answer("full-iptables", "shop/cart", "w3"),
    ];
    let merged = why::merge(&all);
    assert_eq!(merged.fate, Fate::Partly);
    assert_eq!(merged.works, 1);
    assert_eq!(merged.causes.len(), 1, "{:?}", merged.causes);
    assert_eq!(merged.causes[0].nodes, ["w1", "w2"]);
    assert!(matches!(
        merged.causes[0].broken.cause,
        Cause::NoLocalEndpoints { .. }
    ));
    assert_eq!(merged.causes[0].broken.degree, Degree::Breaks);
    assert!(
        merged.sentence.ends_with("; the same on w2"),
        "{}",
        merged.sentence
    );
}

/// kube-proxy 1.38 in nftables mode listens itself on loopback addresses that `nodePortAddresses` names.
#[tokio::test]
async fn a_node_port_on_a_loopback_address_ends_at_kube_proxys_own_listener() {
    let newer = |text: &str| text.replace("v1.36.2", "v1.38.0");
    let named = |text: &str| format!("{text}\nnodePortAddresses: [primary, localhost]\n");
    let listens = |text: &str| {
        let address = "127.0.0.1:30080 0.0.0.0:*";
        format!("{text}\ntcp LISTEN 0 4096 {address} users:((\"kube-proxy\",pid=141,fd=11))\n")
    };
    let changes: &[(&str, crate::support::Change<'_>)] = &[
        ("kube-proxy/metrics.txt", &newer),
        ("kube-proxy/config.conf", &named),
        ("node/ss.txt", &listens),
    ];
    let host = async |changes| {
        let node = broken("full-nftables", changes);
        let from = node.path().to_str().unwrap();
        let ran = kpx(&["--from", from, "why", "127.0.0.1:30080"]).await;
        let row = ran
            .out
            .lines()
            .find(|line| line.starts_with("127.0.0.1:30080/tcp "));
        let row = row.unwrap_or_else(|| panic!("{ran}"));
        row.split_whitespace().last().unwrap().to_owned()
    };
    // kpx does not follow the connection that kube-proxy makes for it.
    assert_eq!(host(changes).await, "unknown");
    assert_eq!(host(&changes[..2]).await, "refused");
    // An older release has no such listener: the program is another one.
    assert_eq!(host(&changes[2..]).await, "misled");
}

#[tokio::test]
async fn connections_are_drawn_with_what_is_missing_and_what_stops_them() {
    for (name, recording, target) in [
        ("missing-rule", "ir03-missing-rule", "default/redis-master"),
        ("foreign-drop", "ir16-foreign-drops", "default/nginx-svc"),
        ("works", "full-ipvs", "shop/cart"),
        ("source-ranges", "full-iptables", "edge/web-restricted"),
        ("no-endpoints", "full-nftables", "shop/empty"),
        ("no-service", "full-iptables", "shop/nosuch"),
    ] {
        let drawn = kpx_on(recording, &["why", target, "-o", "picture"]).await;
        for line in drawn.out.lines() {
            let fits = line.chars().count() <= 80
                || line.starts_with("fix: ")
                || line.starts_with("look: ");
            assert!(fits, "{name}: {line}");
        }
        let svg = kpx_on(recording, &["why", target, "-o", "svg"]).await;
        assert_eq!(svg.code, drawn.code, "{name}");
        let parsed = roxmltree::Document::parse(&svg.out).unwrap();
        let texts = parsed
            .descendants()
            .filter(|descendant| descendant.has_tag_name("text"));
        assert!(texts.count() > 5, "{name}: {svg}");
        insta::assert_snapshot!(format!("picture-{name}"), drawn);
    }
    let plain = ["why", "default/redis-master", "-o", "picture", "--ascii"];
    let plain = kpx_on("ir03-missing-rule", &plain).await;
    assert!(plain.out.is_ascii() && !plain.out.contains('?'), "{plain}");
}
