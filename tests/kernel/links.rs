//! Links, addresses, routes and policy rules against `ip`.

use kpx_node::evidence::{Evidence, Item};
use kpx_node::node::NodeSnapshot;
use kpx_node::node::tc::Tc;
use serde_json::Value;

use super::netns::Netns;

/// A bridge with a port that hairpins, addresses of both families, routes of every kind, and policy rules.
const NODE: &str = "\
ip link add br0 type bridge
ip link add pod0 type veth peer name pod1
ip link set pod0 master br0 up
ip link set pod1 up
ip link set br0 up mtu 1400
bridge link set dev pod0 hairpin on
ip addr add 10.244.1.1/24 brd + dev br0
ip addr add 10.244.1.2/24 dev br0
ip addr add 192.0.2.1 peer 192.0.2.2 dev pod1
ip addr add fd00:10:244:1::1/64 dev br0 nodad
ip route add 10.96.0.0/12 via 10.244.1.9 proto static metric 50
ip route add default via 10.244.1.254 onlink dev br0
ip route add blackhole 198.51.100.0/24 table 100
ip route add unreachable 203.0.113.0/24 proto bird
ip route add 172.16.0.0/16 nexthop via 10.244.1.7 weight 2 nexthop dev pod1
ip route add fd00:10:96::/112 via fd00:10:244:1::9 metric 77
ip -6 route add default via fd00:10:244:1::fe
ip rule add fwmark 0x4000/0x4000 lookup 100 priority 100
ip rule add not from 10.0.0.0/8 to 172.16.0.0/12 iif br0 lookup 200 priority 200
ip rule add from 10.244.1.5 oif pod1 blackhole priority 300
ip rule add lookup main suppress_prefixlength 0 priority 400
ip -6 rule add from fd00:10:244::/48 fwmark 0x80 lookup 300 priority 500";

/// Reads `item` and the output of `commands`, as lists of the values in the JSON documents.
async fn both(netns: &Netns, item: Item, commands: &[&str]) -> (Vec<Value>, Vec<Value>) {
    let evidence = netns.collect(&[item]).await;
    let ours = documents(evidence.text(item).unwrap());
    let theirs = commands
        .iter()
        .flat_map(|command| documents(&netns.run(command)));
    (ours, theirs.collect())
}

fn documents(text: &str) -> Vec<Value> {
    let lists = serde_json::Deserializer::from_str(text).into_iter::<Vec<Value>>();
    lists.flat_map(Result::unwrap).collect()
}

/// Leaves of `value` nothing but `keys`.
fn only(mut value: Value, keys: &[&str]) -> Value {
    if let Some(object) = value.as_object_mut() {
        object.retain(|key, _| keys.contains(&key.as_str()));
    }
    value
}

