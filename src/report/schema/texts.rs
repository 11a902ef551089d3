//! Schemas of values with a form of their own.

use kpx_node::text_schema;

text_schema!(crate::report::probe::ProbeEnd, "ProbeEnd", {
    "description": "How a real connection went: answered, refused, no answer, or why the destination is unreachable.",
    "type": "string"
});
text_schema!(crate::report::nodes::names::Nodes, "Nodes", {
    "description": "Names of nodes.",
    "type": "array",
    "items": {"type": "string"}
});
