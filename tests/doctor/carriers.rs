//! The way of a tunnel's own packets, and what enters a tunnel that leads to pods alone.

use serde_json::{Value, json};

use super::ends::{HEALTHY, LINKS, NODES, findings, flannel, json, lead_pods, says, tunnel};
use super::incidents::{copy, write};
use super::links::{add_policy_rules, add_routes};
use super::meant::add_rule;
use crate::support::kpx;

const BOTH: [&str; 2] = ["10.244.0.0/24", "10.244.2.0/24"];
const NEIGHBOURS: &str = "node/ip-neigh.json";

/// The node with flannel's tunnel, whose own packets leave by eth0.
pub(super) fn tunnelled() -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    tunnel(&dir, Some(flannel(true)), &BOTH);
    dir
}

pub(super) fn add(dir: &tempfile::TempDir, file: &str, what: Value) {
    write(
        dir,
        file,
        json(|all| all.as_array_mut().unwrap().push(what)),
    );
}

pub(super) fn link(name: &str, kind: &str) -> Value {
    json!({"ifindex": 40, "ifname": name, "flags": ["UP", "LOWER_UP"], "mtu": 1500, "operstate": "UP",
        "linkinfo": {"info_kind": kind}})
}

/// The node whose pods send to those of other nodes by Calico's `WireGuard`.
fn with_wireguard() -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    add(&dir, LINKS, link("wireguard.cali", "wireguard"));
    let routes = BOTH.map(|range| json!({"dst": range, "dev": "wireguard.cali", "table": "1", "scope": "link", "flags": []}));
    add_routes(&dir, &routes);
    let rule = json!({"priority": 99, "not": null, "src": "all", "fwmark": "0x200000", "fwmask": "0x200000", "table": "1"});
    add_policy_rules(&dir, &[rule]);
    write(
        &dir,
        NODES,
        json(|nodes| {
            for node in nodes["items"].as_array_mut().unwrap() {
                node["metadata"]["annotations"] =
                    json!({"projectcalico.org/WireguardPublicKey": "key="});
            }
        }),
    );
    dir
}

#[tokio::test]
async fn wireguard_takes_no_replies_from_addresses_of_nodes() {
    let words = [
        "replies to pods of node w1 leave node cp1 by wireguard.cali with the source 10.210.0.15",
        "wireguardHostEncryptionEnabled",
    ];
    says(&with_wireguard(), "demo/ingress:http", "partly", &words).await;

    let masquerades = with_wireguard();
    let rule = "-A POSTROUTING -s 10.244.0.0/16 ! -d 10.244.0.0/16 -j MASQUERADE";
    add_rule(&masquerades, "nat", rule);
    says(&masquerades, "demo/ingress:http", "works", &[]).await;

    let covered = with_wireguard();
    let routes = ["10.210.0.15", "10.210.0.17"].map(
        |node| json!({"dst": node, "dev": "wireguard.cali", "table": "1", "scope": "link", "flags": []}),
    );
    add_routes(&covered, &routes);
    says(&covered, "demo/ingress:http", "works", &[]).await;

    // The others send nothing by WireGuard.
    let alone = with_wireguard();
    write(
        &alone,
        NODES,
        json(|nodes| {
            for node in nodes["items"].as_array_mut().unwrap() {
                if node["metadata"]["name"] != "w1" {
                    node["metadata"]["annotations"] = json!({});
                }
            }
        }),
    );
    says(&alone, "demo/ingress:http", "works", &[]).await;
}

#[tokio::test]
async fn the_log_of_wireguard_names_sources_that_it_drops() {
    for (name, source, severity) in [
        ("wireguard.cali", "10.210.0.2", "warning"),
        ("wg0", "10.210.0.2", "warning"),
        ("wg0", "192.0.2.77", "info"),
    ] {
        let dir = copy(HEALTHY);
        let line = format!(
            "[99999.1] wireguard: {name}: Packet has unallowed src IP ({source}) from peer 3 (10.210.0.15:51820)\n"
        );
        write(&dir, "node/dmesg.txt", |text| format!("{text}\n{line}"));
        let all = findings(&dir).await;
        let words = format!("{name} dropped packets from {source} of peer 10.210.0.15:51820");
        let is_it = |of: &(String, String, String)| {
            (of.0.as_str(), of.1.as_str()) == ("SY18", severity) && of.2.contains(&words)
        };
        assert!(all.iter().any(is_it), "{all:?}");
    }
}