fn node() -> Netns {
    let netns = Netns::new();
    netns.feed("sh -e", NODE);
    netns
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn links_are_what_ip_prints() {
    const KEYS: &[&str] = &[
        "ifindex",
        "ifname",
        "link",
        "flags",
        "mtu",
        "qdisc",
        "master",
        "operstate",
        "txqlen",
        "link_type",
        "address",
        "broadcast",
        "promiscuity",
    ];
    let netns = node();
    let (ours, theirs) = both(&netns, Item::Links, &["ip -j -d link"]).await;
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(only(ours.clone(), KEYS), only(theirs.clone(), KEYS));
        for path in [
            "/linkinfo/info_kind",
            "/linkinfo/info_slave_kind",
            "/linkinfo/info_slave_data/hairpin",
            "/linkinfo/info_slave_data/locked",
        ] {
            assert_eq!(
                ours.pointer(path),
                theirs.pointer(path),
                "{path} of {theirs}"
            );
        }
    }
    let hairpins = ours
        .iter()
        .filter_map(|link| link.pointer("/linkinfo/info_slave_data/hairpin"));
    assert_eq!(hairpins.collect::<Vec<_>>(), [&Value::Bool(true)]);
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn addresses_are_what_ip_prints() {
    let netns = node();
    let (ours, theirs) = both(&netns, Item::Addresses, &["ip -j addr"]).await;
    let addresses = |links: &[Value]| -> Vec<(String, Value)> {
        let each = links.iter().map(|link| {
            let mut list = link["addr_info"].clone();
            for address in list.as_array_mut().unwrap() {
                // Seconds pass between the two readings, and an address may settle.
                only_settled(address);
            }
            (link["ifname"].to_string(), list)
        });
        each.collect()
    };
    assert_eq!(addresses(&ours), addresses(&theirs));
}

fn only_settled(address: &mut Value) {
    let address = address.as_object_mut().unwrap();
    for key in [
        "valid_life_time",
        "preferred_life_time",
        "tentative",
        "protocol",
    ] {
        address.remove(key);
    }
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn routes_are_what_ip_prints() {
    let netns = node();
    let (ours, theirs) = both(&netns, Item::Routes, &["ip -j route show table all"]).await;
    assert_eq!(sorted(&ours), sorted(&theirs));
    assert!(theirs.len() > 15, "{theirs:?}");
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn rules_are_what_ip_prints_ipv4_first() {
    let netns = node();
    let (ours, theirs) = both(&netns, Item::Rules, &["ip -j rule", "ip -6 -j rule"]).await;
    assert_eq!(ours, theirs);
    assert_eq!(theirs.len(), 7 + 3);
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn neighbours_are_what_ip_prints() {
    let netns = node();
    netns.run("ip link add there type bridge");
    netns.run("ip link set there up");
    netns.run("ip neigh add 192.0.2.77 lladdr 02:00:00:00:00:01 nud permanent dev there");
    netns.run("ip neigh add 2001:db8::77 lladdr 02:00:00:00:00:02 nud stale dev there");
    let (ours, theirs) = both(&netns, Item::NeighbourTable, &["ip -j neigh"]).await;
    assert_eq!(sorted(&ours), sorted(&theirs));
    assert!(theirs.len() > 1, "{theirs:?}");
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn policies_of_ipsec_are_what_ip_prints() {
    let netns = node();
    for policy in [
        "src 10.0.0.0/24 dst 10.0.1.0/24 proto tcp sport 5 dport 80 dir out action block priority 5 mark 0x1 mask 0xff",
        "src 10.0.0.0/24 dst 10.0.1.0/24 proto icmp type 3 code 1 dir fwd",
        "src 10.0.0.0/24 dst 10.0.1.0/24 proto 99 dev lo dir in action block",
        "src fd00::/8 dst ::/0 proto udp dir fwd flag localok",
        "src 10.0.0.0/24 dst 10.0.2.0/24 dir out if_id 7 tmpl src 10.1.0.1 dst 10.1.0.2 proto esp spi 5 reqid 1 mode \
         transport level use tmpl proto ah mode transport",
    ] {
        netns.run(&format!("ip xfrm policy add {policy}"));
    }
    let evidence = netns.collect(&[Item::XfrmPolicies]).await;
    let theirs = netns.run("ip xfrm policy");
    assert_eq!(evidence.text(Item::XfrmPolicies).unwrap(), theirs);
    let node = NodeSnapshot::new(&evidence);
    assert_eq!(node.xfrm().unwrap().all.len(), 5);
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn filters_are_what_tc_prints() {
    let netns = node();
    for command in [
        "tc qdisc add dev pod0 clsact",
        "tc filter add dev pod0 egress protocol ip pref 7 bpf da bytecode 1,6\\ 0\\ 0\\ 2",
        "tc filter add dev pod0 egress protocol ip pref 9 u32 match ip dst 10.2.2.2/32 flowid 1:1",
        "tc filter add dev pod0 ingress protocol all pref 3 u32 match ip src 10.1.0.0/16 flowid 1:1",
        "tc qdisc add dev pod1 root handle 1: htb",
        "tc filter add dev pod1 parent 1: protocol ipv6 pref 5 u32 match u32 0 0 flowid 1:1",
        "tc qdisc add dev br0 root blackhole",
    ] {
        netns.feed("sh -e", command);
    }
    let evidence = netns.collect(&[Item::Tc]).await;
    let filters = |link: &str, hook: &str| {
        let parent = if hook == "root" { "" } else { hook };
        let all = netns.run(format!("tc -j filter show dev {link} {parent}").trim_end());
        format!("{{\"dev\":\"{link}\",\"hook\":\"{hook}\",\"filters\":{all}}}")
    };
    let theirs = format!(
        "{{\"qdiscs\":{},\"filters\":[{},{},{}]}}",
        netns.run("tc -j qdisc"),
        filters("pod0", "ingress"),
        filters("pod0", "egress"),
        filters("pod1", "root"),
    );
    let mut by_tool = Evidence::default();
    by_tool.insert(Item::Tc, Ok(theirs));
    let (ours, theirs) = (NodeSnapshot::new(&evidence), NodeSnapshot::new(&by_tool));
    let (ours, theirs) = (ours.tc().unwrap(), theirs.tc().unwrap());
    assert_eq!(ours.losses, theirs.losses);
    // `tc` prints the keys of several with one name, so those of one are never known to be all.
    let shown = |tc: &Tc| -> Vec<String> {
        let all = tc
            .filters
            .iter()
            .flat_map(|(link, all)| all.iter().map(move |filter| (link, filter)));
        all.map(|(link, of)| {
            format!(
                "{link} {of} {:?} {:?} {:?}",
                of.keys.source, of.keys.destination, of.does
            )
        })
        .collect()
    };
    assert_eq!(shown(ours), shown(theirs));
    assert_eq!(shown(ours).len(), 4, "{:?}", shown(ours));
    assert_eq!(ours.losses.len(), 1);
}

#[tokio::test]
#[ignore = "needs root and a network namespace"]
async fn one_family_leaves_the_other_out() {
    let netns = node();
    let mut options = netns.options();
    options.families = vec![kpx_node::net::Family::V6];
    let evidence = kpx_host::collect(&[Item::Routes, Item::Rules], &options).await;
    let routes = documents(evidence.text(Item::Routes).unwrap());
    assert!(!routes.is_empty());
    assert!(
        routes
            .iter()
            .all(|route| !route["dst"].to_string().contains('.')),
        "{routes:?}"
    );
    assert!(evidence.text(Item::Rules).unwrap().starts_with("[]\n["));
}

fn sorted(values: &[Value]) -> Vec<String> {
    // A map's order is the reader's; what it says is the same.
    let mut lines: Vec<_> = values
        .iter()
        .map(|value| {
            let map: std::collections::BTreeMap<_, _> = value.as_object().unwrap().iter().collect();
            format!("{map:?}")
        })
        .collect();
    lines.sort();
    lines
}
