//! Connections from node to node: two states of one cluster, of which one is made from the other.

mod shared;

use kpx_judge::verdict::{Across, Fate, survey};
use kpx_judge::why::{self, Answer, Asked, Look};
use kpx_node::evidence::{Evidence, Gap, ITEMS, Item, Manifest, NodesWriter, load};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::Owners;

use serde_json::{Value, json};

use crate::support::{HEALTHY, chosen, kpx, root};
use crate::terminal::Session;

/// The states of node1 and node2.
#[derive(Clone)]
struct Pair([Evidence; 2]);

const NAMES: [&str; 2] = ["node1", "node2"];

/// Items that hold addresses of the node and its pods.
const OWN: &[Item] = &[Item::Addresses, Item::Routes, Item::Conntrack];

impl Pair {
    /// Returns a recording of node1, and node2 as its mirror image: the rules are the same, and addresses and routes change places.
    fn of(recording: &str) -> Option<Self> {
        let dir = root().join("testdata/nodes").join(recording);
        let first = load(&dir, ITEMS).unwrap();
        let both = |of: &&str| first.text(Item::Nodes).is_ok_and(|text| text.contains(*of));
        if !NAMES.iter().all(both) {
            return None;
        }
        let mut pair = Self([first.clone(), first]);
        for item in OWN {
            pair.edit(1, *item, mirrored);
        }
        pair.edit(1, Item::ProxyConfig, |text| {
            text.replace("hostnameOverride: node1", "hostnameOverride: node2")
        });
        for at in 0..2 {
            pair.edit(at, Item::Sockets, |text| {
                format!("{text}tcp LISTEN 0 4096 *:9100 *:* users:((\"app\",pid=7,fd=3))\n")
            });
        }
        Some(pair)
    }

    /// Returns the Services of full-iptables on two nodes with a pod network.
    fn cluster() -> Self {
        let mut pair = Self::of("full-iptables").unwrap();
        let network = root().join("testdata/nodes/healthy-firewall");
        let network = load(&network, ITEMS).unwrap();
        for item in [Item::Addresses, Item::Routes, Item::Links, Item::Sysctl] {
            let text = network.text(item).unwrap().to_owned();
            for at in 0..2 {
                let own = match at {
                    1 if OWN.contains(&item) => mirrored(&text),
                    _ => text.clone(),
                };
                pair.0[at].insert(item, Ok(own));
            }
        }
        for at in 0..2 {
            pair.edit(at, Item::Sysctl, |text| {
                let text = text.replace("forwarding = 0", "forwarding = 1");
                format!(
                    "{text}net.ipv4.conf.cni0.forwarding = 1\nnet.ipv4.conf.cni0.rp_filter = 0\n"
                )
            });
        }
        pair
    }

    /// Returns the cluster with a VXLAN tunnel between the nodes, as flannel makes it.
    fn tunnelled() -> Self {
        let mut pair = Self::cluster();
        for at in 0..2 {
            let (own, other) = [("10.244.1.0", "10.244.2.0"), ("10.244.2.0", "10.244.1.0")][at];
            let list = |text: &str, edit: &dyn Fn(&mut Vec<Value>)| {
                let mut all = serde_json::from_str(text).unwrap();
                edit(&mut all);
                serde_json::to_string(&all).unwrap()
            };
            pair.edit(at, Item::Routes, |text| {
                list(text, &|all| {
                    let range = format!("{other}/24");
                    let there = all.iter_mut().find(|route| route["dst"] == *range);
                    *there.unwrap() =
                        json!({"dst": range, "gateway": other, "dev": "flannel.1", "flags": ["onlink"]});
                    all.push(json!({"type": "local", "dst": own, "dev": "flannel.1", "table": "local"}));
                })
            });
            pair.edit(at, Item::Addresses, |text| {
                list(text, &|all| {
                    let own =
                        json!({"family": "inet", "local": own, "prefixlen": 32, "scope": "global"});
                    all.push(json!({"ifindex": 9, "ifname": "flannel.1", "addr_info": [own]}));
                })
            });
            pair.edit(at, Item::Links, |text| {
                list(text, &|all| {
                    let kind = json!({"info_kind": "vxlan", "info_data": {"id": 1, "port": 8472}});
                    all.push(json!({"ifindex": 9, "ifname": "flannel.1", "flags": ["BROADCAST", "UP", "LOWER_UP"],
                        "mtu": 1450, "linkinfo": kind}));
                })
            });
        }
        pair
    }

    /// Edits an item of a node, if it has it.
    fn edit(&mut self, at: usize, item: Item, edit: impl FnOnce(&str) -> String) {
        if let Ok(text) = self.0[at].text(item) {
            let new = edit(text);
            self.0[at].insert(item, Ok(new));
        }
    }

    /// Adds rules behind the chains of a table of node2.
    fn with_rule(self, table: &str, rule: &str) -> Self {
        self.with_rule_on(1, table, rule)
    }

