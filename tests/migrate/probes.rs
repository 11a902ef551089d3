//! The Services that are probed before and after a migration.

use kpx_migrate::probes::targets;
use kpx_node::backend::Mode;
use kpx_node::evidence::{ITEMS, load};
use kpx_node::net::Proto;
use kpx_node::node::NodeSnapshot;

use crate::support::root;

/// The API server and DNS, and of each family three others and three NodePorts; of UDP, DNS alone.
#[test]
fn a_few_services_of_each_kind_are_probed() {
    let bundle = root().join("testdata/nodes/full-iptables");
    let evidence = load(&bundle, ITEMS).unwrap();
    let node = NodeSnapshot::new(&evidence);
    let targets = targets(node.desired(Mode::Iptables).unwrap());
    let shown: Vec<String> = targets.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "default/kubernetes:https (tcp 10.96.0.1:443)",
            "kube-system/kube-dns:dns (udp 10.96.0.10:53)",
            "kube-system/kube-dns:dns-tcp (tcp 10.96.0.10:53)",
            "default/nginx-svc (tcp 10.97.54.248:80)",
            "default/nginx-svc-nodeport (tcp 10.109.235.134:80)",
            "edge/ext:api (tcp 10.100.2.6:9000)",
            "default/nginx-svc-nodeport by NodePort (tcp 10.0.2.15:31082)",
            "edge/lb-proxy:http by NodePort (tcp 10.0.2.15:30083)",
            "edge/np-local:http by NodePort (tcp 10.0.2.15:30084)",
            "shop/dual:http (tcp [fd00:10:96::12]:80)",
        ]
    );
    for target in targets {
        let asks = !target.question().is_empty();
        assert_eq!(asks, target.to_string().contains("udp"), "{target}");
    }
}

#[test]
fn a_service_that_cannot_answer_is_not_probed() {
    let bundle = root().join("testdata/nodes/full-iptables");
    let evidence = load(&bundle, ITEMS).unwrap();
    let node = NodeSnapshot::new(&evidence);
    let mut desired = node.desired(Mode::Iptables).unwrap().clone();
    for state in &mut desired.families {
        // One without an endpoint, and one whose questions are unknown.
        let idle = state.ports.iter().find(|port| !port.has_internal());
        let mut unknown = state.ports.iter().find(|of| of.has_internal()).cloned();
        if let Some(port) = &mut unknown {
            port.proto = Proto::Udp;
        }
        state.ports = idle.cloned().into_iter().chain(unknown).collect();
    }
    let ports = desired.families.iter().map(|state| state.ports.len());
    assert!(ports.sum::<usize>() >= 2);
    assert_eq!(targets(&desired), []);
}

#[test]
fn a_node_without_an_address_has_no_node_ports_to_probe() {
    let bundle = root().join("testdata/nodes/full-iptables");
    let evidence = load(&bundle, ITEMS).unwrap();
    let node = NodeSnapshot::new(&evidence);
    let mut desired = node.desired(Mode::Iptables).unwrap().clone();
    desired.families[0].node_ip = "127.0.0.1".parse().unwrap();
    let targets = targets(&desired);
    let names: Vec<&str> = targets.iter().map(|target| &*target.name).collect();
    assert!(names.contains(&"default/kubernetes:https"), "{names:?}");
    assert!(
        !names.iter().any(|name| name.contains("NodePort")),
        "{names:?}"
    );
}
