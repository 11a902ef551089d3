//! Traffic control: filters and queueing disciplines of the links that a packet and its reply pass.
//!
//! A program that a filter runs (BPF) is never known to leave packets alone: those of network plugins enforce policies, translate
//! addresses or redirect. So are those without a qdisc (tcx, netkit), which come first. Limits of rates are no doubt, as a queue
//! without room is none.
//!
//! Older bundles do not have this item.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::bpf::is_at;
use super::judge::{Judge, Question};
use super::{Fault, Missing, Obstacle};
use crate::trace::{Entry, Outcome};
use kpx_node::net::Proto;
use kpx_node::node::bpf::Bpf;
use kpx_node::node::links;
use kpx_node::node::tc::{Class, Does, Filter, Keys, Loss, Shaper, Side, Tc};

/// A packet at one side of a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage<'o> {
    pub(super) link: &'o str,
    pub(super) side: Side,
    /// The port of a client is one of many.
    source: (IpAddr, Option<u16>),
    destination: (IpAddr, Option<u16>),
    proto: Proto,
    /// Whether it is the reply.
    pub(super) reply: bool,
    /// Whether it certainly passes the link.
    certain: bool,
    /// Whether it is inside of another packet there, of which the filters see the outside.
    inside: bool,
}

/// The obstacle that stops a packet.
enum Met {
    /// It is dropped.
    Dropped(Obstacle),
    /// It may be.
    Unsure(Missing),
}

