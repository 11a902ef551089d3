//! Services as users name them: as for kubectl. `web`, `svc/web`, `service web` and `web -n shop` become `shop/web`.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use color_eyre::eyre::eyre;

use super::failure::Failure;
use super::session::{Session, unreadable};
use super::unfit;
use crate::cli::service::{ServiceArgs, is_kind};
use crate::view::did_you_mean::{meant, nearest};
use kpx_host as host;
use kpx_judge::trace::sources::{Pods, SourceError};
use kpx_judge::why::Asked;
use kpx_node::cluster::{self, Service};
use kpx_node::evidence::{self, Evidence, Item};
use kpx_node::node::NodeSnapshot;
use kpx_node::owner::Owners;

/// Pods that are named to choose from.
const MOST_PODS: usize = 3;

/// Returns `word`, the first of a target, with every Service as `NAMESPACE/NAME[:PORT]`; other targets stay as they are.
///
/// Fails if no Service has the name, or several have it.
pub(in crate::command) async fn target(
    session: &Session,
    word: &str,
    args: &ServiceArgs,
) -> Result<String, Failure> {
    if let (None, Some(port)) = (&args.second, word.strip_prefix("localhost:")) {
        return Ok(format!("127.0.0.1:{port}"));
    }
    let named = Named::parse(word, args)?;
    let Some(Named { name, port, kind }) = named else {
        return Ok(word.to_owned());
    };
    let full = |namespace: &str, name: &str| format!("{namespace}/{name}{port}");
    let given = args.namespace.as_deref();
    if let Some((namespace, name)) = name.split_once('/') {
        return match given {
            Some(given) if given != namespace => Err(Failure::usage(format!(
                "{namespace}/{name} is not in namespace {given}: omit --namespace, or the namespace of the name"
            ))),
            _ => Ok(full(namespace, name)),
        };
    }
    let services = match (services(session).await, given) {
        (Ok(services), _) => services,
        // The command itself says what it lacks.
        (Err(_), Some(given)) => return Ok(full(given, name)),
        (Err(why), None) => {
            let found = in_rules(session, name).await?;
            return match found.iter().collect::<Vec<_>>().as_slice() {
                [] => Err(why),
                [only] => Ok(full(only, name)),
                _ => Err(several(
                    name,
                    &found.iter().map(|of| full(of, name)).collect::<Vec<_>>(),
                )),
            };
        }
    };
    let has = |namespace: &str, name: &str| {
        let is = |service: &Service| {
            service.metadata.namespace == namespace && service.metadata.name == name
        };
        services.iter().any(is)
    };
    // A namespace may have the name of a kind.
    if let Some(kind) = kind.filter(|kind| given.is_none() && has(kind, name)) {
        return Ok(full(kind, name));
    }
    let current = match given {
        None if !session.source.is_bundle() => host::context_namespace(&session.host).await,
        _ => None,
    };
    if let Some(namespace) = given.or(current.as_deref())
        && has(namespace, name)
    {
        return Ok(full(namespace, name));
    }
    let found = services
        .iter()
        .filter(|service| service.metadata.name == name);
    let found: Vec<String> = found
        .map(|service| full(&service.metadata.namespace, name))
        .collect();
    match (found.as_slice(), given) {
        ([only], None) => Ok(only.clone()),
        ([], None) => Err(missing(
            format!("no Service is named {name}"),
            name,
            &services,
        )),
        (others, Some(given)) => {
            let error = format!("namespace {given} has no Service {name}");
            match others {
                [] => Err(missing(error, name, &services)),
                others => Err(Failure::usage(error)
                    .absent()
                    .with_hint(format!("did you mean {}?", others.join(" or ")))),
            }
        }
        (found, None) => Err(several(name, found)),
    }
}

/// Returns the failure for a name that several Services have.
fn several(name: &str, found: &[String]) -> Failure {
    Failure::usage(format!(
        "{} Services are named {name}: {}",
        found.len(),
        found.join(", ")
    ))
    .with_hint("name one of them, or pass its namespace with -n")
}

/// Returns the namespaces in which the rules of a recording have a Service `name`.
async fn in_rules(session: &Session, name: &str) -> Result<BTreeSet<String>, Failure> {
    if !session.source.is_bundle() {
        return Ok(BTreeSet::new());
    }
    let evidence = session
        .gather(&[Item::Iptables4, Item::Iptables6, Item::Nft, Item::NftText])
        .await?;
    let owners = Owners::new(&NodeSnapshot::new(&evidence));
    let ports = owners.ports().iter().map(|port| &port.name);
    let named = ports.filter(|port| *port.name == *name);
    Ok(named.map(|port| port.namespace.to_string()).collect())
}

/// Returns the names of `services` that are similar to `name`.
pub(in crate::command) fn similar(name: &str, services: &[Service]) -> Vec<String> {
    let names = services.iter().map(|service| &service.metadata);
    nearest(
        name,
        names.map(|name| format!("{}/{}", name.namespace, name.name)),
    )
}

