//! The possible causes of a connection that fails, each with the repairs that remove it.
//!
//! A cause is a difference from kube-proxy's desired state, a rule of other software on the way, a setting, a route, or a field
//! of the Service.

use std::net::{IpAddr, SocketAddr};

use super::endpoints;
use super::look::Look;
use crate::check::{self, Fix, bypass_fix, diverter_fix};
use crate::diff::{self, Change, ChangeKind, Delta, Object, RuleNumber};
use crate::repair::{Edit, Edited, Repair, RulePlace};
use crate::trace::{
    Effect, Entry, Hop, Outcome, Rule as TracedRule, Subsystem, Verdict, mismatch, why,
};
use crate::verdict::{
    Cell, Diversion, Diverter, Fault, FilterReason, Kind, Missing, Obstacle, Odd, OddWay,
    REPLY_PORT, is_local,
};
use kpx_node::backend::iptables::model::{Chain, Rule};
use kpx_node::backend::ipvs::model::DUMMY;
use kpx_node::backend::{Mode, nftables};
use kpx_node::cluster::Service;
use kpx_node::desired::DesiredState;
use kpx_node::net::{Cidr, Family};
use kpx_node::node::IptablesBackend;
use kpx_node::owner::chain_owner::{self, Maker};
use kpx_node::owner::{Endpoint, EndpointState, Port, Role};

/// Differences that are tried one by one; the rest is tried together.
const MOST_SINGLE: usize = 24;

/// One thing to repair: a repair, or several that belong together.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// Its subject.
    pub(super) what: What,
    pub(super) repairs: Vec<Repair>,
}

/// The subject of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum What {
    /// Objects of kube-proxy that differ from what it would program.
    Rules,
    /// A rule or policy of other software.
    Foreign(Box<Hop>),
    /// A rule of a mode that kube-proxy no longer runs in.
    Leftover(Box<Hop>, Mode),
    /// An address of kube-ipvs0, which mode ipvs left behind.
    LeftAddress(IpAddr),
    /// A table of nftables is dormant, in words of nft: `ip nat`.
    Dormant(String),
    /// A sysctl is off.
    Sysctl(&'static str),
    /// A route or routing policy rule, in words, the destination of a packet that it keeps from its endpoint, and the
    /// command that removes it or leads packets past it.
    Route(String, SocketAddr, Fix),
    /// The route to the pods of another node, and the fault of a packet without it.
    RouteThere(Missing),
    /// The route to this node's pods, and the fault of a packet without it.
    PodRoute(Fault),
    /// Tracked connections.
    Tracked,
    /// The table of tracked connections, with the number of entries and the most that there may be.
    Table(u64, u64),
    /// Hairpin mode of a bridge.
    Hairpin(String),
    /// A setting, a link or an address that blocks the packets.
    Obstacle(Box<Obstacle>),
    /// A field of the Service, its endpoints, or kube-proxy's configuration.
    Edit(Edit),
}

impl Candidate {
    /// Returns whether it is a sysctl that is off, and `other` the same sysctl as a difference from kube-proxy's value.
    fn turns_on_as(&self, other: &Self) -> bool {
        let What::Sysctl(own) = self.what else {
            return false;
        };
        other.repairs.iter().all(|repair| {
            matches!(repair, Repair::Program(change) if matches!(change.object, Object::Sysctl { key, .. } if key == own))
        })
    }
}

