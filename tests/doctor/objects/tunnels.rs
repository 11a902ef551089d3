//! Tunnels, links and routes to other nodes.

use crate::doctor::ends::{HEALTHY, json, says};
use crate::doctor::incidents::{answer, copy, write};
use crate::support::kpx;

#[tokio::test]
async fn links_of_a_vrf_are_not_followed() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "node/ip-link.json",
        json(|links| {
            let all = links.as_array_mut().unwrap();
            all.iter_mut()
                .find(|link| link["ifname"] == "eth0")
                .unwrap()["master"] = "blue".into();
            all.push(serde_json::json!({"ifindex": 90, "ifname": "blue", "flags": ["UP", "LOWER_UP"], "mtu": 65536,
                "operstate": "UP", "linkinfo": {"info_kind": "vrf", "info_data": {"table": 10}}}));
        }),
    );
    says(&dir, "demo/edge:http", "unknown", &["eth0 is in VRF blue"]).await;
    let answer = answer(dir.path().to_str().unwrap(), "10.244.1.4:8080").await;
    let paths = answer["paths"].as_array().unwrap().iter();
    let mut own = paths.filter(|path| path["client"] == "pod");
    assert!(
        own.all(|path| path["fate"] == "works"),
        "{}",
        answer["sentence"]
    );
}

#[tokio::test]
async fn the_lack_of_a_route_outside_of_a_vrf_is_not_certain() {
    let dir = copy(HEALTHY);
    write(
        &dir,
        "node/ip-link.json",
        json(|links| {
            let all = links.as_array_mut().unwrap();
            all.iter_mut()
                .find(|link| link["ifname"] == "eth0")
                .unwrap()["master"] = "blue".into();
        }),
    );
    add_link(
        &dir,
        &serde_json::json!({"ifname": "blue", "linkinfo": {"info_kind": "vrf", "info_data": {"table": 10}}}),
    );
    write(
        &dir,
        "node/ip-route.json",
        json(|routes| {
            for route in routes.as_array_mut().unwrap() {
                if route["dev"] == "eth0" && route["dst"] != "10.244.2.0/24" {
                    route["table"] = "10".into();
                }
            }
        }),
    );
    says(&dir, "demo/web:http", "unknown", &["VRF blue"]).await;
    let path = dir.path().to_str().unwrap();
    let args = ["why", "demo/web-nodeport:http", "--source", "203.0.113.9"];
    let ran = kpx(&[&["--from", path][..], &args].concat()).await;
    let words = "VRF blue has a route to 10.210.0.16";
    assert!(ran.out.replace("\n  ", " ").contains(words), "{ran}");
}

#[tokio::test]
async fn an_ip_tunnel_to_a_machine_that_is_no_node_is_in_doubt() {
    for (gateway, fate) in [("10.210.0.17", "works"), ("10.210.0.99", "unknown")] {
        let dir = copy(HEALTHY);
        write(
            &dir,
            "node/ip-link.json",
            json(|links| {
                links.as_array_mut().unwrap().push(serde_json::json!({"ifindex": 91, "ifname": "tunl0", "mtu": 1480,
                    "flags": ["NOARP", "UP", "LOWER_UP"], "operstate": "UNKNOWN",
                    "linkinfo": {"info_kind": "ipip", "info_data": {"remote": "any", "local": "any"}}}));
            }),
        );
        write(
            &dir,
            "node/ip-route.json",
            json(|routes| {
                for route in routes.as_array_mut().unwrap() {
                    let by = match route["dst"].as_str() {
                        Some("10.244.0.0/24") => "10.210.0.15",
                        Some("10.244.2.0/24") => gateway,
                        _ => continue,
                    };
                    let to = route["dst"].clone();
                    *route = serde_json::json!({"dst": to, "gateway": by, "dev": "tunl0", "flags": ["onlink"]});
                }
            }),
        );
        let words: &[&str] = if fate == "works" {
            &[]
        } else {
            &["ip route replace 10.244.2.0/24 via 10.210.0.17 dev tunl0 onlink"]
        };
        says(&dir, "demo/web", fate, words).await;
    }
}

/// Adds a link to the node; each other kind of link is in the recording.
fn add_link(dir: &tempfile::TempDir, link: &serde_json::Value) {
    write(
        dir,
        "node/ip-link.json",
        json(|links| {
            let mut link = link.clone();
            link["ifindex"] = 91.into();
            link["mtu"] = 1450.into();
            link["flags"] = serde_json::json!(["UP", "LOWER_UP"]);
            link["operstate"] = "UP".into();
            links.as_array_mut().unwrap().push(link);
        }),
    );
}

