//! Objects of the API, and kube-proxy's configuration.

use kpx_node::cluster::config::ProxyConfig;
use kpx_node::evidence::{Evidence, Gap, Item};
use kpx_node::node::NodeSnapshot;

use crate::support::{recorded, recordings};

#[test]
fn objects_of_every_recording_parse() {
    for name in recordings() {
        let mut evidence = Evidence::default();
        let mut count = |item: Item| {
            let text = recorded(&name, item.file())?;
            let list: serde_json::Value = serde_json::from_str(&text).unwrap();
            evidence.insert(item, Ok(text));
            Some(list["items"].as_array().unwrap().len())
        };
        let counts = [
            count(Item::Services),
            count(Item::EndpointSlices),
            count(Item::Nodes),
            count(Item::ConfigMaps),
            count(Item::DaemonSets),
            count(Item::Pods),
        ];
        let node = NodeSnapshot::new(&evidence);
        let read = [
            node.services().ok().map(Vec::len),
            node.slices().ok().map(Vec::len),
            node.nodes().ok().map(Vec::len),
            node.config_maps().ok().map(Vec::len),
            node.daemon_sets().ok().map(Vec::len),
            node.pods().ok().map(Vec::len),
        ];
        assert_eq!(read, counts, "{name}");
        for service in node.services().into_iter().flatten() {
            assert!(!service.metadata.name.is_empty() && !service.spec.kind.is_empty());
        }
        let file = Item::ProxyConfig.file();
        let config = recorded(&name, file).unwrap_or_else(|| {
            panic!("testdata/nodes/{name} has no {file}: copy one of another node")
        });
        ProxyConfig::parse(&config).unwrap();
        for map in node.config_maps().into_iter().flatten() {
            if let Some(config) = map.data.get("config.conf") {
                ProxyConfig::parse(config).unwrap();
            }
        }
    }
}

#[test]
fn nulls_and_zero_values_of_kubeadm_mean_unset() {
    let config = ProxyConfig::parse(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: \"\"\n\
         nodePortAddresses: null\nfeatureGates: null\nshowHiddenMetricsForVersion: \"\"\n\
         conntrack:\n  maxPerCore: null\n  min: null\n  tcpEstablishedTimeout: null\n\
         iptables:\n  masqueradeBit: null\n  masqueradeAll: false\n  minSyncPeriod: 0s\n  syncPeriod: 0s\n\
         ipvs:\n  excludeCIDRs: null\n  scheduler: \"\"\n  strictARP: false\nnftables: null\n",
    )
    .unwrap();
    assert!(config.mode.is_empty() && config.node_port_addresses.is_empty());
    assert_eq!(config.iptables.masquerade_bit, None);
    assert!(!config.ipvs.strict_arp && config.ipvs.exclude_cidrs.is_empty());
}

#[test]
fn line_endings_json_and_yes_are_read_as_yaml_reads_them() {
    for text in [
        "mode: ipvs\r\nipvs:\r\n  strictARP: true\r\n",
        "{\"mode\": \"ipvs\", \"ipvs\": {\"strictARP\": true}}",
        "{\n\t\"mode\": \"ipvs\",\n\t\"ipvs\": {\n\t\t\"strictARP\": true\n\t}\n}\n",
        "mode: ipvs\nipvs:\n  strictARP: yes\n",
    ] {
        let config = ProxyConfig::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(config.mode, "ipvs");
        assert!(config.ipvs.strict_arp, "{text}");
    }
}

#[test]
fn an_incomplete_list_of_pods_is_a_gap_where_all_are_needed() {
    let mut evidence = Evidence::default();
    let pods = |missing: &str| format!(r#"{{"kind":"List","metadata":{{{missing}}},"items":[]}}"#);
    evidence.insert(Item::Pods, Ok(pods("")));
    assert!(NodeSnapshot::new(&evidence).all_pods().is_ok());
    let why = "pods of kube-proxy on other nodes: forbidden";
    evidence.insert(Item::Pods, Ok(pods(&format!(r#""missing":["{why}"]"#))));
    let node = NodeSnapshot::new(&evidence);
    assert!(node.pods().is_ok());
    assert_eq!(
        node.all_pods().unwrap_err(),
        Gap::Denied(Item::Pods, why.to_owned())
    );
}
