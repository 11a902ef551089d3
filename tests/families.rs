//! Nodes with IPv4 and IPv6: what is wrong of one family is said of that one.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{Change, broken, kpx, recorded};

const NFT: &str = "node/nft.json";
const ADDRESSES: &str = "node/ip-addr.json";
const SERVICES: &str = "cluster/services.json";
const SLICES: &str = "cluster/endpointslices.json";

/// The output of a command about a changed recording, and its exit status.
async fn said(recording: &str, changes: &[(&str, Change<'_>)], args: &[&str]) -> (String, u8) {
    let dir = broken(recording, changes);
    said_in(dir.path(), args).await
}

async fn said_in(dir: &Path, args: &[&str]) -> (String, u8) {
    let from = dir.to_str().unwrap();
    let ran = kpx(&[&["--from", from], args].concat()).await;
    // Pages break lines between words.
    let text = format!("{}{}", ran.out, ran.err).replace(&format!("--from {from} "), "");
    let words: Vec<&str> = text.split_whitespace().collect();
    (words.join(" "), ran.code)
}

fn edit(text: &str, change: impl Fn(&mut Value)) -> String {
    let mut all: Value = serde_json::from_str(text).unwrap();
    change(&mut all);
    all.to_string()
}

/// Changes each object of this kind in a listing of nft.
fn nft(text: &str, kind: &str, change: impl Fn(&mut Value)) -> String {
    edit(text, |all| {
        for object in all["nftables"].as_array_mut().unwrap() {
            if let Some(of) = object.get_mut(kind) {
                change(of);
            }
        }
    })
}

/// Adds objects to a listing of nft.
fn with_nft(text: &str, more: &[Value]) -> String {
    edit(text, |all| {
        let list = all["nftables"].as_array_mut().unwrap();
        list.extend(more.iter().cloned());
    })
}

/// Changes the addresses of `eth0`.
fn on_eth0(text: &str, change: impl Fn(&mut Vec<Value>)) -> String {
    edit(text, |all| {
        let mut links = all.as_array_mut().unwrap().iter_mut();
        let eth0 = links.find(|link| link["ifname"] == "eth0").unwrap();
        change(eth0["addr_info"].as_array_mut().unwrap());
    })
}

/// Changes Service `name`, or the slices of that name.
fn object(text: &str, name: &str, change: impl Fn(&mut Value)) -> String {
    edit(text, |all| {
        let mut items = all["items"].as_array_mut().unwrap().iter_mut();
        change(items.find(|item| item["metadata"]["name"] == name).unwrap());
    })
}

/// nft 1.0.6 prints freed memory for a single flag of a table.
#[tokio::test]
async fn a_flag_that_nft_does_not_show_is_no_sound_table() {
    let flagged = |family: &'static str| {
        move |text: &str| {
            nft(text, "table", |table| {
                if table["family"] == family && table["name"] == "kube-proxy" {
                    table["flags"] = json!("ipv4_addr");
                }
            })
        }
    };
    let v4 = flagged("ip");
    let (text, code) = said("dual-nftables", &[(NFT, &v4)], &["why", "shop/front:http"]).await;
    assert!(code == 1 && text.contains("dormant"), "{text}");
    let v6 = flagged("ip6");
    let (text, code) = said("dual-nftables", &[(NFT, &v6)], &["why", "shop/six"]).await;
    assert!(code == 1 && text.contains("dormant"), "{text}");
    // Another program's table may have an owner.
    let other = |text: &str| {
        let of = |more: Value| {
            let mut of = json!({"family": "inet", "table": "guard"});
            of.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            of
        };
        let chain = json!({"name": "pre", "handle": 1, "type": "filter", "hook": "prerouting", "prio": -300, "policy": "accept"});
        let rule = json!({"chain": "pre", "handle": 2, "expr": [{"drop": null}]});
        with_nft(
            text,
            &[
                json!({"table": {"family": "inet", "name": "guard", "handle": 99, "flags": "t2"}}),
                json!({"chain": of(chain)}),
                json!({"rule": of(rule)}),
            ],
        )
    };
    let (text, code) = said("dual-nftables", &[(NFT, &other)], &["why", "shop/six"]).await;
    assert!(
        code == 3 && text.contains("nft list table inet guard"),
        "{text}"
    );
}

#[tokio::test]
async fn a_node_without_its_address_of_one_family_is_named() {
    for (own, other, service) in [
        ("10.0.2.15", "10.0.2.35", "shop/front:http"),
        ("fd00:10:0:2::15", "fd00:10:0:2::99", "shop/local"),
    ] {
        let moved = |text: &str| {
            on_eth0(text, |all| {
                for of in all.iter_mut().filter(|address| address["local"] == own) {
                    of["local"] = json!(other);
                }
            })
        };
        let changes: &[(&str, Change<'_>)] = &[(ADDRESSES, &moved)];
        let (text, _) = said("dual-nftables", changes, &["doctor", "-v"]).await;
        let gone = format!("no link of this machine has {own}, the InternalIP of its Node node1");
        assert!(text.contains(&gone), "{text}");
        let (text, _) = said("dual-nftables", changes, &["why", service]).await;
        let gone = format!("no link of this machine has {own}, the address of its Node");
        assert!(text.contains(&gone), "{text}");
        assert!(!text.contains("nodePortAddresses"), "{text}");
    }
}

#[tokio::test]
async fn a_duplicate_address_is_not_used() {
    let duplicate = |text: &str| {
        on_eth0(text, |all| {
            for of in all
                .iter_mut()
                .filter(|address| address["local"] == "fd00:10:0:2::15")
            {
                of["tentative"] = json!(true);
                of["dadfailed"] = json!(true);
            }
        })
    };
    let changes: &[(&str, Change<'_>)] = &[(ADDRESSES, &duplicate)];
    let (text, code) = said("dual-nftables", changes, &["why", "shop/front:http"]).await;
    assert_eq!(code, 1, "{text}");
    let fix = "ip -6 addr del fd00:10:0:2::15/64 dev eth0";
    assert!(text.contains("(dadfailed)") && text.contains(fix), "{text}");
}

/// A controller of load balancers may write addresses of families that the Service does not have.
#[tokio::test]
async fn an_address_of_a_family_that_the_service_lacks_is_not_kube_proxys() {
    let of_both = |text: &str| {
        object(text, "six", |service| {
            service["spec"]["type"] = json!("LoadBalancer");
            service["status"]["loadBalancer"]["ingress"] =
                json!([{"ip": "203.0.113.77", "ipMode": "VIP"}]);
        })
    };
    let (text, code) = said(
        "dual-nftables",
        &[(SERVICES, &of_both)],
        &["why", "shop/six"],
    )
    .await;
    assert!(code == 0 && text.contains("works on node1"), "{text}");
    let external = |text: &str| {
        object(text, "six", |service| {
            service["spec"]["externalIPs"] = json!(["203.0.113.77"]);
        })
    };
    let (text, code) = said(
        "dual-nftables",
        &[(SERVICES, &external)],
        &["why", "shop/six"],
    )
    .await;
    let cause =
        "the Service is IPv6 only, so kube-proxy does not serve 203.0.113.77, an external IP of it";
    assert!(code == 1 && text.contains(cause), "{text}");
}

#[tokio::test]
async fn a_node_port_has_the_families_of_its_service() {
    let (text, _) = said_on(
        "dual-nftables",
        &["trace", "nodeport:31082", "--source", "outside"],
    )
    .await;
    assert!(text.contains("[fd00:10:0:2::15]:31082"), "{text}");
    let (text, code) = said_on("dual-nftables", &["why", "10.0.2.15:31082"]).await;
    let cause = "the Service is IPv6 only, so kube-proxy serves no NodePort of it at 10.0.2.15";
    assert!(code == 1 && text.contains(cause), "{text}");
}

async fn said_on(recording: &str, args: &[&str]) -> (String, u8) {
    let dir = format!("testdata/nodes/{recording}");
    said_in(Path::new(&dir), args).await
}

#[tokio::test]
async fn mode_nftables_serves_no_node_port_on_a_loopback_address() {
    for (at, instead) in [
        ("127.0.0.1:31080", "Use 10.0.2.15:31080"),
        ("[::1]:31080", "Use [fd00:10:0:2::15]:31080"),
    ] {
        let (text, _) = said_on("dual-nftables", &["why", at]).await;
        assert!(
            text.contains("by design") && text.contains(instead),
            "{text}"
        );
        assert!(!text.contains("nodePortAddresses is not set"), "{text}");
    }
}

#[tokio::test]
async fn endpoints_of_one_family_are_missing() {
    let without = |text: &str| {
        edit(text, |all| {
            let items = all["items"].as_array_mut().unwrap();
            items.retain(|slice| slice["metadata"]["name"] != "front-v6");
        })
    };
    let changes: &[(&str, Change<'_>)] = &[(SLICES, &without)];
    let (text, code) = said("dual-nftables", changes, &["why", "shop/front:http"]).await;
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("IPv6 EndpointSlice") || text.contains("no IPv6 endpoints"),
        "{text}"
    );
    assert!(
        text.contains("the IPv6 addresses do not work: [fd00:10:96::30a]:80/tcp"),
        "{text}"
    );
}

/// A rule of family inet stops packets of both families; a rule that accepts packets of one does not help the other.
#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_rule_of_both_families_is_passed_in_those_that_fail() {
    let closed = |families: &'static [&'static str]| {
        move |text: &str| {
            let of = |more: Value| {
                let mut of = json!({"family": "inet", "table": "guard"});
                of.as_object_mut()
                    .unwrap()
                    .extend(more.as_object().unwrap().clone());
                of
            };
            let chain = json!({"name": "forward", "handle": 1, "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"});
            let mut all = vec![
                json!({"table": {"family": "inet", "name": "guard", "handle": 99}}),
                json!({"chain": of(chain)}),
            ];
            // Neighbours of IPv6 find each other.
            let neighbours = json!({"chain": "forward", "handle": 90, "expr": [
                {"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "ipv6-icmp"}},
                {"accept": null},
            ]});
            all.push(json!({"rule": of(neighbours)}));
            for (at, family) in families.iter().enumerate() {
                let accept = json!({"chain": "forward", "handle": at + 2, "expr": [
                    {"match": {"op": "==", "left": {"meta": {"key": "nfproto"}}, "right": family}},
                    {"accept": null},
                ]});
                all.push(json!({"rule": of(accept)}));
            }
            with_nft(text, &all)
        }
    };
    let (v4, v6) = (
        "ip saddr 10.244.0.0/16 accept",
        "ip6 saddr fd00:10:244::/48 accept",
    );
    for (accepted, has_v4, has_v6) in [
        (&[][..], true, true),
        (&["ipv4"][..], false, true),
        (&["ipv6"][..], true, false),
    ] {
        let input = |text: &str| closed(accepted)(text).replace("\"forward\"", "\"input\"");
        // In mode ipvs, packets to Services pass INPUT.
        let (text, _) = said("dual-ipvs", &[(NFT, &input)], &["why", "shop/sticky"]).await;
        assert_eq!(
            (text.contains(v4), text.contains(v6)),
            (has_v4, has_v6),
            "{text}"
        );
    }
}

/// Entries that are there for an endpoint, and not for a Service, are a cause for each Service of the endpoint.
#[tokio::test]
async fn what_several_services_share_is_a_cause_for_each() {
    let twin = |text: &str| {
        edit(text, |all| {
            let items = all["items"].as_array_mut().unwrap();
            let sticky = items
                .iter()
                .find(|slice| slice["metadata"]["name"] == "six-abcde");
            let mut twin = sticky.unwrap().clone();
            twin["metadata"]["name"] = json!("six-empty-abcde");
            twin["metadata"]["labels"]["kubernetes.io/service-name"] = json!("six-empty");
            items.retain(|slice| {
                slice["metadata"]["labels"]["kubernetes.io/service-name"] != "six-empty"
            });
            items.push(twin);
        })
    };
    let dir = broken("dual-nftables", &[(SLICES, &twin)]);
    let from = dir.path().to_str().unwrap();
    let rendered = kpx(&["--from", from, "render", "--mode", "nftables", "-o", "json"]).await;
    assert_eq!(rendered.code, 0, "{rendered}");
    let (text, _) = said_in(dir.path(), &["diff", "-o", "json"]).await;
    assert!(text.contains("six-empty"), "{text}");
    let without = |text: &str| {
        nft(text, "set", |set| {
            if set["name"] == "hairpin-connections" && set["family"] == "ip6" {
                let all = set["elem"].as_array_mut().unwrap();
                all.retain(|element| element["concat"][0] != "fd00:10:244:1::20");
            }
        })
    };
    let path = dir.path().join(NFT);
    let new = without(&recorded("dual-nftables", NFT).unwrap());
    std::fs::write(path, new).unwrap();
    let (text, _) = said_in(dir.path(), &["doctor", "-v"]).await;
    let message = "a pod does not reach a Service through itself";
    assert!(text.contains(message), "{text}");
    for service in ["shop/six", "shop/six-empty"] {
        let (text, _) = said_in(dir.path(), &["why", service]).await;
        assert!(text.contains("kpx reconcile --apply"), "{service}: {text}");
    }
}

/// Differences that exist already are no part of an edit that would be made.
#[tokio::test]
async fn an_edit_does_not_take_the_credit_of_a_repair() {
    let masquerades =
        |of: &Value| of["chain"] == "masquerading" || of["chain"] == "nat-postrouting";
    let without = |text: &str| {
        edit(text, |all| {
            let list = all["nftables"].as_array_mut().unwrap();
            list.retain(|object| object.get("rule").is_none_or(|rule| !masquerades(rule)));
        })
    };
    let changes: &[(&str, Change<'_>)] = &[(NFT, &without)];
    let (text, _) = said("dual-nftables", changes, &["why", "shop/front:http"]).await;
    assert!(text.contains("reconcile --apply"), "{text}");
    assert!(!text.contains("clusterCIDR"), "{text}");
}

/// The rule of an endpoint is written into the simulated node as nft prints it.
#[tokio::test]
async fn the_missing_rule_of_an_endpoint_is_a_cause() {
    let without = |text: &str| {
        edit(text, |all| {
            let list = all["nftables"].as_array_mut().unwrap();
            let translates = |rule: &Value| {
                let chain = rule["chain"].as_str().unwrap();
                chain.starts_with("endpoint-")
                    && chain.contains("/sticky/")
                    && rule.to_string().contains("dnat")
            };
            list.retain(|object| object.get("rule").is_none_or(|rule| !translates(rule)));
        })
    };
    let changes: &[(&str, Change<'_>)] = &[(NFT, &without)];
    let (text, _) = said("dual-nftables", changes, &["why", "shop/sticky"]).await;
    assert!(text.contains("reconcile --apply"), "{text}");
    let (text, _) = said("dual-nftables", changes, &["diff"]).await;
    assert!(text.contains("dnat to 10.244.1.13:8080"), "{text}");
}

/// IPv6 that is off at a link is the cause, and not the addresses and routes that are missing because of it.
#[tokio::test]
async fn ipv6_that_is_off_is_the_cause() {
    let gone = |text: &str| {
        on_eth0(text, |all| {
            all.retain(|address| address["family"] == "inet");
        })
    };
    let off = |text: &str| format!("{text}net.ipv6.conf.eth0.disable_ipv6 = 1\n");
    let no_routes = |text: &str| {
        edit(text, |all| {
            let all = all.as_array_mut().unwrap();
            all.retain(|route| route["dev"] != "eth0" || !route.to_string().contains("::"));
        })
    };
    let changes: &[(&str, Change<'_>)] = &[
        (ADDRESSES, &gone),
        ("node/sysctl.txt", &off),
        ("node/ip-route.json", &no_routes),
    ];
    let (text, _) = said("dual-nftables", changes, &["why", "shop/front:http"]).await;
    assert!(
        text.contains("sysctl -w net.ipv6.conf.eth0.disable_ipv6=0"),
        "{text}"
    );
}
