//! Incidents that other parts of the cluster explain: kubelets that no longer report, EndpointSlices that others write, load balancers,
//! routers, and programs in user space.

use serde_json::{Value, json};

use super::ends::{HEALTHY, NODES, ROUTES, findings, json, says};
use super::first_causes::{SLICES, filter, found, object, path};
use super::incidents::{answer, copy, write};
use crate::support::kpx;

const SERVICES: &str = "cluster/services.json";

/// Lets no endpoint of the Service `name` be ready.
fn unready(dir: &tempfile::TempDir, name: &str) {
    object(dir, SLICES, name, |slice| {
        for endpoint in slice["endpoints"].as_array_mut().unwrap() {
            endpoint["conditions"] =
                json!({"ready": false, "serving": false, "terminating": false});
        }
    });
}

/// Sets the conditions of the pod whose name begins with `name`: its containers are ready, and it is not.
fn stale(dir: &tempfile::TempDir, name: &str) {
    let change = |pods: &mut Value| {
        let mut all = pods["items"].as_array_mut().unwrap().iter_mut();
        let is_it = |pod: &&mut Value| pod["metadata"]["name"].as_str().unwrap().starts_with(name);
        let pod = all.find(is_it).unwrap();
        pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]);
    };
    write(dir, "cluster/pods.json", json(change));
}

