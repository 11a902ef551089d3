//! Services without usable endpoints.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use crate::check::{Fix, Writer, early_demux_fix, taken_fix};
use crate::verdict::{self, Cell, Fate, Fault, Target};
use crate::why::blame::Blame;
use crate::why::endpoints::{
    Compared, Lack, Objects, Unprobed, Waits, lack, last_change, slices_of, unready, usable,
};
use crate::why::look::Look;
use crate::why::{Cause, Degree, Idle, Path};
use kpx_node::cluster::{Pod, Service};
use kpx_node::desired::Detector;
use kpx_node::evidence::Item;
use kpx_node::net::{Family, Proto};
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
        let probes = |pod: &Pod, at| self.stopped(pod, at);
        let nodes = self.node.nodes().map_or(&[][..], Vec::as_slice);
        pod.and_then(|pod| Waits::of(pod, pods, nodes, &probes))
            .unwrap_or(Waits {
                pod: name,
                reason: "not ready".to_owned(),
                offline: None,
                crashed: None,
                stale: false,
                fix: None,
            })
    }

    /// Returns why nothing answers the readiness probe of `pod` at this address and port; without them, why its container does not stay up.
    fn stopped(&self, pod: &Pod, probe: Option<(IpAddr, u16)>) -> Option<Unprobed> {
        if let Some((address, port)) = probe {
            return self.unprobed(pod, address, port);
        }
        let reason = self.node.port_taken(pod)?;
        Some(Unprobed::Stopped(reason, Some(taken_fix())))
    }

    /// Returns why nothing answers the readiness probe of `pod` at `address` and `port`.
    pub(in crate::why) fn unprobed(
        &self,
        pod: &Pod,
        address: IpAddr,
        port: u16,
    ) -> Option<Unprobed> {
        let node = pod.spec.node_name.as_deref()?;
        if self.name.as_deref() != Some(node) {
            return self.there.as_ref()?.unprobed(node, pod, address, port);
        }
        if self.judge.listens_inside(address, port) == Some(false) {
            return Some(Unprobed::Silent);
        }
        if let Some(why) = self.node.loses_answers(address) {
            return Some(Unprobed::Stopped(why, Some(early_demux_fix())));
        }
        let at = SocketAddr::new(address, port);
        let subject = at.to_string();
        let mut answer = self.empty();
        let blames = self.plain(at, Proto::Tcp, Some("host"), &subject, &mut answer);
        self.add_causes(blames.ok()?, &subject, None, &mut answer);
        // A probe that fails at times makes the pod ready and not ready in turn.
        let is_lost = |path: &Path| matches!(path.fate, Fate::Lost | Fate::Refused | Fate::Partly);
        if answer.paths.is_empty() || !answer.paths.iter().all(is_lost) {
            return None;
        }
        answer.settle_as(&subject);
        let mut causes = answer.causes.into_iter();
        let cause = causes.find(|cause| cause.degree == Degree::Breaks)?;
        Some(Unprobed::Stopped(cause.reason, cause.fix))
    }

    /// Returns the ready pods of this node among the endpoints of `ports` whose readiness probes cannot always succeed.
    pub(in crate::why) fn unsteady(&self, ports: &[Port]) -> BTreeSet<String> {
        let endpoints = ports.iter().flat_map(|port| &port.endpoints);
        let names: BTreeSet<&str> = endpoints
            .filter(|endpoint| endpoint.local == Some(true))
            .filter_map(|endpoint| endpoint.pod.as_deref())
            .collect();
        let pods = self.node.pods().into_iter().flatten();
        let ours = pods.filter(|pod| {
            let meta = &pod.metadata;
            pod.is_ready() && names.contains(&*format!("{}/{}", meta.namespace, meta.name))
        });
        let note = |pod: &Pod| {
            let address = pod.status.pod_ip.as_deref()?.parse().ok()?;
            pod.probed_ports().find_map(|(container, port)| {
                let Unprobed::Stopped(reason, _) = self.unprobed(pod, address, port)? else {
                    return None;
                };
                let (namespace, name) = (&pod.metadata.namespace, &pod.metadata.name);
                Some(format!(
                    "pod {namespace}/{name} is ready, but not for long: the readiness probe of container {container} asks port {port}, and \
                     {reason}"
                ))
            })
        };
        ours.filter_map(note).collect()
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
        let own = self.node.pods().ok().map(Vec::as_slice);
        let (others, all_read) = self.there.as_ref().map_or((Vec::new(), false), |there| {
            (there.pods(), own.is_some() && there.has_all(self.node))
        });
        let joined: Vec<Pod>;
        let pods = if others.is_empty() {
            own
        } else {
            let is_own = |pod: &Pod| {
                let mut own = own.into_iter().flatten();
                own.any(|known| {
                    let (known, pod) = (&known.metadata, &pod.metadata);
                    (&known.namespace, &known.name) == (&pod.namespace, &pod.name)
                })
            };
            let others = others.into_iter().filter(|pod| !is_own(pod)).cloned();
            joined = own.into_iter().flatten().cloned().chain(others).collect();
            Some(&*joined)
        };
        let objects = Objects {
            services: self.services,
            slices: self.slices,
            pods,
            all_read,
            nodes: self.node.nodes().map_or(&[][..], Vec::as_slice),
            probes: &|pod, at| self.stopped(pod, at),
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
