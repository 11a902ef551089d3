//! Ports of endpoints that tables do not show: any port of the Service that may lead to them.

use super::*;

/// Returns name, protocol and number of each port of the slices of Service `dns`, with what its slices are called.
fn ports(text: &str) -> Vec<(String, String, u16)> {
    let evidence = evidence(text);
    let node = NodeSnapshot::new(&evidence);
    let slices = node.slices().unwrap();
    let mut ports: Vec<_> = slices
        .iter()
        .filter(|slice| !slice.endpoints.is_empty())
        .flat_map(|slice| &slice.ports)
        .map(|port| {
            (
                port.name.clone().unwrap_or_default(),
                port.protocol.clone().unwrap_or_default(),
                port.port.unwrap(),
            )
        })
        .collect();
    ports.sort();
    ports
}

fn all(list: &[(&str, &str, u16)]) -> Vec<(String, String, u16)> {
    let owned = list
        .iter()
        .map(|(name, protocol, port)| ((*name).to_owned(), (*protocol).to_owned(), *port));
    owned.collect()
}

const YAML: &str = "$ kubectl get svc dns -n demo -o yaml\napiVersion: v1\nkind: Service\nmetadata:\n  name: dns\n  namespace: demo\n\
                    spec:\n  clusterIP: 10.96.0.10\n  ports:\n  - name: dns\n    port: 53\n    protocol: UDP\n    targetPort: 53\n  \
                    - name: dns-tcp\n    port: 53\n    protocol: TCP\n    targetPort: 53\n  - name: metrics\n    port: 9153\n    \
                    protocol: TCP\n    targetPort: metrics\n  selector:\n    app: dns\n";

#[test]
fn an_endpoint_of_a_table_is_of_each_port_that_may_lead_to_it() {
    let of_table = "$ kubectl get svc,ep -n demo\nNAME          TYPE        CLUSTER-IP   EXTERNAL-IP   PORT(S)         AGE\n\
                    service/dns   ClusterIP   10.96.0.10   <none>        53/UDP,53/TCP   9d\n\n\
                    NAME            ENDPOINTS                     AGE\n\
                    endpoints/dns   10.244.1.6:53,10.244.1.6:53   9d\n";
    assert_eq!(ports(of_table), all(&[("", "TCP", 53), ("", "UDP", 53)]));
    // A port whose target is a number leads to no other; which number a name is, the table does not show.
    let endpoints = "$ kubectl get ep -n demo\nNAME   ENDPOINTS                                     AGE\n\
                     dns    10.244.1.6:53,10.244.1.6:53,10.244.1.7:53 + 3 more...   9d\n";
    let slices = "$ kubectl get endpointslices -n demo\nNAME        ADDRESSTYPE   PORTS   ENDPOINTS    AGE\n\
                  dns-x7abc   IPv4          53      10.244.1.6   9d\n";
    for shown in [endpoints, slices] {
        let expected = [
            ("dns", "UDP", 53),
            ("dns-tcp", "TCP", 53),
            ("metrics", "TCP", 53),
        ];
        assert_eq!(ports(&format!("{YAML}{shown}")), all(&expected), "{shown}");
    }
    // Whoever writes the endpoints of a Service without a selector chooses their ports.
    let (without, _) = YAML.split_once("  selector").unwrap();
    let other =
        "$ kubectl get ep -n demo\nNAME   ENDPOINTS          AGE\ndns    192.0.2.7:5353   9d\n";
    let expected = [
        ("dns", "UDP", 5353),
        ("dns-tcp", "TCP", 5353),
        ("metrics", "TCP", 5353),
    ];
    assert_eq!(ports(&format!("{without}{other}")), all(&expected));
}

