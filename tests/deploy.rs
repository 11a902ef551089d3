//! `deploy/serve/` and `deploy/kustomize/`: generated files are current, and names of metrics and options exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use kpx_node::access::{Selection, Subject, manifest};
use serde_json::Value;

use crate::support::{kpx, parse, root};

/// The values of the chart: the text in the kustomize base, and the name of the value.
const VALUES: &[(&str, &str)] = &[
    ("image: kpx:0.1.0", "image: {{ .Values.image }}"),
    ("--listen=0.0.0.0:10266", "--listen={{ .Values.listen }}"),
    (
        "--record-size=500MiB",
        "--record-size={{ .Values.recordSize }}",
    ),
    (
        "path: /var/lib/kpx/record",
        "path: {{ .Values.recordPath }}",
    ),
    ("memory: 64Mi", "memory: {{ .Values.memoryRequest }}"),
    ("memory: 512Mi", "memory: {{ .Values.memoryLimit }}"),
];

fn read(path: &str) -> String {
    let path = root().join("deploy/serve").join(path);
    fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

#[test]
fn the_chart_the_roles_and_the_rule_object_are_written_from_their_sources() {
    let subject = Subject::ServiceAccount {
        namespace: "kube-system".to_owned(),
        name: "kpx-serve".to_owned(),
    };
    let serve = Selection {
        command: Some("serve"),
        nodes: false,
    };
    let roles = manifest(serve, &subject);
    let mut daemonset = read("kustomize/daemonset.yaml");
    for (text, value) in VALUES {
        assert_eq!(daemonset.matches(text).count(), 1, "{text}");
        daemonset = daemonset.replace(text, value);
    }
    let alerts = read("prometheus/rules.yaml");
    let alerts = alerts.lines().map(|line| format!("  {line}\n"));
    let rule = format!(
        "apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: kpx\n  namespace: kube-system\nspec:\n{}",
        alerts.collect::<String>()
    );
    let account = read("kustomize/serviceaccount.yaml");
    #[expect(clippy::disallowed_methods, reason = "the one setting of this test")]
    let bless = std::env::var("KPX_BLESS").is_ok();
    for (path, text) in [
        ("kustomize/rbac.yaml", &roles),
        ("helm/templates/rbac.yaml", &roles),
        ("helm/templates/serviceaccount.yaml", &account),
        ("helm/templates/daemonset.yaml", &daemonset),
        ("prometheus/prometheusrule.yaml", &rule),
    ] {
        if bless {
            fs::write(root().join("deploy/serve").join(path), text).unwrap();
        }
        assert!(
            read(path) == *text,
            "deploy/serve/{path} is stale. Run `KPX_BLESS=1 cargo test --test suite deploy` and commit it."
        );
    }
}

#[test]
fn the_values_of_the_chart_give_the_kustomize_base() {
    let values: Value = serde_yaml::from_str(&read("helm/values.yaml")).unwrap();
    let mut rendered = read("helm/templates/daemonset.yaml");
    for (name, value) in values.as_object().unwrap() {
        let marker = format!("{{{{ .Values.{name} }}}}");
        assert!(rendered.contains(&marker), "nothing uses {name}");
        rendered = rendered.replace(&marker, value.as_str().unwrap());
    }
    assert!(!rendered.contains("{{"), "{rendered}");
    let parsed = |text: &str| serde_yaml::from_str::<Value>(text).unwrap();
    let base = read("kustomize/daemonset.yaml");
    assert_eq!(parsed(&rendered), parsed(&base));
    // Each resource of the base is a template of the chart.
    let base = parsed(&read("kustomize/kustomization.yaml"));
    let resources = base["resources"].as_array().unwrap();
    let resources: BTreeSet<_> = resources
        .iter()
        .map(|resource| resource.as_str().unwrap().to_owned())
        .collect();
    let templates = fs::read_dir(root().join("deploy/serve/helm/templates")).unwrap();
    let templates = templates.map(|template| template.unwrap().file_name().into_string().unwrap());
    assert_eq!(templates.collect::<BTreeSet<_>>(), resources);
}

/// `tests/dist` and the tests of the cluster build them with kubectl.
#[test]
fn every_kustomize_base_has_the_objects_of_its_folder() {
    let base = |folder: PathBuf| {
        let path = folder.join("kustomization.yaml");
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let base: Value = serde_yaml::from_str(&text).unwrap();
        assert_eq!(base["apiVersion"], "kustomize.config.k8s.io/v1beta1");
        assert_eq!(base["kind"], "Kustomization");
        let resources = base["resources"].as_array().unwrap().iter();
        let mut resources: Vec<_> = resources
            .map(|resource| resource.as_str().unwrap().to_owned())
            .collect();
        for name in &resources {
            let text = fs::read_to_string(folder.join(name)).unwrap();
            for object in text.split("---\n") {
                let object: Value = serde_yaml::from_str(object).unwrap();
                assert!(object["kind"].is_string(), "{name}: {object}");
            }
        }
        resources.push("kustomization.yaml".to_owned());
        let files = fs::read_dir(&folder).unwrap();
        let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let resources: BTreeSet<_> = resources.into_iter().collect();
        assert_eq!(files.collect::<BTreeSet<_>>(), resources);
    };
    base(root().join("deploy/serve/kustomize"));
    let bases = fs::read_dir(root().join("deploy/kustomize")).unwrap();
    let bases: Vec<_> = bases.map(|base| base.unwrap().path()).collect();
    assert_eq!(bases.len(), kpx_node::access::Level::ALL.len());
    bases.into_iter().for_each(base);
}

#[test]
fn the_command_lines_are_understood() {
    let pod: Value = serde_yaml::from_str(&read("kustomize/daemonset.yaml")).unwrap();
    let command = &pod["spec"]["template"]["spec"]["containers"][0]["command"];
    let plugin: Value = serde_json::from_str(&read("node-problem-detector/kpx.json")).unwrap();
    for words in [command, &plugin["rules"][0]["args"]] {
        let words = words.as_array().unwrap().iter();
        let words: Vec<_> = words.map(|word| word.as_str().unwrap()).collect();
        let words = match words.as_slice() {
            ["/kpx", rest @ ..] => rest,
            all => all,
        };
        let line = [&["kpx"], words].concat();
        parse(&line).unwrap_or_else(|why| panic!("{line:?}: {why}"));
    }
    assert_eq!(plugin["plugin"], "custom");
    assert_eq!(
        plugin["rules"][0]["condition"],
        plugin["conditions"][0]["type"]
    );
}

/// Alert rules are tested by promtool: see `make test-files`.
#[tokio::test]
async fn rules_and_dashboard_name_metrics_that_exist_and_every_alert_is_tested() {
    let page = kpx(&["man", "metrics"]).await.out;
    let known: BTreeSet<_> = names(&page).into_iter().collect();
    assert!(known.len() > 20, "{known:?}");
    for path in [
        "prometheus/rules.yaml",
        "prometheus/rules-test.yaml",
        "grafana/dashboard.json",
    ] {
        let named = names(&read(path));
        assert!(named.len() > 5, "{path}");
        for name in named {
            assert!(known.contains(&name), "{path}: {name}");
        }
    }
    let tests = read("prometheus/rules-test.yaml");
    for line in read("prometheus/rules.yaml").lines() {
        if let Some((_, alert)) = line.split_once("- alert: ") {
            let heads = format!("alertname: {alert}\n        exp_alerts:\n          - exp_labels");
            assert!(tests.contains(&heads), "no test expects {alert}");
        }
    }
    let board: Value = serde_json::from_str(&read("grafana/dashboard.json")).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len());
}

