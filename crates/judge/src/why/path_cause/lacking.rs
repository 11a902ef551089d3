//! Services without usable endpoints.

use std::collections::BTreeSet;

use crate::check::{Fix, Writer};
use crate::verdict::{self, Cell, Fault, Target};
use crate::why::blame::Blame;
use crate::why::endpoints::{
    Compared, Lack, Objects, Waits, lack, last_change, slices_of, unready, usable,
};
use crate::why::look::Look;
use crate::why::{Cause, Idle};
use kpx_node::cluster::{Pod, Service};
use kpx_node::desired::Detector;
use kpx_node::evidence::Item;
use kpx_node::net::Family;
use kpx_node::owner::{Endpoint, EndpointState, Port};

impl Look<'_> {
    pub(super) fn not_local(&self, service: &Service, target: Target<'_>, cell: &Cell) -> Blame {
        let family = target.family();
        let here = usable(target.port, family).any(|usable| usable.local == Some(true));
        if let Some(misnamed) = here.then(|| self.misnamed()).flatten() {
            return Blame::breaks(Cause::Idle(misnamed));
        }
        if let Some(detector) = verdict::undetected(self.node, cell) {
            return Blame::breaks(self.undetected(cell, detector));
        }
        // The policy leaves the endpoint here, so it is no reason to refuse or drop packets.
        let leaves = |fault: &&Fault| {
            matches!(
                fault,
                Fault::DirectReply { .. } | Fault::SharedSource { .. }
            )
        };
        let own = self.node.name().ok();
        let unnamed = verdict::unnamed(self.node, target.port, family);
        if here && unnamed.is_empty() && !cell.verdict.faults().iter().any(leaves) {
            return Blame::breaks(self.unexplained(service, target.port, cell));
        }
        // The endpoints may have moved since.
        let moved = last_change(service, family, self.slices);
        let since = service.metadata.unedited_since().zip(moved);
        let policy = if target.kind.is_internal() {
            "internalTrafficPolicy"
        } else {
            "externalTrafficPolicy"
        };
        let nodes: BTreeSet<String> = usable(target.port, family)
            .filter_map(|usable| usable.node.as_deref().map(str::to_owned))
            .collect();
        Blame {
            since: since.map(|(service, moved)| service.max(moved)),
            ..Blame::breaks(Cause::NoLocalEndpoints {
                policy,
                here: here && unnamed.is_empty(),
                fields: local_fields(service),
                nodes: nodes.into_iter().collect(),
                unnamed,
                writer: slices_of(service, self.slices)
                    .find(|slice| {
                        slice
                            .endpoints
                            .iter()
                            .any(|endpoint| endpoint.node_name != own)
                    })
                    .map(|slice| Writer::of(slice, Some(service))),
                ending: of_state(target, EndpointState::Terminating)
                    .map(called)
                    .collect(),
                unready: of_state(target, EndpointState::NotReady)
                    .map(|endpoint| self.waits(endpoint))
                    .collect(),
            })
        }
    }

    /// Returns why `endpoint` is not ready.
    pub(super) fn waits(&self, endpoint: &Endpoint) -> Waits {
        let name = called(endpoint);
        let is_it = |pod: &&Pod| {
            name.split_once('/') == Some((&*pod.metadata.namespace, &*pod.metadata.name))
        };
        let pods = self.node.pods().map_or(&[][..], Vec::as_slice);
        let pod = pods.iter().find(is_it);
        let listens = |address, port| self.judge.listens_inside(address, port);
        let loses = |address| self.node.loses_answers(address);
        let nodes = self.node.nodes().map_or(&[][..], Vec::as_slice);
        pod.and_then(|pod| Waits::of(pod, pods, nodes, &listens, &loses))
            .unwrap_or(Waits {
                pod: name,
                reason: "not ready".to_owned(),
                offline: None,
                crashed: None,
                stale: false,
                unheard: false,
            })
    }

    /// Returns that kube-proxy takes the pod that `cell` asks for a machine outside, because of `detector`.
    pub(super) fn undetected(&self, cell: &Cell, detector: &Detector) -> Cause {
        let setting = match detector {
            Detector::Cidr(range) => match cell.flow.source {
                Some(pod) => format!(
                    "the range of pods in its configuration, {range}, does not contain {pod}"
                ),
                None => format!("the range of pods in its configuration is {range}"),
            },
            Detector::Interface(name) => {
                format!(
                    "bridgeInterface in its configuration is {name}, a link that the node does not have"
                )
            }
            Detector::Prefix(start) => format!(
                "interfaceNamePrefix in its configuration is {start}, with which no link of the node begins"
            ),
        };
        let found = self.failed("KP10").and_then(|finding| finding.fix.clone());
        Cause::Idle(Idle {
            check: "KP10",
            reason: format!(
                "kube-proxy takes pods of this node for machines outside, to which a Local policy offers endpoints of the node alone: \
                 {setting}"
            ),
            lasts: true,
            fix: found.or_else(|| {
                let text =
                    "Correct the setting in kube-proxy's configuration, and restart kube-proxy.";
                Some(Fix::said(text))
            }),
        })
    }

    /// Returns why `port` has no usable endpoint of `family`.
    pub(in crate::why) fn lacking(&self, service: &Service, port: &Port, family: Family) -> Blame {
        let mut ports = service.spec.ports.iter();
        let of_service = ports.find(|service_port| service_port.name == *port.name.port);
        let target = of_service.and_then(|object| object.target_port.as_ref());
        let objects = Objects {
            services: self.services,
            slices: self.slices,
            pods: self.node.pods().ok().map(Vec::as_slice),
            nodes: self.node.nodes().map_or(&[][..], Vec::as_slice),
            listens: &|address, port| self.judge.listens_inside(address, port),
            loses: &|address| self.node.loses_answers(address),
        };
        let (lack, since) = lack(service, &port.name.port, target, family, objects);
        let in_part = self.node.evidence().part(Item::Services).is_some();
        let pods = objects.pods.unwrap_or_default();
        let unready = || unready(&service.metadata.namespace, pods);
        let lack = match lack {
            Lack::NoSelector { .. } if in_part => Lack::SelectorUnread { unready: unready() },
            Lack::NoPods {
                selector,
                compared: Compared::All,
                but_for: None,
            } if self.are_states_unread(service) => Lack::StatesUnread {
                selector,
                unready: unready(),
            },
            known => known,
        };
        let others = Family::BOTH
            .into_iter()
            .filter(|other_family| *other_family != family);
        let has_others = others
            .into_iter()
            .any(|other_family| usable(port, other_family).next().is_some());
        Blame {
            since,
            ..Blame::breaks(Cause::NoEndpoints {
                lack,
                family: has_others.then_some(family),
            })
        }
    }

    /// Returns whether the slices of `service` are made of a table or a description, which leave out endpoints that are not ready.
    pub(super) fn are_states_unread(&self, service: &Service) -> bool {
        let mut slices = slices_of(service, self.slices).peekable();
        slices.peek().is_some() && slices.all(|slice| slice.in_part)
    }
}

/// Iterates over the endpoints of `target` on this node that are in `state`.
pub(super) fn of_state(
    target: Target<'_>,
    state: EndpointState,
) -> impl Iterator<Item = &Endpoint> {
    let all = target.port.endpoints.iter();
    all.filter(move |endpoint| {
        endpoint.local == Some(true)
            && endpoint.state == Some(state)
            && Family::of(endpoint.addr.ip()) == target.family()
    })
}

/// Returns the pod of `endpoint` as `NAMESPACE/NAME`, or its address.
pub(super) fn called(endpoint: &Endpoint) -> String {
    let pod = endpoint.pod.as_deref();
    pod.map_or_else(|| endpoint.addr.to_string(), str::to_owned)
}

/// Returns the fields of `service` that are Local.
pub(super) fn local_fields(service: &Service) -> Vec<&'static str> {
    let spec = &service.spec;
    let fields = [
        ("internalTrafficPolicy", &spec.internal_traffic_policy),
        ("externalTrafficPolicy", &spec.external_traffic_policy),
    ];
    let local = fields
        .into_iter()
        .filter(|(_, of)| of.as_deref() == Some("Local"));
    local.map(|(name, _)| name).collect()
}
