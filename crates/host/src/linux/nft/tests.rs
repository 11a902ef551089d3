//! Rules, sets and elements from bytes, whole and broken.

use super::elements::Elements;
use super::rule::Writer;
use super::scope::{INET, IP};
use super::sets::{Set, Sets};
use super::types::LinkNames;
use crate::linux::netlink::{append, nested};
use crate::linux::nf_tables::wire::Odd;

/// A machine without links.
struct NoLinks;

impl LinkNames for NoLinks {
    fn name(&mut self, _: u32) -> Result<Option<&str>, Odd> {
        Ok(None)
    }
}

/// Attributes that contain 32-bit numbers.
fn words(of: &[(u16, u32)]) -> Vec<u8> {
    let mut list = Vec::new();
    for (kind, value) in of {
        append(&mut list, *kind, &value.to_be_bytes());
    }
    list
}

/// An element of a list of expressions.
fn expression(name: &str, data: &[u8]) -> Vec<u8> {
    let mut inner = Vec::new();
    append(&mut inner, 1, format!("{name}\0").as_bytes());
    nested(&mut inner, 2, data);
    let mut element = Vec::new();
    nested(&mut element, 1, &inner);
    element
}

fn value(bytes: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    append(&mut data, 1, bytes);
    data
}

fn load(base: u32, offset: u32, length: u32) -> Vec<u8> {
    expression(
        "payload",
        &words(&[(1, 1), (2, base), (3, offset), (4, length)]),
    )
}

fn compare(op: u32, bytes: &[u8]) -> Vec<u8> {
    let mut data = words(&[(1, 1), (2, op)]);
    nested(&mut data, 3, &value(bytes));
    expression("cmp", &data)
}

fn mask(mask: &[u8]) -> Vec<u8> {
    let mut data = words(&[(1, 1), (2, 1), (3, 4)]);
    nested(&mut data, 4, &value(mask));
    nested(&mut data, 5, &value(&vec![0; mask.len()]));
    expression("bitwise", &data)
}

fn meta(key: u32) -> Vec<u8> {
    expression("meta", &words(&[(1, 1), (2, key)]))
}

fn verdict(code: i32, chain: Option<&str>) -> Vec<u8> {
    let mut inner = words(&[(1, code.cast_unsigned())]);
    if let Some(chain) = chain {
        append(&mut inner, 2, format!("{chain}\0").as_bytes());
    }
    let mut data = Vec::new();
    nested(&mut data, 2, &inner);
    data
}

fn jump(chain: &str) -> Vec<u8> {
    let mut data = words(&[(1, 0)]);
    nested(&mut data, 2, &verdict(-3, Some(chain)));
    expression("immediate", &data)
}

/// Notes of `nft`: the byte orders of keys and data.
fn notes() -> Vec<u8> {
    let mut notes = vec![0, 4];
    notes.extend(2u32.to_ne_bytes());
    notes.extend([1, 4]);
    notes.extend(0u32.to_ne_bytes());
    notes
}

/// A map of addresses, protocols and ports to verdicts.
fn map() -> Vec<u8> {
    let mut list = Vec::new();
    append(&mut list, 2, b"service-ips\0");
    list.extend(words(&[
        (3, 8),
        (4, 0x7 << 12 | 0xc << 6 | 0xd),
        (5, 12),
        (6, 0xffff_ff00),
    ]));
    append(&mut list, 13, &notes());
    append(&mut list, 16, &7u64.to_be_bytes());
    list
}

/// Two elements of [`map`], the second with a comment.
fn elements() -> Vec<u8> {
    let element = |last: u8, comment: Option<&[u8]>| {
        let key = [10, 96, 0, last, 6, 0, 0, 0, 1, 187, 0, 0];
        let mut inner = Vec::new();
        nested(&mut inner, 1, &value(&key));
        nested(&mut inner, 2, &verdict(-4, Some("service")));
        if let Some(comment) = comment {
            let length = u8::try_from(comment.len()).unwrap();
            append(&mut inner, 6, &[&[0, length], comment].concat());
        }
        let mut element = Vec::new();
        nested(&mut element, 1, &inner);
        element
    };
    let mut list = Vec::new();
    append(&mut list, 1, b"kube-proxy\0");
    nested(
        &mut list,
        3,
        &[element(9, None), element(1, Some(b"one\0"))].concat(),
    );
    list
}

