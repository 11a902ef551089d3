//! Schemas of values with a form of their own: texts, and evidence of findings.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

/// The schema of a type that is written as text.
macro_rules! text {
    ($type:ty, $name:literal, $schema:tt) => {
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

text!(crate::net::Family, "Family", {"enum": ["IPv4", "IPv6"]});
text!(crate::net::Proto, "Proto", {
    "description": "A transport protocol: tcp, udp, sctp, icmp, ipv6-icmp, or its number.",
    "type": "string",
    "pattern": "^(tcp|udp|sctp|icmp|ipv6-icmp|[0-9]+)$"
});
text!(crate::net::Cidr, "Cidr", {
    "description": "A prefix: address/length.",
    "type": "string",
    "pattern": "/[0-9]+$"
});
text!(crate::backend::Mode, "Mode", {"enum": ["userspace", "iptables", "ipvs", "nftables"]});
text!(crate::evidence::Item, "Item", {"description": "A file of a bundle.", "type": "string"});
text!(crate::evidence::Time, "Time", {
    "description": "A time, RFC 3339 in UTC.",
    "type": "string",
    "format": "date-time"
});
text!(crate::cluster::release::Goal, "Goal", {
    "description": "A release, 1.40, or a version of it, 1.37.2.",
    "type": "string",
    "pattern": "^1\\.[0-9]+(\\.[0-9]+)?$"
});
text!(crate::cluster::version::Version, "Version", {
    "description": "A version: v1.36.2.",
    "type": "string",
    "pattern": "^v[0-9]+\\.[0-9]+\\.[0-9]+"
});
text!(crate::owner::PortName, "PortName", {
    "description": "A Service port: NAMESPACE/NAME:PORT, without the last part if the port has no name.",
    "type": "string",
    "pattern": "^[^/]+/[^/]+$"
});
text!(crate::verdict::Kind, "Kind", {
    "enum": ["cluster-ip", "external-ip", "load-balancer-ip", "node-port", "endpoint"]
});
text!(crate::backend::requirements::Condition, "Condition", {
    "description": "What a requirement depends on: before-RELEASE and since-RELEASE name a release of kube-proxy.",
    "type": "string",
    "pattern": "^(ipv4|ipv6|(before|since)-.+|linux-bridge|external-ips|source-ranges|session-affinity)$"
});
text!(crate::report::probe::ProbeEnd, "ProbeEnd", {
    "description": "How a real connection went: answered, refused, no answer, or why the destination is unreachable.",
    "type": "string"
});
text!(crate::report::nodes::names::Nodes, "Nodes", {
    "description": "Names of nodes.",
    "type": "array",
    "items": {"type": "string"}
});
text!(crate::check::Fix, "Fix", {
    "description": "How to fix a finding.",
    "type": "object",
    "properties": {
        "text": {"description": "As sentences.", "type": "string"},
        "command": {"description": "As a command, where one is safe.", "type": "string"}
    },
    "required": ["text"]
});
text!(crate::check::Proof, "Proof", {
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
