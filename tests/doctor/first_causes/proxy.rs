//! Why kube-proxy does not do its work: its container, its rights, its kernel, its syncs.

use serde_json::{Value, json};

use super::{METRICS, PODS, RULES, first, found, moved_endpoint, object, path};
use crate::doctor::ends::{HEALTHY, LINKS, ROUTES, findings, json, says};
use crate::doctor::incidents::{answer, copy, write};
use crate::support::kpx;

/// The finding on kube-proxy's pod, changed so, with the fix.
async fn of_proxy_pod(id: &str, change: impl FnOnce(&mut Value)) -> String {
    let dir = copy(HEALTHY);
    for file in ["node/processes.json", "kube-proxy/healthz.json"] {
        std::fs::remove_file(dir.path().join(file)).unwrap();
    }
    object(&dir, PODS, "kube-proxy-lg2lh", change);
    format!("{:?}", found(&dir, id).await)
}

#[tokio::test]
async fn the_reason_why_kube_proxys_container_waits_decides_the_fix() {
    for (reason, words, fix) in [
        (
            "ImagePullBackOff",
            "its image cannot be pulled",
            "describe pod kube-proxy-lg2lh",
        ),
        (
            "CreateContainerConfigError",
            "refers to an object that does not exist",
            "Create the ConfigMap",
        ),
        (
            "RunContainerError",
            "the container runtime cannot start",
            "describe pod",
        ),
        ("ContainerCreating", "is not created yet", "Wait."),
        ("CrashLoopBackOff", "is in CrashLoopBackOff", "--previous"),
    ] {
        let all = of_proxy_pod("KP02", |pod| {
            pod["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": reason}});
        });
        let all = all.await;
        assert!(all.contains(words) && all.contains(fix), "{reason}: {all}");
    }
    let killed = of_proxy_pod("KP02", |pod| {
        let status = &mut pod["status"]["containerStatuses"][0];
        status["state"] = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        status["lastState"] = json!({"terminated": {"reason": "OOMKilled", "exitCode": 137}});
    });
    let killed = killed.await;
    assert!(
        killed.contains("exceeds its memory limit") && killed.contains("edit daemonset kube-proxy"),
        "{killed}"
    );
}

#[tokio::test]
async fn a_pod_of_kube_proxy_that_was_evicted_or_not_scheduled_says_why() {
    let evicted = of_proxy_pod("KP05", |pod| {
        pod["status"] = json!({"phase": "Failed", "reason": "Evicted",
            "message": "The node was low on resource: ephemeral-storage."});
    });
    let evicted = evicted.await;
    assert!(
        evicted.contains("Evicted: The node was low on resource: ephemeral-storage")
            && evicted.contains("delete pod kube-proxy-lg2lh"),
        "{evicted}"
    );
    let waiting = of_proxy_pod("KP05", |pod| {
        pod["spec"].as_object_mut().unwrap().remove("nodeName");
        pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["w1"]}]}
        ]}}});
        pod["status"] = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False",
            "message": "0/3 nodes are available: 1 Insufficient cpu."}]});
    });
    let waiting = waiting.await;
    assert!(
        waiting.contains("1 Insufficient cpu") && waiting.contains("system-node-critical"),
        "{waiting}"
    );
}