#[tokio::test]
async fn endpoints_that_are_not_ready_as_kubelets_do_not_report_name_the_nodes() {
    let dir = copy(HEALTHY);
    unready(&dir, "edge");
    stale(&dir, "edge-z8g9h");
    let silence = |nodes: &mut Value| {
        for node in nodes["items"].as_array_mut().unwrap() {
            node["status"]["conditions"] =
                json!([{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]);
        }
    };
    write(&dir, NODES, json(silence));
    let words = [
        "the kubelets of nodes cp1, w1, w2 no longer report",
        "Leave the pods alone",
        "kubectl describe node cp1 w1 w2",
    ];
    says(&dir, "demo/edge:http", "lost", &words).await;
    let all = found(&dir, "AP01").await;
    let is_reported = |finding: &(String, String, String)| {
        finding.0 == "error" && finding.1.contains("no longer report")
    };
    assert!(all.iter().any(is_reported), "{all:#?}");
}

#[tokio::test]
async fn a_pod_whose_condition_the_kubelet_has_not_set_again_is_deleted() {
    let dir = copy(HEALTHY);
    unready(&dir, "edge");
    stale(&dir, "edge-z8g9h");
    let words = [
        "its containers are ready, but not its condition Ready",
        "delete pod edge-z8g9h",
        "restart kubelet",
    ];
    says(&dir, "demo/edge:http", "lost", &words).await;
}

#[tokio::test]
async fn a_headless_service_says_the_same_with_and_without_its_port() {
    let dir = copy(HEALTHY);
    let number =
        |port: u16| move |service: &mut Value| service["spec"]["ports"][0]["port"] = port.into();
    object(&dir, SERVICES, "web-headless", number(80));
    let whole = answer(path(&dir), "demo/web-headless").await;
    assert_eq!(whole["fate"], "works");
    let notes = whole["notes"].to_string();
    let note = "nothing translates its port 80: clients must connect to port 8080";
    assert!(notes.contains(note), "{notes}");
    says(&dir, "demo/web-headless:80", "refused", &["port 80"]).await;
    // The trace follows the packet to a pod.
    let trace = kpx(&["--from", path(&dir), "trace", "demo/web-headless"]).await;
    assert!(trace.out.contains("8080"), "{trace}");
    object(&dir, SERVICES, "web-headless", |service| {
        service["spec"]["type"] = "ExternalName".into();
        service["spec"]["externalName"] = "db.example.org".into();
        service["spec"]["clusterIP"] = "".into();
    });
    let trace = kpx(&["--from", path(&dir), "trace", "demo/web-headless"]).await;
    let hint = "`kpx why demo/web-headless`";
    assert!(trace.to_string().contains(hint), "{trace}");

    let same = copy(HEALTHY);
    let whole = answer(path(&same), "demo/web-headless").await;
    assert!(
        !whole["notes"].to_string().contains("translates"),
        "{whole}"
    );
}

#[tokio::test]
async fn a_load_balancer_with_instances_as_targets_needs_node_ports() {
    let dir = copy("more-10-nlb-hairpin");
    object(&dir, SERVICES, "login", |service| {
        service["metadata"]["annotations"]["service.beta.kubernetes.io/aws-load-balancer-nlb-target-type"] =
            "instance".into();
        service["spec"]["allocateLoadBalancerNodePorts"] = false.into();
        for port in service["spec"]["ports"].as_array_mut().unwrap() {
            port.as_object_mut().unwrap().remove("nodePort");
        }
    });
    let words = [
        "has no target",
        "NodePorts of the nodes",
        "aws-load-balancer-nlb-target-type=ip",
    ];
    says(&dir, "default/login", "unknown", &words).await;
    let doctor = kpx(&["--from", path(&dir), "doctor"]).await;
    let words = "sends connections to NodePorts (target type instance)";
    let out: Vec<&str> = doctor.out.split_whitespace().collect();
    assert!(out.join(" ").contains(words), "{doctor}");
}

#[tokio::test]
async fn an_endpoint_that_only_another_writer_lists_is_removed_from_the_slice() {
    let listed = |writer: &str| {
        let dir = copy(HEALTHY);
        object(&dir, SLICES, "web-headless", |slice| {
            slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = writer.into();
            slice["endpoints"] =
                json!([{"addresses": ["10.210.0.44"], "conditions": {"ready": true}}]);
        });
        write(
            &dir,
            "node/ip-neigh.json",
            json(|all| {
                let failed = json!({"dst": "10.210.0.44", "dev": "eth0", "state": ["FAILED"]});
                all.as_array_mut().unwrap().push(failed);
            }),
        );
        dir
    };
    let words = [
        "no Node has 10.210.0.44, which EndpointSlice demo/web-headless-fkb5c lists",
        "which talos.dev writes",
        "edit endpointslice web-headless-fkb5c",
    ];
    says(&listed("talos.dev"), "demo/web-headless", "lost", &words).await;
    let mirrored = listed("endpointslicemirroring-controller.k8s.io");
    says(
        &mirrored,
        "demo/web-headless",
        "lost",
        &["edit endpoints web-headless"],
    )
    .await;
    let own = listed("endpointslice-controller.k8s.io");
    says(&own, "demo/web-headless", "lost", &["Bring the machine"]).await;
}

/// Adds a pod of the speaker of `MetalLB`, whose container has this state.
fn add_speaker(dir: &tempfile::TempDir, state: &Value) {
    let ready = state.get("running").is_some();
    let condition = json!({"type": "Ready", "status": if ready { "True" } else { "False" }});
    let container = json!({"name": "speaker", "ready": ready, "restartCount": 9, "state": state});
    let change = |pods: &mut Value| {
        let mut speaker = pods["items"][0].clone();
        speaker["metadata"]["name"] = "speaker-2cz88".into();
        speaker["metadata"]["namespace"] = "metallb-system".into();
        speaker["metadata"]["ownerReferences"] = json!([]);
        speaker["spec"]["hostNetwork"] = true.into();
        speaker["status"] = json!({"phase": "Running", "conditions": [condition], "containerStatuses": [container]});
        pods["items"].as_array_mut().unwrap().push(speaker);
    };
    write(dir, "cluster/pods.json", json(change));
}

#[tokio::test]
async fn addresses_of_load_balancers_to_which_nothing_leads_are_noted() {
    let balanced = |address: &str| {
        let dir = copy(HEALTHY);
        add_speaker(&dir, &json!({"running": {}}));
        object(&dir, SERVICES, "edge-balanced", |service| {
            service["status"]["loadBalancer"] =
                json!({"ingress": [{"ip": address, "ipMode": "VIP"}]});
        });
        write(&dir, "node/iptables-save.txt", |text| {
            text.replace("10.210.0.200/32", &format!("{address}/32"))
        });
        dir
    };
    let note = "nothing here announces it with BGP";
    let noted = async |dir: &tempfile::TempDir| {
        let answer = answer(path(dir), "demo/edge-balanced").await;
        answer["notes"].to_string().contains(note)
    };
    let far = balanced("192.25.26.12");
    assert!(noted(&far).await);
    assert!(found(&far, "AP08").await.is_empty());
    assert!(!noted(&copy(HEALTHY)).await);
    // A BGP daemon may announce it.
    write(&far, "node/ss.txt", |text| {
        format!("{text}tcp LISTEN 0 4096 *:179 *:* users:((\"bird\",pid=77,fd=9))\n")
    });
    assert!(!noted(&far).await);
    for address in ["10.244.2.205", "10.96.200.5"] {
        let all = found(&balanced(address), "AP08").await;
        let is_reported = |finding: &(String, String, String)| {
            finding.0 == "warning" && finding.1.contains(address)
        };
        assert!(all.iter().any(is_reported), "{address}: {all:#?}");
    }
}

#[tokio::test]
async fn a_speaker_that_crashes_announces_nothing() {
    let crash = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let words = [
        "nothing is known to announce 10.210.0.200",
        "does not announce 10.210.0.200: pod metallb-system/speaker-2cz88 does not run",
    ];
    for (state, others, noted) in [
        (&crash, true, Some(words[0])),
        (&crash, false, Some(words[1])),
        (&json!({"running": {}}), true, None),
    ] {
        let dir = copy(HEALTHY);
        add_speaker(&dir, state);
        let change = |pods: &mut Value| {
            let all = pods["items"].as_array_mut().unwrap();
            let mut other = all[0].clone();
            other["metadata"]["name"] = "other-7hx2q".into();
            for pod in all.iter_mut() {
                pod["spec"]["nodeName"] = "w1".into();
            }
            other["spec"]["nodeName"] = if others { "w2" } else { "w1" }.into();
            all.push(other);
        };
        write(&dir, "cluster/pods.json", json(change));
        let answer = answer(path(&dir), "demo/edge-balanced").await;
        let notes = answer["notes"].to_string();
        for part in words {
            assert_eq!(notes.contains(part), noted == Some(part), "{part}: {notes}");
        }
    }
}

#[tokio::test]
async fn routes_that_bird_has_not_learned_are_repaired_at_its_peers() {
    for lost in [&["10.244.0.0/24", "10.244.2.0/24"][..], &["10.244.2.0/24"]] {
        let dir = copy(HEALTHY);
        write(
            &dir,
            ROUTES,
            json(|routes| {
                let all = routes.as_array_mut().unwrap();
                all.retain(|route| !lost.contains(&route["dst"].as_str().unwrap()));
                for route in all
                    .iter_mut()
                    .filter(|route| route["dst"] == "10.244.0.0/24")
                {
                    route["protocol"] = "bird".into();
                }
                let own = json!({"type": "blackhole", "dst": "10.244.1.0/26", "protocol": "bird", "flags": []});
                all.push(own);
            }),
        );
        let all = found(&dir, "SY16").await;
        let is_reported = |finding: &(String, String, String)| {
            finding.1.contains("BIRD, which makes the routes")
                && finding.2.contains("calicoctl node status")
                && !finding.2.contains("ip route replace")
        };
        assert!(all.iter().any(is_reported), "{all:#?}");
    }
}

#[tokio::test]
async fn a_rule_that_queues_packets_for_a_program_is_named() {
    let queue = |options: &str| {
        let dir = copy(HEALTHY);
        let rule =
            format!("-A FORWARD -m conntrack --ctstate NEW -j NFQUEUE --queue-num 0{options}");
        filter(&dir, "FORWARD", &[&rule]);
        dir
    };
    let all = found(&queue(""), "SY16").await;
    let is_reported = |finding: &(String, String, String)| {
        finding.1.contains("queues packets") && finding.2.contains("nfnetlink_queue")
    };
    assert!(all.iter().any(is_reported), "{all:#?}");
    let all = found(&queue(" --queue-bypass"), "SY16").await;
    assert!(!all.iter().any(is_reported), "{all:#?}");
}

#[tokio::test]
async fn another_program_at_the_health_port_is_found_although_it_answers() {
    let dir = copy(HEALTHY);
    write(&dir, "node/ss.txt", |text| {
        let own = "*:10256 *:* users:((\"kube-proxy\",pid=447,fd=11))";
        assert!(text.contains(own));
        text.replace(own, "*:10256 *:* users:((\"cilium-agent\",pid=2501,fd=9))")
    });
    let all = findings(&dir).await;
    let is_reported = |(id, _, message): &(String, String, String)| {
        id == "KP05" && message.contains("another program listens at port 10256")
    };
    assert!(all.iter().any(is_reported), "{all:#?}");
}
