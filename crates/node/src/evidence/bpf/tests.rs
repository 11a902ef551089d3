//! Recorded maps of Cilium 1.20.0-pre against what its own tool printed of them.

use std::collections::BTreeMap;
use std::io::Read as _;

use super::*;

type Files = BTreeMap<String, String>;

/// Returns the recorded files of each state: maps as bpftool dumps them, and the lists of `cilium-dbg bpf lb list`.
fn states() -> BTreeMap<String, Files> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/bpf/cilium.tar.gz"
    );
    let bytes = std::fs::read(path).unwrap();
    let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
    let mut states: BTreeMap<String, Files> = BTreeMap::new();
    for file in archive.entries().unwrap() {
        let mut file = file.unwrap();
        let path = file.path().unwrap().display().to_string();
        let (state, name) = path.split_once('/').unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        let files = states.entry(state.to_owned()).or_default();
        files.insert(name.to_owned(), text);
    }
    states
}

/// Returns the pairs of a map as bpftool dumps it.
fn pairs(text: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let list: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
    let bytes = |value: &serde_json::Value| -> Vec<u8> {
        let all = value.as_array().unwrap().iter();
        let byte = |text: &str| u8::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
        all.map(|text| byte(text.as_str().unwrap())).collect()
    };
    let pair = |value: &serde_json::Value| (bytes(&value["key"]), bytes(&value["value"]));
    list.iter().map(pair).collect()
}

/// Returns the content of the map `name`, which the kernel calls by its first 15 characters.
fn content(files: &Files, name: &str) -> Content {
    let pairs = pairs(&files[&format!("{name}.json")]);
    // An empty map shows no sizes.
    let (key, value) = match name {
        "cilium_lb4_affinity" => (16, 16),
        "cilium_lb4_source_range" => (12, 1),
        _ => {
            let (key, value) = pairs.first().unwrap();
            let size = |slice: &[u8]| u32::try_from(slice.len()).unwrap();
            (size(key), size(value))
        }
    };
    let layout = layout(&name[..KEPT], key, value).unwrap();
    layout(&pairs).unwrap()
}

fn services(content: Content) -> Vec<CiliumService> {
    match content {
        Content::CiliumServices(all) => all,
        other => panic!("{other:?}"),
    }
}

fn backends(content: Content) -> Vec<CiliumBackend> {
    match content {
        Content::CiliumBackends(all) => all,
        other => panic!("{other:?}"),
    }
}

/// Returns a protocol as Cilium prints it.
fn proto(of: Proto) -> String {
    match of {
        Proto::Other(0) => "ANY".to_owned(),
        other => other.to_string().to_uppercase(),
    }
}

#[test]
fn entries_are_those_that_ciliums_tool_prints() {
    let states = states();
    assert_eq!(states.len(), 11);
    let mut compared = 0;
    for (state, files) in &states {
        let list: BTreeMap<String, Vec<String>> =
            serde_json::from_str(&files["lb-list.json"]).unwrap();
        let raw: BTreeMap<String, Vec<String>> =
            serde_json::from_str(&files["lb-list-frontends.json"]).unwrap();
        let mut found = BTreeMap::new();
        for family in ["lb4", "lb6"] {
            if !files.contains_key(&format!("cilium_{family}_services_v2.json")) {
                continue;
            }
            let services = services(content(files, &format!("cilium_{family}_services_v2")));
            let backends = backends(content(files, &format!("cilium_{family}_backends_v3")));
            for of in services {
                let at = std::net::SocketAddr::new(of.address, of.port);
                let scope = if of.internal { "/i" } else { "" };
                let key = format!("{at}/{}{scope} ({})", proto(of.protocol), of.slot);
                let backend = backends
                    .iter()
                    .find(|one| of.slot > 0 && one.id == of.value);
                let text = match backend {
                    Some(one) => format!(
                        "{}/{} ({}) ({})",
                        std::net::SocketAddr::new(one.address, one.port),
                        proto(one.protocol),
                        of.reverse_nat,
                        of.slot
                    ),
                    None if family == "lb4" => {
                        format!("0.0.0.0:0 ({}) ({})", of.reverse_nat, of.slot)
                    }
                    None => format!("[::]:0 ({}) ({})", of.reverse_nat, of.slot),
                };
                let [flags, second] = of.flags.to_le_bytes();
                let counts = format!(
                    "{} {}[{}] ({}) [{flags:#x} {second:#x}]",
                    of.value, of.count, of.quarantined, of.reverse_nat
                );
                found.insert(key, (text, counts));
            }
        }
        assert!(list.keys().eq(found.keys()), "{state}: {:?}", found.keys());
        for (key, (text, counts)) in &found {
            let theirs = &list[key];
            assert_eq!(theirs.len(), 1, "{state}: {key}");
            assert!(
                theirs[0].starts_with(text),
                "{state} {key}: {text} {theirs:?}"
            );
            assert_eq!(raw[key], [counts.as_str()], "{state} {key}");
            compared += 1;
        }
    }
    assert_eq!(compared, 410);
}

