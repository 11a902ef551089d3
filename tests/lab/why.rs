//! Services that do not work, each of another cause, and what `kpx why` says of them on a laptop.

use crate::row::Act::{Kubectl, Node};
use crate::row::Mend::{AsPrinted, Back};
use crate::row::{ROW, Row};

pub(crate) const BROKEN: &[Row] = &[
    Row {
        breaks: &[Node(
            "iptables-save -t nat | grep -e '-A KUBE-SERVICES -d {web}/32 .*--dport 80 ' | sed 's/^-A/-D/' | \
             xargs -L 1 iptables -t nat",
        )],
        asked: &["demo/web:http"],
        cause: Some("rules"),
        says: &["nat chain KUBE-SERVICES rule"],
        mend: AsPrinted,
        ..ROW
    },
    Row {
        breaks: &[Node(
            "iptables -t nat -D PREROUTING -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES",
        )],
        asked: &["demo/web:http"],
        cause: Some("rules"),
        says: &["nat chain PREROUTING rule"],
        mend: AsPrinted,
        ..ROW
    },
    Row {
        breaks: &[Node(
            "iptables-save -t nat | grep -e '-A KUBE-SEP-.* -s {near}/32 .*demo/edge:http' | sed 's/^-A/-D/' | \
             xargs -L 1 iptables -t nat",
        )],
        asked: &["demo/edge:http"],
        cause: Some("rules"),
        says: &["fails for some connections on w1 from its own pods"],
        mend: AsPrinted,
        ..ROW
    },
    Row {
        breaks: &[Node("iptables -t mangle -I PREROUTING -d {web} -j DROP")],
        asked: &["demo/web:http"],
        cause: Some("foreign-rule"),
        says: &["in table mangle drops the packets"],
        mend: AsPrinted,
        ..ROW
    },
    Row {
        breaks: &[Node("iptables -I FORWARD -d {far} -j DROP")],
        asked: &["demo/edge:http"],
        cause: Some("foreign-rule"),
        says: &["fails for some connections on w1"],
        mend: AsPrinted,
        ..ROW
    },
    Row {
        breaks: &[Node("iptables -t nat -I PREROUTING -d {web} -j ACCEPT")],
        asked: &["{web}:80"],
        cause: Some("foreign-rule"),
        says: &["accepts the packets before kube-proxy's rules translate them"],
        mend: AsPrinted,
        ..ROW
    },
    Row {
        breaks: &[Node(
            "iptables -t nat -N DOCKER && \
             iptables -t nat -A DOCKER -p tcp --dport 30080 -j DNAT --to-destination 172.17.0.2:80 && \
             iptables -t nat -I PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
        )],
        asked: &["nodeport:30080"],
        cause: Some("foreign-rule"),
        says: &[
            "translates the packets to 172.17.0.2:80, which is no endpoint of the Service; owner of the rule: Docker",
        ],
        back: &[Node(
            "iptables -t nat -D PREROUTING -m addrtype --dst-type LOCAL -j DOCKER && iptables -t nat -F DOCKER && \
             iptables -t nat -X DOCKER",
        )],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[Node("iptables -P FORWARD DROP")],
        asked: &["demo/web:http"],
        cause: Some("foreign-rule"),
        says: &["no rule of chain FORWARD in table filter accepts the packets"],
        mend: AsPrinted,
        ..ROW
    },
    Row {
        breaks: &[Node(
            "conntrack -I -p udp -s {near} -d {web} --sport 40000 --dport 9001 -r 10.244.9.8 -q {near} \
             --reply-port-src 9001 --reply-port-dst 40000 -t 600 -u ASSURED",
        )],
        asked: &["demo/web:datagrams"],
        cause: Some("stale-connections"),
        says: &["still goes to 10.244.9.8:9001"],
        mend: AsPrinted,
        ..ROW
    },
    Row {
        breaks: &[Node("ip route add {near} via {w2}")],
        asked: &["demo/edge:http"],
        cause: Some("wrong-node"),
        says: &["runs on w1, but the route leads to another node"],
        back: &[Node("ip route del {near} via {w2}")],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[Node("ip route add unreachable {far}")],
        asked: &["demo/edge:http"],
        cause: Some("route"),
        says: &[
            "the unreachable route to {far}/32 of w1 ends or diverts the packets to {far}:8080",
        ],
        back: &[Node("ip route del unreachable {far}")],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[Node("sysctl -w net.ipv4.ip_forward=0")],
        asked: &["demo/web:http"],
        cause: Some("forwarding-off"),
        says: &["net.ipv4.ip_forward is 0"],
        mend: AsPrinted,
        ..ROW
    },
    Row {
        breaks: &[],
        asked: &["demo/empty"],
        cause: Some("no-endpoints"),
        says: &["no pod in namespace demo matches its selector app=nothing"],
        back: &[],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[
            Kubectl(
                "run sick --image=lab.local/app:1 --image-pull-policy=IfNotPresent --labels=app=sick \
                 --overrides='{\"spec\": {\"nodeName\": \"w2\", \"terminationGracePeriodSeconds\": 1, \"containers\": \
                 [{\"name\": \"sick\", \"image\": \"lab.local/app:1\", \"imagePullPolicy\": \"IfNotPresent\", \
                 \"args\": [\"serve\"], \"readinessProbe\": {\"tcpSocket\": {\"port\": 9}}}]}}'",
            ),
            Kubectl("expose pod sick --port=80 --target-port=8080"),
        ],
        asked: &["demo/sick"],
        cause: Some("no-endpoints"),
        says: &["has no ready endpoint"],
        back: &[Kubectl("delete service/sick pod/sick --wait=false")],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[Kubectl(
            "expose deployment web --name=named --port=80 --target-port=web",
        )],
        asked: &["demo/named"],
        cause: Some("no-endpoints"),
        says: &["no container of its pods has a port named web"],
        back: &[Kubectl("delete service named")],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[
            Kubectl("create service clusterip bare --tcp=80"),
            Kubectl(
                "patch service bare --type=json -p '[{\"op\": \"remove\", \"path\": \"/spec/selector\"}]'",
            ),
        ],
        asked: &["demo/bare"],
        cause: Some("no-endpoints"),
        says: &["it has no selector, and no EndpointSlice names it"],
        back: &[Kubectl("delete service bare")],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[Kubectl(
            "expose deployment web --name=wrong --port=80 --target-port=8081",
        )],
        asked: &["demo/wrong"],
        cause: Some("undeclared-port"),
        says: &["is probably wrong: its pods declare"],
        back: &[Kubectl("delete service wrong")],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[],
        asked: &["demo/web:9999"],
        cause: Some("no-port"),
        says: &["demo/web has no port 9999"],
        back: &[],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[
            Kubectl(
                "run far --image=lab.local/app:1 --image-pull-policy=IfNotPresent --labels=app=far \
                 --overrides='{\"spec\": {\"nodeName\": \"w2\", \"terminationGracePeriodSeconds\": 1}}' -- serve",
            ),
            Kubectl("expose pod far --port=80 --target-port=8080"),
            Kubectl("patch service far -p '{\"spec\": {\"internalTrafficPolicy\": \"Local\"}}'"),
        ],
        asked: &["demo/far"],
        cause: Some("no-local-endpoints"),
        says: &["internalTrafficPolicy is Local and w1 has no endpoint, only w2"],
        back: &[Kubectl("delete service far")],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[
            Kubectl("expose pod far --port=80 --target-port=8080 --type=NodePort"),
            Kubectl("patch service far -p '{\"spec\": {\"externalTrafficPolicy\": \"Local\"}}'"),
        ],
        asked: &["demo/far", "--source", "outside"],
        cause: Some("no-local-endpoints"),
        says: &["externalTrafficPolicy is Local and w1 has no endpoint, only w2"],
        back: &[Kubectl("delete service/far pod/far --wait=false")],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[Kubectl(
            "patch service edge-balanced -p '{\"spec\": {\"loadBalancerSourceRanges\": [\"192.0.2.0/24\"]}}'",
        )],
        asked: &["demo/edge-balanced:http", "--source", "198.18.0.1"],
        cause: Some("source-ranges"),
        says: &["the client is outside loadBalancerSourceRanges (192.0.2.0/24)"],
        back: &[Kubectl(
            "patch service edge-balanced -p '{\"spec\": {\"loadBalancerSourceRanges\": null}}'",
        )],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[],
        asked: &["web.default.svc.cluster.local"],
        cause: Some("no-service"),
        says: &["Service default/web does not exist"],
        back: &[],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[Kubectl(
            "create service externalname alias --external-name=db.example.com",
        )],
        asked: &["demo/alias"],
        cause: Some("external-name"),
        says: &["an alias of db.example.com"],
        back: &[Kubectl("delete service alias")],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[Kubectl(
            "label service edge service.kubernetes.io/service-proxy-name=other",
        )],
        asked: &["demo/edge:http"],
        cause: Some("other-proxy"),
        says: &["kube-proxy does not serve demo/edge"],
        back: &[Kubectl(
            "label service edge service.kubernetes.io/service-proxy-name-",
        )],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[],
        asked: &["10.99.99.99:80"],
        cause: Some("no-address"),
        says: &["no Service and no endpoint has the address 10.99.99.99:80"],
        back: &[],
        mend: Back,
        ..ROW
    },
    Row {
        breaks: &[],
        asked: &["nodeport:31999"],
        cause: Some("no-node-port"),
        says: &["no Service has NodePort 31999"],
        back: &[],
        mend: Back,
        ..ROW
    },
];
