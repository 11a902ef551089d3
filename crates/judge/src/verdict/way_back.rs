//! The way by which a reply leaves a node: routing policy rules may lead it elsewhere than the packet came from, and what stops the
//! node's own packets on that way stops the reply, too.

use std::net::SocketAddr;

use super::diversion::is_special;
use super::judge::{Judge, Question, worst};
use super::ports::REPLY_PORT;
use super::{Fault, Missing, Obstacle, Which};
use crate::trace::region::Asked;
use crate::trace::route::Lookup;
use crate::trace::{Entry, Flow, Outcome, Reply};
use kpx_node::net::Family;

impl Judge<'_> {
    /// Returns the reply that leaves this node for the client by another way than the packet came, if routing policy rules lead it there,
    /// with its fault.
    pub(super) fn led_back(
        &self,
        question: Question<'_>,
        reply: &Reply,
    ) -> Option<(Outcome, Fault)> {
        let mut rules = self.node.rules().ok()?.all.iter();
        let leaves_here = reply.flow.entry != Entry::Outside && question.flow.entry != Entry::Host;
        let has_way = rules.any(is_special) || self.without_rules().is_some();
        if !leaves_here || !has_way {
            return None;
        }
        let family = Family::of(reply.flow.destination);
        let ends = self.back(family).reply(reply);
        let mut arriving = ends.into_iter().filter(|end| end.verdict.arrives());
        arriving.find_map(|end| {
            let fault = self.on_the_way_back(question, &end)?;
            Some((end, fault))
        })
    }

    /// Returns what keeps a reply with the outcome `end` from the node or the machine to which it leaves: the first that does so
    /// certainly, else the first doubt.
    pub(super) fn on_the_way_back(&self, question: Question<'_>, end: &Outcome) -> Option<Fault> {
        let (to, _) = end.destination;
        if self.ends_here(end) {
            return None;
        }
        let flow = Flow {
            entry: Entry::Pod,
            source: Some(end.source),
            destination: to,
            port: REPLY_PORT,
            established: true,
            ..question.flow.clone()
        };
        let back = Question {
            flow: &flow,
            port: None,
        };
        let asked: [&dyn Fn() -> Option<Fault>; 10] = [
            &|| self.led_elsewhere(question, end),
            &|| self.broken_link(back, end),
            &|| self.unanswered(back, end),
            &|| self.other_machine(back, end),
            &|| self.stopped_tunnel(question, end),
            &|| self.home_gone(end),
            &|| self.tunnel_source(end),
            &|| self.off_tunnel(end),
            &|| self.off_interface(end),
            &|| self.same_tunnel_end(end),
        ];
        worst(&asked)
    }

    /// Returns the fault of a reply that a route leads past the link, the Node or the network of the client.
    fn led_elsewhere(&self, question: Question<'_>, end: &Outcome) -> Option<Fault> {
        let (to, _) = end.destination;
        let out = end.leaves_by()?;
        if self.places.is_pod_here(to) == Some(true) {
            let home = self.router.home(Asked::new(to, None), &[out])?;
            let gateway = end.gateway.filter(|by| self.places.own(*by).is_none())?;
            if self.is_kept_apart(to) {
                return Some(Fault::Unknown(Missing::Unmodelled(format!(
                    "the reply to pod {to}, one of this node, leaves by {out} via {gateway}: whether that router sends it back is \
                     unknown (routing policy rules lead what comes back to the pod's link)"
                ))));
            }
            let reason = format!(
                "it leaves the node by {out} via {gateway}, and not by {home}, the link of that pod"
            );
            return Some(Fault::Obstacle(Box::new(Obstacle::Further {
                which: Which::Reply,
                from: end.sent_from,
                to,
                reason,
                missing: None,
                by: None,
            })));
        }
        let by_range = self.peers().with_pod(to).map(|(name, _)| name);
        let by_slice = || Some(self.places.node_of_pod(to)?.metadata.name.as_str());
        if let Some(name) = by_range.or_else(by_slice) {
            return self.stray_to(SocketAddr::new(to, 0), name, out, end.gateway);
        }
        let gateway = end.gateway?;
        // The packet came in by this link.
        if self.wire_of(question.flow) == Some(out) {
            return None;
        }
        let why = if self.is_next_to(to) {
            "although it is in a network of this node".to_owned()
        } else {
            let usual = self.router.found(Lookup::to(Asked::new(to, None)));
            let usual = usual.ok().flatten()?.gateway;
            if question.flow.entry != Entry::Outside || usual == Some(gateway) {
                return None;
            }
            let way = usual.map_or_else(|| "directly".to_owned(), |by| format!("via {by}"));
            format!("while what the node itself sends there leaves {way}")
        };
        let by = match self.leading(to, (out, Some(gateway))) {
            Some((_, Some(rule))) => format!(
                " (routing policy rule {} ({rule}) leads them there)",
                rule.priority
            ),
            Some((route, None)) => format!(" (route {route})"),
            None => String::new(),
        };
        Some(Fault::Unknown(Missing::Unmodelled(format!(
            "replies to {to} leave by {out} via {gateway}, {why}: whether they reach it is unknown{by}"
        ))))
    }
}