/// Replaces the route to the pods of w2; `hidden` leaves the other one there with a metric.
fn route_to_w2(dir: &tempfile::TempDir, new: &serde_json::Value, hidden: bool) {
    write(
        dir,
        "node/ip-route.json",
        json(|routes| {
            let all = routes.as_array_mut().unwrap();
            if hidden {
                let mut own = all.iter_mut();
                own.find(|route| route["dst"] == "10.244.2.0/24").unwrap()["metric"] = 100.into();
            } else {
                all.retain(|route| route["dst"] != "10.244.2.0/24");
            }
            all.push(new.clone());
        }),
    );
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_tunnel_with_an_end_that_is_no_address_of_the_node_is_in_doubt() {
    for (remote, hidden, fate, words) in [
        ("10.210.0.17", false, "works", &[][..]),
        ("10.210.0.17", true, "works", &[]),
        (
            "10.210.0.99",
            false,
            "unknown",
            &["ip link set to-w2 type ipip remote 10.210.0.17"],
        ),
        // The address of a third node.
        (
            "10.210.0.15",
            true,
            "unknown",
            &["ip route del 10.244.2.0/24 dev to-w2"],
        ),
    ] {
        let dir = copy(HEALTHY);
        add_link(
            &dir,
            &serde_json::json!({"ifname": "to-w2", "linkinfo": {"info_kind": "ipip",
                "info_data": {"remote": remote, "local": "10.210.0.16"}}}),
        );
        let new = serde_json::json!({"dst": "10.244.2.0/24", "dev": "to-w2", "scope": "link", "flags": []});
        route_to_w2(&dir, &new, hidden);
        says(&dir, "demo/web", fate, words).await;
    }
}

#[tokio::test]
async fn a_link_of_a_plugin_that_is_gone_hides_a_route_to_another_node() {
    for (runs, fate, words) in [
        (
            false,
            "unknown",
            &[
                "antrea-gw0 is a link of Antrea, which does not run",
                "ip route del 10.244.2.0/24 via 10.244.2.1",
            ][..],
        ),
        (true, "works", &[]),
    ] {
        let dir = copy(HEALTHY);
        add_link(
            &dir,
            &serde_json::json!({"ifname": "antrea-gw0", "linkinfo": {"info_kind": "openvswitch"}}),
        );
        let new = serde_json::json!({"dst": "10.244.2.0/24", "gateway": "10.244.2.1", "dev": "antrea-gw0", "flags": ["onlink"]});
        route_to_w2(&dir, &new, true);
        if runs {
            write(
                &dir,
                "node/processes.json",
                json(|processes| {
                    let all = processes["processes"].as_array_mut().unwrap();
                    let mut agent = all[0].clone();
                    agent["name"] = "antrea-agent".into();
                    agent["pid"] = 99_999.into();
                    all.push(agent);
                }),
            );
        }
        says(&dir, "demo/web", fate, words).await;
    }
}

#[tokio::test]
async fn an_address_for_tunnels_that_is_none_of_the_node_is_in_doubt() {
    for (address, fate, words) in [
        ("10.210.0.17", "works", &[][..]),
        (
            "10.210.0.77",
            "unknown",
            &["w2 announces 10.210.0.77 for its tunnels"],
        ),
    ] {
        let dir = copy(HEALTHY);
        add_link(
            &dir,
            &serde_json::json!({"ifname": "flannel.1", "address": "2e:11:22:33:44:01", "linkinfo": {"info_kind": "vxlan",
                "info_data": {"id": 1, "local": "10.210.0.16", "port": 8472}}}),
        );
        let new = serde_json::json!({"dst": "10.244.2.0/24", "gateway": "10.244.2.0", "dev": "flannel.1", "flags": ["onlink"]});
        route_to_w2(&dir, &new, false);
        write(
            &dir,
            "node/ip-neigh.json",
            json(|neighbours| {
                let entry = serde_json::json!({"dst": "10.244.2.0", "dev": "flannel.1", "lladdr": "a2:00:00:00:00:02",
                    "state": ["PERMANENT"]});
                neighbours.as_array_mut().unwrap().push(entry);
            }),
        );
        write(
            &dir,
            "cluster/nodes.json",
            json(|nodes| {
                for node in nodes["items"].as_array_mut().unwrap() {
                    let own = node["status"]["addresses"][0]["address"].clone();
                    let is_w2 = node["metadata"]["name"] == "w2";
                    node["metadata"]["annotations"]["flannel.alpha.coreos.com/public-ip"] =
                        if is_w2 { address.into() } else { own };
                }
            }),
        );
        says(&dir, "demo/web", fate, words).await;
    }
}
