//! `kpx render` on recorded nodes prints the rules that kube-proxy programmed there.

use std::fs;

use serde_json::Value;

use crate::support::{broken, kpx, kpx_on, root};

/// Lines of a recorded file, sorted, each as `clean` leaves it.
fn recorded(name: &str, file: &str, clean: fn(&str) -> &str) -> Vec<String> {
    let path = root().join("testdata/nodes").join(name).join(file);
    let text = fs::read_to_string(path).unwrap();
    sorted(&text, clean)
}

fn sorted(text: &str, clean: fn(&str) -> &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(|line| clean(line).to_owned()).collect();
    lines.sort();
    lines
}

/// Removes from a line of `ipset save` the options that the kernel chose, and from one of kpx those that allow a second load.
fn set_line(line: &str) -> &str {
    let line = line.split(" bucketsize ").next().unwrap();
    line.strip_suffix(" -exist").unwrap_or(line)
}

#[tokio::test]
async fn sets_and_servers_are_those_of_the_node() {
    for name in [
        "dual-ipvs",
        "full-ipvs",
        "full-ipvs-lc-strictarp",
        "full-ipvs-v1.30",
        "seed-ipvs",
    ] {
        let sets = kpx_on(name, &["render", "--part", "ipset"]).await;
        assert_eq!(
            sorted(&sets.out, set_line),
            recorded(name, "node/ipset-save.txt", set_line)
        );
        let servers = kpx_on(name, &["render", "--part", "ipvs"]).await;
        assert_eq!(
            sorted(&servers.out, str::trim),
            recorded(name, "node/ipvsadm-save.txt", str::trim)
        );
        let addresses = kpx_on(name, &["render", "--part", "link"]).await;
        assert!(
            addresses
                .out
                .starts_with("link add kube-ipvs0 type dummy\n")
        );
        assert!(
            addresses
                .out
                .contains("addr add 10.96.0.1/32 dev kube-ipvs0\n")
        );
    }
}

/// Rules of `iptables-save` and of `iptables-restore`'s input, without counters and positions.
fn rule_line(line: &str) -> &str {
    let line = line.split_once("] -A ").map_or(line, |(_, rule)| rule);
    let line = line.strip_prefix("-I ").unwrap_or(line);
    line.strip_prefix("-A ").unwrap_or(line)
}

#[tokio::test]
async fn rules_are_those_of_the_node() {
    for name in [
        "dual-iptables",
        "full-iptables",
        "full-iptables-masqall",
        "full-iptables-v1.30",
        "full-ipvs",
        "seed-iptables",
    ] {
        for (family, file) in [("4", "iptables-save.txt"), ("6", "ip6tables-save.txt")] {
            let rules = kpx_on(name, &["--family", family, "render", "--part", "iptables"]).await;
            assert_eq!(rules.code, 0);
            let only_rules = |lines: Vec<String>| -> Vec<String> {
                let lines = lines.into_iter();
                lines
                    .filter(|line| !line.starts_with(['*', ':', '#']) && line != "COMMIT")
                    .collect()
            };
            assert_eq!(
                only_rules(sorted(&rules.out, rule_line)),
                only_rules(recorded(name, &format!("node/{file}"), rule_line)),
                "{name}"
            );
        }
    }
}

#[tokio::test]
async fn every_part_is_named_with_the_command_that_loads_it() {
    let all = kpx_on("dual-ipvs", &["render"]).await;
    let heads: Vec<_> = all.out.lines().filter(|l| l.starts_with("# ")).collect();
    assert_eq!(
        heads,
        [
            "# sysctl -p -",
            "# ip -batch -",
            "# ipset restore",
            "# iptables-restore --noflush",
            "# ip6tables-restore --noflush",
            "# ipvsadm --restore",
        ]
    );
    let json = kpx_on("dual-nftables", &["render", "-o", "json"]).await;
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["kind"], "ProgramReport");
    assert_eq!(json["parts"][0]["part"], "nftables");
    assert_eq!(json["parts"][0]["tool"], "nft -f -");
}

#[tokio::test]
async fn a_part_of_another_mode_is_a_usage_error() {
    let ran = kpx_on("full-iptables", &["render", "--part", "ipset"]).await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(
        ran.err
            .contains("mode iptables has no such part: use one of iptables, sysctl"),
        "{ran}"
    );
    let ran = kpx_on("full-iptables", &["render", "--part", "iptables"]).await;
    assert!(ran.err.contains("`--family 6`"), "{ran}");
}

#[tokio::test]
async fn a_node_in_the_source_ranges_of_a_load_balancer_reaches_it_from_its_own_address() {
    for (name, part, line) in [
        (
            "full-iptables",
            "iptables",
            "-A KUBE-FW-3MCWVUC7CWOIFNSX -s 203.0.113.11/32 -m comment \
             --comment \"edge/web-restricted:https loadbalancer IP\" -j KUBE-EXT-3MCWVUC7CWOIFNSX",
        ),
        (
            "full-ipvs",
            "ipset",
            "add KUBE-LOAD-BALANCER-SOURCE-IP 203.0.113.11,tcp:443,203.0.113.11 ",
        ),
        (
            "full-nftables",
            "nftables",
            "ip saddr != { 10.0.2.0/24, 192.0.2.0/25, 203.0.113.11 } drop",
        ),
    ] {
        let admitted = |text: &str| text.replace("198.51.100.0/24", "10.0.2.0/24");
        let node = broken(name, &[("cluster/services.json", &admitted)]);
        let from = node.path().to_str().unwrap();
        let ran = kpx(&["--from", from, "--family", "4", "render", "--part", part]).await;
        assert!(ran.out.contains(line), "{name}\n{ran}");
    }
}