#[test]
fn a_description_shows_the_ports_of_its_endpoints() {
    let text = "$ kubectl describe svc dns -n demo\nName:              dns\nNamespace:         demo\n\
                Selector:          app=dns\nType:              ClusterIP\nIP:                10.96.0.10\n\
                Port:              dns  53/UDP\nTargetPort:        53/UDP\nEndpoints:         10.244.1.6:53\n\
                Port:              dns-tcp  53/TCP\nTargetPort:        53/TCP\nEndpoints:         10.244.1.6:53\n";
    assert_eq!(
        ports(text),
        all(&[("dns", "UDP", 53), ("dns-tcp", "TCP", 53)])
    );
    let in_part = |text: &str| -> Vec<bool> {
        let evidence = evidence(text);
        let node = NodeSnapshot::new(&evidence);
        let slices = node.slices().unwrap();
        slices.iter().map(|slice| slice.in_part).collect()
    };
    assert_eq!(in_part(text), [false, false]);
    let cut = text.replacen("10.244.1.6:53\n", "10.244.1.6:53 + 4 more...\n", 1);
    assert!(in_part(&cut).contains(&true));
}

/// Nothing can be done about an object that kpx made of a text, so it has no name.
#[test]
fn slices_that_are_not_shown_have_no_names() {
    let endpoints =
        "$ kubectl get ep -n demo\nNAME   ENDPOINTS       AGE\ndns    10.244.1.6:53   9d\n";
    let yaml = "$ kubectl get endpoints dns -n demo -o yaml\napiVersion: v1\nkind: Endpoints\nmetadata:\n  name: dns\n  namespace: demo\n\
                subsets:\n- addresses:\n  - ip: 10.244.1.6\n  ports:\n  - name: dns\n    port: 53\n    protocol: UDP\n";
    for (text, in_part) in [
        (format!("{YAML}{endpoints}"), true),
        (yaml.to_owned(), false),
    ] {
        let evidence = evidence(&text);
        let node = NodeSnapshot::new(&evidence);
        let slices = node.slices().unwrap();
        assert_eq!(slices.len(), 1, "{text}");
        assert_eq!(
            (slices[0].metadata.name.as_str(), slices[0].in_part),
            ("", in_part),
            "{text}"
        );
    }
}

#[test]
fn the_selector_of_a_wide_table_is_read() {
    let text = "$ kubectl get svc -n demo -o wide\nNAME   TYPE        CLUSTER-IP   EXTERNAL-IP   PORT(S)   AGE   SELECTOR\n\
                dns    ClusterIP   10.96.0.10   <none>        53/UDP    9d    app=dns,tier=back\n\
                none   ClusterIP   10.96.0.11   <none>        53/UDP    9d    <none>\n";
    let evidence = evidence(text);
    let node = NodeSnapshot::new(&evidence);
    let services = node.services().unwrap();
    let of = |name: &str| {
        let service = services
            .iter()
            .find(|service| service.metadata.name == name)
            .unwrap();
        service.selector().map(std::collections::BTreeMap::len)
    };
    assert_eq!((of("dns"), of("none")), (Some(2), None));
}

#[test]
fn the_kernels_own_routes_show_addresses_of_the_node() {
    let text = "root@w1:~# ip route\ndefault via 10.210.0.2 dev eth0\n\
                10.210.0.0/24 dev eth0 proto kernel scope link src 10.210.0.16\n10.244.0.0/24 via 10.210.0.15 dev eth0\n\
                10.244.1.0/24 dev cni0 proto kernel scope link src 10.244.1.1\n";
    let evidence = read(text).nodes[0].evidence.with_parts();
    let node = NodeSnapshot::new(&evidence);
    // Only table main is shown.
    assert!(node.routes().is_err());
    let found = node.connected().unwrap();
    let own: Vec<_> = found
        .iter()
        .map(|connection| format!("{} {}", connection.link, connection.own))
        .collect();
    assert_eq!(own, ["eth0 10.210.0.16", "cni0 10.244.1.1"]);
}

#[test]
fn a_setting_that_is_shown_is_known_and_no_other() {
    let text = "root@w1:~# sysctl net.ipv4.ip_forward\nnet.ipv4.ip_forward = 0\n";
    let evidence = read(text).nodes[0].evidence.without_parts();
    let node = NodeSnapshot::new(&evidence);
    let all = node.sysctl().unwrap();
    assert_eq!(all.known("net.ipv4.ip_forward"), Ok(Some("0")));
    let other = all.known("net.bridge.bridge-nf-call-iptables");
    assert!(matches!(other, Err(Gap::Partial(Item::Sysctl, _))));
    assert!(all.whole().is_err());
}