/// Returns the names of metrics in `text`.
fn names(text: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_part(c));
    let words = words.filter(|word| word.starts_with("kpx_"));
    words.map(str::to_owned).collect()
}

/// The output for node-problem-detector is one line of at most 80 characters, with the exit status that it wants.
#[tokio::test]
async fn the_plugin_of_node_problem_detector_prints_one_short_line() {
    let bundle = |name: &str| root().join("testdata/nodes").join(name);
    for (name, only, code, begin) in [
        ("seed-leftover-iptables-to-ipvs", "", 1, "MX01 "),
        ("seed-iptables", "MX01,IR01", 0, "no error found\n"),
        (
            "seed-iptables",
            "",
            3,
            "no error found, 12 checks unknown\n",
        ),
    ] {
        let path = bundle(name).to_str().unwrap().to_owned();
        let mut args = vec!["--from", &path, "--quiet", "doctor", "-o", "npd"];
        args.extend(["--only", only].iter().filter(|_| !only.is_empty()));
        let ran = kpx(&args).await;
        assert_eq!(ran.code, code, "{ran}");
        assert!(ran.out.starts_with(begin), "{ran}");
        assert_eq!(ran.out.lines().count(), 1, "{ran}");
        assert!(ran.out.chars().count() <= 80, "{ran}");
    }
}
