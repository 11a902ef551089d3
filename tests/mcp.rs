//! `kpx mcp`, asked by the protocol's own client.

use rmcp::model::{
    CallToolRequestParams, CallToolResult, ContentBlock, ReadResourceRequestParams,
    ReadResourceResult,
};
use rmcp::service::RunningService;
use rmcp::transport::TokioChildProcess;
use rmcp::{RoleClient, ServiceExt as _};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::nodes::bundle_of;
use crate::schema;
use crate::support::root;

/// A client with the server that it has started.
struct Client(RunningService<RoleClient, ()>);

/// The answer of a tool.
#[derive(Debug)]
struct Answered {
    is_error: bool,
    report: Value,
    /// The texts behind the report, or the error.
    notes: Vec<String>,
}

impl Client {
    async fn start(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kpx"));
        command
            .args(args)
            .env("HOME", "/nonexistent")
            .env_remove("KUBECONFIG");
        let server = TokioChildProcess::new(command).unwrap();
        Self(().serve(server).await.unwrap())
    }

    async fn from(name: &str, more: &[&str]) -> Self {
        let path = root().join("testdata").join(name).display().to_string();
        Self::start(&[&["--from", &path, "mcp"], more].concat()).await
    }

    async fn call(&self, tool: &'static str, arguments: Value) -> Answered {
        let mut params = CallToolRequestParams::new(tool);
        params.arguments = arguments.as_object().cloned();
        let result: CallToolResult = self.0.call_tool(params).await.unwrap();
        let texts = result.content.iter().map(|block| match block {
            ContentBlock::Text(text) => text.text.clone(),
            other => panic!("{other:?}"),
        });
        let mut notes: Vec<String> = texts.collect();
        let is_error = result.is_error == Some(true);
        let report = result.structured_content.unwrap_or_default();
        if !is_error {
            // The text is the same document, and has the schema of its kind.
            let text = notes.remove(0);
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), report);
            schema::hold(&text);
        }
        Answered {
            is_error,
            report,
            notes,
        }
    }
}

/// Returns every string in `value`.
fn strings(value: &Value, all: &mut Vec<String>) {
    match value {
        Value::String(text) => all.push(text.clone()),
        Value::Array(list) => list.iter().for_each(|item| strings(item, all)),
        Value::Object(fields) => fields.values().for_each(|field| strings(field, all)),
        _ => {}
    }
}

/// Names and addresses of the recording `ir03-missing-rule` that must not leave the server.
const PRIVATE: &[&str] = &[
    "redis-master",
    "10.100.0.11",
    "node1",
    "nginx-svc",
    "10.0.2.15",
];

fn is_redacted(answered: &Answered) {
    let mut all = Vec::new();
    strings(&answered.report, &mut all);
    for name in PRIVATE {
        let leak = all.iter().find(|text| text.contains(name));
        assert_eq!(leak, None, "{name}");
    }
}

#[tokio::test]
async fn the_tools_only_read_and_have_schemas() {
    let client = Client::from("nodes/ir03-missing-rule", &[]).await;
    let info = client.0.peer_info().unwrap();
    assert_eq!(info.server_info.as_ref().unwrap().name, "kpx");
    let tools = client.0.list_all_tools().await.unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool.name.to_string()).collect();
    assert_eq!(
        names,
        [
            "open", "doctor", "why", "trace", "diff", "explain", "services"
        ]
    );
    let resources = client.0.list_all_resources().await.unwrap();
    for tool in &tools {
        let hints = tool.annotations.as_ref().unwrap();
        assert_eq!(hints.read_only_hint, Some(true), "{}", tool.name);
        assert_eq!(hints.destructive_hint, Some(false), "{}", tool.name);
        let kinds = tool.output_schema.as_ref().unwrap()["properties"]["kind"]["enum"].clone();
        for kind in kinds.as_array().unwrap() {
            let uri = format!("kpx://schema/{}", kind.as_str().unwrap());
            assert!(
                resources.iter().any(|resource| resource.uri == uri),
                "{uri}"
            );
        }
    }
    let wanted = ReadResourceRequestParams::new("kpx://schema/WhyReport");
    let read: ReadResourceResult = client.0.read_resource(wanted).await.unwrap();
    let text = serde_json::to_string(&read.contents).unwrap();
    assert!(text.contains("WhyReport"), "{text}");
    let none = client
        .0
        .call_tool(CallToolRequestParams::new("reconcile"))
        .await;
    assert!(
        none.unwrap_err()
            .to_string()
            .contains("kpx has no tool reconcile")
    );
}

