//! Faults inside the networks of pods.

use std::process::{Child, Stdio};

use kpx_judge::check::Fix;
use kpx_judge::verdict::{Client, Fate};

use super::network::{FAR, NEAR, Network, fate, fate_of_kind};
use crate::kernel::netns::Netns;

/// A process in the network of a pod, by which that is found; ended when dropped.
pub(super) struct Inside(Child);

impl Inside {
    pub(super) fn new(netns: &Netns) -> Self {
        Self(netns.start(&["sleep", "600"], Stdio::null()))
    }

    /// Returns `command` as it is run inside.
    fn line(&self, command: &str) -> String {
        format!("nsenter --net=/proc/{}/ns/net {command}", self.0.id())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test]
#[ignore = "needs root, for network namespaces"]
async fn rules_and_sockets_inside_a_pod_decide() {
    let mut network = Network::new();
    network.reads_pods = true;
    let near = Inside::new(&network.near);
    let client = Inside::new(&network.client);
    let drop = near.line("iptables -A INPUT -p tcp --dport 8080 -j DROP");
    network
        .fails(
            "a pod's INPUT",
            &drop,
            NEAR,
            &["10.244.1.6", "filter INPUT"],
        )
        .await;
    let policy = format!(
        "{}\n{}",
        near.line("nft add table inet own"),
        near.line(
            "nft 'add chain inet own out { type filter hook output priority 0; policy drop; }'"
        )
    );
    network
        .fails(
            "a pod's OUTPUT policy",
            &policy,
            NEAR,
            &["reply", "inet own out"],
        )
        .await;
    network.shell(&near.line("nft delete table inet own"));
    let reject = client.line("iptables -A OUTPUT -d 10.96.0.11 -j REJECT");
    network
        .fails(
            "the client's OUTPUT",
            &reject,
            FAR,
            &["10.244.1.5", "filter OUTPUT"],
        )
        .await;
    let accepts = near.line("iptables -A INPUT -p tcp --dport 8081 -j DROP");
    network.shell(&accepts);
    network.agree("a rule for another port").await;
    network
        .shell(&near.line(
            "iptables -t nat -A PREROUTING -p tcp --dport 8080 -j REDIRECT --to-ports 15006",
        ));
    network
        .agree("a redirection to a port where nothing listens")
        .await;
    let answer = network.why(NEAR).await;
    assert_eq!(fate(&answer, Client::Pod), Fate::Refused);
    assert!(
        answer.sentence.contains("nothing listens there"),
        "{}",
        answer.sentence
    );
}

#[tokio::test]
#[ignore = "needs root, for network namespaces"]
async fn rules_of_the_node_stop_replies() {
    let network = Network::new();
    for (about, fault, service, words) in [
        (
            "FORWARD by source port",
            "iptables -I FORWARD -s 10.244.1.6 -p tcp --sport 8080 -j DROP",
            NEAR,
            &["replies", "FORWARD in table filter"],
        ),
        (
            "raw",
            "iptables -t raw -I PREROUTING -s 10.244.2.7 -j DROP",
            FAR,
            &["replies", "PREROUTING in table raw"],
        ),
        (
            "behind the routing",
            "iptables -t mangle -I POSTROUTING -d 10.244.1.5 -p tcp --sport 8080 -j DROP",
            FAR,
            &["replies", "POSTROUTING in table mangle"],
        ),
        (
            "the direction",
            "nft add table inet strict\n\
             nft 'add chain inet strict back { type filter hook forward priority -10; }'\n\
             nft add rule inet strict back ct direction reply drop",
            FAR,
            &["replies", "back in table inet strict"],
        ),
        (
            "the first reply alone",
            "iptables -I FORWARD -p tcp --tcp-flags SYN,ACK SYN,ACK -j DROP",
            FAR,
            &["replies", "FORWARD in table filter"],
        ),
        (
            "the flags of the first reply",
            "nft add table inet strict\n\
             nft 'add chain inet strict first { type filter hook forward priority -10; }'\n\
             nft 'add rule inet strict first tcp flags & (syn | ack) == syn | ack drop'",
            FAR,
            &["replies", "first in table inet strict"],
        ),
        (
            "untracked replies",
            "iptables -t raw -I PREROUTING -s 10.244.2.7 -j CT --notrack",
            FAR,
            &["untracks the replies", "PREROUTING in table raw"],
        ),
    ] {
        network.fails(about, fault, service, words).await;
    }
    for (about, harmless) in [
        (
            "another source port",
            "iptables -I FORWARD -s 10.244.2.7 -p tcp --sport 9999 -j DROP",
        ),
        (
            "a cluster IP behind nat",
            "iptables -I FORWARD -s 10.96.0.10 -j DROP",
        ),
        (
            "the node's own address as a destination",
            "iptables -t mangle -I FORWARD -d 10.0.2.15 -j DROP",
        ),
    ] {
        network.shell(harmless);
        network.agree(about).await;
    }
    network.shell("iptables -I INPUT -p tcp --sport 8080 -j REJECT");
    network.agree("replies to the host").await;
    let answer = network.why(FAR).await;
    assert!(fate(&answer, Client::Host).fails(), "{}", answer.sentence);
    network.shell("iptables -t raw -I PREROUTING -d 10.0.2.15 -p tcp --sport 8080 -j ACCEPT");
    network.agree("an accepted reply that INPUT rejects").await;
}

#[tokio::test]
#[ignore = "needs root, for network namespaces"]
async fn replies_in_another_zone_of_conntrack_are_lost() {
    let network = Network::new();
    network.shell("iptables -t raw -I PREROUTING -i cni0 -j CT --zone 5");
    assert!(!network.answers(Client::Pod, FAR));
    let answer = network.why(FAR).await;
    assert_eq!(fate(&answer, Client::Pod), Fate::Lost);
    assert!(answer.sentence.contains("zone"), "{}", answer.sentence);
    assert_eq!(fate(&answer, Client::Host), Fate::Works);
}

#[tokio::test]
#[ignore = "needs root, for network namespaces"]
async fn links_and_routes_of_pods_decide() {
    let mut network = Network::new();
    network.reads_pods = true;
    let near = Inside::new(&network.near);
    let client = Inside::new(&network.client);
    for (about, fault, service, words) in [
        (
            "the pod's link on the node",
            "ip link set veth1 down".to_owned(),
            NEAR,
            &["veth1 is down"][..],
        ),
        (
            "a port that blocks",
            "bridge link set dev veth1 state 0".to_owned(),
            NEAR,
            &["veth1 is a bridge port in state disabled"],
        ),
        (
            "a link outside its bridge",
            "ip link set veth1 nomaster".to_owned(),
            NEAR,
            &["veth1 is no port of bridge cni0"],
        ),
        (
            "no way back inside",
            near.line("ip route add blackhole 10.244.1.5/32"),
            NEAR,
            &["10.244.1.6", "blackhole", "replies to 10.244.1.5"],
        ),
        (
            "no way out inside",
            client.line("ip route add prohibit 10.96.0.0/16"),
            FAR,
            &["10.244.1.5", "prohibit"],
        ),
        (
            "a TTL that ends at the node",
            client.line("sysctl -q -w net.ipv4.ip_default_ttl=1"),
            FAR,
            &["net.ipv4.ip_default_ttl is 1 in the network of pod 10.244.1.5"],
        ),
    ] {
        network.fails(about, &fault, service, words).await;
        // A port that is made again has the kernel's defaults.
        network.shell("bridge link set dev veth1 hairpin on");
    }
    network.shell(&client.line("ip route replace default via 10.244.1.250 dev up0"));
    let answer = network.why(FAR).await;
    assert_eq!(fate(&answer, Client::Pod), Fate::Unknown);
    let said = answer.sentence + &answer.unknown.join("\n");
    let words = "10.244.1.250, the gateway in the network of pod 10.244.1.5";
    assert!(said.contains(words), "{said}");
    network.agree("a gateway that nobody has").await;
    network.shell(&client.line("ip route replace default via 10.244.1.1 dev up0"));
    network.agree("the gateway again").await;
    network.shell(&near.line("ip link set up0 down"));
    network.agree("the link inside the pod").await;
    let said = network.why(NEAR).await.sentence;
    assert!(
        said.contains("in the network of pod 10.244.1.6, up0 is down"),
        "{said}"
    );
}

#[tokio::test]
#[ignore = "needs root, for network namespaces"]
async fn a_fault_of_one_pod_alone_is_found() {
    let mut network = Network::new();
    // It stands for all pods, and has no network.
    network.add_pod("bystander", "10.244.1.4");
    for (about, fault, word) in [
        (
            "its packets",
            "iptables -I FORWARD -s 10.244.1.5 -j DROP",
            "FORWARD",
        ),
        (
            "its replies",
            "iptables -t mangle -I FORWARD -d 10.244.1.5 -j DROP",
            "replies",
        ),
        (
            "a rule of routing",
            "ip rule add from 10.244.1.5 prohibit priority 905",
            "prohibit",
        ),
        (
            "its address on the node",
            "ip addr add 10.244.1.5/32 dev lo",
            "10.244.1.5",
        ),
    ] {
        assert!(network.answers(Client::Pod, FAR), "{about}");
        network.shell(fault);
        assert!(!network.answers(Client::Pod, FAR), "{about}");
        let answer = network.why(FAR).await;
        let fates = [Client::Pod, Client::Single].map(|client| fate_of_kind(&answer, client));
        assert!(
            fates[0] == Fate::Works && fates[1].fails() && answer.fate == Fate::Partly,
            "{about}: {fates:?}: {}",
            answer.sentence
        );
        let said = &answer.sentence;
        assert!(
            said.contains("from single pods") && said.contains(word),
            "{about}: {said}"
        );
        network.shell(&answer.fix.as_ref().and_then(Fix::command).unwrap());
    }
    let answer = network.why(FAR).await;
    assert_eq!(answer.fate, Fate::Works, "{}", answer.sentence);
}
