//! Statements and values that the model keeps as text: the JSON of `nft` in the words of `nft list ruleset`.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::super::model::{Expr, Statement};
use super::super::print;
use super::expr::{expr, statement};
use super::words as list;

/// The burst of a limit that nft omits in one release, and prints in another.
const DEFAULT_BURST: &str = " burst 5 packets";

/// Returns the statement that the model keeps as `text`, without parts that only one form of nft prints, and without
/// counts.
pub(super) fn kept(kind: &str, text: &str) -> Statement {
    let text = text.replace(DEFAULT_BURST, "");
    let text = match text.split_once(" used ") {
        Some((quota, _)) if kind == "quota" => quota,
        _ => &text,
    };
    Statement::Other(json!({ kind: text }))
}

/// Returns the words of a statement of JSON; `None` for one that is kept as listed.
pub(super) fn of_statement(kind: &str, body: &Value) -> Option<String> {
    let fields = body.as_object();
    Some(match kind {
        "limit" | "quota" if fields.is_none_or(|fields| fields.contains_key("map")) => {
            named(kind, expr(body.clone()))
        }
        "limit" => {
            let burst = match (unsigned(body, "burst"), text(body, "burst_unit")) {
                (Some(burst), None) if burst != 5 => format!(" burst {burst} packets"),
                (Some(burst), Some(unit)) if burst > 0 => format!(" burst {burst} {unit}"),
                _ => String::new(),
            };
            format!(
                "limit rate {}{}{}/{}{burst}",
                over(body),
                unsigned(body, "rate")?,
                behind(text(body, "rate_unit").filter(|unit| *unit != "packets")),
                text(body, "per")?,
            )
        }
        "quota" => format!(
            "quota {}{}{}",
            over(body),
            unsigned(body, "val")?,
            behind(text(body, "val_unit"))
        ),
        "ct count" => format!("ct count {}{}", over(body), unsigned(body, "val")?),
        "ct helper" | "ct timeout" | "ct expectation" => {
            format!("{kind} set {}", print::quoted(body.as_str()?))
        }
        "log" => log(fields),
        "notrack" => kind.to_owned(),
        "tproxy" => tproxy(fields?),
        "dup" => {
            let device = fields?
                .get("dev")
                .map(|field| print::expr(&expr(field.clone())));
            let device = device.map_or_else(String::new, |device| format!(" device {device}"));
            format!(
                "dup to {}{device}",
                print::expr(&expr(fields?.get("addr")?.clone()))
            )
        }
        "flow" => format!("flow {} {}", text(body, "op")?, text(body, "flowtable")?),
        "meter" => {
            let size =
                unsigned(body, "size").map_or_else(String::new, |size| format!(" size {size}"));
            let run = statement(fields?.get("stmt")?.clone());
            format!(
                "meter {}{size} {{ {} {} }}",
                text(body, "name")?,
                print::expr(&expr(fields?.get("key")?.clone())),
                print::statement(&run)
            )
        }
        "queue" if has_bypass(body) => queue(&print::expr(&expr(fields?.get("num")?.clone()))),
        _ => return None,
    })
}

/// Returns the words of a value of JSON.
pub(super) fn of_value(kind: &str, body: &Value) -> Option<String> {
    Some(match kind {
        "socket" | "rt" => format!("{kind} {}", text(body, "key")?),
        "tcp option" | "sctp chunk" => {
            let field = text(body, "field").map_or_else(String::new, |field| format!(" {field}"));
            format!("{kind} {}{field}", text(body, "name")?)
        }
        _ => return None,
    })
}

/// Returns whether a queue that no program reads lets packets pass.
fn has_bypass(body: &Value) -> bool {
    list(body.get("flags").cloned())
        .iter()
        .any(|flag| flag == "bypass")
}

/// Returns the words of a queue that no program need read.
pub(super) fn queue(number: &str) -> String {
    format!("queue flags bypass to {number}")
}

/// Returns the words of a limit or quota that has a name, or one in a map.
pub(super) fn named(kind: &str, name: Expr) -> String {
    let name = match name {
        Expr::Word(name) => print::quoted(&name),
        map => print::expr(&map),
    };
    format!("{kind} name {name}")
}

fn text<'v>(body: &'v Value, key: &str) -> Option<&'v str> {
    body.get(key)?.as_str()
}

fn unsigned(body: &Value, key: &str) -> Option<u64> {
    body.get(key)?.as_u64()
}

fn over(body: &Value) -> &'static str {
    match body.get("inv") {
        Some(Value::Bool(true)) => "over ",
        _ => "",
    }
}

fn behind(unit: Option<&str>) -> String {
    unit.map_or_else(String::new, |unit| format!(" {unit}"))
}

fn log(fields: Option<&Map<String, Value>>) -> String {
    let mut words = "log".to_owned();
    let Some(fields) = fields else {
        return words;
    };
    for key in ["prefix", "level", "group", "snaplen", "queue-threshold"] {
        match fields.get(key) {
            Some(Value::String(of)) if key == "prefix" => {
                write!(words, " {key} {}", print::quoted(of)).expect("String");
            }
            Some(Value::String(of)) => write!(words, " {key} {of}").expect("String"),
            Some(of) => write!(words, " {key} {of}").expect("String"),
            None => {}
        }
    }
    let mut tcp = false;
    for flag in list(fields.get("flags").cloned()) {
        match flag.strip_prefix("tcp ") {
            Some(flag) if tcp => write!(words, ",{flag}").expect("String"),
            _ => write!(words, " flags {flag}").expect("String"),
        }
        tcp = flag.starts_with("tcp ");
    }
    words
}

fn tproxy(fields: &Map<String, Value>) -> String {
    let of = |key: &str| {
        fields
            .get(key)
            .map(|field| print::expr(&expr(field.clone())))
    };
    let family = of("family").map_or_else(String::new, |family| format!(" {family}"));
    let addr = match of("addr") {
        Some(addr) if addr.contains(':') => format!("[{addr}]"),
        addr => addr.unwrap_or_default(),
    };
    let port = of("port").map_or_else(String::new, |port| format!(":{port}"));
    format!("tproxy{family} to {addr}{port}")
}
