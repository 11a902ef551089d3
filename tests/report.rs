//! The page of `kpx report`.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use proptest::prelude::*;
use roxmltree::{Document, Node, ParsingOptions};
use serde_json::Value;

use crate::support::{broken, kpx, kpx_on};

/// Returns the page of the recording `name`.
pub(crate) async fn written(name: &str, more: &[&str]) -> String {
    let ran = kpx_on(name, &[&["report", "--file", "-"], more].concat()).await;
    assert_eq!(ran.code, 0, "{name}: {ran}");
    ran.out
}

/// A name that is markup, ends quotes, turns the text around, and colours a terminal.
const HOSTILE: &str = "<script>pwned=1</script><b onload='pwned=1'>\"'&amp;]]>--><img src=x onerror=pwned=1>\u{202e}\u{1b}[31m\u{0}";

/// Returns the page of a node whose names have [`HOSTILE`] in them.
pub(crate) async fn hostile() -> String {
    named(HOSTILE).await
}

/// Returns the page of a node all of whose names end with `text`.
async fn named(text: &str) -> String {
    const KEYS: [&str; 6] = [
        "name",
        "namespace",
        "nodeName",
        "hostname",
        "kubernetes.io/service-name",
        "zone",
    ];
    fn rename(value: &mut Value, text: &str) {
        match value {
            Value::Object(map) => {
                for (key, value) in map {
                    match value {
                        Value::String(name) if KEYS.contains(&key.as_str()) => name.push_str(text),
                        value => rename(value, text),
                    }
                }
            }
            Value::Array(all) => all.iter_mut().for_each(|value| rename(value, text)),
            _ => {}
        }
    }
    let objects = |old: &str| {
        let mut value: Value = serde_json::from_str(old).unwrap();
        rename(&mut value, text);
        value.to_string()
    };
    // A comment of iptables has neither quotes nor line breaks.
    let plain: String = text
        .chars()
        .filter(|c| !c.is_control() && !"\"\\".contains(*c))
        .collect();
    let rules = |old: &str| old.replace("default/nginx-svc", &format!("default/nginx-svc{plain}!"));
    let dir = broken(
        "ir16-foreign-drops",
        &[
            ("cluster/services.json", &objects),
            ("cluster/endpointslices.json", &objects),
            ("node/iptables-save.txt", &rules),
        ],
    );
    let events = serde_json::json!({
        "apiVersion": "kpx/v1", "kind": "ChangeEvent", "at": "2026-11-20T12:44:05Z", "topic": "finding",
        "name": format!("MX01 {text}"), "service": text, "action": "changed", "before": [text], "after": [text],
        "afterSeconds": 3,
    });
    let file = dir.path().join("changes.json");
    fs::write(&file, format!("{events}\n")).unwrap();
    let target = format!("default{text}/nginx-svc{text}");
    let mut args = vec![
        "--from",
        dir.path().to_str().unwrap(),
        "report",
        "--file",
        "-",
    ];
    args.extend(["--timeline", file.to_str().unwrap()]);
    // Only a name without separators is a target.
    if !text.contains([':', '/', ' ', '[']) {
        args.extend(["--trace", &target]);
    }
    let ran = kpx(&args).await;
    assert_eq!(ran.code, 0, "{text:?}: {ran}");
    ran.out
}

/// Parses a page: it is well-formed XML.
fn parsed(page: &str) -> Document<'_> {
    let options = ParsingOptions {
        allow_dtd: true,
        ..ParsingOptions::default()
    };
    Document::parse_with_options(page, options).unwrap_or_else(|error| panic!("{error}\n{page}"))
}

/// Returns all text in `node`.
fn text(node: Node<'_, '_>) -> String {
    node.descendants()
        .filter_map(|node| node.is_text().then(|| node.text())?)
        .collect()
}

fn tags<'d>(document: &'d Document<'_>, tag: &'d str) -> impl Iterator<Item = Node<'d, 'd>> {
    document
        .descendants()
        .filter(move |node| node.tag_name().name() == tag)
}

