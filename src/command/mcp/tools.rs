//! The tools: each is a command of kpx that only reads, with some of its options.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use kpx_judge::redact::Named;

/// A tool.
pub(super) struct Spec {
    pub(super) name: &'static str,
    title: &'static str,
    about: &'static str,
    /// The words of the command that answers; none for `open`.
    pub(super) command: &'static [&'static str],
    /// Whether the answer is about a node.
    pub(super) reads: bool,
    pub(super) parameters: &'static [Parameter],
    /// The kinds of reports that it answers with.
    pub(super) kinds: &'static [&'static str],
}

/// A parameter of a tool.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    about: &'static str,
    shape: Shape,
    place: Place,
    is_required: bool,
    /// The kind of its value, if redaction replaces it.
    pub(super) named: Option<Named>,
}

/// The values of a parameter.
#[derive(Clone, Copy)]
enum Shape {
    Text,
    Switch,
    Words,
    OneOf(&'static [&'static str]),
}

/// The place of a parameter on the command line.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Place {
    Option(&'static str),
    /// Behind all options.
    Last,
    /// The server uses it.
    Server,
}

const fn text(name: &'static str, about: &'static str, place: Place) -> Parameter {
    Parameter {
        name,
        about,
        shape: Shape::Text,
        place,
        is_required: false,
        named: None,
    }
}

pub(super) const NODE: &str = "node";
pub(super) const ALL_NODES: &str = "all_nodes";
pub(super) const PATH: &str = "path";
pub(super) const TEXT: &str = "text";

const MODES: Shape = Shape::OneOf(&["iptables", "ipvs", "nftables"]);

const ONE_NODE: Parameter = Parameter {
    named: Some(Named::Node),
    ..text(
        NODE,
        "The name of a node: of the dump, or of the live cluster. Without it, the only node of the dump, or the node that the \
         server was started for.",
        Place::Server,
    )
};

const EVERY_NODE: Parameter = Parameter {
    shape: Shape::Switch,
    ..text(ALL_NODES, "Answer for every node.", Place::Server)
};

const TARGET: Parameter = Parameter {
    is_required: true,
    named: Some(Named::Target),
    ..text(
        "target",
        "A Service (NAMESPACE/NAME or NAMESPACE/NAME:PORT), an address (IP:PORT), or nodeport:N.",
        Place::Last,
    )
};

const SOURCE: Parameter = Parameter {
    named: Some(Named::Client),
    ..text(
        "source",
        "The client: an address, NAMESPACE/POD, host, or outside. Without it, every kind of client.",
        Place::Option("--source"),
    )
};

const MODE: Parameter = Parameter {
    shape: MODES,
    ..text(
        "mode",
        "The mode whose rules are expected, in place of the configured one.",
        Place::Option("--mode"),
    )
};

pub(super) const OPEN: &str = "open";