#[tokio::test]
async fn a_question_is_answered_without_the_names_of_the_cluster() {
    let client = Client::from("nodes/ir03-missing-rule", &[]).await;
    let doctor = client.call("doctor", json!({})).await;
    is_redacted(&doctor);
    let finding = &doctor.report["findings"][0];
    assert_eq!(finding["id"], "IR03", "{doctor:?}");
    // By the original name, with the note which one it is.
    let why = client
        .call("why", json!({ "target": "default/redis-master" }))
        .await;
    is_redacted(&why);
    assert_eq!(why.report["fate"], "lost", "{why:?}");
    let (_, service) = why.notes[0].split_once("default/redis-master is ").unwrap();
    let service = service.trim_end_matches(" here.").to_owned();
    // By the name of an answer, and by the original address.
    for target in [service.as_str(), "10.100.0.11:6379"] {
        let again = client.call("why", json!({ "target": target })).await;
        is_redacted(&again);
        assert_eq!(again.report["sentence"], why.report["sentence"], "{target}");
    }
    let diff = client.call("diff", json!({})).await;
    is_redacted(&diff);
    assert!(
        diff.report.to_string().contains(&service),
        "{service} {diff:?}"
    );
    let trace = client
        .call("trace", json!({ "target": service, "source": "host" }))
        .await;
    is_redacted(&trace);
    assert_eq!(trace.report["kind"], "TraceReport");
    let services = client.call("services", json!({})).await;
    is_redacted(&services);
    assert!(
        services.report.to_string().contains(&service),
        "{services:?}"
    );
    let opened = client.call("open", json!({})).await;
    is_redacted(&opened);
    assert_eq!(opened.report["redacted"], true, "{opened:?}");
    let check = client.call("explain", json!({ "id": "IR03" })).await;
    assert_eq!(check.report["kind"], "Explanation");
}

#[tokio::test]
async fn without_redaction_an_answer_is_that_of_the_command() {
    let client = Client::from("nodes/ir03-missing-rule", &["--no-redact"]).await;
    let answered = client
        .call("why", json!({ "target": "default/redis-master" }))
        .await;
    let ran = crate::support::kpx_on(
        "ir03-missing-rule",
        &["why", "default/redis-master", "-o", "json"],
    )
    .await;
    let printed: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(answered.report, printed);
    assert!(answered.notes.is_empty(), "{answered:?}");
}

#[tokio::test]
async fn a_dump_is_opened_and_left_again() {
    let client = Client::from("nodes/ir03-missing-rule", &["--no-redact"]).await;
    let paste = root().join("testdata/pastes/91-mixed-ipvs.txt");
    let text = std::fs::read_to_string(&paste).unwrap();
    for arguments in [
        json!({ "path": paste.display().to_string() }),
        json!({ "text": text }),
    ] {
        let opened = client.call("open", arguments).await;
        assert_eq!(opened.report["kind"], "NodeReports", "{opened:?}");
        let mut words = Vec::new();
        strings(&opened.report, &mut words);
        let mut paths = words.iter().filter(|word| word.ends_with(".tar.gz"));
        assert!(
            paths.all(|path| std::path::Path::new(path).is_file()),
            "{opened:?}"
        );
        let missing = client
            .call("trace", json!({ "target": "10.106.71.137:80" }))
            .await;
        assert!(
            missing.is_error && missing.notes[0].contains("several nodes"),
            "{missing:?}"
        );
        let trace = client
            .call(
                "trace",
                json!({ "target": "10.106.71.137:80", "node": "master1" }),
            )
            .await;
        assert!(
            trace.report.to_string().contains("10.244.3.214"),
            "{trace:?}"
        );
    }
    client.call("open", json!({})).await;
    let diff = client.call("diff", json!({})).await;
    assert!(diff.report.to_string().contains("redis-master"), "{diff:?}");
}