/// Fails unless the page is safe and has the order that a screen reader needs.
pub(crate) fn holds(page: &str, name: &str) {
    const TAGS: &str = "html head meta title style body a header h1 h2 h3 h4 strong nav ul ol li main section dl dt dd p code pre \
                        div span details summary table caption thead tbody tr th td label input footer script \
                        svg desc rect g text path";
    let document = parsed(page);
    let known: BTreeSet<&str> = TAGS.split_whitespace().collect();
    let mut ids = BTreeSet::new();
    let mut level = 0;
    for node in document.descendants().filter(Node::is_element) {
        let tag = node.tag_name().name();
        assert!(known.contains(tag), "{name}: <{tag}>");
        for attribute in node.attributes() {
            let (key, value) = (attribute.name(), attribute.value());
            assert!(
                !key.starts_with("on") && key != "style" && key != "src",
                "{name}: {key}={value}"
            );
            match key {
                "id" => assert!(ids.insert(value.to_owned()), "{name}: two ids {value}"),
                "href" => {
                    let is_thread = ["https://github.com/", "https://kep.k8s.io/"];
                    let leads = |start: &&str| value.starts_with(start);
                    let is_known = value.starts_with('#') || is_thread.iter().any(leads);
                    assert!(is_known, "{name}: {value}");
                }
                _ => {}
            }
        }
        if let Some(next) = tag
            .strip_prefix('h')
            .and_then(|digit| digit.parse::<usize>().ok())
        {
            assert!(
                next <= level + 1,
                "{name}: <{tag}> {} below level {level}",
                text(node)
            );
            level = next;
        }
        if tag == "th" {
            assert!(node.has_attribute("scope"), "{name}: {}", text(node));
        }
        // A paragraph ends in HTML where a block begins.
        if tag == "p" {
            let blocks = [
                "p", "div", "pre", "ul", "ol", "dl", "table", "section", "details",
            ];
            let inside = node
                .descendants()
                .skip(1)
                .find(|descendant| blocks.contains(&descendant.tag_name().name()));
            assert!(inside.is_none(), "{name}: {inside:?} in a paragraph");
        }
    }
    for link in tags(&document, "a") {
        if let Some(to) = link.attribute("href").unwrap().strip_prefix('#') {
            assert!(ids.contains(to), "{name}: no {to}");
        }
    }
    for node in document.descendants() {
        if let Some(label) = node.attribute("aria-labelledby") {
            assert!(ids.contains(label), "{name}: no {label}");
        }
    }
    assert_eq!(tags(&document, "h1").count(), 1, "{name}");
    assert_eq!(tags(&document, "script").count(), 1, "{name}");
    let hidden = |c: char| c.is_control() && c != '\n' || ('\u{202a}'..='\u{202e}').contains(&c);
    assert_eq!(page.chars().find(|c| hidden(*c)), None, "{name}");
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_page_needs_no_other_file_and_its_policy_has_its_style_and_script() {
    for name in [
        "seed-iptables",
        "full-ipvs",
        "full-nftables",
        "faults-iptables",
        "faults-rules",
        "mx04-no-kube-proxy",
        "healthy-cilium",
    ] {
        let page = written(name, &[]).await;
        holds(&page, name);
        let document = parsed(&page);
        let policy = tags(&document, "meta").find_map(|meta| {
            let is_policy = meta.attribute("http-equiv") == Some("Content-Security-Policy");
            is_policy.then(|| meta.attribute("content").unwrap())
        });
        let policy = policy.unwrap();
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(
            !policy.contains("unsafe") && !policy.contains("http"),
            "{policy}"
        );
        // One style sheet and one script, of which the policy has the digests.
        let sheets: Vec<_> = tags(&document, "style").collect();
        assert_eq!(sheets.len(), 1, "{name}: the sheet of a picture is refused");
        assert!(!text(sheets[0]).contains("url("), "{name}");
        assert_eq!(page.matches("'sha256-").count(), 2, "{name}");
    }
}

#[tokio::test]
#[ignore = "takes long: make test-loops"]
async fn a_page_has_every_finding_and_the_numbers_of_the_doctor() {
    for name in [
        "seed-iptables",
        "faults-iptables",
        "ir16-foreign-drops",
        "faults-moves",
    ] {
        let page = written(name, &[]).await;
        let document = parsed(&page);
        let doctor = kpx_on(name, &["doctor", "-o", "json"]).await;
        let doctor: Value = serde_json::from_str(&doctor.out).unwrap();
        let findings =
            tags(&document, "section").find(|tag| tag.attribute("id") == Some("findings"));
        let shown = text(findings.unwrap()).replace('`', "");
        let all = doctor["findings"].as_array().unwrap();
        assert!(shown.starts_with("Findings"), "{name}");
        for finding in all {
            for part in ["id", "subject", "message"] {
                let part = finding[part].as_str().unwrap().replace('`', "");
                assert!(shown.contains(&part), "{name}: no {part}");
            }
            if let Some(command) = finding["fix"]["command"].as_str() {
                assert!(shown.contains(command), "{name}: no {command}");
            }
        }
        let title = text(tags(&document, "h1").next().unwrap());
        let human = kpx_on(name, &["doctor"]).await.out;
        // The first line of the doctor is about Services.
        let (_, findings) = title.split_once(": ").unwrap();
        let second = human.lines().take_while(|line| !line.is_empty()).last();
        assert!(second.unwrap().ends_with(findings), "{name}: {title}");
        let nav: Vec<String> = tags(&document, "a").map(text).collect();
        // The Services come first, below the headline of the doctor.
        let place = |title: &str| nav.iter().position(|text| text.starts_with(title));
        assert!(place("Services") < place("Findings"), "{name}: {nav:?}");
        let services = human.lines().nth(1).unwrap();
        assert!(page.contains(services.trim_end()), "{name}: {services}");
        assert!(
            nav.contains(&format!("Findings ({})", all.len())),
            "{name}: {nav:?}"
        );
    }
}

#[tokio::test]
async fn drift_and_plan_are_those_of_diff_and_reconcile() {
    let name = "ir03-missing-rule";
    let page = written(name, &[]).await;
    let document = parsed(&page);
    let section = |id: &str| {
        text(
            tags(&document, "section")
                .find(|tag| tag.attribute("id") == Some(id))
                .unwrap(),
        )
    };
    let json = async |command: &str| -> Value {
        let ran = kpx_on(name, &[command, "-o", "json"]).await;
        serde_json::from_str(&ran.out).unwrap()
    };
    let diff = json("diff").await;
    let changes = diff["changes"].as_array().unwrap();
    assert!(!changes.is_empty());
    for change in changes {
        for part in ["object", "service", "want", "have"] {
            if let Some(part) = change[part].as_str() {
                assert!(section("drift").contains(part), "{part}");
            }
        }
    }
    let plan = json("reconcile").await;
    let steps = plan["steps"].as_array().unwrap();
    assert!(!steps.is_empty());
    for step in steps {
        for part in ["title", "action", "undo"] {
            let part = step[part].as_str().unwrap().trim_end();
            assert!(section("repair").contains(part), "{part}");
        }
    }
    // The Service with drift is traced without being asked for.
    let traced = changes[0]["service"].as_str().unwrap();
    assert!(
        tags(&document, "h3").any(|title| text(title) == traced),
        "{traced}"
    );
}

#[tokio::test]
async fn a_picture_is_beside_the_text_of_its_trace() {
    let page = written("ir16-foreign-drops", &["--trace", "default/nginx-svc"]).await;
    let document = parsed(&page);
    let pictures: Vec<_> = tags(&document, "svg").collect();
    assert_eq!(pictures.len(), 1);
    assert_eq!(pictures[0].attribute("role"), Some("img"));
    let title = pictures[0]
        .children()
        .find(|child| child.has_tag_name(("http://www.w3.org/2000/svg", "title")));
    assert!(text(title.unwrap()).starts_with("Connections to default/nginx-svc"));
    let drawn = kpx_on("ir16-foreign-drops", &["trace", "default/nginx-svc"])
        .await
        .out;
    let words = |text: &str| {
        text.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let (_, drawn) = drawn.split_once('\n').unwrap();
    let verdict = words(drawn).split(" from ").next().unwrap().to_owned();
    let told: Vec<String> = tags(&document, "pre")
        .map(|pre| words(&text(pre)))
        .collect();
    assert!(
        told.iter().any(|text| text.starts_with(&verdict)),
        "{verdict}"
    );
}

#[tokio::test]
async fn without_data_the_page_says_unknown() {
    let dir = broken("seed-iptables", &[]);
    for file in [
        "cluster/services.json",
        "kube-proxy/config.conf",
        "cluster/configmaps.json",
    ] {
        fs::remove_file(dir.path().join(file)).unwrap();
    }
    let ran = kpx(&[
        "--from",
        dir.path().to_str().unwrap(),
        "report",
        "--file",
        "-",
    ])
    .await;
    assert_eq!(ran.code, 0, "{ran}");
    holds(&ran.out, "without data");
    let document = parsed(&ran.out);
    let section = |id: &str| {
        text(
            tags(&document, "section")
                .find(|tag| tag.attribute("id") == Some(id))
                .unwrap(),
        )
    };
    assert!(
        section("drift").contains("inconclusive: nothing was compared"),
        "{}",
        section("drift")
    );
    assert!(
        section("drift").contains("Unknown: "),
        "{}",
        section("drift")
    );
    assert!(
        section("repair").contains("No plan: "),
        "{}",
        section("repair")
    );
    assert!(
        section("findings").contains("without a result"),
        "{}",
        section("findings")
    );
    let nav: Vec<String> = tags(&document, "a").map(text).collect();
    assert!(
        nav.contains(&"Plan of a repair".to_owned()),
        "{nav:?}: no number"
    );
}

#[tokio::test]
async fn a_time_line_has_its_events_and_a_wrong_line_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("changes.json");
    let event = |topic: &str, action: &str| {
        format!(
            "{{\"apiVersion\":\"kpx/v1\",\"kind\":\"ChangeEvent\",\"at\":\"2026-11-20T12:44:05Z\",\"topic\":\"{topic}\",\
             \"name\":\"shop/cart\",\"action\":\"{action}\",\"before\":[\"port 80\"],\"after\":[\"port 81\"],\"afterSeconds\":null}}\n"
        )
    };
    let path = file.to_str().unwrap();
    fs::write(
        &file,
        event("service", "changed") + "\n" + &event("virtual-server", "removed"),
    )
    .unwrap();
    let page = written("seed-iptables", &["--timeline", path]).await;
    let document = parsed(&page);
    let section = tags(&document, "section")
        .find(|tag| tag.attribute("id") == Some("timeline"))
        .unwrap();
    let rows: Vec<String> = section
        .descendants()
        .filter(|descendant| descendant.tag_name().name() == "tr")
        .map(text)
        .collect();
    assert_eq!(rows.len(), 3, "{rows:?}");
    assert_eq!(
        rows[1],
        "2026-11-20T12:44:05Zchangedservice shop/cartport 80 -> port 81-"
    );
    assert_eq!(
        rows[2],
        "2026-11-20T12:44:05Zis gonevirtual server shop/cartport 80-"
    );
    for wrong in [
        "oops",
        "{\"kind\":\"DoctorReport\"}",
        "{\"kind\":\"ChangeEvent\",\"at\":\"noon\"}",
    ] {
        fs::write(&file, event("service", "changed") + wrong).unwrap();
        let ran = kpx_on(
            "seed-iptables",
            &["report", "--file", "-", "--timeline", path],
        )
        .await;
        assert_eq!((ran.code, ran.out.as_str()), (4, ""), "{wrong}");
        assert!(
            ran.err
                .contains("line 2 is not an event of `kpx watch -o json`"),
            "{ran}"
        );
    }
}

#[tokio::test]
async fn a_file_is_private_and_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("report.html");
    let name = path.to_str().unwrap();
    let ran = kpx_on("seed-iptables", &["report", "--file", name]).await;
    let counts = "inconclusive: data is missing; 12 checks unknown";
    assert_eq!(ran.out, format!("wrote {name}: {counts}\n"), "{ran}");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        written("seed-iptables", &[]).await
    );
    fs::write(&path, "mine").unwrap();
    let ran = kpx_on("seed-iptables", &["report", "--file", name]).await;
    assert_eq!(ran.code, 4, "{ran}");
    assert!(
        ran.err.contains("exists, and kpx does not overwrite"),
        "{ran}"
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        1,
        "nothing is left"
    );
    let lost = dir.path().join("no/report.html");
    let ran = kpx_on(
        "seed-iptables",
        &["report", "--file", lost.to_str().unwrap()],
    )
    .await;
    assert!(ran.code == 4 && ran.err.contains("cannot write "), "{ran}");
}