impl Judge<'_> {
    /// Returns the fault of a packet that traffic control drops, or its reply.
    pub(super) fn dropped_by_tc(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let tc = self.node.tc().ok();
        match self.meets(tc, question, outcome)? {
            Met::Dropped(obstacle) => Some(Fault::Obstacle(Box::new(obstacle))),
            Met::Unsure(_) => None,
        }
    }

    /// Returns the doubt about a packet that meets something of traffic control that kpx does not model.
    pub(super) fn unsure_tc(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let tc = match self.node.tc() {
            Ok(tc) => Some(tc),
            Err(gap) if self.is_of_old(&gap) => None,
            Err(gap) => {
                let what = "the filters of links are unknown";
                return Some(Fault::Unknown(Missing::Gap { what, gap }));
            }
        };
        match self.meets(tc, question, outcome)? {
            Met::Unsure(missing) => Some(Fault::Unknown(missing)),
            Met::Dropped(_) => None,
        }
    }

    /// Returns the first that keeps the packet or its reply.
    fn meets(&self, tc: Option<&Tc>, question: Question<'_>, outcome: &Outcome) -> Option<Met> {
        let tc = tc
            .filter(|tc| !tc.filters.is_empty() || !tc.losses.is_empty() || !tc.shapers.is_empty());
        let bpf = self.node.bpf().ok();
        let bpf = bpf.filter(|bpf| bpf.links().is_ok_and(|all| !all.is_empty()));
        if tc.is_none() && bpf.is_none() {
            return None;
        }
        let came_by = self.came_in_by(question, outcome);
        let passages = self.passages(question, outcome, came_by.as_deref());
        let mut unsure = None;
        for passage in passages {
            let first = bpf.and_then(|bpf| program_at(bpf, passage));
            match tc.and_then(|tc| self.meets_at(tc, passage)) {
                Some(Met::Dropped(obstacle)) if first.is_none() => {
                    return Some(Met::Dropped(obstacle));
                }
                met => {
                    unsure = unsure
                        .or(first)
                        .or(met.filter(|doubt| matches!(doubt, Met::Unsure(_))));
                }
            }
        }
        unsure
    }

    /// Returns whether traffic control drops packets of `link`, or loses some on purpose.
    pub(super) fn is_lossy(&self, link: &str) -> bool {
        let drops = |filter: &Filter| matches!(filter.does, Does::Drop);
        self.node.tc().is_ok_and(|tc| {
            let filters = tc.filters.get(link).map_or(&[][..], Vec::as_slice);
            tc.losses.contains_key(link) || filters.iter().any(drops)
        })
    }

    /// Returns the sides of links that the packet passes, then its reply.
    pub(super) fn passages<'o>(
        &'o self,
        question: Question<'_>,
        outcome: &'o Outcome,
        came_by: Option<&'o str>,
    ) -> Vec<Passage<'o>> {
        let flow = question.flow;
        let service = (flow.destination, Some(flow.port));
        let client = (outcome.sent_from, None);
        let source = (outcome.source, None);
        let end = (outcome.destination.0, Some(outcome.destination.1));
        let input = came_by.filter(|_| flow.entry != Entry::Host);
        let output = outcome.leaves_by().filter(|_| !self.ends_here(outcome));
        let mut all = Vec::new();
        let mut add = |link: Option<&'o str>, side, source, destination, reply| {
            let Some(link) = link.filter(|link| *link != "lo") else {
                return;
            };
            let passage = Passage {
                link,
                side,
                source,
                destination,
                proto: flow.proto,
                reply,
                certain: true,
                inside: false,
            };
            // From port to port, a packet does not pass the bridge's own sides.
            if !outcome.bridged {
                all.push(passage);
            }
            let pod = match side {
                Side::Ingress => source.0,
                Side::Egress => destination.0,
            };
            let ports: Vec<&links::Link> = self.ports(link).collect();
            let own = self.port_of(pod, &ports);
            // Where the pod's network is not read, any port may be its own.
            for port in ports
                .iter()
                .filter(|port| own.is_none_or(|own| own.index == port.index))
            {
                all.push(Passage {
                    link: &port.name,
                    certain: own.is_some(),
                    ..passage
                });
            }
            for carrier in self.carriers(link) {
                all.push(Passage {
                    link: carrier,
                    certain: false,
                    inside: true,
                    ..passage
                });
            }
        };
        add(input, Side::Ingress, client, service, false);
        add(output, Side::Egress, source, end, false);
        let answers = if self.ends_here(outcome) {
            service
        } else {
            end
        };
        add(output, Side::Ingress, answers, source, true);
        add(input, Side::Egress, service, client, true);
        all
    }

    fn meets_at(&self, tc: &Tc, passage: Passage<'_>) -> Option<Met> {
        let link = passage.link;
        let mut unsure = None;
        let mut may_pass = false;
        // The filter that chooses the class, if one certainly does.
        let mut chosen = None;
        let shaper = tc
            .shapers
            .get(link)
            .filter(|_| passage.side == Side::Egress);
        let all = tc.filters.get(link).map_or(&[][..], Vec::as_slice);
        for filter in all.iter().filter(|filter| filter.side == passage.side) {
            let Some(matched) = matches(filter, passage) else {
                continue;
            };
            if let Some(shaper) = shaper
                && filter.hook == "root"
                && matches!(filter.does, Does::Nothing | Does::Pass)
            {
                unsure = unsure.or_else(|| into_class(shaper, filter, link));
                may_pass = true;
                if matched {
                    chosen = Some(filter);
                    break;
                }
                continue;
            }
            match &filter.does {
                Does::Nothing => {}
                Does::Pass if matched => break,
                Does::Pass => may_pass = true,
                // A packet that passes it returns to the same place.
                Does::Redirect(to) if self.is_ifb(to) => {
                    if matched {
                        break;
                    }
                    may_pass = true;
                }
                Does::Drop if matched && passage.certain && !may_pass && unsure.is_none() => {
                    return Some(Met::Dropped(Obstacle::Tc {
                        link: link.to_owned(),
                        filter: Some(Box::new(filter.clone())),
                        inside: None,
                        reply: passage.reply,
                    }));
                }
                does => unsure = unsure.or_else(|| Some(doubt(filter, does, link))),
            }
        }
        if let Some(shaper) = shaper.filter(|_| chosen.is_none()) {
            if shaper.drops_others() && passage.certain && !may_pass && unsure.is_none() {
                return Some(Met::Dropped(Obstacle::Tc {
                    link: link.to_owned(),
                    filter: None,
                    inside: None,
                    reply: passage.reply,
                }));
            }
            unsure = unsure.or_else(|| into_default(shaper, link));
        }
        let unsure = unsure.map(|why| Met::Unsure(Missing::Unmodelled(why)));
        let loss = tc.losses.get(link);
        match loss.filter(|_| passage.side == Side::Egress) {
            None => unsure,
            Some(Loss::All) if passage.certain => Some(Met::Dropped(Obstacle::Tc {
                link: link.to_owned(),
                filter: None,
                inside: None,
                reply: passage.reply,
            })),
            Some(loss) => unsure.or_else(|| {
                Some(Met::Unsure(Missing::Thinned {
                    link: link.to_owned(),
                    share: loss.to_string(),
                }))
            }),
        }
    }

    /// Returns the links that carry the packets of a tunnel to other nodes.
    fn carriers(&self, tunnel: &str) -> BTreeSet<&str> {
        let links = self.node.links().map_or(&[][..], |all| all.all.as_slice());
        let mut links = links.iter().filter(|link| link.name == tunnel);
        if links.any(links::Link::is_tunnel) {
            self.places.links_of_node().clone()
        } else {
            BTreeSet::new()
        }
    }

    fn is_ifb(&self, name: &str) -> bool {
        self.link(name).is_some_and(|link| link.kind == "ifb")
    }
}