#[tokio::test]
async fn a_kernel_too_old_for_the_mode_explains_what_kube_proxy_lacks() {
    let dir = copy(HEALTHY);
    write(&dir, "kube-proxy/config.conf", |text| {
        text.replace("mode: \"\"", "mode: nftables")
    });
    write(&dir, "node/kernel-release.txt", |_| {
        "5.10.0-28-amd64\n".to_owned()
    });
    write(&dir, RULES, |text| {
        let kept: Vec<&str> = text
            .lines()
            .filter(|line| !line.contains("KUBE-"))
            .collect();
        kept.join("\n") + "\n"
    });
    for file in [
        "kube-proxy/healthz.json",
        "kube-proxy/proxy-mode.txt",
        METRICS,
        "kube-proxy/configz.json",
    ] {
        std::fs::remove_file(dir.path().join(file)).unwrap();
    }
    object(&dir, PODS, "kube-proxy-lg2lh", |pod| {
        pod["status"]["containerStatuses"][0]["state"] =
            json!({"waiting": {"reason": "CrashLoopBackOff"}});
    });
    let (id, below, next) = first(&dir).await;
    assert_eq!(id, "KM08", "{below:?}");
    assert!(below.contains(&"KP02".to_owned()), "{below:?}");
    assert!(!next.contains("reconcile"), "{next}");
    let answer = answer(path(&dir), "demo/web").await;
    let cause = &answer["causes"][0];
    assert!(
        cause["sentence"]
            .as_str()
            .unwrap()
            .contains("needs kernel 5.13"),
        "{cause}"
    );
    assert!(
        cause["meanwhile"].is_null() && cause["fix"].to_string().contains("migrate --to iptables"),
        "{cause}"
    );
    let all = findings(&dir).await;
    assert!(all.iter().all(|finding| finding.0 != "KP01"), "{all:?}");
}

#[tokio::test]
async fn the_link_by_which_pods_count_as_local_must_exist() {
    let local_by = |bridge: &str| {
        let dir = copy(HEALTHY);
        write(&dir, "kube-proxy/config.conf", |text| {
            text.replace("detectLocalMode: \"\"", "detectLocalMode: BridgeInterface")
                .replace(
                    "bridgeInterface: \"\"",
                    &format!("bridgeInterface: {bridge}"),
                )
        });
        dir
    };
    let all = found(&local_by("cbr0"), "KP10").await;
    assert!(
        all[0].1.contains("no link cbr0") && all[0].2.contains("cni0"),
        "{all:?}"
    );
    assert!(found(&local_by("cni0"), "KP10").await.is_empty());
}

#[tokio::test]
async fn ovn_kubernetes_serves_services_without_kube_proxy() {
    let without_proxy = |ovn: bool| {
        let dir = copy(HEALTHY);
        write(
            &dir,
            "node/processes.json",
            json(|all| all["processes"] = json!([])),
        );
        write(
            &dir,
            PODS,
            json(|pods| {
                let all = pods["items"].as_array_mut().unwrap();
                all.retain(|pod| {
                    !pod["metadata"]["name"]
                        .as_str()
                        .unwrap()
                        .starts_with("kube-proxy")
                });
            }),
        );
        std::fs::remove_dir_all(dir.path().join("kube-proxy")).unwrap();
        if ovn {
            write(
                &dir,
                LINKS,
                json(|links| {
                    links.as_array_mut().unwrap().push(
                        json!({"ifindex": 50, "ifname": "ovn-k8s-mp0", "flags": ["UP", "LOWER_UP"],
                    "mtu": 1400, "operstate": "UNKNOWN", "linkinfo": {"info_kind": "openvswitch"}}),
                    );
                }),
            );
        }
        dir
    };
    assert!(!found(&without_proxy(false), "KP05").await.is_empty());
    assert!(found(&without_proxy(true), "KP05").await.is_empty());
}