#[tokio::test]
async fn a_tunnel_over_ipv6_adds_20_bytes_more() {
    for (local, mtu, message) in [
        (json!({"local": "10.210.0.16"}), 1450, None),
        (json!({"local": "10.210.0.16"}), 1460, Some("with 50 bytes")),
        (json!({"local6": "fd00::16"}), 1450, Some("with 70 bytes")),
        (json!({"local6": "fd00::16"}), 1430, None),
    ] {
        let dir = copy(HEALTHY);
        let mut tunnelled = flannel(true);
        tunnelled["mtu"] = mtu.into();
        let data = tunnelled["linkinfo"]["info_data"].as_object_mut().unwrap();
        data.remove("local");
        data.extend(local.as_object().unwrap().clone());
        tunnel(&dir, Some(tunnelled), &BOTH);
        write(
            &dir,
            NODES,
            json(|nodes| {
                let mut all = nodes["items"].as_array_mut().unwrap().iter_mut();
                let w2 = all.find(|node| node["metadata"]["name"] == "w2").unwrap();
                let address = json!({"type": "InternalIP", "address": "fd00::17"});
                let addresses = w2["status"]["addresses"].as_array_mut().unwrap();
                addresses.push(address);
            }),
        );
        add_routes(
            &dir,
            &[json!({"dst": "fd00::/64", "dev": "eth0", "flags": []})],
        );
        let all = findings(&dir).await;
        let mut found = all.iter().filter(|(id, ..)| id == "CN15");
        let found = found.next().map(|(.., message)| message);
        assert_eq!(found.is_some(), message.is_some(), "{local} {mtu}: {all:?}");
        if let (Some(found), Some(message)) = (found, message) {
            assert!(found.contains(message), "{found}");
        }
    }
}

#[tokio::test]
async fn the_next_hop_of_a_tunnels_own_packets_may_not_answer() {
    for (state, fate) in [("REACHABLE", "works"), ("FAILED", "partly")] {
        let dir = tunnelled();
        let mut entry = json!({"dst": "10.210.0.17", "dev": "eth0", "state": [state]});
        if state == "REACHABLE" {
            entry["lladdr"] = "02:00:00:00:00:17".into();
        }
        add(&dir, NEIGHBOURS, entry);
        let words: &[&str] = match fate {
            "works" => &[],
            _ => &["10.210.0.17 did not answer", "eth0"],
        };
        says(&dir, "demo/edge:http", fate, words).await;
    }
}

