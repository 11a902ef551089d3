//! Who keeps the bridge.

use super::ask::if_recorded;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::action::ROUTE_PROTOCOL;
use crate::bridge::{Held, TABLE};
use crate::evidence::{Gap, Item};
use crate::node::routes::Route;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "MX09",
    name: "bridge-without-keeper",
    severity: Severity::Error,
    when: When::Now,
    title: "The bridge of a migration is kept up to date, or removed",
    symptom: "After a rollout, connections to Services fail: they go to pods that are gone, until the lease of the bridge ends.",
    why: "The bridge, table kpx-bridge, serves new connections while kube-proxy changes its mode. `kpx migrate`, its guard or \
          `kpx bridge follow` keeps it up to date, and renews the lease without which it serves nothing. When all of them \
          are gone, new connections take kube-proxy's rules as soon as the lease ends. The tables stay, and so do the routes \
          of protocol 107 that were added with them: the kernel has no timeout for routes.",
    verify: "Every element of set alive has more than half of its timeout left. Without the tables there are no routes of \
             protocol 107.",
    commands: &[
        "nft list set ip kpx-bridge alive",
        "ip route show table local proto 107",
        "ip -6 route show table local proto 107",
    ],
    fix: "End the migration with `kpx migrate resume` or `kpx migrate rollback`. If there is no migration to end, `kpx bridge \
          down --apply` removes the tables and the routes.",
    incidents: &[
        "a coordinator of kpx 0.1 that was killed left bridges behind: after two rollouts 12,560 of 29,225 connections failed",
    ],
    needs: &[&[Item::Nft, Item::Routes, Item::Migration]],
    caused_by: &[],
    run: kept,
}];

fn kept(facts: &Facts<'_>) -> Verdict {
    let tables: Vec<_> = match facts.node.nft() {
        Ok(rules) => rules.tables.iter().filter(|of| of.name == TABLE).collect(),
        Err(Gap::Absent(..) | Gap::NotApplicable(_)) => Vec::new(),
        Err(gap) => return Err(gap),
    };
    let held = tables.iter().map(|table| Held::of(table)).min();
    if held.as_ref().is_some_and(Held::is_kept) {
        return Ok(Vec::new());
    }
    let mut findings = Vec::new();
    if let Some(held) = held {
        let names = tables.iter().map(|of| format!("{} {TABLE}", of.family));
        let seen = names.map(|name| Proof::object("nft-table", name));
        findings.push(Finding::new(Severity::Error, "the bridge", words(&held)).seen(seen));
    }
    let routes = match if_recorded(facts.node.routes()) {
        Ok(routes) => routes.all.iter().filter(|route| is_ours(route)).collect(),
        // What was found is no less true.
        Err(_) if !findings.is_empty() => Vec::new(),
        Err(gap) => return Err(gap),
    };
    if !routes.is_empty() {
        let message = format!(
            "{} of protocol {ROUTE_PROTOCOL} to addresses of Services, which nothing keeps up to date",
            if routes.len() == 1 {
                "1 route".to_owned()
            } else {
                format!("{} routes", routes.len())
            }
        );
        let name = |route: &&Route| {
            let device = route.device.as_deref().unwrap_or("no link");
            format!("{} dev {device} proto {ROUTE_PROTOCOL}", route.destination)
        };
        let seen = routes
            .iter()
            .map(|route| Proof::object("route", name(route)));
        findings.push(Finding::new(Severity::Error, "kpx's routes", message).seen(seen));
    }
    Ok(findings.into_iter().map(|of| mended(facts, of)).collect())
}

fn words(held: &Held) -> String {
    match held {
        Held::Expired => {
            "its lease has ended and nobody keeps it up to date: it serves nothing, and stays"
                .to_owned()
        }
        Held::Left { seconds, .. } => format!(
            "nobody renews its lease, which ends in {seconds} s: until then new connections may go to endpoints that are gone"
        ),
        Held::Endless => {
            "it has no lease: it serves until it is removed, although nobody may keep it up to date"
                .to_owned()
        }
    }
}

fn is_ours(route: &Route) -> bool {
    route.table == "local" && route.protocol.as_deref() == Some(&ROUTE_PROTOCOL.to_string())
}

/// Says how to end what left `finding` behind: a migration, or a bridge set up by hand.
fn mended(facts: &Facts<'_>, finding: Finding) -> Finding {
    if facts.node.migration().is_ok_and(|of| !of.ended) {
        let text = "Go on with the migration, or take it back with `kpx migrate rollback`.";
        finding.mend_by(text, "kpx migrate resume")
    } else {
        let text = "Remove the bridge and its routes; or keep it with `kpx bridge follow`.";
        finding.mend_by(text, "kpx bridge down --apply --yes")
    }
}