/// The tools, in the order of the list.
pub(super) const TOOLS: &[Spec] = &[
    Spec {
        name: OPEN,
        title: "Open a dump",
        about: "Opens a dump for the questions that follow: a bundle of kpx, a support bundle of another tool, or pasted outputs \
                of commands (iptables, ipvsadm, nft, ip, kubectl and others). Answers with what was read and what is missing. \
                Without `path` and `text`, it returns to the node or the dump that the server was started for, and reads the node again.",
        command: &[],
        reads: true,
        parameters: &[
            text(
                PATH,
                "The path of a file or folder on the machine of the server.",
                Place::Server,
            ),
            text(TEXT, "The pasted text itself.", Place::Server),
        ],
        kinds: &["SnapshotReport", "NodeReports"],
    },
    Spec {
        name: "doctor",
        title: "Find problems of a node",
        about: "Runs the checks and answers with the verdict on all Services and the findings, worst first, each with its \
                evidence and its fix. Begin with it, unless one Service is asked about.",
        command: &["doctor"],
        reads: true,
        parameters: &[
            Parameter {
                shape: Shape::Words,
                ..text(
                    "checks",
                    "Only these checks: ids, names or groups.",
                    Place::Option("--only"),
                )
            },
            Parameter {
                shape: MODES,
                ..text(
                    "to",
                    "Add what blocks a switch of kube-proxy to this mode.",
                    Place::Option("--to"),
                )
            },
            text(
                "release",
                "Report what an upgrade of kube-proxy to this release changes: 1.40.",
                Place::Option("--release"),
            ),
            ONE_NODE,
            EVERY_NODE,
        ],
        kinds: &["DoctorReport", "NodeReports"],
    },
    Spec {
        name: "why",
        title: "Explain why a Service fails",
        about: "Follows connections from each kind of client to each address of a Service and back, and answers with what happens \
                to them (works, refused, lost, misled, partly, unknown), the cause with its owner, and the fix.",
        command: &["why"],
        reads: true,
        parameters: &[TARGET, SOURCE, ONE_NODE, EVERY_NODE],
        kinds: &["WhyReport", "NodeReports"],
    },
    Spec {
        name: "trace",
        title: "Trace a packet",
        about: "Follows the first packet of a connection through every hook and rule, and answers with its path and where it ends.",
        command: &["trace"],
        reads: true,
        parameters: &[
            TARGET,
            SOURCE,
            Parameter {
                shape: Shape::OneOf(&["tcp", "udp", "sctp", "icmp"]),
                ..text(
                    "protocol",
                    "The protocol of the packet.",
                    Place::Option("--protocol"),
                )
            },
            Parameter {
                shape: MODES,
                ..text(
                    "mode",
                    "Trace the rules that kube-proxy would program in this mode, not the live rules.",
                    Place::Option("--mode"),
                )
            },
            ONE_NODE,
            EVERY_NODE,
        ],
        kinds: &["TraceReport", "NodeReports"],
    },
    Spec {
        name: "diff",
        title: "Compare rules with Services",
        about: "Compares the live rules, sets, virtual servers, addresses and settings with what kube-proxy would program for the \
                cluster's Services, and answers with what is missing, extra or different.",
        command: &["diff"],
        reads: true,
        parameters: &[
            MODE,
            Parameter {
                shape: Shape::Switch,
                ..text(
                    "packets",
                    "Compare what happens to every packet, instead of rules.",
                    Place::Option("--packets"),
                )
            },
            ONE_NODE,
            EVERY_NODE,
        ],
        kinds: &["DiffReport", "PacketsReport", "NodeReports"],
    },
    Spec {
        name: "explain",
        title: "Explain a check",
        about: "Explains a check (symptom, mechanism, verification, fix), or answers with a page: modes, schedulers, affinity, \
                chains, pastes, providers, or the short name of a provider. Without `id`, it lists all checks.",
        command: &["explain"],
        reads: false,
        parameters: &[text(
            "id",
            "The id of a check, such as IR03, or the name of a page.",
            Place::Last,
        )],
        kinds: &["CheckList", "Explanation", "Document"],
    },
    Spec {
        name: "services",
        title: "List Services",
        about: "Lists the Services and how the node handles each or, with `name`, all about one: objects, endpoints, rules, \
                connections, drift.",
        command: &["show", "services"],
        reads: true,
        parameters: &[
            Parameter {
                named: Some(Named::Target),
                ..text("name", "One Service: NAMESPACE/NAME.", Place::Last)
            },
            ONE_NODE,
            EVERY_NODE,
        ],
        kinds: &["ShowReport", "NodeReports"],
    },
];

/// The URI of the schema of `kind`.
pub(super) fn uri(kind: &str) -> String {
    format!("kpx://schema/{kind}")
}

impl Spec {
    /// Returns the tool as the protocol describes it.
    pub(super) fn tool(&self) -> Tool {
        let properties: serde_json::Map<String, Value> = self
            .parameters
            .iter()
            .map(|parameter| (parameter.name.to_owned(), parameter.schema()))
            .collect();
        let required = self
            .parameters
            .iter()
            .filter(|parameter| parameter.is_required);
        let input = json!({
            "type": "object",
            "properties": properties,
            "required": required.map(|required| required.name).collect::<Vec<_>>(),
            "additionalProperties": false,
        });
        let schemas: Vec<_> = self.kinds.iter().map(|kind| uri(kind)).collect();
        let output = json!({
            "type": "object",
            "description": format!("A report of kpx, as -o json prints it. Its schema is the resource {}.", schemas.join(" or ")),
            "properties": { "apiVersion": { "const": "kpx/v1" }, "kind": { "enum": self.kinds } },
            "required": ["apiVersion", "kind"],
        });
        Tool::new(self.name, self.about, object(input))
            .with_title(self.title)
            .with_raw_output_schema(object(output))
            .with_annotations(
                ToolAnnotations::with_title(self.title)
                    .read_only(true)
                    .destructive(false)
                    .idempotent(true)
                    // Everything is about one node or cluster.
                    .open_world(false),
            )
    }
}

fn object(value: Value) -> Arc<JsonObject> {
    match value {
        Value::Object(object) => Arc::new(object),
        _ => Arc::default(),
    }
}

impl Parameter {
    fn schema(&self) -> Value {
        let mut schema = match self.shape {
            Shape::Text => json!({ "type": "string" }),
            Shape::Switch => json!({ "type": "boolean" }),
            Shape::Words => json!({ "type": "array", "items": { "type": "string" } }),
            Shape::OneOf(words) => json!({ "type": "string", "enum": words }),
        };
        schema["description"] = self.about.into();
        schema
    }