#[test]
fn source_ranges_reverse_translations_and_affinity_are_decoded() {
    let states = states();
    let files = &states["noagent"];
    let ranges = content(files, "cilium_lb4_source_range");
    let Content::CiliumSourceRanges(ranges) = ranges else {
        panic!("{ranges:?}");
    };
    let ranges: Vec<String> = ranges
        .iter()
        .map(|range| format!("{} {}", range.reverse_nat, range.source))
        .collect();
    let expected = [10, 11, 12].into_iter().flat_map(|id| {
        [
            format!("{id} 192.0.2.0/24"),
            format!("{id} 198.51.100.7/32"),
        ]
    });
    assert!(
        ranges.iter().eq(&expected.collect::<Vec<_>>()),
        "{ranges:?}"
    );
    let Content::CiliumReverseNat(all) = content(files, "cilium_lb6_reverse_nat") else {
        panic!("another layout");
    };
    let all: Vec<String> = all
        .iter()
        .map(|translation| {
            format!(
                "{} [{}]:{}",
                translation.id, translation.address, translation.port
            )
        })
        .collect();
    assert_eq!(all, ["4 [fd00:96::a]:53", "5 [fd00:96::a]:80"]);
    let files = &states["agent-pods"];
    let Content::CiliumAffinity(all) = content(files, "cilium_lb4_affinity") else {
        panic!("another layout");
    };
    let all: Vec<_> = all
        .iter()
        .map(|affinity| (affinity.client, affinity.reverse_nat, affinity.backend))
        .collect();
    assert_eq!(all, [(None, 4, 8)]);
}

/// Of a hand-made map of Calico: `calico-node -bpf nat dump` prints the same fields.
#[test]
fn maps_of_calico_are_decoded() {
    let front = |prefix: u32, address: [u8; 4], port: u16, source: [u8; 4], value: [u32; 5]| {
        let mut key = prefix.to_ne_bytes().to_vec();
        key.extend(address);
        key.extend(port.to_ne_bytes());
        key.push(6);
        key.extend(source);
        key.push(0);
        let value = value.iter().flat_map(|value| value.to_ne_bytes()).collect();
        (key, value)
    };
    let pairs = [
        front(56, [10, 96, 0, 20], 80, [0; 4], [7, 2, 1, 0, 0b10]),
        front(
            64,
            [203, 0, 113, 5],
            80,
            [192, 0, 0, 0],
            [8, u32::MAX, 0, 0, 0],
        ),
        front(56, [255; 4], 30080, [0; 4], [7, 2, 1, 0, 0]),
    ];
    assert!(layout("cali_v4_nat_fe", 16, 20).is_none());
    let Content::CalicoFrontends(all) = layout("cali_v4_nat_fe3", 16, 20).unwrap()(&pairs).unwrap()
    else {
        panic!("another layout");
    };
    let texts = all.iter().map(|frontend| {
        let source = frontend
            .source
            .map_or_else(String::new, |source| format!(" from {source}"));
        format!(
            "{}:{}{source} id {} count {} local {}",
            frontend.address, frontend.port, frontend.id, frontend.count, frontend.local
        )
    });
    assert_eq!(
        texts.collect::<Vec<_>>(),
        [
            "10.96.0.20:80 id 7 count 2 local 1",
            "203.0.113.5:80 from 192.0.0.0/8 id 8 count 4294967295 local 0",
            "255.255.255.255:30080 id 7 count 2 local 1",
        ]
    );
    let back = |ordinal: u32, last: u8| {
        let mut key = 7u32.to_ne_bytes().to_vec();
        key.extend(ordinal.to_ne_bytes());
        let mut value = vec![0xfd; 15];
        value.push(last);
        value.extend(8080u16.to_ne_bytes());
        value.extend([0; 2]);
        (key, value)
    };
    let Content::CalicoBackends(all) =
        layout("cali_v6_nat_be", 8, 20).unwrap()(&[back(1, 2), back(0, 1)]).unwrap()
    else {
        panic!("another layout");
    };
    let ends: Vec<_> = all
        .iter()
        .map(|backend| (backend.ordinal, backend.address.to_string(), backend.port))
        .collect();
    let address = |last: &str| format!("fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:{last}");
    assert_eq!(
        ends,
        [(0, address("fd01"), 8080), (1, address("fd02"), 8080)]
    );
    // A key with too few bytes is no entry of the layout.
    assert!(layout("cali_v4_nat_be", 8, 8).unwrap()(&[(vec![0; 7], vec![0; 8])]).is_none());
}
