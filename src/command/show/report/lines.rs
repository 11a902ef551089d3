//! A view as named lines, to compare nodes: without counters, and without the facts that are every node's own.

use std::collections::BTreeMap;

use super::modules::in_words as module;
use super::programmed::in_words;
use crate::view::config::Config;
use crate::view::conntrack::{self, BackendStatus};
use crate::view::mode::InForce;
use crate::view::nodeports::Listening;
use crate::view::programmed::Programmed;
use crate::view::{
    Rows, Shown, addresses, affinity, chains, ipvs, modules, nodeports, portals, services, sets,
};
use crate::view::{sysctls, tree};
use kpx_node::backend::Mode;
use kpx_node::words::number_of;

type Lines = BTreeMap<String, String>;

/// Returns a line per backend with the number of clients that are bound to it.
fn clients(rows: &[affinity::Row]) -> Lines {
    let mut counts = BTreeMap::new();
    for row in rows {
        let name = format!("{} {} {}", row.service, row.protocol, row.backend);
        *counts.entry(name).or_insert(0) += 1;
    }
    let lines = counts.into_iter();
    lines
        .map(|(name, count)| (name, number_of(count, "client")))
        .collect()
}

/// Returns the lines of a view by their names.
pub(super) fn lines(shown: &Shown) -> Lines {
    let mut lines = match &shown.rows {
        Rows::Services(rows) => all(rows, service),
        Rows::Chains(rows) => all(rows, chain),
        Rows::Tree(roots) => tree_lines(roots),
        Rows::Servers(rows) => all(rows, server),
        Rows::Sets(rows) => all(rows, set),
        Rows::Addresses(rows) => all(rows, address),
        Rows::NodePorts(rows) => all(rows, node_port),
        Rows::Portals(rows) => all(rows, portal),
        Rows::Connections(rows) => connections(rows),
        Rows::Affinity(rows) => clients(rows),
        Rows::Modules(rows) => all(rows, module_line),
        Rows::Sysctls(rows) => all(rows, sysctl),
        Rows::Config(config) => settings(config),
    };
    lines.insert("mode".to_owned(), mode(&shown.mode));
    lines
}

fn all<R>(rows: &[R], line: fn(&R) -> (String, String)) -> Lines {
    rows.iter().map(line).collect()
}

fn mode(mode: &InForce) -> String {
    let name = mode.mode.map_or("unknown", Mode::name);
    let left: Vec<&str> = mode.leftovers.iter().map(|mode| mode.name()).collect();
    match left.as_slice() {
        [] => name.to_owned(),
        left => format!("{name}, leftovers of {}", left.join(" and ")),
    }
}

/// Returns what each mode has for a Service port.
fn handled(programmed: &[Programmed]) -> String {
    let words = programmed.iter().map(|programmed| {
        let left = if programmed.leftover {
            " (leftover)"
        } else {
            ""
        };
        format!("{} {}{left}", programmed.mode, in_words(programmed))
    });
    words.collect::<Vec<_>>().join("; ")
}

fn service(row: &services::Row) -> (String, String) {
    let known = |count: Option<usize>| count.map_or("?".to_owned(), |count| count.to_string());
    let (ready, total) = (known(row.endpoints.ready), known(row.endpoints.total));
    let left_to = row.left_to.as_ref().map(|who| format!("; served by {who}"));
    let value = format!(
        "{}{}; endpoints {ready}/{total}",
        handled(&row.programmed),
        left_to.unwrap_or_default()
    );
    (format!("{} {}", row.service, row.protocol), value)
}

fn chain(row: &chains::Row) -> (String, String) {
    let gone = if row.gone {
        ", of a Service or endpoint that is deleted, or not shown"
    } else {
        ""
    };
    (
        format!("{} {} {}", row.family, row.table, row.chain),
        format!("{}{gone}", number_of(row.rules, "rule")),
    )
}

/// Returns a line per rule; the number of a rule distinguishes it from others in the same place.
fn tree_lines(roots: &[tree::Node]) -> Lines {
    fn add(nodes: &[tree::Node], lines: &mut Lines) {
        for node in nodes {
            let place = format!("{} {}", node.family, node.at);
            let mut name = place.clone();
            let mut at = 1;
            while lines.contains_key(&name) {
                at += 1;
                name = format!("{place} rule {at}");
            }
            lines.insert(name, node.rule.clone());
            add(&node.children, lines);
        }
    }
    let mut lines = Lines::new();
    add(roots, &mut lines);
    lines
}