#[tokio::test]
async fn what_empties_the_link_of_ipvs_is_stopped_before_its_addresses_are_added() {
    let managers = [
        (
            "/run/NetworkManager/devices/INDEX: managed=true\n",
            "NetworkManager/conf.d",
        ),
        (
            "/run/systemd/netif/links/INDEX: ADMIN_STATE=configured\n",
            "networkctl reload",
        ),
    ];
    for (managed, command) in managers {
        let dir = copy("full-ipvs");
        let mut index = 0;
        let empty = |links: &mut Value| {
            let mut all = links.as_array_mut().unwrap().iter_mut();
            let dummy = all.find(|link| link["ifname"] == "kube-ipvs0").unwrap();
            index = dummy["ifindex"].as_u64().unwrap();
            dummy["addr_info"] = json!([]);
        };
        write(&dir, "node/ip-addr.json", json(empty));
        let lost = |routes: &mut Value| {
            let all = routes.as_array_mut().unwrap();
            all.retain(|route| route["dev"] != "kube-ipvs0");
        };
        write(&dir, ROUTES, json(lost));
        let text = managed.replace("INDEX", &index.to_string());
        std::fs::write(dir.path().join("node/link-managers.txt"), text).unwrap();
        let (id, below, _) = first(&dir).await;
        assert_eq!(id, "DV06");
        assert!(below.contains(&"DV02".to_owned()), "{below:?}");
        let answer = answer(path(&dir), "shop/cart:http").await;
        let cause = &answer["causes"][0];
        let text = cause.to_string();
        assert!(
            text.contains("all addresses of Services are gone"),
            "{text}"
        );
        assert!(
            cause["fix"]["command"].as_str().unwrap().contains(command),
            "{text}"
        );
    }
    // One missing address is not the work of a manager.
    let dir = copy("full-ipvs");
    let one = |links: &mut Value| {
        let mut all = links.as_array_mut().unwrap().iter_mut();
        let dummy = all.find(|link| link["ifname"] == "kube-ipvs0").unwrap();
        dummy["addr_info"].as_array_mut().unwrap().remove(0);
        let text = format!(
            "/run/NetworkManager/devices/{}: managed=true\n",
            dummy["ifindex"]
        );
        std::fs::write(dir.path().join("node/link-managers.txt"), text).unwrap();
    };
    write(&dir, "node/ip-addr.json", json(one));
    let warned = found(&dir, "DV06").await;
    assert!(
        warned[0].0 == "warning" && warned[0].1.contains("may remove"),
        "{warned:?}"
    );
}

/// kube-proxy does not masquerade what it takes for endpoints of other nodes.
#[tokio::test]
async fn what_kube_proxy_writes_for_local_endpoints_follows_from_its_name() {
    let dir = copy("full-nftables");
    let args = ["kube-proxy", "--hostname-override=node1.corp.local"];
    let process = json!({"pid": 141, "name": "kube-proxy", "sameNetwork": true, "started": 1_795_178_630, "args": args});
    let processes = json!({ "processes": [process] }).to_string();
    std::fs::write(dir.path().join("node/processes.json"), processes).unwrap();
    write(&dir, "node/nft.json", |text| {
        let mut rules: Value = serde_json::from_str(text).unwrap();
        for of in rules["nftables"].as_array_mut().unwrap() {
            if of["set"]["name"] == "hairpin-connections" {
                of["set"].as_object_mut().unwrap().remove("elem");
            }
        }
        rules.to_string()
    });
    let (id, below, _) = first(&dir).await;
    assert_eq!(id, "KP11");
    assert!(below.contains(&"NF02".to_owned()), "{below:?}");
    let answer = answer(path(&dir), "edge/web:http").await;
    let text = format!("{} {}", answer["sentence"], answer["causes"]);
    assert!(text.contains("node1.corp.local"), "{text}");
    assert!(!text.contains("reconcile --apply"), "{text}");
}

