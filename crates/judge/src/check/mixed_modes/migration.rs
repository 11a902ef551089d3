//! Migrations that kpx started, and their bridges.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::bridge::{Held, TABLE};
use crate::check::core::{Collector, NFT, services_at};
use crate::check::{
    Check, Example, Facts, Finding, Fix, Proof, Prose, Severity, Subject, Text, Verdict, When,
};
use kpx_node::action::ROUTE_PROTOCOL;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::routes::Route;
use kpx_node::words::number_of;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "MX06",
        name: "unfinished-migration",
        severity: Severity::Warning,
        when: When::Now,
        title: "No migration by kpx is unfinished",
        symptom: "Rules of two modes exist side by side, or kube-proxy is configured for a mode that it does not run \
              in.",
        why: "The migration was interrupted or stopped: its rules stay, and nothing updates them. If the \
              configuration was already changed, the next restart of kube-proxy switches the mode without \
              supervision.",
        verify: "The last line of the journal contains `ended` once a migration is over.",
        commands: &[Example::on_node(
            "tail -n 1 \"$(ls -d /var/lib/kpx/migrate/*/journal.jsonl | tail -n 1)\" | cut -c 1-200",
        )],
        fix: Text::with(
            "Run {} to see its stage. Then finish it with {}, or undo it with {}.",
            &[
                Example::kpx(&["migrate", "status"]),
                Example::kpx(&["migrate", "resume"]),
                Example::kpx(&["migrate", "rollback"]),
            ],
        ),
        incidents: &["any tool that changes a node in steps may be killed between two of them"],
        needs: &[&[Item::Migration]],
        caused_by: &[],
        run: unfinished,
    },
    Check {
        id: "MX09",
        name: "stale-bridge",
        severity: Severity::Error,
        when: When::Now,
        title: "A migration's bridge is kept up to date, or removed",
        symptom: "After a rollout, connections to Services fail: they go to pods that no longer exist, until the \
              lease of the bridge ends.",
        why: "The bridge, table kpx-bridge, serves new connections while kube-proxy changes its mode. `kpx migrate`, \
              its guard or `kpx bridge follow` keeps it up to date and renews its lease; without a lease it serves \
              nothing. When all of them are gone, kube-proxy's rules take over new connections as soon as the lease \
              ends. The tables stay, and so do the routes of protocol 107 that were added with them: the kernel has \
              no timeout for routes.",
        verify: "Every element of set alive has more than half of its timeout left. Without the tables there are no \
              routes of protocol 107.",
        commands: &[
            Example::on_node("nft list set ip kpx-bridge alive"),
            Example::on_node("ip route show table local proto 107"),
            Example::on_node("ip -6 route show table local proto 107"),
        ],
        fix: Text::with(
            "End the migration with {} or {}. If there is no migration to end, {} removes the tables and the \
             routes. Then {} lists the connections that wait for an endpoint that is gone.",
            &[
                Example::kpx(&["migrate", "resume"]),
                Example::kpx(&["migrate", "rollback"]),
                Example::kpx(&["bridge", "down", "--apply"]),
                Example::kpx(&["reconcile", "--part", "conntrack"]),
            ],
        ),
        incidents: &[
            "a coordinator of kpx 0.1 that was killed left bridges behind: after two rollouts 12,560 of 29,225 connections failed",
        ],
        needs: &[NFT, &[Item::Routes, Item::Migration, Item::Services]],
        caused_by: &[],
        run: bridge,
    },
];

