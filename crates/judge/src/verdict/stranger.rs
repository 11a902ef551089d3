//! Endpoints of the wrong workload: the selector of a Service matches too much, or the wrong pods.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::judge::{Judge, Question};
use super::{Fault, Obstacle};
use kpx_node::cluster::{Pod, Service, Workload};
use kpx_node::net::Proto;
use kpx_node::owner::PortName;

/// A workload whose pods a Service selects and at whose port nothing listens, with another workload that has the port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stranger {
    /// The Service.
    pub service: PortName,
    /// Its selector, as `kubectl -l` takes it.
    pub selector: String,
    /// The workload whose pods it selects.
    pub selected: Workload,
    /// The workload whose pods have the port.
    pub meant: Workload,
    /// Whether the selector matches the pods of the workload with the port, too.
    pub both: bool,
    /// A label that only the pods of that workload have, as `KEY=VALUE`.
    pub label: Option<String>,
}

/// Labels that say what a pod is.
const NAMES: [&str; 3] = ["app.kubernetes.io/name", "app", "k8s-app"];

/// Labels that controllers give to each of their pods, or of their revisions.
const GENERATED: [&str; 5] = [
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
];

impl Judge<'_> {
    /// Returns `fault`. For an endpoint at which nothing listens, it names the workload that the Service is for, if the Service selects
    /// pods of another one.
    pub(super) fn with_stranger(&self, question: Question<'_>, mut fault: Fault) -> Fault {
        if let Fault::Obstacle(what) = &mut fault
            && let Obstacle::Deaf {
                at, end, stranger, ..
            } = &mut **what
            && at == end
            && let Some(port) = question.port
        {
            *stranger = self
                .stranger(&port.name, question.flow.proto, *at)
                .map(Box::new);
        }
        fault
    }

    pub(super) fn stranger(
        &self,
        name: &PortName,
        proto: Proto,
        at: SocketAddr,
    ) -> Option<Stranger> {
        let is_it = |service: &&Service| {
            *service.metadata.namespace == *name.namespace && *service.metadata.name == *name.name
        };
        let service = self.node.services().ok()?.iter().find(is_it)?;
        let all = self.node.pods().ok()?;
        let selected = all.iter().find(|pod| pod.has_ip(at.ip()))?.workload()?;
        if !all
            .iter()
            .any(|pod| pod.has_ip(at.ip()) && service.selects(pod))
        {
            return None;
        }
        let has_port =
            |pod: &&Pod| pod.declares(at.port(), proto) || self.listens(pod, proto, at.port());
        let of = |workload: &Workload| -> Vec<&Pod> {
            let namespace = &service.metadata.namespace;
            let own = all
                .iter()
                .filter(|pod| pod.metadata.namespace == *namespace);
            own.filter(|pod| pod.workload().as_ref() == Some(workload))
                .collect()
        };
        let own = of(&selected);
        if own.iter().any(has_port) {
            return None;
        }
        let others = all
            .iter()
            .filter(|pod| pod.metadata.namespace == service.metadata.namespace)
            .filter(has_port);
        let mut others: Vec<(Workload, bool)> = others
            .filter_map(|pod| Some((pod.workload()?, service.selects(pod))))
            .filter(|(workload, is_selected)| {
                *is_selected || self.is_meant(service, workload, &of(workload), at.port())
            })
            .collect();
        others.sort_by_key(|(_, is_selected)| !is_selected);
        others.dedup();
        let both = others.first()?.1;
        others.retain(|(_, is_selected)| *is_selected == both);
        // With several workloads, it is not known which one is meant.
        let [(meant, _)] = others.as_slice() else {
            return None;
        };
        let selector = service.selector()?.iter();
        let selector: Vec<_> = selector.map(|(k, v)| format!("{k}={v}")).collect();
        Some(Stranger {
            service: name.clone(),
            selector: selector.join(","),
            both,
            label: label_of(&of(meant), &own),
            meant: meant.clone(),
            selected,
        })
    }

    fn listens(&self, pod: &Pod, proto: Proto, port: u16) -> bool {
        let mut addresses = pod.addresses();
        proto == Proto::Tcp
            && addresses.any(|addr: IpAddr| self.listens_inside(addr, port) == Some(true))
    }

    /// Returns whether `service`, which selects no pod of `workload`, is meant for it: it has the Service's name, or no other Service
    /// leads to this port of its pods.
    fn is_meant(&self, service: &Service, workload: &Workload, pods: &[&Pod], port: u16) -> bool {
        let name = &service.metadata.name;
        let is_called = |pod: &&Pod| {
            let mut names = NAMES.iter().filter_map(|key| pod.metadata.labels.get(*key));
            names.any(|label| label == name)
        };
        if workload.name == *name || pods.iter().any(is_called) {
            return true;
        }
        let mut others = self.node.services().map_or(&[][..], Vec::as_slice).iter();
        !others.any(|other| {
            let mut ports = other.spec.ports.iter();
            pods.iter().any(|pod| other.selects(pod))
                && ports.any(|service_port| match &service_port.target_port {
                    None => service_port.port == port,
                    Some(target) => target
                        .as_u64()
                        .is_none_or(|target| target == u64::from(port)),
                })
        })
    }
}

/// Returns a label of all of `pods` that none of `others` has.
fn label_of(pods: &[&Pod], others: &[&Pod]) -> Option<String> {
    let (first, rest) = pods.split_first()?;
    let tells = |(key, value): &(&String, &String)| {
        let has = |pod: &&Pod| pod.metadata.labels.get(*key) == Some(value);
        !GENERATED.contains(&key.as_str()) && rest.iter().all(has) && !others.iter().any(has)
    };
    let mut labels: Vec<_> = first.metadata.labels.iter().filter(tells).collect();
    labels.sort_by_key(|(key, _)| {
        NAMES
            .iter()
            .position(|name| name == key)
            .unwrap_or(NAMES.len())
    });
    let (key, value) = labels.first()?;
    Some(format!("{key}={value}"))
}

impl fmt::Display for Stranger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            selector,
            selected,
            meant,
            both,
            ..
        } = self;
        let how = if *both { "as well as" } else { "and not" };
        write!(
            f,
            "selector {selector} matches the pods of {selected} {how} those of {meant}, which have the port"
        )
    }
}
