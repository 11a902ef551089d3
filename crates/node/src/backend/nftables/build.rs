//! Expressions and statements from parts, in the form `nft -j` lists.

use std::net::{IpAddr, SocketAddr};

use super::model::{Datum, Expr, NatKind, Statement, Verdict};
use crate::desired::Detector;
use crate::net::{Cidr, Family, Proto};

pub(crate) fn word(text: &str) -> Expr {
    Expr::Word(text.to_owned())
}

/// `PORT`.
pub fn number(port: u16) -> Expr {
    Expr::Number(u64::from(port))
}

/// `ADDRESS`.
pub fn address(addr: IpAddr) -> Expr {
    Expr::Word(addr.to_string())
}

/// `ADDRESS . PORT`.
pub fn socket(addr: SocketAddr) -> Expr {
    Expr::Concat(vec![address(addr.ip()), number(addr.port())])
}

/// The name of a protocol.
pub fn protocol(proto: Proto) -> Expr {
    Expr::Word(proto.to_string())
}

/// `ADDRESS/LENGTH`, or the address of a host.
pub fn prefix(cidr: Cidr) -> Expr {
    if cidr.is_host() {
        address(cidr.addr)
    } else {
        Expr::Prefix {
            addr: Box::new(address(cidr.addr)),
            len: cidr.prefix,
        }
    }
}

/// `PROTOCOL FIELD`: a field of a header.
pub fn payload(protocol: &str, field: &str) -> Expr {
    Expr::Payload {
        protocol: protocol.to_owned(),
        field: field.to_owned(),
    }
}

/// `meta KEY`.
pub fn meta(key: &str) -> Expr {
    Expr::Meta(key.to_owned())
}

/// `@SET`.
pub fn named(set: &str) -> Expr {
    Expr::Named(set.to_owned())
}

/// `LEFT == RIGHT`.
pub fn equals(left: Expr, right: Expr) -> Statement {
    Statement::Match {
        left,
        op: "==".to_owned(),
        right,
    }
}

/// `LEFT != RIGHT`.
pub fn differs(left: Expr, right: Expr) -> Statement {
    Statement::Match {
        left,
        op: "!=".to_owned(),
        right,
    }
}

/// `fib FIELD type local`.
pub fn local(field: &str) -> Statement {
    equals(
        Expr::Fib {
            result: "type".to_owned(),
            flags: vec![field.to_owned()],
        },
        word("local"),
    )
}

/// `jump CHAIN`.
pub fn jump(chain: &str) -> Statement {
    Statement::Verdict(Verdict::Jump(chain.to_owned()))
}

/// `goto CHAIN`.
pub fn goto(chain: &str) -> Statement {
    Statement::Verdict(Verdict::Goto(chain.to_owned()))
}

/// The loopback addresses of `family`.
pub fn loopback(family: Family) -> Expr {
    match family {
        Family::V4 => Expr::Prefix {
            addr: Box::new(word("127.0.0.0")),
            len: 8,
        },
        Family::V6 => word("::1"),
    }
}

/// `ct KEY BIT`: whether a connection is `new` (its `state`) or was translated (`dnat`, in its `status`).
pub fn connection(key: &str, bit: &str) -> Statement {
    Statement::Match {
        left: Expr::Ct {
            key: key.to_owned(),
            dir: None,
        },
        op: "in".to_owned(),
        right: word(bit),
    }
}

/// Whether a packet comes from a local pod, or `not`; with interfaces by `index`, where kube-proxy uses it.
pub fn detected(family: Family, detector: &Detector, not: bool, index: bool) -> Statement {
    let link = |key: &str, name: String| (meta(key), Expr::Word(name));
    let (left, right) = match detector {
        Detector::Cidr(cidr) => (payload(family.nft_name(), "saddr"), prefix(*cidr)),
        Detector::Interface(name) if index => link("iif", name.clone()),
        Detector::Interface(name) => link("iifname", name.clone()),
        Detector::Prefix(name) => link("iifname", format!("{name}*")),
    };
    if not {
        differs(left, right)
    } else {
        equals(left, right)
    }
}

/// `mark set mark OP BITS`.
pub fn set_mark(op: &str, bits: u32) -> Statement {
    Statement::Mangle {
        key: meta("mark"),
        value: masked(op, bits),
    }
}

/// `mark OP BITS`.
pub fn masked(op: &str, bits: u32) -> Expr {
    Expr::Bits {
        op: op.to_owned(),
        left: Box::new(meta("mark")),
        right: Box::new(Expr::Number(u64::from(bits))),
    }
}

/// `DADDR . PROTOCOL . PORT vmap @MAP`.
pub fn by_service(family: Family, map: &str) -> Statement {
    Statement::Vmap {
        key: Expr::Concat(vec![
            payload(family.nft_name(), "daddr"),
            meta("l4proto"),
            payload("th", "dport"),
        ]),
        data: named(map),
    }
}

/// `PROTOCOL . PORT vmap @MAP`.
pub fn by_node_port(map: &str) -> Statement {
    Statement::Vmap {
        key: Expr::Concat(vec![meta("l4proto"), payload("th", "dport")]),
        data: named(map),
    }
}

/// A random number below `modulus`.
pub fn random(modulus: usize) -> Expr {
    Expr::Numgen {
        mode: "random".to_owned(),
        modulus: u32::try_from(modulus).unwrap_or(u32::MAX),
        offset: 0,
    }
}

/// The result of `of` for each of `all`, by its position.
pub fn by_index<T>(all: impl Iterator<Item = T>, of: impl Fn(T) -> Datum) -> Expr {
    let pairs = (0u64..).zip(all);
    Expr::Map(pairs.map(|(i, one)| (Expr::Number(i), of(one))).collect())
}

/// Translates to the address and port that `data` has for `key`.
pub fn dnat_by(family: Family, key: Expr, data: Expr) -> Statement {
    Statement::Nat {
        kind: NatKind::Dnat,
        family: Some(family.nft_name().to_owned()),
        addr: Some(Expr::Lookup {
            key: Box::new(key),
            data: Box::new(data),
        }),
        port: None,
        flags: Vec::new(),
    }
}

/// `masquerade fully-random`.
pub fn masquerade() -> Statement {
    Statement::Masquerade {
        port: None,
        flags: vec!["fully-random".to_owned()],
    }
}

/// `reject with icmp` or `icmpv6`.
pub fn reject(family: Family) -> Statement {
    let kind = match family {
        Family::V4 => "icmp",
        Family::V6 => "icmpv6",
    };
    Statement::Reject {
        kind: Some(kind.to_owned()),
        code: Some("port-unreachable".to_owned()),
    }
}
