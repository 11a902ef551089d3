//! `kpx resolve`

use std::fmt;
use std::net::SocketAddr;

use super::args::ResolveArgs;
use super::report::nodes::ResolveOfNodes;
use super::report::{Answer, Candidate, DnsServer, Environment, ResolveReport};
use crate::cli::service::ServiceArgs;
use crate::command::shared::failure::{Failure, Hint as _};
use crate::command::shared::io::Io;
use crate::command::shared::nodes;
use crate::command::shared::service_name;
use crate::command::shared::session::Session;
use kpx_node::cluster::{self, EndpointSlice, Service};
use kpx_node::dns::{self, DnsFailure, Question, Records, Reply, Zone};
use kpx_node::evidence::Item;
use kpx_node::net::Family;

/// The Service of cluster DNS.
const DNS: (&str, &str) = ("kube-system", "kube-dns");

/// The label of cluster DNS, for a Service with another name.
const LABEL: (&str, &str) = ("k8s-app", "kube-dns");

/// The Service whose variables every container has.
const API: (&str, &str) = ("default", "kubernetes");

pub(in crate::command) async fn run(
    session: &Session,
    io: &mut Io<'_>,
    args: &ResolveArgs,
) -> Result<u8, Failure> {
    let args = &named(session, args).await?;
    if args.nodes.are_several() {
        let (args, nodes) = (args.clone(), args.nodes.clone());
        let work = async move |session: Session| resolve(&session, &args).await;
        return nodes::report::<ResolveOfNodes>(session, io, &nodes, &[], work).await;
    }
    session.finish(io, &resolve(session, args).await?)
}

/// Returns `args` with the DNS name of the Service, if one is named as for kubectl.
async fn named(session: &Session, args: &ResolveArgs) -> Result<ResolveArgs, Failure> {
    let mut args = args.clone();
    let words = ServiceArgs {
        second: args.second.take(),
        namespace: None,
    };
    if args.name.contains('/') || words.second.is_some() {
        let target = service_name::target(session, &args.name, &words).await?;
        let (namespace, name) = target.split_once('/').unwrap_or_default();
        args.name = format!("{name}.{namespace}");
    }
    Ok(args)
}

async fn resolve(session: &Session, args: &ResolveArgs) -> Result<ResolveReport, Failure> {
    let domain = args.cluster_domain.trim_matches('.').to_lowercase();
    if domain.is_empty() || args.name.trim_end_matches('.').is_empty() {
        let what =
            "the name or the domain is empty: pass one, as in `kpx resolve web --namespace demo`";
        return Err(Failure::usage(what));
    }
    let evidence = session
        .gather(&[Item::Services, Item::EndpointSlices])
        .await?;
    let read = "the expected answer is computed from the API objects: pass --kubeconfig FILE to reach the cluster";
    let services: Vec<Service> = cluster::list(&evidence, Item::Services).hint(read)?;
    let slices: Vec<EndpointSlice> = cluster::list(&evidence, Item::EndpointSlices).hint(read)?;
    let zone = Zone {
        domain: &domain,
        services: &services,
        slices: &slices,
    };
    let server = if session.source.is_bundle() {
        DnsServer::NotQueried("offline bundle".to_owned())
    } else {
        args.server
            .map_or_else(|| server(&services, session), DnsServer::Address)
    };
    let mut tried: Vec<Candidate> = Vec::new();
    for name in dns::candidates(&args.name, &args.namespace, &domain) {
        let expected = zone.expect(&name);
        let answered = match server {
            DnsServer::NotQueried(_) => Answer::NotQueried,
            DnsServer::Address(server) => ask(session, server, &name).await?,
        };
        tried.push(Candidate::new(name, &expected, answered));
        if tried.last().is_some_and(Candidate::ends) {
            break;
        }
    }
    let service = tried.iter().find_map(|tried| zone.of(&tried.name));
    let lost = !tried.last().is_some_and(Candidate::ends);
    let called = services
        .iter()
        .filter(|service| lost && service.metadata.name == args.name);
    let elsewhere = called
        .map(|called| called.metadata.namespace.clone())
        .collect();
    let named =
        service.map(|service| format!("{}/{}", service.metadata.namespace, service.metadata.name));
    // Every container has the variables of this Service, even if DNS fails.
    let api = |service: &&Service| is_api(service) && args.name == API.1;
    let told = service.or_else(|| services.iter().find(api));
    let environment = args.env.then(|| match told {
        Some(service) => environment(service, &services, &args.namespace),
        None => Environment::None("no Service has this name".to_owned()),
    });
    Ok(ResolveReport {
        name: args.name.clone(),
        namespace: args.namespace.clone(),
        domain,
        service: named,
        elsewhere,
        server,
        tried,
        environment,
    })
}

