//! Names of the node and its cluster that complete a word.

use std::collections::{BTreeMap, BTreeSet};

use super::words::{Typed, Wanted};
use crate::cli::service::is_kind;
use crate::command::shared::session::Session;
use crate::view::{self, Query, Rows, View};
use kpx_judge::check;
use kpx_judge::trace::sources::Pods;
use kpx_node::cluster::{self, Node, Service};
use kpx_node::evidence::{self, BundleError, Item};

/// Returns the names that complete the last word of `typed`; none if they cannot be read.
pub(super) async fn names(session: &Session, typed: &Typed) -> Vec<String> {
    let begun = typed.begun.as_str();
    let begins = |name: &String| {
        let start = name.get(..begun.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(begun))
    };
    let mut all: Vec<String> = match &typed.wanted {
        Wanted::Words(_) | Wanted::Other => return Vec::new(),
        Wanted::Commands(names) => names.clone(),
        Wanted::Service => return services(session, begun, typed.namespace.as_deref()).await,
        Wanted::Object(view) => return objects(session, view, typed).await,
        Wanted::Namespace => {
            let all = all_services(session).await;
            let all: BTreeSet<String> = all
                .into_iter()
                .map(|service| service.metadata.namespace)
                .collect();
            all.into_iter().collect()
        }
        Wanted::Node => nodes(session).await,
        Wanted::Context => kpx_host::contexts(&session.host),
        Wanted::Check => {
            // The ids before the last comma are typed.
            let before = begun.rfind(',').map_or("", |at| &begun[..=at]);
            let ids = check::all().map(|check| format!("{before}{}", check.id));
            ids.collect()
        }
        Wanted::NodeOrCheck => {
            let ids = check::all().map(|check| check.id.to_owned());
            // All ids are many.
            let ids: Vec<String> = ids.filter(|_| !begun.is_empty()).collect();
            nodes(session).await.into_iter().chain(ids).collect()
        }
        Wanted::Source => {
            let fixed = ["host", "outside"].map(str::to_owned);
            fixed.into_iter().chain(pods(session).await).collect()
        }
    };
    all.retain(begins);
    all
}

async fn all_services(session: &Session) -> Vec<Service> {
    let read = session.gather(&[Item::Services]).await;
    let list = read
        .ok()
        .map(|evidence| cluster::list(&evidence, Item::Services));
    list.and_then(Result::ok).unwrap_or_default()
}

/// Returns the Services that begin with `begun`: with or without the namespace, and after `svc/`. An ambiguous name gets its
/// namespaces when it is the only match.
async fn services(session: &Session, begun: &str, namespace: Option<&str>) -> Vec<String> {
    let all = all_services(session).await;
    let all = all
        .into_iter()
        .map(|service| (service.metadata.namespace, service.metadata.name));
    let all: Vec<(String, String)> = all
        .filter(|(of, _)| namespace.is_none_or(|only| of == only))
        .collect();
    if let Some((name, _)) = begun.rsplit_once(':') {
        return ports(session, name, namespace, begun).await;
    }
    let (kind, rest) = match begun.split_once('/') {
        Some((kind, rest)) if is_kind(kind) => (format!("{kind}/"), rest),
        _ => (String::new(), begun),
    };
    let full = |(namespace, name): &(String, String)| format!("{kind}{namespace}/{name}");
    let mut found: Vec<String> = all
        .iter()
        .filter(|object| namespace.is_none() && full(object).starts_with(begun))
        .map(full)
        .collect();
    if rest.is_empty() && namespace.is_none() {
        found.sort();
        return found;
    }
    let mut short: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for of in all.iter().filter(|(_, name)| name.starts_with(rest)) {
        short.entry(&of.1).or_default().push(full(of));
    }
    match short.len() {
        // The shell replaces the word by the only name.
        1 if namespace.is_none() && kind.is_empty() => found.extend(short.into_values().flatten()),
        _ => found.extend(short.into_keys().map(|name| format!("{kind}{name}"))),
    }
    found.sort();
    found.dedup();
    found
}

