//! JSON Schemas of the reports, made from their types: the files in `docs/schema/`.

mod texts;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema, json_schema};
use serde_json::{Map, Value, json};

use super::history::{ChangeEvent, HistoryReport};
use super::nodes::NodesReport;
use super::nodes::plan::PlanOfNodes;
use super::packets::PacketsReport;
use super::plan::PlanReport;
use super::program::ProgramReport;
use crate::command::access::report::AccessReport;
use crate::command::diff::report::DiffReport;
use crate::command::diff::report::nodes::DiffOfNodes;
use crate::command::doctor::report::DoctorReport;
use crate::command::doctor::report::nodes::DoctorOfNodes;
use crate::command::explain::report::{CheckList, Document, Explanation};
use crate::command::migrate::report::{FleetEventLine, FleetReport, MigrateReport, StatusReport};
use crate::command::preflight::report::PreflightReport;
use crate::command::preflight::report::nodes::PreflightOfNodes;
use crate::command::resolve::report::ResolveReport;
use crate::command::resolve::report::nodes::ResolveOfNodes;
use crate::command::show::report::ShowReport;
use crate::command::show::report::nodes::ShowOfNodes;
use crate::command::snapshot::report::SnapshotReport;
use crate::command::snapshot::report::nodes::SnapshotOfNodes;
use crate::command::top::report::TopReport;
use crate::command::trace::report::TraceReport;
use crate::command::trace::report::nodes::TraceOfNodes;
use crate::command::version::report::VersionReport;
use crate::command::why::report::WhyReport;
use crate::command::why::report::nodes::WhyOfNodes;
use crate::render::{Origin, Report};
use kpx_migrate::wire::{EventLine, Line};

/// The folder of the schemas.
const FOLDER: &str = "docs/schema";

/// The schemas, by `kind`.
type Schemas = BTreeMap<&'static str, Value>;

fn generator() -> SchemaGenerator {
    SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator()
}

/// Returns the schema of whose state a document is about.
fn origin() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let generator = settings.for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<Origin>().to_value();
    if let Some(object) = schema.as_object_mut() {
        object.remove("title");
    }
    schema
}

/// Adds the schema of a document: `root` in the envelope of `kind`.
fn add(schemas: &mut Schemas, kind: &'static str, root: Schema) {
    let mut root = root.to_value();
    let object = root.as_object_mut().unwrap();
    let mut fields = json!({
        "apiVersion": {"const": "kpx/v1"},
        "kind": {"const": kind},
        "kpx": {"description": "The version of kpx that wrote the document.", "type": "string"},
        "origin": origin(),
    });
    let mut required = json!(["apiVersion", "kind", "kpx"]);
    if let Some(own) = object.get_mut("properties").and_then(Value::as_object_mut) {
        fields.as_object_mut().unwrap().append(own);
    }
    if let Some(own) = object.get_mut("required").and_then(Value::as_array_mut) {
        required.as_array_mut().unwrap().append(own);
    }
    object.insert("title".to_owned(), json!(kind));
    object.insert("properties".to_owned(), fields);
    object.insert("required".to_owned(), required);
    let first = [
        "$schema",
        "title",
        "description",
        "type",
        "properties",
        "required",
    ];
    let mut ordered = Map::new();
    for key in first {
        ordered.extend(object.shift_remove_entry(key));
    }
    ordered.append(object);
    let ordered = Value::from(ordered);
    distinct(kind, &ordered);
    let twice = schemas.insert(kind, ordered);
    assert!(twice.is_none(), "{kind} has two schemas");
}

/// Fails if a field of a form (`oneOf`) has the name of a field that all forms have: JSON would have the key twice.
fn distinct(kind: &str, schema: &Value) {
    if let (Some(common), Some(forms)) =
        (schema["properties"].as_object(), schema["oneOf"].as_array())
    {
        let fields = forms
            .iter()
            .filter_map(|form| form["properties"].as_object());
        for name in fields.flat_map(Map::keys) {
            assert!(!common.contains_key(name), "{kind}: two fields {name:?}");
        }
    }
    let inner: Vec<&Value> = match schema {
        Value::Object(object) => object.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => Vec::new(),
    };
    for value in inner {
        distinct(kind, value);
    }
}