fn server(row: &ipvs::Row) -> (String, String) {
    let reals = row.real_servers.iter();
    let mut reals: Vec<_> = reals
        .map(|real| format!("{} weight {}", real.address, real.weight))
        .collect();
    reals.sort();
    let extra = if row.extra == Some(true) {
        "EXTRA: no Service has it; "
    } else {
        ""
    };
    (
        row.server.clone(),
        format!("{extra}{}: {}", row.scheduler, reals.join(", ")),
    )
}

fn set(row: &sets::Row) -> (String, String) {
    (
        format!("{} {}", row.family, row.set),
        format!("{}, {}", row.r#type, number_of(row.size, "member")),
    )
}

fn address(row: &addresses::Row) -> (String, String) {
    let uses = row.services.iter();
    let uses: Vec<_> = uses
        .map(|usage| format!("{} of {}", usage.role, usage.service))
        .collect();
    let value = match row.extra {
        Some(true) => "EXTRA: no Service has it".to_owned(),
        Some(false) => uses.join("; "),
        None => "?".to_owned(),
    };
    (row.address.to_string(), value)
}

/// Returns a portal without the port of the process, which differs from node to node.
fn portal(row: &portals::Row) -> (String, String) {
    let service = row.service.as_ref().map(ToString::to_string);
    (
        super::portals::address(row),
        service.unwrap_or_else(|| "?".to_owned()),
    )
}

fn node_port(row: &nodeports::Row) -> (String, String) {
    let service = row.service.as_ref().map(ToString::to_string);
    let listening = match row.listening {
        Some(Listening::Expected) => "",
        Some(Listening::Missing) => "; MISSING: kube-proxy does not listen",
        Some(Listening::Foreign) => "; FOREIGN: another program listens",
        None => "; listener ?",
    };
    let service = service.unwrap_or_else(|| "EXTRA: no Service has it".to_owned());
    (
        format!("{}/{}", row.node_port, row.protocol),
        format!("{service}: {}{listening}", handled(&row.programmed)),
    )
}

/// Returns a line per Service with connections that are not to a ready endpoint: the connections are every node's own.
fn connections(rows: &[conntrack::Row]) -> Lines {
    let mut counts: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for row in rows {
        let bad = matches!(
            row.backend_status,
            Some(BackendStatus::Stale | BackendStatus::NotTranslated)
        );
        let [all, lost] = counts
            .entry(format!("{} {}", row.service, row.protocol))
            .or_default();
        *all += 1;
        *lost += usize::from(bad);
    }
    let lost = counts.into_iter().filter(|(_, [_, lost])| *lost > 0);
    lost.map(|(name, [all, lost])| {
        (
            name,
            format!("{lost} of {} lost", number_of(all, "connection")),
        )
    })
    .collect()
}

fn module_line(row: &modules::Row) -> (String, String) {
    let boot = match row.at_boot {
        Some(true) => ", at boot",
        Some(false) => "",
        None => ", at boot ?",
    };
    (row.module.clone(), format!("{}{boot}", module(row)))
}

fn sysctl(row: &sysctls::Row) -> (String, String) {
    let note = match row.as_wanted {
        Some(false) if row.in_force => format!(", wanted {}", row.wanted),
        _ => String::new(),
    };
    let value = row.value.as_deref().unwrap_or("?");
    (row.sysctl.to_owned(), format!("{value}{note}"))
}

fn settings(config: &Config) -> Lines {
    let settings = config.settings.iter();
    let mut lines: Lines = settings
        .map(|setting| {
            let file = setting
                .in_file
                .as_ref()
                .map(|value| format!("; the file has {value}"));
            let value = if setting.value.is_empty() {
                "-"
            } else {
                &setting.value
            };
            (
                setting.name.to_owned(),
                format!("{value}{}", file.unwrap_or_default()),
            )
        })
        .collect();
    let version = config
        .version
        .as_ref()
        .map(|version| version.version.to_string());
    lines.insert(
        "version".to_owned(),
        version.unwrap_or_else(|_| "?".to_owned()),
    );
    lines
}
