//! `kpx resolve`

use std::net::SocketAddr;

use super::failure::{Failure, Hint as _};
use super::{Io, gather, options};
use crate::cli::{Global, ResolveArgs};
use crate::cluster::{self, EndpointSlice, Service};
use crate::dns::{self, Question, Records, Reply, Zone};
use crate::evidence::{Gap, Item};
use crate::host;
use crate::net::Family;
use crate::report::resolve::{Answered, Asked, Candidate, Environment, ResolveReport};

/// The Service of cluster DNS, whatever serves it.
const DNS: (&str, &str) = ("kube-system", "kube-dns");

/// The label of its pods, and of it, where it has another name.
const LABEL: (&str, &str) = ("k8s-app", "kube-dns");

/// The Service that every container is told of.
const API: (&str, &str) = ("default", "kubernetes");

pub(super) async fn run(
    global: &Global,
    io: &Io<'_>,
    args: &ResolveArgs,
) -> Result<ResolveReport, Failure> {
    let domain = args.cluster_domain.trim_matches('.').to_lowercase();
    if domain.is_empty() || args.name.trim_end_matches('.').is_empty() {
        let what = "a name and a domain are at least a letter: `kpx resolve web --namespace demo`";
        return Err(Failure::usage(what));
    }
    let evidence = gather(global, io, &[Item::Services, Item::EndpointSlices]).await?;
    let read =
        "what DNS should say is read from the cluster: --kubeconfig FILE says how to reach it";
    let services: Vec<Service> = cluster::list(&evidence, Item::Services).hint(read)?;
    let slices: Vec<EndpointSlice> = cluster::list(&evidence, Item::EndpointSlices).hint(read)?;
    let zone = Zone {
        domain: &domain,
        services: &services,
        slices: &slices,
    };
    let server = if global.from.is_some() {
        Asked::Nobody("a bundle answers no questions".to_owned())
    } else {
        args.server
            .map_or_else(|| server(&services, global), Asked::Server)
    };
    let mut tried: Vec<Candidate> = Vec::new();
    for name in dns::candidates(&args.name, &args.namespace, &domain) {
        let expected = zone.expect(&name);
        let answered = match server {
            Asked::Nobody(_) => Answered::NotAsked,
            Asked::Server(server) => ask(global, server, &name).await?,
        };
        tried.push(Candidate::new(name, &expected, answered));
        // Here a resolver stops.
        if tried.last().is_some_and(Candidate::ends) {
            break;
        }
    }
    let service = tried.iter().find_map(|tried| zone.of(&tried.name));
    let lost = !tried.last().is_some_and(Candidate::ends);
    let called = services
        .iter()
        .filter(|of| lost && of.metadata.name == args.name);
    let elsewhere = called.map(|of| of.metadata.namespace.clone()).collect();
    let named = service.map(|of| format!("{}/{}", of.metadata.namespace, of.metadata.name));
    // Whatever DNS says of it, it is in every environment.
    let api = |of: &&Service| is_api(of) && args.name == API.1;
    let told = service.or_else(|| services.iter().find(api));
    let environment = args.env.then(|| match told {
        Some(service) => environment(service, &services, &args.namespace),
        None => Environment::None("no Service is called so".to_owned()),
    });
    Ok(ResolveReport {
        name: args.name.clone(),
        namespace: args.namespace.clone(),
        domain,
        service: named,
        elsewhere,
        asked: server,
        tried,
        environment,
    })
}

/// Returns where cluster DNS is.
fn server(services: &[Service], global: &Global) -> Asked {
    let named = |of: &&Service| (of.metadata.namespace.as_str(), of.metadata.name.as_str()) == DNS;
    let labelled = |of: &&Service| {
        of.metadata.namespace == DNS.0
            && of
                .metadata
                .labels
                .get(LABEL.0)
                .is_some_and(|value| value == LABEL.1)
    };
    let mut all = services.iter();
    let service = all.find(named).or_else(|| services.iter().find(labelled));
    let Some(service) = service else {
        let why = format!(
            "no Service {}/{} is there; --server IP:PORT says whom to ask",
            DNS.0, DNS.1
        );
        return Asked::Nobody(why);
    };
    let families = options(global).families;
    let first = service
        .spec
        .cluster_ips
        .iter()
        .chain([&service.spec.cluster_ip]);
    let mut first = first.filter_map(|ip| ip.parse().ok());
    let ours = first.find(|ip| families.contains(&Family::of(*ip)));
    match ours {
        Some(ip) => Asked::Server(SocketAddr::new(ip, 53)),
        None => Asked::Nobody(format!("Service {}/{} has no cluster IP", DNS.0, DNS.1)),
    }
}

/// Asks `server` for all that `name` may have.
async fn ask(global: &Global, server: SocketAddr, name: &str) -> Result<Answered, Failure> {
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
        let answer = host::ask(&options(global), server, message, dns::is_truncated).await;
        let reply = match answer {
            Ok(answer) => Reply::read(&answer, id).map_err(|e| e.to_string()),
            Err(Gap::Failed(_, why)) => Err(why),
            Err(gap) => Err(gap.to_string()),
        };
        match reply {
            Ok(Reply::Records(more)) => records.extend(more),
            Ok(Reply::NoName) => return Ok(Answered::NoName),
            Ok(Reply::Failed(code)) => {
                return Ok(Answered::Failed(format!("{server} says {code}")));
            }
            Err(why) => return Ok(Answered::Failed(why)),
        }
    }
    Ok(Answered::Records(records))
}

/// Returns what a container of a pod in `namespace` finds of `service` in its environment.
fn environment(service: &Service, services: &[Service], namespace: &str) -> Environment {
    let metadata = &service.metadata;
    let is_api = is_api(service);
    // One of the same name in the pod's own namespace stands for it there.
    let hidden = is_api
        && namespace != API.0
        && services
            .iter()
            .any(|of| of.metadata.namespace == namespace && of.metadata.name == API.1);
    if hidden || !is_api && metadata.namespace != namespace {
        return Environment::None(format!(
            "a pod in namespace {namespace} is told of the Services there alone, and this one is in {}",
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