/// Returns the ports of the Service `name` that begin with `begun`.
async fn ports(session: &Session, name: &str, namespace: Option<&str>, begun: &str) -> Vec<String> {
    let plain = match name.split_once('/') {
        Some((kind, rest)) if is_kind(kind) => rest,
        _ => name,
    };
    let is_it = |service: &&Service| {
        let meta = &service.metadata;
        match plain.split_once('/') {
            Some((space, plain)) => meta.namespace == space && meta.name == plain,
            None => meta.name == plain && namespace.is_none_or(|only| meta.namespace == only),
        }
    };
    let all = all_services(session).await;
    let ports = all
        .iter()
        .filter(is_it)
        .flat_map(|service| &service.spec.ports);
    let names = ports.map(|port| match port.name.as_str() {
        "" => format!("{name}:{}", port.port),
        port => format!("{name}:{port}"),
    });
    let names: BTreeSet<String> = names.filter(|port| port.starts_with(begun)).collect();
    names.into_iter().collect()
}

/// Returns the names of pods on the node.
async fn pods(session: &Session) -> Vec<String> {
    let mut needs = vec![Item::Pods, Item::EndpointSlices, Item::Nodes];
    needs.extend(kpx_node::node::identity::NEEDS);
    let Ok(evidence) = session.gather(&needs).await else {
        return Vec::new();
    };
    let node = session.node(&evidence);
    let slices = node.slices().map_or(&[][..], Vec::as_slice);
    Pods::of(&node, slices).sources().into_iter().collect()
}

/// Returns the names of the nodes of the bundle or of the cluster.
async fn nodes(session: &Session) -> Vec<String> {
    if let Some(path) = session.source.bundle()
        && let Err(BundleError::AllNodes { nodes, .. }) = evidence::load_node(path, None, &[])
    {
        return nodes;
    }
    let read = session.gather(&[Item::Nodes]).await;
    let list = read
        .ok()
        .map(|evidence| cluster::list::<Node>(&evidence, Item::Nodes));
    let list = list.and_then(Result::ok).unwrap_or_default();
    list.into_iter().map(|node| node.metadata.name).collect()
}

/// Returns the objects of `view`, or the Services where it has those.
async fn objects(session: &Session, view: &str, typed: &Typed) -> Vec<String> {
    let begun = typed.begun.as_str();
    let own = match view {
        "chains" => View::Chains,
        "sets" => View::Sets,
        "modules" => View::Modules,
        "sysctls" => View::Sysctls,
        "addresses" => View::Addresses,
        "config" => return Vec::new(),
        _ => return services(session, begun, typed.namespace.as_deref()).await,
    };
    let query = Query {
        view: own,
        name: None,
        namespace: None,
        family: session.family(),
        across: None,
    };
    let Ok(evidence) = session.gather(&query.needs()).await else {
        return Vec::new();
    };
    let node = session.node(&evidence);
    let shown = view::show(&node, query);
    let names: BTreeSet<String> = match &shown.rows {
        Rows::Chains(rows) => rows.iter().map(|row| row.chain.clone()).collect(),
        Rows::Sets(rows) => rows.iter().map(|row| row.set.clone()).collect(),
        Rows::Modules(rows) => rows.iter().map(|row| row.module.clone()).collect(),
        Rows::Sysctls(rows) => rows.iter().map(|row| row.sysctl.to_owned()).collect(),
        Rows::Addresses(rows) => rows.iter().map(|row| row.address.to_string()).collect(),
        _ => BTreeSet::new(),
    };
    let mut found: Vec<String> = names.into_iter().collect();
    found.retain(|name| name.starts_with(begun));
    // A chain belongs to a Service.
    if own.joins_names() && !begun.is_empty() && found.is_empty() {
        return services(session, begun, typed.namespace.as_deref()).await;
    }
    found
}