impl Look<'_> {
    /// Returns all possible causes for the connections of `cell`: differences in the Service's rules, endpoints and
    /// settings, and obstacles on the way.
    pub(super) fn candidates(&self, service: &Service, port: &Port, cell: &Cell) -> Vec<Candidate> {
        let faults = cell.verdict.faults();
        let mut programmed = Self::drift(port, self.compared(), Family::of(cell.flow.destination));
        programmed.extend(self.bare_rules(Family::of(cell.flow.destination)));
        programmed.extend(self.edits(service, port, cell, &faults));
        self.on_the_way(cell, programmed)
    }

    /// Returns the obstacles on the way of the connections of `cell`, in the order in which a packet meets them; `programmed`
    /// has those in kube-proxy's own objects.
    pub(super) fn on_the_way(&self, cell: &Cell, programmed: Vec<Candidate>) -> Vec<Candidate> {
        let failing = failing(cell);
        let faults = cell.verdict.faults();
        let mut all = Vec::new();
        all.extend(tracked(cell, &faults));
        all.extend(self.dormant(Family::of(cell.flow.destination)));
        // A rule to a table without a next hop that answers is at fault, whatever gives packets its mark.
        let is_marked = faults.iter().any(|fault| match fault {
            Fault::Obstacle(what) => {
                matches!(&**what, Obstacle::Detour { rule: Some(rule), .. } if rule.mark.is_some())
            }
            _ => false,
        });
        let is_at_fault = |effect: &Effect| {
            is_decisive(effect) && !(is_marked && matches!(effect, Effect::Mark { .. }))
        };
        // The packets themselves pass the rules that drop ARP messages.
        let is_of_arp = |fault: &&Fault| match fault {
            Fault::Obstacle(what) => matches!(&**what, Obstacle::Arp { .. }),
            _ => false,
        };
        if !faults.iter().all(is_of_arp) {
            all.extend(self.foreign_rules(cell, &failing, is_at_fault));
        }
        let settings = self.settings(cell, &faults);
        // A sysctl that is off is one cause, also where kube-proxy sets it.
        let is_known =
            |candidate: &Candidate| settings.iter().any(|known| known.turns_on_as(candidate));
        all.extend(
            programmed
                .into_iter()
                .filter(|programmed| !is_known(programmed)),
        );
        all.extend(self.left_addresses(&faults));
        all.extend(self.routes(&failing, &faults));
        all.extend(settings);
        all
    }

    /// Returns the dormant tables of iptables. kube-proxy's own table is compared with its desired state instead.
    fn dormant(&self, family: Family) -> Vec<Candidate> {
        let tables = self.node.nft().map_or(&[][..], |rules| &rules.tables);
        let of = tables.iter().filter(|table| {
            table.dormant
                && table.family == family.nft_name()
                && table.name != nftables::expect::TABLE
        });
        let candidate = |table: &nftables::model::Table| Candidate {
            what: What::Dormant(format!("{} {}", table.family, table.name)),
            repairs: vec![Repair::Wake(table.family.clone(), table.name.clone())],
        };
        of.map(candidate).collect()
    }

    /// Returns the rules of other software on the ways `failing` that have such an effect, and the policies.
    pub(super) fn foreign_rules(
        &self,
        cell: &Cell,
        failing: &[&Outcome],
        has_effect: impl Fn(&Effect) -> bool,
    ) -> Vec<Candidate> {
        let family = Family::of(cell.flow.destination);
        let mut found: Vec<Candidate> = Vec::new();
        let is_served = self.judge.is_served_by_node_local_dns(&cell.flow);
        for hop in failing.iter().flat_map(|outcome| &outcome.hops) {
            if is_served && hop.effect == Effect::Untrack {
                continue;
            }
            let left = self.left_by(hop);
            let is_foreign = match why::maker(hop) {
                Maker::Other(_) | Maker::Unknown | Maker::Kubelet => true,
                Maker::Kernel => hop.number == 0,
                Maker::KubeProxy | Maker::Both => left.is_some(),
            };
            let store = match hop.subsystem {
                Subsystem::Iptables => Some(Some(IptablesBackend::InUse)),
                Subsystem::IptablesOther => self.other_store(family).map(Some),
                Subsystem::Nftables => Some(None),
                Subsystem::Arptables
                | Subsystem::Ipvs
                | Subsystem::Routing
                | Subsystem::Process => None,
            };
            let Some(store) = store.filter(|_| has_effect(&hop.effect) && is_foreign) else {
                continue;
            };
            let place = RulePlace {
                store,
                family,
                table: hop.table.clone(),
                chain: hop.chain.clone(),
                number: hop.number,
            };
            let is_elsewhere = matches!(hop.effect, Effect::Snat { .. })
                && TracedRule::of(hop, family)
                    .masquerading(self.node)
                    .is_some();
            let repair = if is_elsewhere {
                Repair::Masquerade(place)
            } else {
                Repair::Pass(place)
            };
            if found.iter().all(|candidate| candidate.repairs[0] != repair) {
                found.push(Candidate {
                    what: match left {
                        Some(mode) => What::Leftover(Box::new(hop.as_ref().clone()), mode),
                        None => What::Foreign(Box::new(hop.as_ref().clone())),
                    },
                    repairs: vec![repair],
                });
            }
        }
        found
    }

    /// Returns the mode that left the rule of `hop` behind, if kube-proxy wrote it in another mode than its own.
    fn left_by(&self, hop: &Hop) -> Option<Mode> {
        let current = self.node.configured_mode().ok()?;
        let modes = match hop.subsystem {
            Subsystem::Iptables | Subsystem::IptablesOther => {
                chain_owner::modes_of(&hop.table, &hop.chain)
            }
            Subsystem::Nftables if hop.table.ends_with(" kube-proxy") => &[Mode::Nftables],
            _ => &[],
        };
        modes.first().copied().filter(|_| !modes.contains(&current))
    }

    /// Returns the back end of iptables that is not in use and has rules.
    fn other_store(&self, family: Family) -> Option<IptablesBackend> {
        let others = [IptablesBackend::Legacy, IptablesBackend::Nft];
        others
            .into_iter()
            .find(|store| self.node.saved(*store, family).is_ok())
    }

    /// Returns the differences of kube-proxy's objects that may concern `port`: its own and those that serve all Services.
    pub(super) fn drift(port: &Port, all: &[Change], family: Family) -> Vec<Candidate> {
        let name = port.name.to_string();
        let concerns = |change: &&Change| {
            let is_own = |text: &str| text == name || mismatch::is_service_of(text, &port.name);
            change.family.is_none_or(|own_family| own_family == family)
                && change.service.as_deref().is_none_or(is_own)
        };
        let (own, common): (Vec<&Change>, Vec<&Change>) = all
            .iter()
            .filter(concerns)
            .partition(|change| change.service.is_some());
        let candidate = |changes: &[&Change]| Candidate {
            what: What::Rules,
            repairs: changes
                .iter()
                .map(|change| Repair::Program(Box::new((*change).clone())))
                .collect(),
        };
        let mut found = Vec::new();
        for of in [own, common] {
            // Missing objects come before what is extra.
            let mut of = of;
            of.sort_by_key(|change| change.kind() == ChangeKind::Extra);
            if of.len() <= MOST_SINGLE {
                found.extend(of.iter().map(|change| candidate(&[change])));
            } else {
                found.push(candidate(&of));
            }
        }
        found
    }

    /// Returns the rules that lost their conditions, where the rules cannot be compared with the desired state.
    fn bare_rules(&self, family: Family) -> Vec<Candidate> {
        let saved = self.node.saved(IptablesBackend::InUse, family);
        let (Ok(saved), Err(_)) = (saved, &self.diff) else {
            return Vec::new();
        };
        let chains = ["KUBE-FIREWALL", "KUBE-FORWARD"].into_iter();
        let chains = chains.filter_map(|name| saved.chain("filter", name).ok()?);
        let rules = chains.flat_map(|chain| {
            let rules = chain.rules.iter().enumerate();
            rules.map(move |rule| (chain, rule))
        });
        let bare = rules.filter(|(chain, (_, rule))| {
            check::lost_conditions(family, &chain.name, rule).is_some()
        });
        let candidate = |(chain, (at, rule)): (&Chain<'_>, (usize, &Rule<'_>))| {
            let change = Change {
                family: Some(family),
                service: None,
                object: Object::IptablesRule {
                    table: "filter".to_owned(),
                    chain: chain.name.to_string(),
                    at: RuleNumber {
                        number: at,
                        moved_to: None,
                    },
                    rule: Delta::Extra(Box::new(rule.owned())),
                },
            };
            Candidate {
                what: What::Rules,
                repairs: vec![Repair::Program(Box::new(change))],
            }
        };
        bare.map(candidate).collect()
    }

    /// Returns what differs from the desired state.
    pub(super) fn compared(&self) -> &[Change] {
        self.diff.as_ref().map_or(&[], |diff| &diff.changes)
    }

    /// Returns the differences from the rules that kpx would expect of a kube-proxy older than the known releases. Such a kube-proxy
    /// may write other rules, so a difference is a cause only where there is no other.
    pub(super) fn guessed(&self, family: Family) -> Vec<Change> {
        let mode = self
            .node
            .configured_mode()
            .ok()
            .filter(|_| self.diff.is_ok());
        let older = mode
            .and_then(|mode| self.node.desired(mode).ok())
            .filter(|desired| desired.is_older());
        older
            .and_then(|desired| {
                Some(diff::changes_to(
                    self.node,
                    desired,
                    desired.family(family)?,
                ))
            })
            .unwrap_or_default()
    }

    /// Returns the edits of the Service, of its endpoints and of kube-proxy's configuration that may help.
    fn edits(
        &self,
        service: &Service,
        port: &Port,
        cell: &Cell,
        faults: &[&Fault],
    ) -> Vec<Candidate> {
        let family = Family::of(cell.flow.destination);
        let mut edits = Vec::new();
        if self.lacks_endpoints(port, family) {
            edits.push(Edit::Endpoint);
        } else if is_local(service, cell.kind) && faults.iter().any(|fault| may_be_of_policy(fault))
        {
            edits.push(Edit::Policies);
        }
        let is_balancer = matches!(
            cell.kind,
            Kind::Address(Role::LoadBalancerIp | Role::ExternalIp)
        );
        if is_balancer && !service.spec.load_balancer_source_ranges.is_empty() {
            edits.push(Edit::SourceRanges);
        }
        let may_be_of_range = |fault: &&Fault| {
            let is_of_source = matches!(
                fault,
                Fault::OtherLink { .. } | Fault::DirectReply { .. } | Fault::SharedSource { .. }
            );
            is_of_source || is_unmasqueraded(fault)
        };
        // With the name of another Node, kube-proxy masquerades by the endpoints of that one.
        if faults.iter().any(may_be_of_range) && self.misnamed().is_none() {
            edits.push(Edit::ClusterCidr);
        }
        let candidates = edits.into_iter().filter_map(|what| {
            let edited = Edited {
                what,
                changes: self.programmed(what, service, port, family)?,
                pod: (what == Edit::Endpoint).then(|| self.new_endpoint(family)),
            };
            Some(Candidate {
                what: What::Edit(what),
                repairs: vec![Repair::Edit(Box::new(edited))],
            })
        });
        candidates.collect()
    }

    /// Returns what kube-proxy changes after an edit.
    fn programmed(
        &self,
        what: Edit,
        service: &Service,
        port: &Port,
        family: Family,
    ) -> Option<Vec<Change>> {
        let mode = self
            .node
            .configured_mode()
            .ok()
            .filter(|mode| *mode != Mode::Userspace)?;
        let wanted = self.desired_after(what, service, port, family, mode)?;
        let name = port.name.to_string();
        let mut changes = diff::changes_to(self.node, &wanted, wanted.family(family)?);
        let is_whole = what == Edit::ClusterCidr;
        changes.retain(|change| {
            is_whole
                || change.service.as_deref().is_none_or(|service| {
                    service == name || mismatch::is_service_of(service, &port.name)
                })
        });
        Some(changes)
    }

    fn desired_after(
        &self,
        what: Edit,
        service: &Service,
        port: &Port,
        family: Family,
        mode: Mode,
    ) -> Option<DesiredState> {
        let mut services = self.services.to_vec();
        let mut slices = self.slices.to_vec();
        let is_it = |candidate: &&mut Service| {
            candidate.metadata.name == service.metadata.name
                && candidate.metadata.namespace == service.metadata.namespace
        };
        if let Some(of) = services.iter_mut().find(is_it) {
            match what {
                Edit::SourceRanges => of.spec.load_balancer_source_ranges.clear(),
                Edit::Policies => {
                    of.spec.internal_traffic_policy = None;
                    of.spec.external_traffic_policy = Some("Cluster".to_owned());
                }
                Edit::Endpoint | Edit::ClusterCidr => {}
            }
        }
        if what == Edit::Endpoint {
            slices.push(endpoints::slice(
                service,
                port,
                self.new_endpoint(family),
                self.name.as_deref(),
            ));
        }
        let copy = self.node.fork().with_services(services, slices);
        let copy = match what {
            Edit::ClusterCidr => {
                let mut config = self.node.proxy_config().ok()?.clone();
                let nodes = self.node.nodes().ok()?.iter();
                let ranges =
                    nodes.flat_map(|node| node.spec.pod_cidrs.iter().chain(&node.spec.pod_cidr));
                let own = ranges
                    .filter(|text| text.parse::<Cidr>().is_ok_and(|net| net.family() == family));
                config.cluster_cidr = own.take(1).cloned().collect();
                copy.with_proxy_config(config)
            }
            _ => copy,
        };
        copy.desired(mode).ok().cloned()
    }

    /// Returns the address that an endpoint on this node could have.
    pub(super) fn new_endpoint(&self, family: Family) -> IpAddr {
        let ranges = self.judge.pod_ranges().iter();
        let range = ranges
            .filter(|range| range.family() == family)
            .find_map(|range| {
                let last = crate::trace::sources::near_the_end(*range, 2);
                last.filter(|addr| range.contains(*addr))
            });
        range.unwrap_or(match family {
            Family::V4 => IpAddr::from([10, 255, 255, 254]),
            Family::V6 => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0xffff, 0xfffe]),
        })
    }

    /// Returns `port` with a ready endpoint on this node.
    pub(super) fn with_endpoint(&self, port: &Port, family: Family) -> Port {
        let addr = SocketAddr::new(self.new_endpoint(family), endpoints::NEW_PORT);
        let mut port = port.clone();
        port.endpoints.push(Endpoint {
            addr,
            // The address stands for a future pod.
            pod: Some("a new pod".into()),
            node: self.name.as_deref().map(Into::into),
            state: Some(EndpointState::Ready),
            local: Some(true),
        });
        port
    }

    /// Returns the addresses of kube-ipvs0 that become sources of packets although kube-proxy does not run in mode ipvs.
    fn left_addresses(&self, faults: &[&Fault]) -> Vec<Candidate> {
        if self.node.configured_mode().ok() == Some(Mode::Ipvs) {
            return Vec::new();
        }
        let of = |fault: &&Fault| match fault {
            Fault::SharedSource { source } => Some(Candidate {
                what: What::LeftAddress(*source),
                repairs: vec![Repair::RemoveAddress(*source, DUMMY.to_owned())],
            }),
            _ => None,
        };
        faults.iter().filter_map(of).collect()
    }

    /// Returns the settings of the kernel and of bridges that the faults name, and forwarding, which is needed behind them.
    fn settings(&self, cell: &Cell, faults: &[&Fault]) -> Vec<Candidate> {
        let sysctl = |key| Candidate {
            what: What::Sysctl(key),
            repairs: vec![Repair::TurnOn(key)],
        };
        let forwarding = self.judge.forwarding_off(Family::of(cell.flow.destination));
        let of = |fault: &&Fault| match fault {
            Fault::BypassedReply { key, .. } => Some(sysctl(key)),
            // The node's setting turns those of its links on and off.
            Fault::Obstacle(what)
                if forwarding.is_some() && matches!(**what, Obstacle::LinkForwarding { .. }) =>
            {
                None
            }
            Fault::Obstacle(what) => {
                let repairs = super::obstacle::repairs(what);
                (!repairs.is_empty()).then(|| Candidate {
                    what: What::Obstacle(what.clone()),
                    repairs,
                })
            }
            Fault::HairpinPort { bridge } => Some(Candidate {
                what: What::Hairpin(bridge.clone()),
                repairs: vec![Repair::Hairpin(bridge.clone())],
            }),
            _ => None,
        };
        let forwarding = forwarding
            .filter(|_| cell.flow.entry != Entry::Host)
            .map(sysctl);
        faults.iter().filter_map(of).chain(forwarding).collect()
    }

    /// Returns the routes and routing policy rules that may end packets or send them elsewhere.
    fn routes(&self, failing: &[&Outcome], faults: &[&Fault]) -> Vec<Candidate> {
        let mut found = Vec::new();
        let is_routing = |fault: &&&Fault| {
            matches!(
                fault,
                Fault::NoRoute { .. }
                    | Fault::WrongWay { .. }
                    | Fault::Unknown(Missing::PodRoute { .. })
            )
        };
        let is_reply = |fault: &Fault| match fault {
            Fault::Obstacle(what) => matches!(**what, Obstacle::Further { .. }),
            _ => false,
        };
        let mut all = faults.iter();
        let Some(fault) = all.find(|fault| is_routing(fault) || is_reply(fault)) else {
            return found;
        };
        let mut ends: Vec<SocketAddr> = failing
            .iter()
            .map(|outcome| match outcome.destination {
                // The port of a client is not known.
                (addr, REPLY_PORT) => SocketAddr::new(addr, 0),
                end => end.into(),
            })
            .collect();
        // What certainly fails is named before what may.
        let fails = |end: &SocketAddr| {
            faults.iter().any(|fault| match fault {
                Fault::NoRoute { to, .. } | Fault::WrongWay { address: to, .. } => to == end,
                _ => false,
            })
        };
        ends.sort_by_key(|end| !fails(end));
        // What leads replies astray is about the client.
        ends.sort_by_key(|end| is_reply(fault) && end.port() != 0);
        let end_in = |net: Cidr| ends.iter().any(|at| net.contains(at.ip()));
        let is_astray = matches!(fault, Fault::WrongWay { .. }) || is_reply(fault);
        // A route to the range of another Node is needed there.
        let is_ours = matches!(fault, Fault::WrongWay { home: None, .. });
        let leading = ends.iter().filter(|_| is_ours);
        let leading = leading.filter_map(|end| self.judge.diverting_route(*end));
        let mut there = Vec::new();
        for fault in faults {
            let Fault::Unknown(missing @ Missing::PodRoute { there: way, .. }) = fault else {
                continue;
            };
            let candidate = Candidate {
                what: What::RouteThere(missing.clone()),
                repairs: vec![match &way.odd {
                    Some(OddWay {
                        hider: Some(route), ..
                    }) => Repair::RemoveRoute(route.clone()),
                    Some(OddWay {
                        why: Odd::Rule { rule, bypass, .. },
                        ..
                    }) => match bypass {
                        Some(rule) => Repair::AddPolicyRule(rule.clone()),
                        None => Repair::RemovePolicyRule(rule.clone()),
                    },
                    _ => Repair::RoutePodsThere(way.range, way.by, way.link.clone()),
                }],
            };
            // An odd way says more than the route or the rule that leads there.
            let of = if way.odd.is_some() {
                &mut found
            } else {
                &mut there
            };
            of.push(candidate);
        }
        for of in Diversion::all_of(self.node, &ends)
            .into_iter()
            .chain(leading)
        {
            if let Diverter::Rule(rule) = &of.by
                && let Some(what) = self.judge.detour_by(rule, of.end.ip())
            {
                found.push(Candidate {
                    repairs: super::obstacle::repairs(&what),
                    what: What::Obstacle(what),
                });
                continue;
            }
            if let Some(rule) = of.bypass(self.node).filter(|_| is_astray) {
                found.push(Candidate {
                    what: What::Route(of.words.clone(), of.end, bypass_fix(&rule)),
                    repairs: vec![Repair::AddPolicyRule(Box::new(rule))],
                });
            }
            let fix = diverter_fix(self.node, &of);
            found.push(Candidate {
                what: What::Route(of.words, of.end, fix),
                repairs: vec![match of.by {
                    Diverter::Route(route) => Repair::RemoveRoute(route),
                    Diverter::Rule(rule) => Repair::RemovePolicyRule(rule),
                }],
            });
        }
        found.extend(there);
        for range in self
            .judge
            .pod_ranges()
            .iter()
            .filter(|range| end_in(**range))
        {
            found.push(Candidate {
                what: What::PodRoute((*fault).clone()),
                repairs: vec![Repair::RoutePodsHere(*range)],
            });
        }
        found
    }
}

