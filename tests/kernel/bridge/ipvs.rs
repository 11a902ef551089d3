//! The bridge in front of virtual servers.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use kpx_node::backend::Mode;

use super::node::bridge as recorded;
use crate::kernel::netns::run;
use crate::kernel::trace::judge::Judge;
use crate::kernel::trace::network::{Network, Place};
use crate::kernel::trace::recording::Recording;

/// Beginnings of cluster IPs, as the judge writes them.
const CLUSTER_IPS: &[&str] = &[
    " to 10.96.",
    " to 10.97.",
    " to 10.100.",
    " to [fd00:10:96:",
];

#[tokio::test]
#[ignore = "needs root, ip_vs and dummy links"]
async fn vm_no_packet_gets_to_a_virtual_server() {
    run(&["modprobe", "br_netfilter"], "");
    let mut flows = 0;
    for name in ["full-ipvs", "dual-ipvs"] {
        let recording = Recording::named(name);
        let network = Network::new(&recording, true);
        recording.restore(&network.node);
        let judge = Judge::new(name.to_owned(), &recording, &network).await;
        network.node.feed("nft -f -", &recorded(name, Mode::Ipvs));
        let (count, mut wrong) = judge.one_in(5).differences();
        flows += count;
        // Elsewhere the ipvs mode has its own ways: it serves NodePorts on addresses it found when it started, and a policy
        // Local without endpoints here by those of other nodes. A virtual server without real ones refuses, where a
        // policy Local has others drop.
        wrong.retain(|what| {
            CLUSTER_IPS.iter().any(|address| what.contains(address))
                && !what.contains("kpx: Reject (100%)")
        });
        assert_eq!(wrong, [""; 0], "{name}");
        let connections = network.node.run("ipvsadm -Lcn");
        assert_eq!(connections.lines().count(), 2, "{connections}");
    }
    assert!(flows > 200, "{flows}");
}

/// It has it because kube-ipvs0 holds it. Another node would keep the answer to itself.
#[test]
#[ignore = "needs root, ip_vs and dummy links"]
fn vm_a_process_with_a_cluster_ip_as_its_source_is_masqueraded() {
    run(&["modprobe", "br_netfilter"], "");
    let recording = Recording::named("seed-ipvs");
    let network = Network::new(&recording, true);
    recording.restore(&network.node);
    network
        .node
        .feed("nft -f -", &recorded("seed-ipvs", Mode::Ipvs));
    let pods = network.at(Place::Backend);
    pods.run("nft delete table inet mute");
    let listener = pods.inside(|| TcpListener::bind("0.0.0.0:80").unwrap());
    let mut client = network
        .node
        .inside(|| TcpStream::connect("10.97.54.248:80").unwrap());
    let source = client.local_addr().unwrap().ip();
    assert_eq!(source.to_string(), "10.97.54.248");
    let (mut server, from) = listener.accept().unwrap();
    assert_eq!(from.ip().to_string(), "10.244.1.1");
    server
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut passes = || {
        client.write_all(b"?").unwrap();
        server.read(&mut [0; 1]).unwrap()
    };
    assert_eq!(passes(), 1);
    network.node.run("ipvsadm -C");
    assert_eq!(passes(), 1);
}