    /// Adds a rule at the head of its chain on one of the nodes.
    fn with_rule_on(mut self, at: usize, table: &str, rule: &str) -> Self {
        self.edit(at, Item::Iptables4, |text| {
            let begin = text.find(&format!("*{table}\n")).unwrap();
            let end = begin + text[begin..].find("COMMIT").unwrap();
            let first = text[begin..end]
                .find("\n[")
                .map_or(end, |at| begin + at + 1);
            format!("{}[0:0] {rule}\n{}", &text[..first], &text[first..])
        });
        self
    }

    fn with(mut self, item: Item, from: &str, to: &str) -> Self {
        self.edit(1, item, |text| {
            assert!(text.contains(from), "{from}");
            text.replace(from, to)
        });
        self
    }

    fn with_routes(self, edit: impl FnOnce(&mut Vec<Value>)) -> Self {
        self.with_list(1, Item::Routes, edit)
    }

    /// Edits the list that is an item of one of the nodes.
    fn with_list(mut self, at: usize, item: Item, edit: impl FnOnce(&mut Vec<Value>)) -> Self {
        self.edit(at, item, |text| {
            let mut all = serde_json::from_str(text).unwrap();
            edit(&mut all);
            serde_json::to_string(&all).unwrap()
        });
        self
    }

    /// Removes the ranges of pods from the Nodes that node2 knows, as with a network plugin that assigns others.
    fn without_ranges(self) -> Self {
        self.without_ranges_on(1)
    }

    fn without_ranges_on(mut self, at: usize) -> Self {
        self.edit(at, Item::Nodes, |text| {
            let mut nodes: Value = serde_json::from_str(text).unwrap();
            for node in nodes["items"].as_array_mut().unwrap() {
                let spec = node["spec"].as_object_mut().unwrap();
                spec.retain(|key, _| !key.starts_with("podCIDR"));
            }
            nodes.to_string()
        });
        self
    }

    /// Lets one node send to this MAC address of the other's end of the tunnel, which has another.
    fn with_vteps(mut self, at: usize, sent: &str, has: &str) -> Self {
        let other = ["10.244.2.0", "10.244.1.0"][at];
        let entry =
            json!([{"dst": other, "dev": "flannel.1", "lladdr": sent, "state": ["PERMANENT"]}]);
        self.0[at].insert(Item::NeighbourTable, Ok(entry.to_string()));
        self.with_list(1 - at, Item::Links, |all| {
            let own = all.iter_mut().find(|link| link["ifname"] == "flannel.1");
            own.unwrap()["address"] = has.into();
        })
    }

    /// Lets node1 send to this MAC address for node2, which has another. It is right for the second address of node2.
    fn with_macs(mut self, sent: &str, has: &str) -> Self {
        self.0[0].insert(
            Item::NeighbourTable,
            Ok(json!([
                {"dst": "10.0.2.16", "dev": "eth0", "lladdr": sent, "state": ["REACHABLE"]},
                {"dst": "10.0.2.26", "dev": "eth0", "lladdr": has, "state": ["REACHABLE"]},
            ])
            .to_string()),
        );
        for at in 0..2 {
            self.edit(at, Item::Nodes, |text| {
                let mut nodes: Value = serde_json::from_str(text).unwrap();
                let mut all = nodes["items"].as_array_mut().unwrap().iter_mut();
                let second = all
                    .find(|node| node["metadata"]["name"] == "node2")
                    .unwrap();
                let addresses = second["status"]["addresses"].as_array_mut().unwrap();
                addresses.push(json!({"type": "InternalIP", "address": "10.0.2.26"}));
                nodes.to_string()
            });
        }
        let macs = ["02:00:00:00:00:01", has];
        for (at, mac) in macs.into_iter().enumerate() {
            self = self.with_list(at, Item::Links, |all| {
                let own = all.iter_mut().find(|link| link["ifname"] == "eth0");
                own.unwrap()["address"] = mac.into();
            });
        }
        self.with_list(1, Item::Addresses, |all| {
            let own = all
                .iter_mut()
                .find(|link| link["ifname"] == "eth0")
                .unwrap();
            let addresses = own["addr_info"].as_array_mut().unwrap();
            let mut second = addresses[0].clone();
            second["local"] = "10.0.2.26".into();
            addresses.push(second);
        })
    }

    /// Lets the address of node2 not answer node1, and rules of node2 drop ARP messages to `dropped`.
    fn with_silence(mut self, dropped: &str) -> Self {
        let failed = json!([{"dst": "10.0.2.16", "dev": "eth0", "state": ["FAILED"]}]);
        self.0[0].insert(Item::NeighbourTable, Ok(failed.to_string()));
        let target = json!({"payload": {"protocol": "arp", "field": "daddr ip"}});
        let rules = json!({"nftables": [
            {"metainfo": {"json_schema_version": 1}},
            {"table": {"family": "arp", "name": "guard", "handle": 1}},
            {"chain": {"family": "arp", "table": "guard", "name": "o", "handle": 1, "type": "filter", "hook": "output", "prio": 0,
                "policy": "accept"}},
            {"rule": {"family": "arp", "table": "guard", "chain": "o", "handle": 2, "expr": [
                {"match": {"op": "==", "left": target, "right": dropped}}, {"drop": null}]}},
        ]});
        self.0[1].insert(Item::Nft, Ok(rules.to_string()));
        self.with_list(1, Item::Links, |all| {
            let own = all.iter_mut().find(|link| link["ifname"] == "eth0");
            own.unwrap()["address"] = "02:00:00:00:00:02".into();
        })
    }