/// The page of `command`, without line breaks.
pub(super) async fn page(dir: &tempfile::TempDir, command: &[&str]) -> String {
    let ran = kpx(&[&["--from", path(dir)], command].concat()).await;
    ran.out.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn ipv6_is_turned_on_at_kube_proxys_link_before_it_gets_addresses() {
    let dir = copy("dual-ipvs");
    let off = "net.ipv6.conf.kube-ipvs0.disable_ipv6 = 1";
    write(&dir, "node/sysctl.txt", |text| format!("{text}{off}\n"));
    let without = |links: &mut Value| {
        let mut all = links.as_array_mut().unwrap().iter_mut();
        let link = all.find(|link| link["ifname"] == "kube-ipvs0").unwrap();
        let all = link["addr_info"].as_array_mut().unwrap();
        all.retain(|address| address["family"] == "inet");
    };
    write(&dir, "node/ip-addr.json", json(without));
    let refused = |last: &str| {
        format!(
            "E1120 13:10:42.300511 1 proxier.go:1680] \"Failed to bind service address\" err=\"error bind address: \
             fd00:10:96::{last} to interface: kube-ipvs0, err: permission denied\"\n"
        )
    };
    write(&dir, "kube-proxy/kube-proxy.log", |text| {
        format!("{text}{}{}", refused("30a"), refused("320"))
    });
    let turn_on = "sysctl -w net.ipv6.conf.kube-ipvs0.disable_ipv6=0";
    let logged = found(&dir, "KP21").await;
    assert_eq!(logged.len(), 1, "{logged:?}");
    for (_, _, fix) in logged.iter().chain(&found(&dir, "DV02").await) {
        assert!(fix.contains(turn_on), "{fix}");
    }
    assert!(first(&dir).await.2.contains("disable_ipv6=0"));
    let plan = page(&dir, &["reconcile"]).await;
    let at = |words: &str| {
        plan.find(words)
            .unwrap_or_else(|| panic!("{words}: {plan}"))
    };
    assert!(at(turn_on) < at("ip addr add fd00:"), "{plan}");
    // A link that is made has the setting of new links.
    write(&dir, "node/sysctl.txt", |text| {
        text.replace(off, "net.ipv6.conf.default.disable_ipv6 = 1")
    });
    assert!(!page(&dir, &["reconcile"]).await.contains(turn_on));
    let no_link = |links: &mut Value| {
        let all = links.as_array_mut().unwrap();
        all.retain(|link| link["ifname"] != "kube-ipvs0");
    };
    write(&dir, "node/ip-addr.json", json(no_link));
    write(&dir, LINKS, json(no_link));
    assert!(page(&dir, &["reconcile"]).await.contains(turn_on));
}

const HEALTHZ: &str = "kube-proxy/healthz.json";

#[tokio::test]
async fn a_kube_proxy_whose_syncs_do_not_end_is_restarted() {
    let dir = copy(HEALTHY);
    moved_endpoint(&dir, "2026-11-28T04:20:00Z");
    write(
        &dir,
        HEALTHZ,
        json(|health| {
            health["currentTime"] = "2026-11-28T05:00:00Z".into();
            health["healthy"] = false.into();
            for family in ["IPv4", "IPv6"] {
                health["status"][family]["healthy"] = false.into();
            }
        }),
    );
    write(&dir, METRICS, |text| {
        let mut lines = Vec::new();
        for line in text.lines() {
            let name = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{";
            lines.push(match line.rsplit_once(' ') {
                Some((key, _)) if key.starts_with(name) => format!("{key} 1795839600"),
                _ => line.to_owned(),
            });
        }
        lines.join("\n") + "\n"
    });
    let words = [
        "kube-proxy reports that its rules are not up to date; therefore",
        "delete pod kube-proxy-",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
    let (id, below, next) = first(&dir).await;
    assert_eq!(id, "KP05");
    assert!(below.contains(&"IR04".to_owned()), "{below:?}");
    assert!(next.contains("delete"), "{next}");
}

#[tokio::test]
async fn a_change_older_than_the_last_sync_has_not_reached_kube_proxy() {
    let dir = copy(HEALTHY);
    moved_endpoint(&dir, "2026-11-28T04:20:00Z");
    let now = "2026-11-28T05:00:00Z";
    write(
        &dir,
        HEALTHZ,
        json(|health| health["currentTime"] = now.into()),
    );
    let times = |queued: &'static str, synced: &'static str| {
        move |text: &str| {
            let mut lines = Vec::new();
            for line in text.lines() {
                let (key, _) = line.rsplit_once(' ').unwrap_or_default();
                let name = key.split('{').next().unwrap_or_default();
                lines.push(match name {
                    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds" => {
                        format!("{key} {queued}")
                    }
                    "kubeproxy_sync_proxy_rules_last_timestamp_seconds" => {
                        format!("{key} {synced}")
                    }
                    _ => line.to_owned(),
                });
            }
            lines.join("\n") + "\n"
        }
    };
    write(&dir, METRICS, times("1795841985", "1795841990"));
    let words = [
        "although it last wrote its rules at 2026-11-28T04:59:50Z",
        "its watch of the API server hangs",
        "delete pod kube-proxy-",
    ];
    says(&dir, "demo/web:http", "partly", &words).await;
    // Rules that another program removed are repaired.
    let dir = copy(HEALTHY);
    write(
        &dir,
        HEALTHZ,
        json(|health| health["currentTime"] = now.into()),
    );
    write(&dir, METRICS, times("1795841985", "1795841990"));
    write(&dir, RULES, |text| {
        let lines = text.lines().filter(|line| {
            !(line.contains("KUBE-SEP-") && line.contains("demo/web:http") && line.contains("DNAT"))
        });
        lines.collect::<Vec<_>>().join("\n") + "\n"
    });
    let answer = answer(path(&dir), "demo/web:http").await;
    assert!(answer["fix"].to_string().contains("reconcile"), "{answer}");
}

#[tokio::test]
async fn a_role_that_lacks_rules_gets_these_and_no_other_binding() {
    let with = |refused: &[(&str, &str, &str)]| {
        let dir = copy(HEALTHY);
        let line = |(verb, resource, group): &(&str, &str, &str)| {
            format!(
                "E1129 18:00:18.100000       1 reflector.go:205] \"Failed to watch\" err=\"{resource} is forbidden: User \\\"system:serviceaccount:kube-system:kube-proxy\\\" cannot {verb} resource \\\"{resource}\\\" in API group \\\"{group}\\\" at the cluster scope\" logger=\"UnhandledError\"\n"
            )
        };
        let lines: String = refused.iter().map(line).collect();
        write(&dir, "kube-proxy/kube-proxy.log", |text| {
            text.to_owned() + &lines.repeat(2)
        });
        dir
    };
    let watch = [("watch", "services", ""), ("watch", "nodes", "")];
    let all = found(&with(&watch), "KP21").await;
    assert!(
        all[0].2.contains("patch clusterrole system:node-proxier"),
        "{all:?}"
    );
    assert!(
        all[0].2.contains(r#"[\"nodes\"],\"verbs\":[\"watch\"]"#),
        "{all:?}"
    );
    let slices = [("list", "endpointslices", "discovery.k8s.io")];
    let all = found(&with(&slices), "KP21").await;
    let rule = r#"[\"endpointslices\"],\"verbs\":[\"list\",\"watch\"]"#;
    assert!(all[0].2.contains(rule), "{all:?}");
    let none = [("list", "services", ""), ("list", "nodes", "")];
    let all = found(&with(&none), "KP21").await;
    assert!(all[0].2.contains("create clusterrolebinding"), "{all:?}");
}

#[tokio::test]
async fn a_kube_proxy_that_may_seldom_ask_the_api_server_does_not_finish_its_first_sync() {
    let with = |qps: &str, burst: &str, first: bool| {
        let dir = copy(HEALTHY);
        write(&dir, "kube-proxy/config.conf", |text| {
            let text = text.replacen("qps: 0\n", &format!("qps: {qps}\n"), 1);
            text.replacen("burst: 0\n", &format!("burst: {burst}\n"), 1)
        });
        if first {
            write(&dir, METRICS, |text| {
                let is_last =
                    |line: &&str| line.starts_with("kubeproxy_sync_proxy_rules_last_timestamp");
                let lines = text.lines().filter(|line| !is_last(line));
                lines.flat_map(|line| [line, "\n"]).collect()
            });
        }
        dir
    };
    let all = found(&with("0.01", "1", true), "KP06").await;
    assert!(
        all[0].1.contains("one request to the API server in 100 s"),
        "{all:?}"
    );
    for (qps, burst, first) in [("0.01", "1", false), ("0.01", "10", true), ("5", "1", true)] {
        let all = found(&with(qps, burst, first), "KP06").await;
        let mut said = all.iter().map(|(_, message, _)| message);
        assert!(
            !said.any(|message| message.contains("first sync")),
            "{all:?}"
        );
    }
}