/// Adds the schema of `T`, whose `kind` is `kind`.
fn of<T: JsonSchema>(schemas: &mut Schemas, kind: &'static str) {
    add(schemas, kind, generator().into_root_schema_for::<T>());
}

/// Adds the schema of a report.
fn report<R: Report + JsonSchema>(schemas: &mut Schemas) {
    of::<R>(schemas, R::KIND);
}

/// Adds the schemas of the reports of several nodes.
fn several(schemas: &mut Schemas) {
    let mut generator = generator();
    let parts = [
        generator.subschema_for::<NodesReport<DoctorOfNodes>>(),
        generator.subschema_for::<NodesReport<ShowOfNodes>>(),
        generator.subschema_for::<NodesReport<TraceOfNodes>>(),
        generator.subschema_for::<NodesReport<WhyOfNodes>>(),
        generator.subschema_for::<NodesReport<DiffOfNodes>>(),
        generator.subschema_for::<NodesReport<PlanOfNodes>>(),
        generator.subschema_for::<NodesReport<PreflightOfNodes>>(),
        generator.subschema_for::<NodesReport<ResolveOfNodes>>(),
        generator.subschema_for::<NodesReport<SnapshotOfNodes>>(),
    ];
    let each = json_schema!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "description": "The reports of several nodes, one after the other, and what they have in common.",
        "type": "object",
        "properties": {
            "nodes": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "node": {"description": "The name of the node.", "type": "string"},
                        "report": {
                            "description": "The report of the node, whose schema is the one of its `kind`.",
                            "type": "object",
                            "properties": {
                                "apiVersion": {"const": "kpx/v1"},
                                "kind": {"type": "string"},
                                "kpx": {"type": "string"},
                            },
                            "required": ["apiVersion", "kind", "kpx"],
                            "additionalProperties": true,
                        },
                        "error": {"description": "Why the node was not read.", "type": "string"},
                    },
                    "required": ["node"],
                    "oneOf": [{"required": ["report"]}, {"required": ["error"]}],
                },
            },
            "summary": {"anyOf": parts},
        },
        "required": ["nodes", "summary"],
        "$defs": generator.definitions(),
    });
    add(schemas, "NodeReports", each);
}

fn all() -> Schemas {
    let mut schemas = Schemas::new();
    let all = &mut schemas;
    report::<AccessReport>(all);
    report::<CheckList>(all);
    report::<DiffReport>(all);
    report::<DoctorReport>(all);
    report::<VersionReport>(all);
    report::<Document>(all);
    report::<Explanation>(all);
    report::<FleetReport>(all);
    report::<HistoryReport>(all);
    report::<MigrateReport>(all);
    report::<PacketsReport>(all);
    report::<PlanReport>(all);
    report::<PreflightReport>(all);
    report::<ProgramReport>(all);
    report::<ResolveReport>(all);
    report::<ShowReport>(all);
    report::<SnapshotReport>(all);
    report::<StatusReport>(all);
    report::<TopReport>(all);
    report::<TraceReport>(all);
    report::<WhyReport>(all);
    of::<ChangeEvent<'_>>(all, ChangeEvent::KIND);
    of::<FleetEventLine<'_>>(all, FleetEventLine::KIND);
    of::<EventLine>(all, Line::EVENT);
    several(all);
    schemas
}

#[test]
fn generated_schemas_are_current() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    #[expect(clippy::disallowed_methods, reason = "the one setting of this test")]
    let bless = std::env::var("KPX_BLESS").is_ok();
    let texts: BTreeMap<String, String> = all()
        .iter()
        .map(|(kind, schema)| {
            let text = serde_json::to_string_pretty(schema).unwrap();
            (format!("{kind}.json"), text + "\n")
        })
        .collect();
    if bless {
        fs::create_dir_all(&folder).unwrap();
        for entry in fs::read_dir(&folder).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for (name, text) in &texts {
            fs::write(folder.join(name), text).unwrap();
        }
    }
    let remedy = "Run `KPX_BLESS=1 cargo test --lib generated` and commit docs/schema";
    let names = fs::read_dir(&folder).unwrap();
    for name in names.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        assert!(texts.contains_key(&name), "{name} has no report. {remedy}");
    }
    for (name, text) in &texts {
        let have = fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(have == *text, "{name} is stale. {remedy}");
    }
}
