//! JSON schemas of values with a form of their own: evidence of findings among them.

use kpx_node::text_schema;

text_schema!(crate::verdict::Kind, "Kind", {
    "enum": ["cluster-ip", "external-ip", "load-balancer-ip", "node-port", "endpoint"]
});
text_schema!(crate::check::Fix, "Fix", {
    "description": "How to fix a finding.",
    "type": "object",
    "properties": {
        "text": {"description": "As sentences.", "type": "string"},
        "command": {"description": "As a command, where one is safe.", "type": "string"},
        "kind": {"description": "fix if the command changes something, look if it only shows more.", "enum": ["fix", "look"]},
        "machine": {"description": "The machine to run the command on, if it is another one.", "type": "string"}
    },
    "required": ["text"]
});
text_schema!(crate::check::Proof, "Proof", {
    "description": "One fact that shows a finding: a text for people, and its parts, which depend on `kind`.",
    "type": "object",
    "properties": {
        "kind": {
            "description": "chain, rule, address, link, sysctl, module, setting, difference, socket, connection, log, note, or the kind of an object.",
            "type": "string"
        },
        "text": {"description": "The fact in words.", "type": "string"}
    },
    "required": ["kind", "text"],
    "additionalProperties": {"type": "string"}
});