    /// Lets node2 send to the address of node1 by a gateway that does not answer.
    fn with_detour(mut self) -> Self {
        let failed = json!([{"dst": "10.0.2.99", "dev": "eth0", "state": ["FAILED"]}]);
        self.0[1].insert(Item::NeighbourTable, Ok(failed.to_string()));
        self.with_routes(|all| {
            all.push(
                json!({"dst": "10.0.2.15", "gateway": "10.0.2.99", "dev": "eth0", "flags": []}),
            );
        })
    }

    /// Explains `target` on a node, with the state of the other one, and without.
    fn why(&self, at: usize, target: &str, source: &str) -> (Answer, Answer) {
        let asked = Asked::parse(target).unwrap();
        let all = NAMES.iter().zip(&self.0);
        let across = Across::new(all.map(|(name, of)| ((*name).to_owned(), Ok(of))));
        let node = NodeSnapshot::new(&self.0[at]).called(Some(NAMES[at]));
        let alone = Look::new(&node, &[Family::V4], &[]).unwrap();
        let alone = alone.why(&asked, Some(source)).unwrap();
        let joined = Look::new(&node, &[Family::V4], &[])
            .unwrap()
            .beside(&across);
        (joined.why(&asked, Some(source)).unwrap(), alone)
    }
}

fn mirrored(text: &str) -> String {
    let pairs = [("10.244.1.", "10.244.2."), ("10.0.2.15", "10.0.2.16")];
    pairs.iter().fold(text.to_owned(), |text, (one, other)| {
        let kept = text.replace(one, "<one>");
        kept.replace(other, one).replace("<one>", other)
    })
}

const POD: &str = "10.244.1.7";

/// The cluster IP of a Service whose only endpoint is a pod of node2, and an endpoint that is node2 itself.
const FAR: &str = "10.100.2.4:80";
const ON_HOST: &str = "10.0.2.16:9100";

/// Returns the cluster with packets that node2 does not track.
fn not_tracked(which: &str) -> Pair {
    let mut pair = Pair::cluster();
    pair.edit(1, Item::Iptables4, |text| {
        let chains = ":PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]";
        format!("*raw\n{chains}\n[0:0] -A PREROUTING {which} -j CT --notrack\nCOMMIT\n{text}")
    });
    pair
}

struct Case {
    name: &'static str,
    pair: Pair,
    asked: (usize, &'static str, &'static str),
    alone: Fate,
    joined: Fate,
    says: &'static [&'static str],
}

/// Returns a cluster in which node1 sends to the pods of node2 by a tunnel of its own, and their replies come by eth0.
fn by_raven() -> Pair {
    let mut pair = Pair::cluster();
    pair.edit(0, Item::Routes, |text| {
        let mut all: Vec<Value> = serde_json::from_str(text).unwrap();
        let there = all.iter_mut().find(|route| route["dst"] == "10.244.2.0/24");
        *there.unwrap() = json!({"dst": "10.244.2.0/24", "dev": "raven0", "flags": []});
        json!(all).to_string()
    });
    pair.edit(0, Item::Links, |text| {
        let mut all: Vec<Value> = serde_json::from_str(text).unwrap();
        all.push(
            json!({"ifindex": 9, "ifname": "raven0", "flags": ["UP", "LOWER_UP"], "mtu": 1400,
            "linkinfo": {"info_kind": "vxlan", "info_data": {"id": 7}}}),
        );
        json!(all).to_string()
    });
    pair
}

/// Returns a cluster without podCIDRs in which node2 has made its pods by another configuration: no route of node1 leads to them.
fn in_other_network() -> Pair {
    let mut pair = Pair::cluster().without_ranges_on(0).without_ranges();
    for at in 0..2 {
        for item in [Item::EndpointSlices, Item::Pods, Item::Iptables4] {
            pair.edit(at, item, |text| text.replace("10.244.2.", "10.245.2."));
        }
    }
    pair.with_routes(|all| {
        all.push(json!({"dst": "10.245.2.0/24", "dev": "cni1", "scope": "link", "flags": []}));
    })
}