fn read(family: u8, expressions: &[u8]) -> Result<String, Odd> {
    let (sets, mut links) = (Sets::default(), NoLinks);
    let mut to = String::new();
    Writer::new(family, &sets, &mut links).write(&mut to, "[", expressions)?;
    Ok(to)
}

fn read_map(list: &[u8], elements: &[u8]) -> Result<String, Odd> {
    let mut set = Set::read(list)?;
    let mut all = Elements::default();
    all.add(&set, elements, &mut NoLinks)?;
    all.finish(&mut set, &mut NoLinks)?;
    let mut to = String::new();
    set.print(&mut to, "ip", "kube-proxy")?;
    Ok(to)
}

/// Rules that use what a broken one can break.
fn rules() -> Vec<Vec<u8>> {
    vec![
        [
            meta(16),
            compare(0, &[6]),
            load(2, 2, 2),
            compare(0, &[0, 80]),
            jump("a"),
        ]
        .concat(),
        [
            load(1, 12, 4),
            mask(&[255, 255, 0, 255]),
            compare(1, &[10, 0, 0, 1]),
        ]
        .concat(),
        [load(1, 16, 3), compare(0, &[10, 9, 8])].concat(),
        [load(1, 1, 1), mask(&[0xfc]), compare(0, &[0x20])].concat(),
        [meta(3), mask(&[0, 0x40, 0, 0]), compare(1, &[0; 4])].concat(),
        [meta(6), compare(0, b"eth")].concat(),
    ]
}

#[test]
fn matches_are_printed_without_what_they_imply() {
    let printed: Vec<_> = rules().iter().map(|rule| read(IP, rule).unwrap()).collect();
    let payload = |protocol: &str, field: &str| {
        format!("{{\"payload\": {{\"protocol\": \"{protocol}\", \"field\": \"{field}\"}}}}")
    };
    let matches = |op: &str, left: &str, right: &str| {
        format!("[{{\"match\": {{\"op\": \"{op}\", \"left\": {left}, \"right\": {right}}}}}")
    };
    assert_eq!(
        printed[0],
        matches("==", &payload("tcp", "dport"), "80") + ", {\"jump\": {\"target\": \"a\"}}]"
    );
    let masked = format!("{{\"&\": [{}, \"255.255.0.255\"]}}", payload("ip", "saddr"));
    assert_eq!(printed[1], matches("!=", &masked, "\"10.0.0.1\"") + "]");
    let prefix = "{\"prefix\": {\"addr\": \"10.9.8.0\", \"len\": 24}}";
    assert_eq!(
        printed[2],
        matches("==", &payload("ip", "daddr"), prefix) + "]"
    );
    assert_eq!(
        printed[3],
        matches("==", &payload("ip", "dscp"), "\"cs1\"") + "]"
    );
    assert!(printed[5].contains("\"right\": \"eth*\""), "{}", printed[5]);
}

#[test]
fn the_protocol_of_a_table_for_both_families_is_kept_if_it_restricts_the_family() {
    let rule = [
        meta(15),
        compare(0, &[2]),
        load(1, 9, 1),
        compare(0, &[6]),
        load(2, 0, 2),
        compare(0, &[0, 80]),
    ]
    .concat();
    let printed = read(INET, &rule).unwrap();
    assert!(!printed.contains("nfproto"), "{printed}");
    assert!(
        printed.contains("\"field\": \"protocol\"}}, \"right\": \"tcp\""),
        "{printed}"
    );
    assert!(
        printed.contains("\"protocol\": \"tcp\", \"field\": \"sport\""),
        "{printed}"
    );
}

