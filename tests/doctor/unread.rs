//! Nodes whose Services or endpoints are not read, or read in part: the names in the rules and the rules themselves answer.

use serde_json::json;

use super::ends::{HEALTHY, ROUTES, json, says};
use super::incidents::{answer, copy, write};
use super::meant::with_rule;
use crate::support::kpx;

const CONNTRACK: &str = "node/conntrack.txt";
const RULES: &str = "node/iptables-save.txt";

/// Removes the objects of the cluster, as in a collection of rules alone.
fn without_objects(dir: tempfile::TempDir) -> tempfile::TempDir {
    std::fs::remove_dir_all(dir.path().join("cluster")).unwrap();
    dir
}

/// Packets of pods are dropped unless a rule accepts them.
fn with_closed_forward() -> tempfile::TempDir {
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        text.replace(":FORWARD ACCEPT", ":FORWARD DROP")
    });
    dir
}

#[tokio::test]
async fn without_services_rules_that_name_them_answer() {
    let dir = without_objects(with_rule("filter", "-A FORWARD -j DROP"));
    let path = dir.path().to_str().unwrap();
    for target in ["demo/web", "demo/web:http", "10.101.213.102:80"] {
        let words = ["rule 1 of chain FORWARD", "-I FORWARD 1", "-j ACCEPT"];
        says(&dir, target, "partly", &words).await;
    }
    let answer = answer(path, "demo/web").await;
    assert_eq!(answer["service"], "demo/web");
    assert_eq!(answer["causes"].as_array().unwrap().len(), 1, "{answer}");
    let unknown = answer["unknown"].to_string();
    assert!(
        unknown.contains("which Services and endpoints there should be"),
        "{unknown}"
    );
    let ran = kpx(&["--from", path, "trace", "demo/web:http"]).await;
    assert!(ran.out.contains("\nLOST: demo/web:http"), "{ran}");

    let healthy = without_objects(copy(HEALTHY));
    let path = healthy.path().to_str().unwrap();
    for target in ["demo/web", "10.101.213.102:80", "nodeport:30080"] {
        says(&healthy, target, "unknown", &["the endpoints are unknown"]).await;
    }
    let ran = kpx(&["--from", path, "why", "demo/none"]).await;
    assert_eq!(ran.code, 4, "{ran}");
}

#[tokio::test]
async fn what_surely_fails_has_its_cause_where_objects_are_missing() {
    let dir = without_objects(with_closed_forward());
    says(
        &dir,
        "demo/web",
        "partly",
        &["its policy drops them", "-I FORWARD"],
    )
    .await;
}

/// A table of `kubectl get endpoints` shows three.
#[tokio::test]
async fn what_a_list_in_part_does_not_show_is_not_gone() {
    let dir = copy(HEALTHY);
    let read = |file: &str| std::fs::read_to_string(dir.path().join(file)).unwrap();
    let entry = |backend: &str| {
        format!(
            "tcp      6 86000 ESTABLISHED src=10.244.1.2 dst=10.101.213.102 sport=40000 dport=80 src={backend} dst=10.244.1.2 sport=8080 dport=40000 [ASSURED] mark=0 use=1\n"
        )
    };
    let table = |endpoints: &str| {
        format!(
            "$ conntrack -L -p tcp\n{}{}$ iptables-save\n{}\n$ kubectl get svc -A\n\
             NAMESPACE   NAME   TYPE        CLUSTER-IP       EXTERNAL-IP   PORT(S)   AGE\n\
             demo        web    ClusterIP   10.101.213.102   <none>        80/TCP    3d\n\
             $ kubectl get endpoints -A\n\
             NAMESPACE   NAME   ENDPOINTS   AGE\ndemo        web    {endpoints}   3d\n",
            read(CONNTRACK),
            entry("10.244.2.2"),
            read(RULES)
        )
    };
    let said = async |text: String| {
        let file = dir.path().join("paste.txt");
        std::fs::write(&file, text).unwrap();
        answer(file.to_str().unwrap(), "demo/web").await.to_string()
    };
    let part = said(table(
        "10.244.0.3:8080,10.244.1.3:8080,10.244.1.5:8080 + 1 more...",
    ));
    let part = part.await;
    assert!(!part.contains("stale"), "{part}");
    assert!(!part.contains("conntrack -D"), "{part}");
}

/// Without the rule, another one would hide what is wrong.
#[tokio::test]
async fn a_rule_that_lets_packets_pass_is_no_cause_beside_a_left_address() {
    let dir = copy(HEALTHY);
    write(&dir, "node/ip-addr.json", |text| {
        let left = r#"{"ifindex":90,"ifname":"kube-ipvs0","flags":["BROADCAST","NOARP"],"mtu":1500,"operstate":"DOWN","link_type":"ether","addr_info":[{"family":"inet","local":"10.101.213.102","prefixlen":32,"scope":"global","label":"kube-ipvs0"}]},"#;
        text.replacen('[', &format!("[{left}"), 1)
    });
    write(
        &dir,
        ROUTES,
        json(|routes| {
            let left = json!({"type": "local", "dst": "10.101.213.102", "prefsrc": "10.101.213.102", "dev": "kube-ipvs0",
                "table": "local", "protocol": "kernel", "scope": "host", "flags": []});
            routes.as_array_mut().unwrap().push(left);
        }),
    );
    write(&dir, RULES, |text| {
        let marks = |line: &str| {
            line.contains("-A KUBE-SVC-XRY76EGRC3BSCIIJ") && line.ends_with("-j KUBE-MARK-MASQ")
        };
        let lines = text.lines().filter(|line| !marks(line));
        let text = lines.collect::<Vec<_>>().join("\n") + "\n";
        let rules =
            "-A POSTROUTING -j MINE\n-A MINE -d 10.244.0.0/16 -j RETURN\n-A MINE -j MASQUERADE\n";
        let nat = text.find("*nat\n").unwrap();
        let commit = nat + text[nat..].find("COMMIT").unwrap();
        let text = format!("{}{rules}{}", &text[..commit], &text[commit..]);
        text.replacen("*nat\n", "*nat\n:MINE - [0:0]\n", 1)
    });
    let answer = answer(dir.path().to_str().unwrap(), "demo/web:http").await;
    let causes = answer["causes"].to_string();
    assert!(causes.contains("kube-ipvs0"), "{causes}");
    assert!(!causes.contains("MINE"), "{causes}");
}

/// Native rules of nftables in a table of iptables hide those of kube-proxy from the tool, not from the kernel.
#[tokio::test]
async fn a_table_that_iptables_cannot_list_is_not_empty() {
    let dir = copy(HEALTHY);
    write(&dir, RULES, |text| {
        let begin = text.find("*nat\n").unwrap();
        let end = begin + text[begin..].find("COMMIT\n").unwrap() + "COMMIT\n".len();
        let remark = "# Table `nat' is incompatible, use 'nft' tool.\n";
        format!("{}{remark}{}", &text[..begin], &text[end..])
    });
    let words = ["iptables cannot list table nat"];
    says(&dir, "demo/web", "unknown", &words).await;
    let path = dir.path().to_str().unwrap();
    let ran = kpx(&["--from", path, "reconcile"]).await;
    assert!(ran.err.contains(words[0]), "{ran}");
    let ran = kpx(&["--from", path, "doctor"]).await;
    assert!(ran.out.contains("ERROR IB06"), "{ran}");
}