#[tokio::test]
async fn a_tunnels_own_packets_do_not_enter_it_again() {
    // What a client of DHCP does that takes the tunnel for a network card.
    let dir = tunnelled();
    let lan = json!({"dst": "10.210.0.0/25", "dev": "flannel.1", "scope": "link", "flags": []});
    add_routes(&dir, &[lan]);
    let words = [
        "the packets of tunnel flannel.1 to 10.210.0.",
        "enter the tunnel again",
        "ip route del 10.210.0.0/25",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
    // The API server is no pod, and no Node.
    let words = ["packets to 10.210.0.2 enter tunnel flannel.1, which leads to pods alone"];
    says(&dir, "default/kubernetes", "lost", &words).await;
}

#[tokio::test]
async fn a_tunnels_own_packets_that_a_vpn_or_a_rule_leads_elsewhere_are_in_doubt() {
    let vpn = tunnelled();
    add(&vpn, LINKS, link("tun0", "tun"));
    let half = json!({"dst": "10.210.0.17", "gateway": "10.8.0.1", "dev": "tun0", "flags": []});
    add_routes(&vpn, &[half]);
    let words = ["the address of node w2, leave by tun0, a VPN"];
    says(&vpn, "demo/edge:http", "unknown", &words).await;

    let accepted = tunnelled();
    add(&accepted, LINKS, link("tailscale0", "tun"));
    let lan = json!({"dst": "10.210.0.0/24", "dev": "tailscale0", "table": "52", "flags": []});
    add_routes(&accepted, &[lan]);
    let rule = json!({"priority": 5270, "src": "all", "table": "52"});
    add_policy_rules(&accepted, &[rule]);
    let words = [
        "leave by tailscale0, a VPN, as routing policy rule 5270 (from all lookup 52) says",
        "`ip rule add from all to 10.210.0.0/24 lookup main priority 5269` leads them past it",
    ];
    says(&accepted, "demo/edge:http", "unknown", &words).await;

    for (source, fate) in [("10.210.0.16", "UNKNOWN: "), ("10.210.0.99", "WORKS: ")] {
        let ruled = tunnelled();
        add(&ruled, LINKS, link("eth1", "veth"));
        let other = json!({"dst": "default", "gateway": "10.220.0.1", "dev": "eth1", "table": "200", "flags": []});
        add_routes(&ruled, &[other]);
        add_policy_rules(
            &ruled,
            &[json!({"priority": 100, "src": source, "table": "200"})],
        );
        let path = ruled.path().to_str().unwrap();
        let ran = kpx(&[
            "--from",
            path,
            "why",
            "demo/edge:http",
            "--source",
            "10.244.1.2",
        ])
        .await;
        let said = ran.out.replace("\n  ", " ");
        let words = "routing policy rule 100 (from 10.210.0.16/32 lookup 200) leads the packets of tunnel flannel.1";
        assert!(said.contains(fate), "{ran}");
        assert_eq!(said.contains(words), fate == "UNKNOWN: ", "{ran}");
    }
}

#[tokio::test]
async fn the_link_that_has_the_port_of_a_tunnel_that_is_down_is_named() {
    for (port, is_named) in [(8472, true), (4789, false)] {
        let dir = copy(HEALTHY);
        tunnel(&dir, Some(flannel(false)), &[]);
        let mut holder = link("cilium_vxlan", "vxlan");
        holder["linkinfo"]["info_data"] = json!({"id": 2, "port": port});
        add(&dir, LINKS, holder);
        let words: &[&str] = if is_named {
            &[
                "flannel.1 is down, as cilium_vxlan has its UDP port",
                "ip link del cilium_vxlan",
            ]
        } else {
            &["flannel.1 is down", "Restart the network plugin"]
        };
        says(&dir, "demo/edge:http", "partly", words).await;
    }
}

#[tokio::test]
async fn nodes_with_different_backends_of_flannel_do_not_reach_each_other() {
    let dir = copy(HEALTHY);
    tunnel(&dir, Some(flannel(true)), &BOTH[..1]);
    write(
        &dir,
        NODES,
        json(|nodes| {
            let mut all = nodes["items"].as_array_mut().unwrap().iter_mut();
            let w2 = all.find(|node| node["metadata"]["name"] == "w2").unwrap();
            w2["metadata"]["annotations"]["flannel.alpha.coreos.com/backend-type"] =
                "host-gw".into();
        }),
    );
    let words = ["flannel has backend vxlan on this node, but host-gw on node w2"];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn nodes_that_announce_one_address_find_no_way_to_each_other() {
    let dir = copy(HEALTHY);
    tunnel(&dir, Some(flannel(true)), &BOTH[..1]);
    write(
        &dir,
        NODES,
        json(|nodes| {
            for node in nodes["items"].as_array_mut().unwrap() {
                node["metadata"]["annotations"]["flannel.alpha.coreos.com/public-ip"] =
                    "169.254.20.10".into();
            }
        }),
    );
    let words = ["announce the same address, 169.254.20.10, to each other"];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn a_route_that_rejects_packets_to_a_node_is_the_fault_of_its_tunnel() {
    let dir = tunnelled();
    let rejects = json!({"type": "blackhole", "dst": "10.210.0.17", "flags": []});
    add_routes(&dir, &[rejects]);
    let words = [
        "the packets of tunnel flannel.1 (UDP port 8472) to node w2 (10.210.0.17) end at the blackhole route",
        "ip route del blackhole 10.210.0.17/32",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn a_route_to_the_other_end_of_a_tunnel_by_a_silent_gateway_is_named() {
    let dir = tunnelled();
    let by = json!({"dst": "10.210.0.17", "gateway": "10.210.0.222", "dev": "eth0", "flags": []});
    add_routes(&dir, &[by]);
    let entry = json!({"dst": "10.210.0.222", "dev": "eth0", "state": ["FAILED"]});
    add(&dir, NEIGHBOURS, entry);
    let words = [
        "the route 10.210.0.17/32 via 10.210.0.222 dev eth0 leads packets for 10.210.0.17",
        "ip route del 10.210.0.17/32 via 10.210.0.222 dev eth0",
    ];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

/// Lets all Nodes announce `change`.
fn announce(dir: &tempfile::TempDir, change: impl Fn(&mut Value)) {
    let each = |nodes: &mut Value| {
        nodes["items"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .for_each(&change);
    };
    write(dir, NODES, json(each));
}

/// Tried in a network namespace: the kernel sends no IPv4 packet of VXLAN from an address that it does not have, and sends those of IPv6.
#[tokio::test]
async fn a_tunnel_does_not_send_from_an_address_that_the_machine_has_lost() {
    let at = |local: &str| {
        let dir = tunnelled();
        let edit = |all: &mut Value| {
            let mut links = all.as_array_mut().unwrap().iter_mut();
            let link = links.find(|link| link["ifname"] == "flannel.1").unwrap();
            let key = if local.contains(':') {
                "local6"
            } else {
                "local"
            };
            link["linkinfo"]["info_data"][key] = local.into();
        };
        write(&dir, LINKS, json(edit));
        dir
    };
    for held in ["10.210.0.16", "fd00:210::99"] {
        says(&at(held), "demo/edge:http", "works", &[]).await;
    }
    let words = [
        "tunnel flannel.1 sends from 10.210.0.99, which no link of this machine has",
        "so the kernel drops what it sends",
    ];
    let dir = at("10.210.0.99");
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn azure_drops_ip_in_ip() {
    for (provider, fate) in [("azure", "partly"), ("gce", "works")] {
        let dir = copy(HEALTHY);
        tunnel(&dir, Some(link("tunl0", "ipip")), &[]);
        lead_pods(&dir, "tunl0", &BOTH);
        announce(&dir, |node| {
            node["metadata"]["annotations"] = json!({});
            node["spec"]["providerID"] = format!("{provider}:///machine").into();
        });
        let words: &[&str] = match fate {
            "works" => &[],
            _ => &["are IP protocol 4, which the network of Azure drops"],
        };
        says(&dir, "demo/edge:http", fate, words).await;
    }
}

#[tokio::test]
async fn flannel_leaves_routes_of_its_backend_extension_to_a_vpn() {
    for (led, fate) in [(&BOTH[..], "works"), (&BOTH[..1], "partly")] {
        let dir = tunnelled();
        add(&dir, LINKS, link("tailscale0", "tun"));
        lead_pods(&dir, "tailscale0", led);
        let to_nodes =
            json!({"dst": "10.210.0.17", "dev": "tailscale0", "table": "52", "flags": []});
        add_routes(&dir, &[to_nodes]);
        add_policy_rules(
            &dir,
            &[json!({"priority": 5270, "src": "all", "table": "52"})],
        );
        announce(&dir, |node| {
            node["metadata"]["annotations"]["flannel.alpha.coreos.com/backend-type"] =
                "extension".into();
        });
        let words: &[&str] = match fate {
            "works" => &[],
            _ => &["by tailscale0, the VPN to which flannel leaves such packets"],
        };
        says(&dir, "demo/edge:http", fate, words).await;
    }
}

#[tokio::test]
async fn a_rule_may_lead_packets_past_the_tunnel_that_nodes_announce() {
    for (name, kind, fate) in [
        ("tailscale0", "tun", "unknown"),
        ("vxlan-tunnel", "vxlan", "unknown"),
        ("wireguard.cali", "wireguard", "works"),
    ] {
        let dir = tunnelled();
        add(&dir, LINKS, link(name, kind));
        let other = json!({"dst": "10.244.2.0/24", "dev": name, "table": "52", "flags": []});
        let own = json!({"dst": "100.100.100.100", "dev": name, "table": "52", "flags": []});
        add_routes(&dir, &[other, own]);
        add_policy_rules(
            &dir,
            &[json!({"priority": 5270, "src": "all", "table": "52"})],
        );
        let way = format!("leave by {name}");
        let words: &[&str] = match fate {
            "works" => &[],
            _ => &[&way, "past the route by that tunnel", "priority 5269"],
        };
        says(&dir, "demo/edge:http", fate, words).await;
    }
}

#[tokio::test]
async fn what_stops_a_tunnels_packets_is_passed_by_these_packets() {
    let dir = tunnelled();
    let rule = "-A OUTPUT -o eth0 -m comment --comment \"kill switch\" -j DROP";
    add_rule(&dir, "filter", rule);
    let words = ["-I OUTPUT 1 -d 10.210.0.15 -p udp --dport 8472 -j ACCEPT"];
    says(&dir, "demo/edge:http", "partly", &words).await;
}

#[tokio::test]
async fn a_tunnel_sends_the_packets_for_a_range_of_two_nodes_to_one_of_them() {
    for (shared, words) in [
        (true, "nodes w2 and cp1 have the same range of pods"),
        (false, "but w2 announces"),
    ] {
        let dir = tunnelled();
        let range = if shared {
            "10.244.2.0/24"
        } else {
            "10.244.9.0/24"
        };
        announce(&dir, |node| {
            if node["metadata"]["name"] == "cp1" {
                node["spec"]["podCIDR"] = range.into();
                node["spec"]["podCIDRs"] = json!([range]);
            }
        });
        let text = std::fs::read_to_string(dir.path().join(NODES)).unwrap();
        let nodes: Value = serde_json::from_str(&text).unwrap();
        let mut all = nodes["items"].as_array().unwrap().iter();
        let cp1 = all.find(|node| node["metadata"]["name"] == "cp1").unwrap();
        let data = &cp1["metadata"]["annotations"]["flannel.alpha.coreos.com/backend-data"];
        let data: Value = serde_json::from_str(data.as_str().unwrap()).unwrap();
        let entry = json!({"dst": "10.244.2.0", "dev": "flannel.1", "lladdr": data["VtepMAC"], "state": ["PERMANENT"]});
        write(
            &dir,
            NEIGHBOURS,
            json(|all| {
                let all = all.as_array_mut().unwrap();
                all.retain(|of| of["dst"] != entry["dst"]);
                all.push(entry.clone());
            }),
        );
        says(&dir, "demo/edge:http", "partly", &[words]).await;
    }
}