#[tokio::test]
async fn a_target_that_is_wrong_is_an_error() {
    let ran = kpx_on(
        "seed-iptables",
        &["report", "--file", "-", "--trace", "default/nginx-svx"],
    )
    .await;
    assert_eq!((ran.code, ran.out.as_str()), (1, ""), "{ran}");
    assert!(ran.err.contains("default/nginx-svc"), "{ran}");
}

#[tokio::test]
async fn the_page_of_a_redacted_bundle_has_no_name_of_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("bundle");
    let bundle = bundle.to_str().unwrap();
    let ran = kpx_on(
        "ir16-foreign-drops",
        &["snapshot", "--redact", "--file", bundle],
    )
    .await;
    assert_eq!(ran.code, 0, "{ran}");
    let ran = kpx(&["--from", bundle, "report", "--file", "-"]).await;
    assert_eq!(ran.code, 0, "{ran}");
    holds(&ran.out, "redacted");
    assert!(ran.out.contains("Names and addresses in it are replaced."));
    for name in [
        "nginx",
        "redis-master",
        "10.97.54.248",
        "10.244.1.22",
        "node1",
    ] {
        assert!(!ran.out.contains(name), "{name}");
    }
    assert!(
        written("ir16-foreign-drops", &[])
            .await
            .contains("redis-master")
    );
}

#[tokio::test]
async fn hostile_names_are_text_of_the_page() {
    let page = hostile().await;
    holds(&page, "hostile");
    let shown = text(parsed(&page).root_element());
    assert!(shown.contains("<script>pwned=1</script>"), "{page}");
    assert!(shown.contains("\\u{202e}\\u{1b}[31m\\u{0}"), "{page}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_name_is_text_of_the_page(name in "[<>\"'&;=/!\\[\\]\\-a-z\u{1b}\u{202e}\u{200b}\u{0}\n\u{85}é]{1,12}") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let page = runtime.block_on(named(&name));
        holds(&page, &name);
    }
}