/// Returns the address of cluster DNS.
fn server(services: &[Service], session: &Session) -> DnsServer {
    let named = |service: &&Service| {
        (
            service.metadata.namespace.as_str(),
            service.metadata.name.as_str(),
        ) == DNS
    };
    let labelled = |service: &&Service| {
        service.metadata.namespace == DNS.0
            && service
                .metadata
                .labels
                .get(LABEL.0)
                .is_some_and(|value| value == LABEL.1)
    };
    let mut all = services.iter();
    let service = all.find(named).or_else(|| services.iter().find(labelled));
    let Some(service) = service else {
        let why = format!(
            "Service {}/{} not found: pass --server IP:PORT",
            DNS.0, DNS.1
        );
        return DnsServer::NotQueried(why);
    };
    let families = session.families();
    let first = service
        .spec
        .cluster_ips
        .iter()
        .chain([&service.spec.cluster_ip]);
    let mut first = first.filter_map(|ip| ip.parse().ok());
    let ours = first.find(|ip| families.contains(&Family::of(*ip)));
    match ours {
        Some(ip) => DnsServer::Address(SocketAddr::new(ip, 53)),
        None => DnsServer::NotQueried(format!("Service {}/{} has no cluster IP", DNS.0, DNS.1)),
    }
}

/// Returns the address of cluster DNS; `None` if there is none to ask.
pub(in crate::command) fn cluster_dns(
    services: &[Service],
    session: &Session,
) -> Option<SocketAddr> {
    match server(services, session) {
        DnsServer::Address(at) => Some(at),
        DnsServer::NotQueried(_) => None,
    }
}

/// Asks cluster DNS for the records of `name`, a full one; returns its address and why it does not resolve the name, or `None`
/// if it does, or if there is none to ask.
pub(in crate::command) async fn unresolved(
    session: &Session,
    name: &str,
) -> Result<Option<(SocketAddr, Unresolved)>, Failure> {
    if session.source.is_bundle() {
        return Ok(None);
    }
    let evidence = session.gather(&[Item::Services]).await?;
    let Ok(services) = cluster::list::<Service>(&evidence, Item::Services) else {
        return Ok(None);
    };
    let Some(server) = cluster_dns(&services, session) else {
        return Ok(None);
    };
    Ok(match ask(session, server, name).await? {
        Answer::Failed(failure) => Some((server, Unresolved::Failed(failure))),
        Answer::NoName => Some((server, Unresolved::NoName)),
        Answer::Records(_) | Answer::NotQueried => None,
    })
}

/// Why a name has no records.
pub(in crate::command) enum Unresolved {
    /// The server did not answer, or answered with an error.
    Failed(DnsFailure),
    /// The name does not exist.
    NoName,
}

impl fmt::Display for Unresolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Failed(failure) => &failure.why,
            Self::NoName => "the name does not exist",
        })
    }
}

/// Queries `server` for the records of `name`.
async fn ask(session: &Session, server: SocketAddr, name: &str) -> Result<Answer, Failure> {
    let questions: &[Question] = if name.starts_with('_') {
        &[Question::Srv]
    } else {
        &[Question::A, Question::Aaaa]
    };
    let mut records = Records::default();
    for (id, question) in (1..).zip(questions) {
        let message = question
            .ask(name, id)
            .map_err(|e| Failure::usage(e.to_string()))?;
        let answer = session.ask(server, message).await?;
        let reply = answer.and_then(|answer| {
            Reply::read(&answer, id).map_err(|e| DnsFailure {
                is_silent: false,
                why: e.to_string(),
            })
        });
        match reply {
            Ok(Reply::Records(more)) => records.extend(more),
            Ok(Reply::NoName) => return Ok(Answer::NoName),
            Ok(Reply::Failed(code)) => {
                return Ok(Answer::Failed(DnsFailure {
                    is_silent: false,
                    why: format!("{server} answered {code}"),
                }));
            }
            Err(failure) => return Ok(Answer::Failed(failure)),
        }
    }
    Ok(Answer::Records(records))
}

/// Returns the variables for `service` in a container of a pod in `namespace`.
fn environment(service: &Service, services: &[Service], namespace: &str) -> Environment {
    let metadata = &service.metadata;
    let is_api = is_api(service);
    // A Service of the same name in the pod's namespace takes precedence.
    let hidden = is_api
        && namespace != API.0
        && services.iter().any(|service| {
            service.metadata.namespace == namespace && service.metadata.name == API.1
        });
    if hidden || !is_api && metadata.namespace != namespace {
        return Environment::None(format!(
            "a container has variables for Services in its own namespace only: {namespace}, not {}",
            metadata.namespace
        ));
    }
    match dns::variables(service) {
        none if none.is_empty() => Environment::None("the Service has no cluster IP".to_owned()),
        all => Environment::Variables(all),
    }
}

fn is_api(service: &Service) -> bool {
    let metadata = &service.metadata;
    (metadata.namespace.as_str(), metadata.name.as_str()) == API
}