#[tokio::test]
async fn errors_say_what_failed_and_what_to_do() {
    let client = Client::from("nodes/ir03-missing-rule", &[]).await;
    for (tool, arguments, said) in [
        ("open", json!({ "path": "/nonexistent" }), "cannot open"),
        (
            "open",
            json!({ "text": "nothing that kpx knows" }),
            "no output of a command that kpx knows",
        ),
        ("why", json!({}), "`why` needs `target`"),
        ("services", json!({ "name": "shop/nosuch" }), "shop/nosuch"),
        (
            "trace",
            json!({ "target": "x", "probe": true }),
            "has no argument `probe`",
        ),
        (
            "diff",
            json!({ "mode": "ebpf" }),
            "`mode` is not one of iptables, ipvs, nftables",
        ),
        ("doctor", json!({ "checks": ["ZZ99"] }), "ZZ99"),
        (
            "doctor",
            json!({ "all_nodes": true }),
            "the dump is of one node",
        ),
    ] {
        let answered = client.call(tool, arguments.clone()).await;
        assert!(answered.is_error, "{tool} {arguments} {answered:?}");
        let text = &answered.notes[0];
        assert!(
            text.starts_with("kpx: ") && text.contains(said),
            "{tool} {arguments}: {text}"
        );
    }
    // The dump of before is still open.
    let diff = client.call("diff", json!({})).await;
    assert_eq!(diff.report["kind"], "DiffReport", "{diff:?}");
}

#[tokio::test]
async fn several_nodes_are_answered_for_one_by_one_or_together() {
    let nodes = [
        ("node1", Ok("ir03-missing-rule")),
        ("node2", Ok("seed-iptables")),
    ];
    let (_folder, path) = bundle_of(".tar.gz", &nodes);
    let client = Client::start(&["--from", path.to_str().unwrap(), "mcp", "--no-redact"]).await;
    let one = client
        .call("doctor", json!({ "node": "node1", "checks": ["IR03"] }))
        .await;
    assert_eq!(one.report["findings"][0]["id"], "IR03", "{one:?}");
    let all = client
        .call("doctor", json!({ "all_nodes": true, "checks": ["IR03"] }))
        .await;
    assert_eq!(all.report["nodes"].as_array().unwrap().len(), 2, "{all:?}");
    let redacted = Client::start(&["--from", path.to_str().unwrap(), "mcp"]).await;
    let one = redacted
        .call("doctor", json!({ "node": "node1", "checks": ["IR03"] }))
        .await;
    assert_eq!(one.report["findings"][0]["id"], "IR03", "{one:?}");
    is_redacted(&one);
}

#[tokio::test]
async fn a_long_answer_is_cut_and_says_so() {
    let nodes = [
        ("node1", Ok("ir03-missing-rule")),
        ("node2", Ok("seed-iptables")),
        ("node3", Ok("seed-ipvs")),
    ];
    let (_folder, path) = bundle_of(".tar.gz", &nodes);
    let client = Client::start(&["--from", path.to_str().unwrap(), "mcp", "--no-redact"]).await;
    let doctor = client.call("doctor", json!({ "all_nodes": true })).await;
    let text = doctor.report.to_string();
    let size = text.len() + Value::String(text).to_string().len();
    assert!(size <= 64 << 10, "{size}");
    assert!(
        doctor.notes[0].starts_with("The answer is cut: "),
        "{:?}",
        doctor.notes
    );
}

#[tokio::test]
async fn a_bundle_on_standard_input_is_refused() {
    let ran = crate::support::kpx(&["--from", "-", "mcp"]).await;
    assert_eq!(ran.code, 2, "{ran}");
    assert!(
        ran.err.contains("standard input has the questions"),
        "{ran}"
    );
}