/// Returns the doubt about a packet that meets a program attached without a qdisc.
fn program_at(bpf: &Bpf, passage: Passage<'_>) -> Option<Met> {
    let mut all = bpf.links().unwrap_or_default().iter();
    let found = all.find(|bpf_link| {
        bpf_link.dev == passage.link && is_at(&bpf_link.attach_type, passage.side)
    })?;
    Some(Met::Unsure(Missing::Unmodelled(format!(
        "program {} ({}) on {} may drop or redirect packets: kpx does not read its code",
        bpf.called(found.program),
        found.attach_type,
        found.dev
    ))))
}

/// Returns why the class to which `filter` leads packets may lose them: without its rate, any may. The kernel leads packets for a class that
/// is not there where it leads those that no filter chooses.
fn into_class(shaper: &Shaper, filter: &Filter, link: &str) -> Option<String> {
    let Some((name, classes)) = filter.class.as_ref().zip(shaper.classes.as_ref()) else {
        return Some(format!(
            "the tc filter `{filter}` of {link} leads packets into a class of its {} qdisc, whose rate is not read: whether they are lost \
             there is unknown (`tc -s class show dev {link}` shows its rate and drops)",
            shaper.kind
        ));
    };
    let Some(class) = classes.get(name) else {
        return into_default(shaper, link);
    };
    let why = slow_class(&format!("class {name}"), class, link)?;
    Some(format!("the tc filter `{filter}` leads packets into {why}"))
}

/// Returns why the class of packets that no filter leads to one may lose them.
fn into_default(shaper: &Shaper, link: &str) -> Option<String> {
    if shaper.drops_others() {
        return Some(format!(
            "the {} qdisc of {link} drops packets that no tc filter leads into a class: whether one does is unknown",
            shaper.kind
        ));
    }
    let name = shaper.default.as_ref()?;
    let class = shaper.classes.as_ref()?.get(name)?;
    if name.is_empty() {
        return slow_class(&format!("the {} qdisc", shaper.kind), class, link);
    }
    let why = slow_class(&format!("class {name}"), class, link)?;
    Some(format!("packets that no tc filter chooses go into {why}"))
}

/// Returns why `class`, called `name`, may lose packets: it is slower than clients wait.
fn slow_class(name: &str, class: &Class, link: &str) -> Option<String> {
    let rate = class.rate.filter(|_| class.is_slow())?;
    let drops = class
        .drops
        .map_or_else(String::new, |drops| format!(", and has dropped {drops}"));
    Some(format!(
        "{name} of {link}, which sends {rate} bytes/s{drops}: whether connections are too slow in it is unknown"
    ))
}

/// Returns why a filter leaves the way of a packet open.
fn doubt(filter: &Filter, does: &Does, link: &str) -> String {
    match does {
        Does::Other(program) if filter.kind == "bpf" => format!(
            "{program} on {link} (`{filter}`) may drop or redirect packets: kpx does not read its code"
        ),
        Does::Other(action) => format!(
            "the tc filter `{filter}` of {link} ({action}) may drop or change packets: kpx does not model it"
        ),
        Does::Redirect(to) => {
            format!("the tc filter `{filter}` of {link} may redirect packets to {to}")
        }
        Does::Drop | Does::Nothing | Does::Pass => {
            format!("the tc filter `{filter}` of {link} may drop packets")
        }
    }
}

/// Returns whether `filter` certainly matches a packet; `None` if it certainly does not.
fn matches(filter: &Filter, passage: Passage<'_>) -> Option<bool> {
    let family = match passage.source.0 {
        IpAddr::V4(_) => "ip",
        IpAddr::V6(_) => "ipv6",
    };
    let is_ip = matches!(filter.protocol.as_str(), "ip" | "ipv6");
    if filter.protocol != "all" && filter.protocol != family && !(passage.inside && is_ip) {
        return None;
    }
    let keys = &filter.keys;
    if passage.inside {
        return Some(*keys == Keys::default());
    }
    let port = |key: Option<u16>, packet: Option<u16>| match (key, packet) {
        (None, _) => Some(true),
        (Some(key), Some(port)) => Some(key == port),
        (Some(_), None) => None,
    };
    let parts = [
        Some(
            keys.source
                .is_none_or(|source| source.contains(passage.source.0)),
        ),
        Some(
            keys.destination
                .is_none_or(|destination| destination.contains(passage.destination.0)),
        ),
        Some(keys.proto.is_none_or(|proto| proto == passage.proto)),
        port(keys.source_port, passage.source.1),
        port(keys.destination_port, passage.destination.1),
        (!keys.others).then_some(true),
    ];
    if parts.contains(&Some(false)) {
        return None;
    }
    Some(parts.iter().all(Option::is_some))
}
