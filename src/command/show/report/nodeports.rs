//! NodePorts.

use std::collections::BTreeSet;

use super::chains::short;
use super::programmed::in_words;
use crate::render::Page;
use crate::view::nodeports::{Listener, Listening, Row};
use kpx_judge::verdict::{Client, Fate, client_names};
use kpx_node::backend::Mode;

pub(super) fn page(rows: &[Row], page: &mut Page) {
    let cells = rows.iter().map(|row| {
        let service = row.service.as_ref().map(ToString::to_string);
        let service = service.unwrap_or_else(|| "EXTRA: no Service has it".to_owned());
        let programmed = row.programmed.iter().map(|programmed| {
            let left = if programmed.leftover {
                " (leftover)"
            } else {
                ""
            };
            let objects = programmed
                .objects()
                .into_iter()
                .map(|name| match programmed.mode {
                    Mode::Nftables => short(name),
                    Mode::Iptables | Mode::Ipvs | Mode::Userspace => name,
                });
            let objects: Vec<&str> = objects.collect();
            let words = in_words(programmed);
            if objects.is_empty() {
                format!("{words}{left}")
            } else {
                format!("{words}{left}: {}", objects.join(", "))
            }
        });
        let mut programmed: Vec<String> = programmed.collect();
        if row.health_check {
            programmed.push("health check".to_owned());
        }
        if !row.failing.is_empty() {
            let fate = Fate::of_all(row.failing.iter().map(|connection| connection.fate));
            let clients: Vec<Client> = row
                .failing
                .iter()
                .map(|connection| connection.client)
                .collect();
            programmed.push(format!("{fate}{}", client_names(&clients)));
        }
        vec![
            format!("{}/{}", row.node_port, row.protocol),
            service,
            programmed.join("; "),
            listener(row.listeners.as_deref(), row.listening),
        ]
    });
    let cells: Vec<_> = cells.collect();
    let columns = [
        ("NODEPORT", 0),
        ("SERVICE", 0),
        ("TRAFFIC", 0),
        ("LISTENER", 0),
    ];
    page.grid(&columns, &cells);
    if rows
        .iter()
        .any(|row| row.listening == Some(Listening::Foreign))
    {
        page.para(
            "",
            "FOREIGN: a program other than kube-proxy listens on the port, but the rules take its traffic",
        );
    }
}

/// Returns the processes that listen, and whether they are the expected one.
pub(super) fn listener(listeners: Option<&[Listener]>, listening: Option<Listening>) -> String {
    let Some(all) = listeners else {
        return "?".to_owned();
    };
    let who = all.iter().map(|listener| match &listener.processes {
        Some(processes) => processes.join(", "),
        None => format!("? at {}", listener.address.ip()),
    });
    let who: BTreeSet<String> = who.collect();
    let who: Vec<String> = who.into_iter().collect();
    match listening {
        Some(Listening::Missing) => "MISSING: kube-proxy does not listen".to_owned(),
        Some(Listening::Foreign) => format!("FOREIGN: {}", who.join(", ")),
        _ if who.is_empty() => "none".to_owned(),
        _ => who.join(", "),
    }
}