fn cases() -> Vec<Case> {
    let usual = || Case {
        name: "healthy",
        pair: Pair::cluster(),
        asked: (0, FAR, POD),
        alone: Fate::Works,
        joined: Fate::Works,
        says: &["and replies return"],
    };
    let on_host = || Case {
        asked: (0, ON_HOST, POD),
        ..usual()
    };
    vec![
        usual(),
        Case {
            name: "routes that only the others have",
            pair: Pair::cluster().with_list(0, Item::Routes, |all| {
                all.retain(|route| route["dst"] != "10.244.2.0/24");
            }),
            alone: Fate::Works,
            joined: Fate::Unknown,
            says: &["no route leads to the pods of other nodes"],
            ..usual()
        },
        Case {
            name: "a link of the other node with a smaller MTU",
            pair: Pair::cluster().with_list(1, Item::Links, |all| {
                let eth0 = all.iter_mut().find(|link| link["ifname"] == "eth0");
                eth0.unwrap()["mtu"] = 1000.into();
            }),
            joined: Fate::Unknown,
            says: &["eth0 of node node2 has an MTU of 1000 bytes"],
            ..usual()
        },
        Case {
            name: "a MAC address of a tunnel that has changed",
            pair: Pair::tunnelled().with_vteps(0, "02:fa:00:00:00:02", "02:fa:00:00:00:99"),
            joined: Fate::Lost,
            says: &[
                "leave by flannel.1 to the MAC address 02:fa:00:00:00:02",
                "link of node2 has 02:fa:00:00:00:99",
            ],
            ..usual()
        },
        Case {
            name: "a MAC address of a tunnel that replies do not know",
            pair: Pair::tunnelled().with_vteps(1, "02:fa:00:00:00:01", "02:fa:00:00:00:99"),
            joined: Fate::Lost,
            says: &[
                "because of node node2",
                "link of node1 has 02:fa:00:00:00:99",
            ],
            ..usual()
        },
        Case {
            name: "MAC addresses of tunnels",
            pair: Pair::tunnelled().with_vteps(0, "02:fa:00:00:00:02", "02:fa:00:00:00:02"),
            ..usual()
        },
        Case {
            name: "a bridge with the network of all pods",
            pair: Pair::cluster()
                .without_ranges()
                .with_routes(|all| {
                    let own = all.iter_mut().find(|route| route["dst"] == "10.244.2.0/24");
                    own.unwrap()["dst"] = "10.244.0.0/16".into();
                })
                .with_list(1, Item::Addresses, |all| {
                    let own = all.iter_mut().find(|link| link["ifname"] == "cni0");
                    own.unwrap()["addr_info"][0]["prefixlen"] = 16.into();
                }),
            ..usual()
        },
        Case {
            name: "pods that the network plugin did not make",
            pair: in_other_network(),
            alone: Fate::Unknown,
            joined: Fate::Unknown,
            says: &["10.245.2."],
            ..usual()
        },
        Case {
            name: "a MAC address of nobody",
            pair: Pair::cluster().with_macs("02:00:00:00:00:99", "02:00:00:00:00:02"),
            alone: Fate::Works,
            joined: Fate::Lost,
            says: &[
                "to the MAC address 02:00:00:00:00:99",
                "of node node2 has 02:00:00:00:00:02",
            ],
            ..usual()
        },
        Case {
            name: "the MAC address of the other machine",
            pair: Pair::cluster().with_macs("02:00:00:00:00:02", "02:00:00:00:00:02"),
            ..usual()
        },
        Case {
            name: "a rule that drops ARP",
            pair: Pair::cluster().with_silence("10.0.2.15"),
            alone: Fate::Lost,
            joined: Fate::Lost,
            says: &["in table arp guard of node node2 drops ARP packets, so 10.0.2.16"],
            ..usual()
        },
        Case {
            name: "a rule that drops ARP of others",
            pair: Pair::cluster().with_silence("10.0.2.99"),
            alone: Fate::Lost,
            joined: Fate::Lost,
            says: &["10.0.2.16 did not answer on eth0 when"],
            ..usual()
        },
        Case {
            name: "a route that hides the network of the nodes",
            pair: Pair::cluster().with_detour(),
            asked: (0, FAR, "host"),
            alone: Fate::Works,
            joined: Fate::Lost,
            says: &[
                "because of node node2",
                "the route 10.0.2.15/32 via 10.0.2.99 dev eth0 leads packets for 10.0.2.15",
            ],
        },
        Case {
            name: "healthy host",
            ..on_host()
        },
        Case {
            name: "forward drop",
            pair: Pair::cluster().with_rule("filter", "-A FORWARD -s 10.244.1.0/24 -j DROP"),
            joined: Fate::Lost,
            says: &["because of node node2", "rule 1 of chain FORWARD"],
            ..usual()
        },
        Case {
            name: "drop of data",
            pair: Pair::cluster().with_rule(
                "filter",
                "-A FORWARD -s 10.244.1.0/24 -p tcp -m tcp --tcp-flags PSH PSH -j DROP",
            ),
            joined: Fate::Lost,
            says: &["because of node node2", "later packets"],
            ..usual()
        },
        Case {
            name: "drop of answers",
            pair: Pair::cluster().with_rule(
                "filter",
                "-A FORWARD -d 10.244.1.0/24 -p tcp -m tcp --tcp-flags SYN,PSH PSH -j DROP",
            ),
            joined: Fate::Lost,
            says: &["because of node node2", "later replies"],
            ..usual()
        },
        Case {
            name: "input drop",
            pair: Pair::cluster()
                .with_rule("filter", "-A INPUT -p tcp -m tcp --dport 9100 -j DROP"),
            joined: Fate::Lost,
            says: &["because of node node2", "rule 1 of chain INPUT"],
            ..on_host()
        },
        Case {
            name: "reverse path",
            pair: Pair::cluster()
                .with(Item::Sysctl, "eth0.rp_filter = 0", "eth0.rp_filter = 1")
                .with_routes(|all| {
                    let back = all.iter_mut().find(|route| route["dst"] == "10.244.1.0/24");
                    let back = back.unwrap().as_object_mut().unwrap();
                    back.remove("gateway");
                    back.insert("dev".to_owned(), "cni0".into());
                }),
            joined: Fate::Lost,
            says: &["because of node node2", "rp_filter of eth0"],
            ..usual()
        },
        Case {
            name: "no way back",
            pair: Pair::cluster().with_routes(|all| {
                all.retain(|route| route["dst"] != "10.244.1.0/24" && route["dst"] != "default");
            }),
            joined: Fate::Lost,
            says: &["because of node node2", "the reply to 10.244.1.7 is lost"],
            ..usual()
        },
        Case {
            name: "nothing listens",
            pair: Pair::cluster().with(Item::Sockets, "*:9100", "*:9101"),
            joined: Fate::Refused,
            says: &["because of node node2", "nothing listens on 10.0.2.16:9100"],
            ..on_host()
        },
        Case {
            name: "local policy",
            // node1 has no endpoint of the Service.
            asked: (1, "10.0.2.15:30082", "10.244.2.7"),
            alone: Fate::Unknown,
            joined: Fate::Lost,
            says: &["node1"],
            ..usual()
        },
        Case {
            name: "foreign source that the pod answers by its node",
            pair: Pair::cluster().with_rule(
                "nat",
                "-A POSTROUTING -d 10.244.2.0/24 -j SNAT --to-source 203.0.113.9",
            ),
            ..usual()
        },
        Case {
            name: "foreign source",
            pair: Pair::cluster().with_rule(
                "nat",
                "-A POSTROUTING -d 10.244.2.0/24 -j SNAT --to-source 10.244.2.250",
            ),
            joined: Fate::Lost,
            says: &["because of node node2", "10.244.2.250"],
            ..usual()
        },
        Case {
            name: "no nat",
            pair: Pair::cluster().with_rule("nat", "-A PREROUTING -s 10.244.1.0/24 -j RETURN"),
            ..usual()
        },
        Case {
            // The replies are invalid to node2's connection tracking.
            name: "not tracked",
            pair: not_tracked("-s 10.244.1.0/24"),
            joined: Fate::Unknown,
            says: &["on node node2", "connection tracking"],
            ..usual()
        },
        Case {
            name: "not tracked either way",
            pair: not_tracked("-p tcp"),
            ..usual()
        },
        Case {
            name: "taken address",
            pair: {
                let mut pair = Pair::cluster();
                pair.edit(1, Item::Addresses, |text| {
                    let mut all: Value = serde_json::from_str(text).unwrap();
                    let links = all.as_array_mut().unwrap();
                    let eth0 = links.iter_mut().find(|link| link["ifname"] == "eth0").unwrap();
                    let own = json!({
                        "family": "inet", "local": "10.244.2.53", "prefixlen": 32, "scope": "global",
                    });
                    eth0["addr_info"].as_array_mut().unwrap().push(own);
                    all.to_string()
                });
                pair
            },
            joined: Fate::Refused,
            says: &[
                "because of node node2",
                "eth0 of the node itself has the address",
            ],
            ..usual()
        },
        Case {
            name: "irrelevant rules",
            pair: {
                let mut pair = Pair::cluster();
                pair.edit(1, Item::Iptables4, |text| {
                    let lines = text.lines().filter(|line| !line.contains("shop/cart"));
                    lines.flat_map(|line| [line, "\n"]).collect()
                });
                pair
            },
            ..usual()
        },
        Case {
            name: "no forwarding",
            pair: Pair::cluster()
                .with(Item::Sysctl, "forwarding = 1", "forwarding = 0")
                .with(Item::Sysctl, "ip_forward = 1", "ip_forward = 0"),
            joined: Fate::Lost,
            says: &["because of node node2", "ip_forward is 0"],
            ..usual()
        },
        Case {
            name: "link forwarding",
            pair: Pair::cluster().with(Item::Sysctl, "eth0.forwarding = 1", "eth0.forwarding = 0"),
            joined: Fate::Lost,
            says: &["because of node node2", "net.ipv4.conf.eth0.forwarding"],
            ..usual()
        },
        Case {
            name: "dropped replies",
            pair: Pair::cluster().with_rule("filter", "-A FORWARD -s 10.244.2.53 -j DROP"),
            joined: Fate::Lost,
            says: &["because of node node2", "rule 1 of chain FORWARD"],
            ..usual()
        },
        Case {
            name: "healthy tunnel",
            pair: Pair::tunnelled(),
            ..usual()
        },
        Case {
            name: "the other node drops what the tunnel brings",
            pair: Pair::tunnelled()
                .with_rule("filter", "-A INPUT -p udp -m udp --dport 8472 -j DROP"),
            joined: Fate::Lost,
            says: &[
                "because of node node2",
                "tunnel flannel.1",
                "from node node1",
            ],
            ..usual()
        },
        Case {
            name: "the other node drops what it sends by the tunnel",
            pair: Pair::tunnelled()
                .with_rule("filter", "-A OUTPUT -p udp -m udp --dport 8472 -j DROP"),
            joined: Fate::Lost,
            says: &["because of node node2", "tunnel flannel.1", "to node node1"],
            ..usual()
        },
        Case {
            name: "tunnels with two ports",
            pair: Pair::tunnelled().with(Item::Links, "\"port\":8472", "\"port\":4789"),
            joined: Fate::Lost,
            says: &["receives at UDP port 4789", "node node1 sends to port 8472"],
            ..usual()
        },
        Case {
            name: "tunnels of two networks",
            pair: Pair::tunnelled().with(Item::Links, "\"id\":1", "\"id\":2"),
            joined: Fate::Lost,
            says: &["flannel.1 has VNI 2, but node node1 has VNI 1"],
            ..usual()
        },
        Case {
            name: "replies that come back by a link where a rule drops them",
            pair: {
                let mut pair = by_raven();
                pair.edit(0, Item::Sysctl, |text| {
                    text.replace("rp_filter = 1", "rp_filter = 0")
                });
                pair.with_rule_on(0, "filter", "-A FORWARD -s 10.244.2.0/24 -i eth0 -j DROP")
            },
            joined: Fate::Lost,
            says: &["rule 1 of chain FORWARD in table filter drops the replies"],
            ..usual()
        },
        Case {
            name: "the tunnel of the other node is down",
            pair: {
                let mut pair = Pair::tunnelled()
                    .with_routes(|all| all.retain(|route| route["dev"] != "flannel.1"));
                pair.edit(1, Item::Links, |text| {
                    let mut all: Vec<Value> = serde_json::from_str(text).unwrap();
                    all.last_mut().unwrap()["flags"] = json!(["BROADCAST", "MULTICAST"]);
                    json!(all).to_string()
                });
                pair
            },
            joined: Fate::Lost,
            says: &["because of node node2", "flannel.1 is down"],
            ..usual()
        },
        Case {
            name: "replies that a rule of routing leads elsewhere",
            pair: {
                let egress = json!({"dst": "default", "gateway": "10.0.2.99", "dev": "eth0", "table": "200", "flags": []});
                let mut pair = Pair::cluster().with_routes(|all| all.push(egress));
                let rules = json!([{"priority": 0, "src": "all", "table": "local"},
                    {"priority": 100, "src": "10.244.2.0", "srclen": 24, "table": "200"},
                    {"priority": 32766, "src": "all", "table": "main"}]);
                pair.0[1].insert(Item::Rules, Ok(format!("{rules}\n[]\n")));
                pair
            },
            joined: Fate::Unknown,
            says: &["node node2", "10.0.2.99"],
            ..usual()
        },
        Case {
            name: "a filter of replies",
            pair: {
                let mut pair = by_raven();
                pair.edit(0, Item::Sysctl, |text| {
                    text.replace("eth0.rp_filter = 0", "eth0.rp_filter = 1")
                });
                pair
            },
            joined: Fate::Lost,
            says: &["rp_filter of eth0", "the route back leads by raven0"],
            ..usual()
        },
        Case {
            name: "a gap",
            pair: {
                let mut pair = Pair::cluster();
                pair.0[1].insert(Item::Sysctl, Err(Gap::NotCollected(Item::Sysctl)));
                pair
            },
            joined: Fate::Unknown,
            says: &[
                "on node node2",
                "whether the node forwards packets is unknown",
            ],
            ..usual()
        },
    ]
}