/// Returns the ways of `cell` that fail (also those that work only if the network has more routes than the node), and lost
/// replies.
pub(super) fn failing(cell: &Cell) -> Vec<&Outcome> {
    let ways = cell.outcomes.iter().zip(&cell.verdict.ways);
    let failing = ways.filter(|(_, way)| {
        let is_stray = matches!(way.fault, Some(Fault::Unknown(Missing::PodRoute { .. })));
        way.fate().fails() || is_stray
    });
    let failing =
        failing.flat_map(|(outcome, way)| std::iter::once(outcome).chain(way.lost.as_deref()));
    let replies = cell.arrival.iter().flat_map(|arrival| &arrival.replies);
    let lost = replies.filter(|reply| matches!(reply.verdict, Verdict::Drop | Verdict::Reject));
    failing.chain(lost).collect()
}

/// Returns whether a rule with `effect` may decide what happens to a packet.
const fn is_decisive(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Drop
            | Effect::Reject { .. }
            | Effect::Accept
            | Effect::Return
            | Effect::Dnat { .. }
            | Effect::Snat { .. }
            | Effect::Masquerade { .. }
            | Effect::Mark { .. }
            | Effect::Ttl { .. }
            | Effect::Untrack
            | Effect::Zone { .. }
    )
}

/// Returns the tracked connections of a fault, or their table.
fn tracked(cell: &Cell, faults: &[&Fault]) -> Option<Candidate> {
    faults.iter().find_map(|fault| match fault {
        Fault::Stale { .. } => Some(Candidate {
            what: What::Tracked,
            repairs: vec![Repair::EndTracked(cell.to(), cell.flow.proto)],
        }),
        Fault::TableFull { count, most } => Some(Candidate {
            what: What::Table(*count, *most),
            repairs: vec![Repair::MakeRoom],
        }),
        _ => None,
    })
}

/// Returns whether a Local policy may cause the fault: an obstacle at the end on this node is there with any policy.
const fn may_be_of_policy(fault: &Fault) -> bool {
    !matches!(fault, Fault::Obstacle(_))
}

/// Returns whether a reverse path filter drops replies that would come in elsewhere if kube-proxy masqueraded the packets.
fn is_unmasqueraded(fault: &Fault) -> bool {
    matches!(fault, Fault::Obstacle(what) if is_of_range(what))
}

/// Returns whether `what` is a reverse path filter that drops replies as kube-proxy's range of pods has an address of the node.
pub(super) const fn is_of_range(what: &Obstacle) -> bool {
    matches!(
        what,
        Obstacle::ReversePath {
            because: Some(FilterReason::InPodRange { .. }),
            ..
        }
    )
}