#[test]
fn queues_have_a_range_of_numbers_and_flags() {
    let mut data = Vec::new();
    for (kind, number) in [(1, 4u16), (2, 3), (3, 3)] {
        append(&mut data, kind, &number.to_be_bytes());
    }
    let printed = read(IP, &expression("queue", &data)).unwrap();
    let range = "{\"range\": [4, 6]}";
    assert_eq!(
        printed,
        format!("[{{\"queue\": {{\"num\": {range}, \"flags\": [\"bypass\", \"fanout\"]}}}}]")
    );
}

#[test]
fn a_map_has_its_elements_in_the_order_of_nft() {
    let printed = read_map(&map(), &elements()).unwrap();
    let one = "[{\"elem\": {\"val\": {\"concat\": [\"10.96.0.1\", \"tcp\", 443]}, \"comment\": \"one\"}}, {\"goto\": {\"target\": \"service\"}}]";
    let nine =
        "[{\"concat\": [\"10.96.0.9\", \"tcp\", 443]}, {\"goto\": {\"target\": \"service\"}}]";
    assert!(
        printed.ends_with(&format!("\"elem\": [{one}, {nine}]}}}}")),
        "{printed}"
    );
}

#[test]
fn what_is_not_known_is_an_error() {
    let future = expression("future", &[]);
    assert_eq!(
        read(IP, &future).unwrap_err(),
        "expression future is not decoded"
    );
    let mut map = map();
    append(&mut map, 99, &[0; 4]);
    assert_eq!(Set::read(&map).unwrap_err(), "set attribute 99 is unknown");
    // A key with a type of a later release.
    let mut typed = Vec::new();
    append(&mut typed, 2, b"s\0");
    typed.extend(words(&[(3, 0), (4, 60), (5, 4)]));
    let why = Set::read(&typed).unwrap_err();
    assert_eq!(why, "set s: type 60 is unknown");
    // Texts of no size.
    let mut empty = Vec::new();
    append(&mut empty, 2, b"s\0");
    empty.extend(words(&[(3, 4), (4, 5)]));
    let why = Set::read(&empty).unwrap_err();
    assert_eq!(why, "set s: the size of its type is not known");
    let mut copied = rules().swap_remove(0);
    copied.extend(expression("lookup", &{
        let mut data = Vec::new();
        append(&mut data, 1, b"missing\0");
        data.extend(words(&[(2, 1)]));
        data
    }));
    assert_eq!(read(IP, &copied).unwrap_err(), "set missing is not listed");
}

/// Whatever arrives is decoded or refused.
#[test]
fn broken_attributes_are_refused_without_a_panic() {
    let mut refused = 0;
    for rule in rules() {
        for end in 0..rule.len() {
            refused += u32::from(read(IP, &rule[..end]).is_err());
        }
        for (at, byte) in
            (0..rule.len()).flat_map(|at| [0, 1, 0x7f, 0x80, 0xff].map(|byte| (at, byte)))
        {
            let mut broken = rule.clone();
            broken[at] = byte;
            for family in [IP, INET] {
                refused += u32::from(read(family, &broken).is_err());
            }
        }
    }
    let (map, elements) = (map(), elements());
    for end in 0..map.len() {
        refused += u32::from(read_map(&map[..end], &elements).is_err());
    }
    for end in 0..elements.len() {
        refused += u32::from(read_map(&map, &elements[..end]).is_err());
    }
    for (at, byte) in (0..map.len()).flat_map(|at| [0, 1, 0x7f, 0xff].map(|byte| (at, byte))) {
        let mut broken = map.clone();
        broken[at] = byte;
        refused += u32::from(read_map(&broken, &elements).is_err());
    }
    for (at, byte) in (0..elements.len()).flat_map(|at| [0, 1, 0x7f, 0xff].map(|byte| (at, byte))) {
        let mut broken = elements.clone();
        broken[at] = byte;
        refused += u32::from(read_map(&map, &broken).is_err());
    }
    assert!(refused > 2000, "{refused}");
}
