//! Services that do not work, each of another cause, and what `kpx why` says of them on a laptop.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::lab::{Lab, NODES, STATIC};
use crate::run::wait_for;

/// What breaks a Service, or mends it.
enum Act {
    /// A shell script on node w1.
    Node(&'static str),
    /// Arguments of kubectl in namespace demo.
    Kubectl(&'static str),
}

use Act::{Kubectl, Node};

enum Mend {
    /// The command that kpx prints: kpx on the laptop, other programs on node w1.
    AsPrinted,
    By(&'static [Act]),
}

use Mend::{AsPrinted, By};

struct Broken {
    breaks: &'static [Act],
    /// The target, and more options.
    asked: &'static [&'static str],
    cause: &'static str,
    /// A part of the sentence.
    says: &'static str,
    mend: Mend,
}

/// `{web}` and `{edge}` stand for cluster IPs, `{near}` and `{far}` for the pods of edge on w1 and w2, `{w2}` for an address.
const BROKEN: &[Broken] = &[
    Broken {
        breaks: &[Node(
            "iptables-save -t nat | grep -e '-A KUBE-SERVICES -d {web}/32 .*--dport 80 ' | sed 's/^-A/-D/' | \
             xargs -L 1 iptables -t nat",
        )],
        asked: &["demo/web:http"],
        cause: "rules",
        says: "nat chain KUBE-SERVICES rule",
        mend: AsPrinted,
    },
    Broken {
        breaks: &[Node(
            "iptables -t nat -D PREROUTING -m comment --comment 'kubernetes service portals' -j KUBE-SERVICES",
        )],
        asked: &["demo/web:http"],
        cause: "rules",
        says: "nat chain PREROUTING rule",
        mend: AsPrinted,
    },
    Broken {
        breaks: &[Node(
            "iptables-save -t nat | grep -e '-A KUBE-SEP-.* -s {near}/32 .*demo/edge:http' | sed 's/^-A/-D/' | \
             xargs -L 1 iptables -t nat",
        )],
        asked: &["demo/edge:http"],
        cause: "rules",
        says: "fails for some connections on w1 from its own pods",
        mend: AsPrinted,
    },
    Broken {
        breaks: &[Node("iptables -t mangle -I PREROUTING -d {web} -j DROP")],
        asked: &["demo/web:http"],
        cause: "foreign-rule",
        says: "in table mangle drops the packets",
        mend: AsPrinted,
    },
    Broken {
        breaks: &[Node("iptables -I FORWARD -d {far} -j DROP")],
        asked: &["demo/edge:http"],
        cause: "foreign-rule",
        says: "fails for some connections on w1",
        mend: AsPrinted,
    },
    Broken {
        breaks: &[Node("iptables -t nat -I PREROUTING -d {web} -j ACCEPT")],
        asked: &["{web}:80"],
        cause: "foreign-rule",
        says: "accepts the packets before kube-proxy's rules translate them",
        mend: AsPrinted,
    },
    Broken {
        breaks: &[Node(
            "iptables -t nat -N DOCKER && \
             iptables -t nat -A DOCKER -p tcp --dport 30080 -j DNAT --to-destination 172.17.0.2:80 && \
             iptables -t nat -I PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
        )],
        asked: &["nodeport:30080"],
        cause: "foreign-rule",
        says: "translates the packets to 172.17.0.2:80, which is no endpoint of the Service; owner of the rule: Docker",
        mend: By(&[Node(
            "iptables -t nat -D PREROUTING -m addrtype --dst-type LOCAL -j DOCKER && iptables -t nat -F DOCKER && \
             iptables -t nat -X DOCKER",
        )]),
    },
    Broken {
        breaks: &[Node("iptables -P FORWARD DROP")],
        asked: &["demo/web:http"],
        cause: "foreign-rule",
        says: "no rule of chain FORWARD in table filter accepts the packets",
        mend: AsPrinted,
    },
    Broken {
        breaks: &[Node(
            "conntrack -I -p udp -s {near} -d {web} --sport 40000 --dport 9001 -r 10.244.9.8 -q {near} \
             --reply-port-src 9001 --reply-port-dst 40000 -t 600 -u ASSURED",
        )],
        asked: &["demo/web:datagrams"],
        cause: "stale-connections",
        says: "still goes to 10.244.9.8:9001",
        mend: AsPrinted,
    },
    Broken {
        breaks: &[Node("ip route add {near} via {w2}")],
        asked: &["demo/edge:http"],
        cause: "wrong-node",
        says: "runs on w1, but the route leads to another node",
        mend: By(&[Node("ip route del {near} via {w2}")]),
    },
    Broken {
        breaks: &[Node("ip route add unreachable {far}")],
        asked: &["demo/edge:http"],
        cause: "route",
        says: "the unreachable route to {far}/32 of w1 ends or diverts the packets to {far}:8080",
        mend: By(&[Node("ip route del unreachable {far}")]),
    },
    Broken {
        breaks: &[Node("sysctl -w net.ipv4.ip_forward=0")],
        asked: &["demo/web:http"],
        cause: "forwarding-off",
        says: "net.ipv4.ip_forward is 0",
        mend: AsPrinted,
    },
    Broken {
        breaks: &[],
        asked: &["demo/empty"],
        cause: "no-endpoints",
        says: "no pod in namespace demo matches its selector app=nothing",
        mend: By(&[]),
    },
    Broken {
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
        cause: "no-endpoints",
        says: "has no ready endpoint",
        mend: By(&[Kubectl("delete service/sick pod/sick --wait=false")]),
    },
    Broken {
        breaks: &[Kubectl(
            "expose deployment web --name=named --port=80 --target-port=web",
        )],
        asked: &["demo/named"],
        cause: "no-endpoints",
        says: "no container of its pods has a port named web",
        mend: By(&[Kubectl("delete service named")]),
    },
    Broken {
        breaks: &[
            Kubectl("create service clusterip bare --tcp=80"),
            Kubectl(
                "patch service bare --type=json -p '[{\"op\": \"remove\", \"path\": \"/spec/selector\"}]'",
            ),
        ],
        asked: &["demo/bare"],
        cause: "no-endpoints",
        says: "it has no selector, and no EndpointSlice names it",
        mend: By(&[Kubectl("delete service bare")]),
    },
    Broken {
        breaks: &[Kubectl(
            "expose deployment web --name=wrong --port=80 --target-port=8081",
        )],
        asked: &["demo/wrong"],
        cause: "undeclared-port",
        says: "is probably wrong: its pods declare",
        mend: By(&[Kubectl("delete service wrong")]),
    },
    Broken {
        breaks: &[],
        asked: &["demo/web:9999"],
        cause: "no-port",
        says: "demo/web has no port 9999",
        mend: By(&[]),
    },
    Broken {
        breaks: &[
            Kubectl(
                "run far --image=lab.local/app:1 --image-pull-policy=IfNotPresent --labels=app=far \
                 --overrides='{\"spec\": {\"nodeName\": \"w2\", \"terminationGracePeriodSeconds\": 1}}' -- serve",
            ),
            Kubectl("expose pod far --port=80 --target-port=8080"),
            Kubectl("patch service far -p '{\"spec\": {\"internalTrafficPolicy\": \"Local\"}}'"),
        ],
        asked: &["demo/far"],
        cause: "no-local-endpoints",
        says: "internalTrafficPolicy is Local and w1 has no endpoint, only w2",
        mend: By(&[Kubectl("delete service far")]),
    },
    Broken {
        breaks: &[
            Kubectl("expose pod far --port=80 --target-port=8080 --type=NodePort"),
            Kubectl("patch service far -p '{\"spec\": {\"externalTrafficPolicy\": \"Local\"}}'"),
        ],
        asked: &["demo/far", "--source", "external"],
        cause: "no-local-endpoints",
        says: "externalTrafficPolicy is Local and w1 has no endpoint, only w2",
        mend: By(&[Kubectl("delete service/far pod/far --wait=false")]),
    },
    Broken {
        breaks: &[Kubectl(
            "patch service edge-balanced -p '{\"spec\": {\"loadBalancerSourceRanges\": [\"192.0.2.0/24\"]}}'",
        )],
        asked: &["demo/edge-balanced:http", "--source", "198.18.0.1"],
        cause: "source-ranges",
        says: "the client is outside loadBalancerSourceRanges (192.0.2.0/24)",
        mend: By(&[Kubectl(
            "patch service edge-balanced -p '{\"spec\": {\"loadBalancerSourceRanges\": null}}'",
        )]),
    },
    Broken {
        breaks: &[],
        asked: &["web.default.svc.cluster.local"],
        cause: "no-service",
        says: "Service default/web does not exist",
        mend: By(&[]),
    },
    Broken {
        breaks: &[Kubectl(
            "create service externalname alias --external-name=db.example.com",
        )],
        asked: &["demo/alias"],
        cause: "external-name",
        says: "an alias of db.example.com",
        mend: By(&[Kubectl("delete service alias")]),
    },
    Broken {
        breaks: &[Kubectl(
            "label service edge service.kubernetes.io/service-proxy-name=other",
        )],
        asked: &["demo/edge:http"],
        cause: "other-proxy",
        says: "kube-proxy does not serve demo/edge",
        mend: By(&[Kubectl(
            "label service edge service.kubernetes.io/service-proxy-name-",
        )]),
    },
    Broken {
        breaks: &[],
        asked: &["10.99.99.99:80"],
        cause: "no-address",
        says: "no Service and no endpoint has the address 10.99.99.99:80",
        mend: By(&[]),
    },
    Broken {
        breaks: &[],
        asked: &["nodeport:31999"],
        cause: "no-node-port",
        says: "no Service has NodePort 31999",
        mend: By(&[]),
    },
];

/// Returns how many Services were broken; the first word of each sentence was right.
pub(crate) fn broken(lab: &Lab) -> usize {
    let edge = |node: &str| {
        lab.kubectl(&format!(
            "-n demo get pods -l app=edge --field-selector spec.nodeName={node} -o jsonpath='{{.items[0].status.podIP}}'"
        ))
    };
    let w2 = NODES.iter().find(|(node, _)| *node == "w2").unwrap().1;
    let addresses = [
        ("{web}", lab.address("web")),
        ("{edge}", lab.address("edge")),
        ("{near}", edge("w1")),
        ("{far}", edge("w2")),
        ("{w2}", w2.to_owned()),
    ];
    let named = |text: &str| {
        let replaced = addresses
            .iter()
            .fold(text.to_owned(), |text, (name, address)| {
                text.replace(name, address)
            });
        assert!(
            replaced.contains('"') || !replaced.contains('{'),
            "{replaced}"
        );
        replaced
    };
    let act = |acts: &[Act]| {
        for act in acts {
            match act {
                Node(script) => lab.sh("w1", &named(script)),
                Kubectl(words) => lab.kubectl(&format!("-n demo {words}")),
            };
        }
    };
    for case in BROKEN {
        let asked: Vec<String> = case.asked.iter().map(|word| named(word)).collect();
        let why = || {
            let mut words = vec![STATIC, "--node", "w1", "-o", "json", "why"];
            words.extend(asked.iter().map(String::as_str));
            let ran = lab.laptop("kpx", &words).stdin(Stdio::null()).output();
            let ran = ran.unwrap();
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            let report: Value = serde_json::from_slice(&ran.stdout)
                .unwrap_or_else(|error| panic!("{asked:?}: {error}\n{said}"));
            (ran.status.code(), report)
        };
        act(case.breaks);
        // kube-proxy hears of objects after a while.
        let (mut report, mut tries) = (why().1, 0);
        let is_right = |report: &Value| {
            let sentence = report["sentence"].as_str().unwrap_or_default();
            report["causes"][0]["cause"] == case.cause && sentence.contains(&named(case.says))
        };
        while !is_right(&report) {
            tries += 1;
            assert!(tries < 5, "{asked:?}: {report:#}");
            report = why().1;
        }
        match &case.mend {
            By(acts) => act(acts),
            AsPrinted => {
                let command = report["causes"][0]["fix"]["command"].as_str().unwrap();
                match command.strip_prefix("kpx ") {
                    Some(words) => {
                        let words = words.split(' ').chain(["--yes"]);
                        let all: Vec<_> = [STATIC].into_iter().chain(words).collect();
                        let ran = lab.laptop("kpx", &all).output().unwrap();
                        let said = String::from_utf8_lossy(&ran.stderr);
                        assert!(ran.status.success(), "{command}: {said}");
                    }
                    None => drop(lab.sh("w1", command)),
                }
                wait_for(
                    &format!("{asked:?} after {command}"),
                    Duration::from_secs(20),
                    || (why().0 == Some(0)).then_some(()),
                );
            }
        }
    }
    BROKEN.len()
}