fn unfinished(facts: &Facts<'_>) -> Verdict {
    let migration = match facts.node.migration() {
        Err(Gap::Absent(..)) => return Ok(Vec::new()),
        read => read?,
    };
    if migration.ended {
        return Ok(Vec::new());
    }
    let (from, to) = (migration.from, migration.to);
    let at = match &migration.stage {
        Some(stage) => format!("stopped during stage {stage}"),
        None => "stopped before its first stage".to_owned(),
    };
    let message = format!("the migration from mode {from} to mode {to} is unfinished: {at}");
    let subject = format!("the migration of {}", migration.began);
    let seen = Proof::Object {
        what: "migration",
        name: migration.id.clone(),
    };
    let fix = Prose::from("Finish it, or undo it with ")
        .kpx(["migrate", "rollback"])
        .and(".");
    let about = Subject::Migration {
        id: migration.id.clone(),
    };
    Ok(vec![
        Finding::new(Severity::Warning, about, message)
            .called(subject)
            .evidence([seen])
            .fix(Fix::kpx(fix, ["migrate", "resume"])),
    ])
}

fn bridge(facts: &Facts<'_>) -> Verdict {
    let mut findings = Collector::default();
    let tables: Option<Vec<_>> = match facts.node.nft() {
        // Without nftables there is no bridge.
        Err(Gap::NotApplicable(_)) => Some(Vec::new()),
        read => findings.read(read).map(|rules| {
            let tables = rules.tables.iter();
            tables.filter(|table| table.name == TABLE).collect()
        }),
    };
    let Some(tables) = tables else {
        // A bridge that is kept has routes, too.
        return findings.verdict();
    };
    let held = tables.iter().map(|table| Held::of(table)).min();
    if held.as_ref().is_some_and(Held::is_kept) {
        return Ok(Vec::new());
    }
    if let Some(held) = held {
        let names = tables
            .iter()
            .map(|table| format!("{} {TABLE}", table.family));
        let seen = names.map(|name| Proof::object("nft-table", name));
        let found =
            Finding::new(Severity::Error, Subject::Bridge, bridge_message(&held)).evidence(seen);
        findings.push(with_fix(facts, found));
    }
    let routes = findings.read(facts.node.routes());
    let routes = routes.into_iter().flat_map(|routes| &routes.all);
    let routes: Vec<_> = routes.filter(|route| is_kpx_route(route)).collect();
    if !routes.is_empty() {
        let message = format!(
            "{} of protocol {ROUTE_PROTOCOL} to Service addresses are left over, and nothing updates them",
            number_of(routes.len(), "route")
        );
        let name = |route: &&Route| {
            let device = route.device.as_deref().unwrap_or("no link");
            format!("{} dev {device} proto {ROUTE_PROTOCOL}", route.destination)
        };
        let seen = routes
            .iter()
            .map(|route| Proof::object("route", name(route)));
        let to: HashSet<IpAddr> = routes.iter().map(|route| route.destination.addr).collect();
        let found = Finding::new(Severity::Error, Subject::Routes, message)
            .services(services_at(facts, |at| to.contains(at)))
            .evidence(seen);
        findings.push(with_fix(facts, found));
    }
    findings.verdict()
}

fn bridge_message(held: &Held) -> String {
    match held {
        Held::Expired => {
            "the bridge is left over: its lease has expired and it serves nothing".to_owned()
        }
        Held::Left { seconds, .. } => format!(
            "nothing renews the lease of the bridge, which expires in {seconds} s: until then new connections may go to endpoints that no longer exist"
        ),
        Held::Endless => {
            "the bridge has no lease: it serves outdated endpoints until it is removed".to_owned()
        }
    }
}

fn is_kpx_route(route: &Route) -> bool {
    route.table == "local" && route.protocol.as_deref() == Some(&ROUTE_PROTOCOL.to_string())
}

/// Adds the fix: end the migration, or remove a bridge without one.
fn with_fix(facts: &Facts<'_>, finding: Finding) -> Finding {
    if facts
        .node
        .migration()
        .is_ok_and(|migration| !migration.ended)
    {
        let text = Prose::from("Finish the migration, or undo it with ")
            .kpx(["migrate", "rollback"])
            .and(".");
        finding.fix(Fix::kpx(text, ["migrate", "resume"]))
    } else {
        let text = Prose::from("Remove the bridge and its routes, or keep it up to date with ")
            .kpx(["bridge", "follow"])
            .and(".");
        finding.fix(Fix::kpx(text, ["bridge", "down", "--apply"]))
    }
}