#[test]
#[ignore = "takes long: make test-loops"]
fn connections_are_followed_to_the_other_node_and_back() {
    let mut wrong = Vec::new();
    for case in cases() {
        let (at, target, source) = case.asked;
        let (joined, alone) = case.pair.why(at, target, source);
        let said = joined.sentence.clone();
        if alone.fate != case.alone {
            wrong.push(format!(
                "{}: alone {}: {}",
                case.name, alone.fate, alone.sentence
            ));
        }
        if joined.fate != case.joined {
            wrong.push(format!("{}: {} {said}", case.name, joined.fate));
        }
        for part in case.says {
            if !said.contains(part) {
                wrong.push(format!("{}: does not say {part:?}: {said}", case.name));
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
}

#[test]
fn rules_that_would_let_the_client_itself_through_are_noted() {
    for (source, is_noted) in [("10.0.2.15", true), ("0.0.0.0/0", false)] {
        let rule = format!("-A FORWARD -s {source} -d 10.244.2.50 -j DROP");
        let pair = Pair::cluster().with_rule("filter", &rule);
        let (joined, _) = pair.why(0, "10.0.2.15:30080", "203.0.113.9");
        assert_eq!(joined.fate, Fate::Partly, "{}", joined.sentence);
        let words = "they would let the client itself through";
        let noted = joined.notes.iter().any(|note| note.contains(words));
        assert_eq!(noted, is_noted, "{source}: {:?}", joined.notes);
    }
}

#[test]
fn a_node_that_was_not_read_ends_what_is_claimed() {
    let pair = Pair::cluster();
    let across = Across::new([("node2".to_owned(), Err("it did not answer".to_owned()))]);
    let node = NodeSnapshot::new(&pair.0[0]).called(Some("node1"));
    let look = Look::new(&node, &[Family::V4], &[])
        .unwrap()
        .beside(&across);
    let answer = look.why(&Asked::parse(FAR).unwrap(), Some(POD)).unwrap();
    assert_eq!(answer.fate, Fate::Works);
    let end = "as far as node node1 (node2 was not read: it did not answer)";
    assert!(answer.sentence.ends_with(end), "{}", answer.sentence);
    assert!(answer.unseen.iter().any(|unseen| unseen == "other nodes"));
}

/// A pod without an address is in no slice: only its own node reads it.
#[test]
fn a_pod_that_another_node_reads_is_known_here() {
    let mut pair = Pair::cluster();
    pair.0[1].insert(
        Item::Pods,
        Ok(json!({"items": [{
            "metadata": {"name": "empty-1", "namespace": "shop", "labels": {"app": "empty"}},
            "spec": {"nodeName": "node2", "containers": [{"name": "app"}]},
            "status": {"phase": "Pending", "containerStatuses": [{"name": "app", "ready": false, "restartCount": 0,
                "state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
        }]})
        .to_string()),
    );
    let (joined, alone) = pair.why(0, "shop/empty", POD);
    assert!(
        joined
            .sentence
            .contains("pod shop/empty-1: container app is waiting (ImagePullBackOff)"),
        "{}",
        joined.sentence
    );
    assert!(
        alone.sentence.contains("no pod in namespace shop matches"),
        "{}",
        alone.sentence
    );
    let touched = why::touched(
        &NodeSnapshot::new(&pair.0[0]),
        &Asked::parse("shop/empty").unwrap(),
    );
    assert_eq!(touched.len(), 2, "{touched:?}");
}

#[test]
fn joining_nodes_makes_nothing_work_that_fails_and_leaves_what_is_healthy() {
    let (compared, followed) = joined_nodes_are_judged_alike(chosen());
    assert!(compared > 400 && followed > 3, "{compared}, {followed}");
}

/// Returns how many connections were compared, and how many of them were followed to the other node.
pub(crate) fn joined_nodes_are_judged_alike(recordings: Vec<String>) -> (usize, usize) {
    let (mut compared, mut followed, mut wrong) = (0, 0, Vec::new());
    for recording in recordings {
        let Some(pair) = Pair::of(&recording) else {
            continue;
        };
        for (at, other) in [(0, 1), (1, 0)] {
            let across = Across::new([(NAMES[other].to_owned(), Ok(&pair.0[other]))]);
            let node = NodeSnapshot::new(&pair.0[at]).called(Some(NAMES[at]));
            let owners = Owners::new(&node);
            let alone = survey(&node, owners.ports(), &Family::BOTH, None);
            let joined = survey(&node, owners.ports(), &Family::BOTH, Some(&across));
            let cells = alone.iter().zip(&joined).flat_map(|(alone, joined)| {
                let cells = alone.cells.iter().zip(&joined.cells);
                cells.map(move |cells| (&alone.name, cells))
            });
            for (name, (alone, joined)) in cells {
                compared += 1;
                followed += usize::from(alone.fault != joined.fault);
                let is_worse = alone.fate.fails() && !joined.fate.fails();
                let is_healthy = HEALTHY.contains(&recording.as_str()) && at == 0;
                if is_worse || is_healthy && alone.fate == Fate::Works && joined.fate != Fate::Works
                {
                    wrong.push(format!(
                        "{recording} {}: {name} {} from {}: {} → {} ({:?})",
                        NAMES[at],
                        alone.to,
                        alone.client.name(),
                        alone.fate,
                        joined.fate,
                        joined.fault.as_ref().map(ToString::to_string)
                    ));
                }
            }
        }
    }
    assert_eq!(wrong, [""; 0]);
    (compared, followed)
}

/// Writes a bundle of both nodes.
fn bundle(pair: &Pair) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cluster");
    let mut bundle = NodesWriter::create(&path).unwrap();
    for (name, evidence) in NAMES.iter().zip(&pair.0) {
        let manifest = Manifest::of(evidence, "2026-11-20T14:00:00Z".to_owned(), None);
        bundle.node(name, evidence, &manifest).unwrap();
    }
    bundle.finish("2026-11-20T14:00:00Z".to_owned()).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (dir, path)
}

#[tokio::test]
async fn commands_over_both_nodes_print_the_joined_verdict() {
    let pair = Pair::cluster().with_rule("filter", "-A FORWARD -s 10.244.1.0/24 -j DROP");
    let (_dir, path) = bundle(&pair);
    let on = async |line: &str| {
        let words: Vec<&str> = ["--from", &path]
            .into_iter()
            .chain(line.split(' '))
            .collect();
        kpx(&words).await
    };
    let why = on("why 10.100.2.4:80 --all-nodes").await;
    assert_eq!(why.code, 1, "{why}");
    let text = why.out.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "does not work from pods (10.100.2.4:80/tcp), because of node node2: rule 1 of chain FORWARD in table filter drops",
        "fix: on node2: iptables -t filter -D FORWARD -s 10.244.1.0/24 -j DROP",
    ] {
        assert!(text.contains(part), "{part}: {why}");
    }
    let one = on("--node node1 -o json why 10.100.2.4:80").await;
    let one: Value = serde_json::from_str(&one.out).unwrap();
    assert_eq!(one["causes"][0]["node"], "node2", "{one}");
    assert_eq!(one["nodes"], json!([{"node": "node2"}]), "{one}");
    assert_eq!(one["causes"][0]["fix"]["machine"], "node2", "{one}");
    let trace = on("trace 10.100.2.4:80 --all-nodes").await;
    insta::assert_snapshot!("trace", trace.out);
    let trace = on("--node node1 trace 10.100.2.4:80 --source 10.244.1.7").await;
    insta::assert_snapshot!("trace_of_one", trace.out);
    let doctor = on("-o json doctor --all-nodes").await;
    let last: Value = serde_json::from_str(&doctor.out).unwrap();
    let services = last.pointer("/summary/services");
    let services = services.and_then(Value::as_array);
    let is_it = |of: &&Value| of["service"] == "edge/web-remote-only";
    let found = services.and_then(|all| all.iter().find(is_it));
    let found = found.unwrap_or_else(|| panic!("{last}"));
    assert_eq!(found["nodes"], json!(["node1"]), "{found}");
}

#[tokio::test]
async fn a_path_over_both_nodes_that_works_ends_with_the_reply() {
    let (_dir, path) = bundle(&Pair::cluster());
    let trace = kpx(&["--from", &path, "trace", FAR, "--all-nodes"]).await;
    assert_eq!(trace.code, 0, "{trace}");
    insta::assert_snapshot!("trace_that_works", trace.out);
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn every_command_that_judges_all_services_follows_connections_to_the_other_node() {
    let pair = Pair::cluster()
        .with(Item::Sysctl, "forwarding = 1", "forwarding = 0")
        .with(Item::Sysctl, "ip_forward = 1", "ip_forward = 0");
    let (_dir, path) = bundle(&pair);
    let on = async |words: &[&str]| kpx(&[&["--from", &path], words].concat()).await;
    let json = async |words: &[&str]| -> Value {
        let ran = on(&[&["-o", "json"], words].concat()).await;
        serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{ran}"))
    };
    let names = |of: &Value| -> Vec<String> {
        let all = of.as_array().unwrap_or_else(|| panic!("{of}")).iter();
        all.map(|row| row["service"].as_str().unwrap().to_owned())
            .collect()
    };
    let one = ["--node", "node1"];
    let doctor = json(&[&one[..], &["doctor"]].concat()).await;
    let failing = names(&doctor["services"]["failing"]);
    // A pod of the other node is its only endpoint.
    assert!(
        failing.contains(&"edge/web-remote-only".to_owned()),
        "{failing:?}"
    );
    let show = json(&[&one[..], &["show", "services"]].concat()).await;
    let rows = show["services"].as_array().unwrap();
    let fails = |row: &&Value| {
        let mut all = row["connections"].as_array().unwrap().iter();
        all.any(|of| {
            ["partly", "refused", "lost", "misled"].contains(&of["fate"].as_str().unwrap())
                && of["byDesign"] == false
        }) && row["endpoints"]["ready"] != 0
    };
    let mut shown: Vec<String> = rows
        .iter()
        .filter(fails)
        .map(|row| {
            row["service"]
                .as_str()
                .unwrap()
                .split(':')
                .next()
                .unwrap()
                .to_owned()
        })
        .collect();
    shown.dedup();
    assert_eq!(shown, failing);
    let human = on(&[&one[..], &["doctor"]].concat()).await.out;
    let headline = human.lines().nth(1).unwrap();
    let report = on(&[&one[..], &["report", "--file", "-"]].concat())
        .await
        .out;
    assert!(report.contains(headline), "{headline}");
    let mut screen = Session::on(
        (40, 200),
        "setsid",
        &[],
        &["--ctty", env!("CARGO_BIN_EXE_kpx"), "--from", &path],
    );
    screen.wait("nodes", |line| line == "node1");
    screen.type_in("\r");
    screen.wait("the verdict of the doctor", |line| {
        line.starts_with(headline)
    });
    screen.type_in("q");
    screen.end();
    let page = on(&["report", "--file", "-"]).await.out;
    crate::report::holds(&page, "all nodes");
    for part in NAMES.into_iter().chain(failing.iter().map(String::as_str)) {
        assert!(page.contains(part), "{part}");
    }
    let all = json(&["doctor", "--all-nodes"]).await;
    let shown = json(&["show", "services", "--all-nodes"]).await;
    assert_eq!(shown["services"], all["services"]);
}
