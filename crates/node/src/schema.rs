//! JSON schemas of values with a form of their own.

/// The schema of a type that is written as text.
#[macro_export]
macro_rules! text_schema {
    ($type:ty, $name:literal, $schema:tt) => {
        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}

text_schema!(crate::net::Family, "Family", {"enum": ["IPv4", "IPv6"]});
text_schema!(crate::net::Proto, "Proto", {
    "description": "A transport protocol: tcp, udp, sctp, icmp, ipv6-icmp, or its number.",
    "type": "string",
    "pattern": "^(tcp|udp|sctp|icmp|ipv6-icmp|[0-9]+)$"
});
text_schema!(crate::net::Cidr, "Cidr", {
    "description": "A prefix: address/length.",
    "type": "string",
    "pattern": "/[0-9]+$"
});
text_schema!(crate::backend::Mode, "Mode", {"enum": ["userspace", "iptables", "ipvs", "nftables"]});
text_schema!(crate::evidence::Item, "Item", {"description": "A file of a bundle.", "type": "string"});
text_schema!(crate::evidence::Time, "Time", {
    "description": "A time, RFC 3339 in UTC.",
    "type": "string",
    "format": "date-time"
});
text_schema!(crate::cluster::release::Goal, "Goal", {
    "description": "A release, 1.40, or a version of it, 1.37.2.",
    "type": "string",
    "pattern": "^1\\.[0-9]+(\\.[0-9]+)?$"
});
text_schema!(crate::cluster::version::Version, "Version", {
    "description": "A version: v1.36.2.",
    "type": "string",
    "pattern": "^v[0-9]+\\.[0-9]+\\.[0-9]+"
});
text_schema!(crate::owner::PortName, "PortName", {
    "description": "A Service port: NAMESPACE/NAME:PORT, without the last part if the port has no name.",
    "type": "string",
    "pattern": "^[^/]+/[^/]+$"
});
text_schema!(crate::backend::requirements::Condition, "Condition", {
    "description": "What a requirement depends on: before-RELEASE and since-RELEASE name a release of kube-proxy.",
    "type": "string",
    "pattern": "^(ipv4|ipv6|(before|since)-.+|linux-bridge|external-ips|source-ranges|session-affinity)$"
});
