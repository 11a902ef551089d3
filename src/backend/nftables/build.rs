//! Expressions and statements from parts, in the form `nft -j` lists: for `expect`.

use std::net::IpAddr;

use super::model::{Expr, Statement, Verdict};
use crate::net::{Cidr, Family, Proto};

pub(super) fn word(text: &str) -> Expr {
    Expr::Word(text.to_owned())
}

pub(super) fn number(port: u16) -> Expr {
    Expr::Number(u64::from(port))
}

pub(super) fn address(addr: IpAddr) -> Expr {
    Expr::Word(addr.to_string())
}

pub(super) fn protocol(proto: Proto) -> Expr {
    Expr::Word(proto.to_string())
}

pub(super) fn prefix(cidr: Cidr) -> Expr {
    if cidr.is_host() {
        address(cidr.addr)
    } else {
        Expr::Prefix {
            addr: Box::new(address(cidr.addr)),
            len: cidr.prefix,
        }
    }
}

pub(super) fn payload(protocol: &str, field: &str) -> Expr {
    Expr::Payload {
        protocol: protocol.to_owned(),
        field: field.to_owned(),
    }
}

pub(super) fn meta(key: &str) -> Expr {
    Expr::Meta(key.to_owned())
}

pub(super) fn named(set: &str) -> Expr {
    Expr::Named(set.to_owned())
}

pub(super) fn equals(left: Expr, right: Expr) -> Statement {
    Statement::Match {
        left,
        op: "==".to_owned(),
        right,
    }
}

pub(super) fn differs(left: Expr, right: Expr) -> Statement {
    Statement::Match {
        left,
        op: "!=".to_owned(),
        right,
    }
}

/// `fib FIELD type local`.
pub(super) fn local(field: &str) -> Statement {
    equals(
        Expr::Fib {
            result: "type".to_owned(),
            flags: vec![field.to_owned()],
        },
        word("local"),
    )
}

pub(super) fn jump(chain: &str) -> Statement {
    Statement::Verdict(Verdict::Jump(chain.to_owned()))
}

pub(super) fn goto(chain: &str) -> Statement {
    Statement::Verdict(Verdict::Goto(chain.to_owned()))
}

pub(super) fn reject(family: Family) -> Statement {
    let kind = match family {
        Family::V4 => "icmp",
        Family::V6 => "icmpv6",
    };
    Statement::Reject {
        kind: Some(kind.to_owned()),
        code: Some("port-unreachable".to_owned()),
    }
}