/// Returns the failure for a source that `node` does not have, with the pods that it has.
pub(in crate::command) fn no_source(node: &NodeSnapshot<'_>, why: &SourceError) -> Failure {
    let slices = node.slices().map_or(&[][..], Vec::as_slice);
    let pods = Pods::of(node, slices).sources();
    let pods: Vec<&str> = pods.iter().take(MOST_PODS).map(String::as_str).collect();
    let takes = "`--source` takes `host`, `outside`, an address";
    let hint = match (why, pods.as_slice()) {
        (SourceError::Family(..), _) => "give an address of the family of the target".to_owned(),
        (_, []) => format!("{takes}, or NAMESPACE/POD"),
        (_, pods) => format!("{takes}, or a pod such as {}", pods.join(", ")),
    };
    Failure::usage(why).with_hint(hint)
}

/// Returns the failure for a Service that does not exist, with similar names.
fn missing(error: String, name: &str, services: &[Service]) -> Failure {
    let meant = meant(&similar(name, services));
    let meant = meant.map_or_else(String::new, |meant| format!("{meant} "));
    Failure::usage(error).absent().with_hint(format!(
        "{meant}`kpx show services` lists Services and their ports"
    ))
}

/// A Service as it is named: without its kind.
#[derive(Debug, Eq, PartialEq)]
struct Named<'w> {
    /// `NAME` or `NAMESPACE/NAME`.
    name: &'w str,
    /// `:PORT`, or empty.
    port: &'w str,
    /// The kind in front of it.
    kind: Option<&'w str>,
}

impl<'w> Named<'w> {
    /// Parses the words of a target; returns `None` if it is not the name of a Service.
    fn parse(word: &'w str, args: &'w ServiceArgs) -> Result<Option<Self>, Failure> {
        let (kind, rest) = match (&args.second, word.split_once('/')) {
            (Some(second), _) if is_kind(word) => (Some(word), second.as_str()),
            (Some(second), _) => {
                return Err(Failure::usage(format!("unexpected argument {second:?}"))
                    .with_hint("name one target; a Service is NAMESPACE/NAME, svc/NAME or NAME"));
            }
            (None, Some((kind, rest))) if is_kind(kind) => (Some(kind), rest),
            (None, _) => (None, word),
        };
        let (name, port) = match rest.find(':') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let is_label = |text: &str| {
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
            !text.is_empty() && text.chars().all(fits)
        };
        let is_service = name.split('/').all(is_label) && name.split('/').count() <= 2;
        let is_other =
            name == "nodeport" || (kind.is_none() && rest.parse::<std::net::IpAddr>().is_ok());
        // As pages of kpx print addresses: 192.0.2.1:53/udp.
        let is_address = matches!(Asked::parse(rest), Ok(Asked::Address(..)));
        match (is_service && !is_other, kind, &args.namespace) {
            (true, ..) => Ok(Some(Self { name, port, kind })),
            (false, None, None) if !rest.contains('/') || is_address => Ok(None),
            (false, None, Some(_)) if Asked::parse(word).is_ok() => Err(Failure::usage(format!(
                "{word} has no namespace: omit --namespace"
            ))),
            (false, ..) => Err(
                Failure::usage(format!("{rest:?} is not the name of a Service")).with_hint(
                    "name it as NAMESPACE/NAME, svc/NAME or NAME, with or without :PORT",
                ),
            ),
        }
    }
}

/// Returns the Services of the cluster.
async fn services(session: &Session) -> Result<Vec<Service>, Failure> {
    let evidence = match (
        session.gather(&[Item::Services]).await,
        session.source.bundle(),
    ) {
        (Err(_), Some(path)) if session.nodes.is_empty() => {
            // A bundle of all nodes has the Services once.
            let mut objects = Evidence::default();
            evidence::each_node(path, &[Item::Services], &mut |cluster, _, _| {
                objects = cluster.clone();
                ControlFlow::Break(())
            })
            .map_err(unreadable)?;
            objects
        }
        (read, _) => read?,
    };
    cluster::list(&evidence, Item::Services).map_err(|gap| {
        let hint = unfit::without_services(session, &gap);
        Failure::from(eyre!("the Services are unknown: {gap}")).with_hint(hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_named_as_for_kubectl() {
        let plain = ServiceArgs::default();
        let parse = |word: &'static str| {
            let named = Named::parse(word, &plain).ok().flatten();
            named.map(|service| (service.name, service.port))
        };
        for (word, expected) in [
            ("web", Some(("web", ""))),
            ("web:80", Some(("web", ":80"))),
            ("svc/web", Some(("web", ""))),
            ("service/web:http", Some(("web", ":http"))),
            ("Services/web", Some(("web", ""))),
            ("svc/shop/web", Some(("shop/web", ""))),
            ("shop/web:80", Some(("shop/web", ":80"))),
            ("10.96.0.1", None),
            ("10.96.0.1:443", None),
            ("[fd00::1]:443", None),
            ("fd00::1", None),
            ("nodeport:30080", None),
            ("web.shop.svc.cluster.local:80", None),
        ] {
            assert_eq!(parse(word), expected, "{word}");
        }
    }

    #[test]
    fn the_kind_may_be_a_word_of_its_own() {
        let args = ServiceArgs {
            second: Some("web:80".to_owned()),
            namespace: None,
        };
        let named = Named::parse("service", &args).ok().flatten().unwrap();
        assert_eq!((named.name, named.port), ("web", ":80"));
        assert!(Named::parse("pod", &args).is_err());
    }
}