    /// Returns `value` as on the command line; `None` for a switch that is off. The error names the expected form.
    fn word(&self, value: &Value) -> Result<Option<String>, String> {
        let name = self.name;
        let word = match (self.shape, value) {
            (Shape::Switch, Value::Bool(is_on)) => return Ok(is_on.then(String::new)),
            (Shape::Switch, _) => return Err(format!("`{name}` is not true or false")),
            (Shape::Words, Value::Array(words)) => {
                let words: Option<Vec<_>> = words.iter().map(Value::as_str).collect();
                let words = words.ok_or_else(|| format!("`{name}` is not a list of strings"))?;
                words.join(",")
            }
            (Shape::Words, _) => return Err(format!("`{name}` is not a list of strings")),
            (Shape::Text, Value::String(word)) => word.clone(),
            (Shape::OneOf(words), Value::String(word)) if words.contains(&word.as_str()) => {
                word.clone()
            }
            (Shape::OneOf(words), _) => {
                return Err(format!("`{name}` is not one of {}", words.join(", ")));
            }
            (Shape::Text, _) => return Err(format!("`{name}` is not a string")),
        };
        if word.is_empty() || word.contains('\0') {
            return Err(format!("`{name}` is empty, or has a null character"));
        }
        Ok(Some(word))
    }
}

/// The arguments of a call.
#[derive(Default)]
pub(super) struct Call {
    values: Vec<(&'static Parameter, String)>,
}

impl Call {
    /// Reads the arguments of a call of `tool`. The error names the wrong one and its expected form.
    pub(super) fn of(tool: &'static Spec, given: &JsonObject) -> Result<Self, String> {
        let mut values = Vec::new();
        for (name, value) in given {
            let of = tool
                .parameters
                .iter()
                .find(|parameter| parameter.name == name);
            let of = of.ok_or_else(|| {
                let names: Vec<_> = tool
                    .parameters
                    .iter()
                    .map(|parameter| parameter.name)
                    .collect();
                let tool = tool.name;
                format!(
                    "`{tool}` has no argument `{name}`: it has {}",
                    names.join(", ")
                )
            })?;
            if let Some(word) = of.word(value)? {
                values.push((of, word));
            }
        }
        let mut required = tool
            .parameters
            .iter()
            .filter(|parameter| parameter.is_required);
        match required.find(|required| values.iter().all(|(given, _)| given.name != required.name))
        {
            None => Ok(Self { values }),
            Some(missing) => Err(format!("`{}` needs `{}`", tool.name, missing.name)),
        }
    }

    /// Returns the value of the parameter `name`.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        let mut values = self.values.iter();
        values.find_map(|(of, word)| (of.name == name).then_some(word.as_str()))
    }

    /// Replaces each value that names something by what `rename` returns.
    pub(super) fn rename(
        &mut self,
        mut rename: impl FnMut(&str, Named) -> Result<String, String>,
    ) -> Result<(), String> {
        for (of, word) in &mut self.values {
            if let Some(named) = of.named.filter(|named| *named != Named::Node) {
                *word = rename(word, named)?;
            }
        }
        Ok(())
    }

    /// Returns the options and arguments of the command.
    pub(super) fn words(&self) -> (Vec<String>, Vec<String>) {
        let options = self.values.iter().filter_map(|(of, word)| match of.place {
            Place::Option(option) if word.is_empty() => Some(option.to_owned()),
            Place::Option(option) => Some(format!("{option}={word}")),
            _ => None,
        });
        let last = self.values.iter().filter(|(of, _)| of.place == Place::Last);
        let last: Vec<String> = last.map(|(_, word)| word.clone()).collect();
        (options.collect(), last)
    }
}

#[cfg(test)]
mod tests {
    use super::super::schemas;
    use super::*;
    use crate::cli::parser::Cli;

    #[test]
    fn every_tool_is_a_command_that_kpx_understands_and_answers_with_known_schemas() {
        for tool in TOOLS {
            for kind in tool.kinds {
                assert!(schemas::named(kind).is_some(), "{kind}");
            }
            if tool.name == OPEN {
                continue;
            }
            for of in tool.parameters {
                let value = match of.shape {
                    Shape::Switch => json!(true),
                    Shape::Words => json!(["IR03"]),
                    Shape::OneOf(words) => json!(words[0]),
                    Shape::Text if of.name == "release" => json!("1.40"),
                    Shape::Text => json!("IR03"),
                };
                let mut given = JsonObject::new();
                given.insert(of.name.to_owned(), value);
                if tool
                    .parameters
                    .iter()
                    .any(|parameter| parameter.is_required)
                {
                    given.insert("target".to_owned(), json!("a/b"));
                }
                let (options, last) = Call::of(tool, &given).unwrap().words();
                let words = ["kpx".to_owned()].into_iter();
                let words = words.chain(tool.command.iter().map(|word| (*word).to_owned()));
                let words = words.chain(options).chain(["--".to_owned()]).chain(last);
                let words: Vec<std::ffi::OsString> = words.map(Into::into).collect();
                Cli::parse_from_words(&words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
            }
        }
    }

    #[test]
    fn a_wrong_argument_is_named() {
        let why = TOOLS.iter().find(|tool| tool.name == "why").unwrap();
        let error = |given: Value| {
            let Value::Object(given) = given else {
                unreachable!("an object")
            };
            Call::of(why, &given).err().unwrap()
        };
        assert_eq!(error(json!({})), "`why` needs `target`");
        assert_eq!(error(json!({ "target": 1 })), "`target` is not a string");
        assert_eq!(
            error(json!({ "from": "/etc" })),
            "`why` has no argument `from`: it has target, source, node, all_nodes"
        );
    }
}
