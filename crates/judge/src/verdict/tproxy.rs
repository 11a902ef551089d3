//! Transparent proxies: rules that hand packets of others to a program of the node, which answers in their place.
//!
//! Sources: `xt_TPROXY.c`, `nft_tproxy.c` and `ip_forward.c` of Linux 5.10 to 6.18.

use super::judge::{Judge, Question};
use super::{By, Fault, Obstacle, is_decided};
use crate::trace::{Effect, Hop, Outcome, TPROXY};
use kpx_node::net::{Cidr, Family};

/// Programs that send the connection on to the Service, as proxies of a service mesh or of a network plugin do.
const MESHES: [&str; 5] = ["cilium", "envoy", "linkerd", "pilot-agent", "ztunnel"];

impl Judge<'_> {
    /// Returns the fault of a packet that a rule hands to a program of the node, if a routing policy rule brings it there.
    pub(super) fn proxied(&self, question: Question<'_>, outcome: &Outcome) -> Option<Fault> {
        let hop = outcome.hops.last().filter(|hop| is_tproxy(hop))?;
        let port = port_of(&hop.rule)?;
        let flow = question.flow;
        let family = Family::of(flow.destination);
        let sockets = self.node.sockets().ok()?;
        let mut programs = sockets
            .listening
            .iter()
            .filter(|socket| (socket.proto, socket.local.port()) == (flow.proto, port));
        let program = &programs.next()?.processes.first()?.name;
        let is_mesh = MESHES.iter().any(|mesh| program.starts_with(mesh));
        let is_open = flow.established || !outcome.when.iter().all(is_decided);
        if is_mesh || is_open || !self.keeps_marked(family) {
            return None;
        }
        let pods = self.node.proxy_config().ok();
        let pods = pods.and_then(|config| config.cluster_cidr(family));
        let services = crate::diff::service_cidrs(self.node).into_iter();
        let services = services.filter(|range| Family::of(range.addr) == family);
        let services: Vec<Cidr> = services.collect();
        let knows_services = !services.is_empty();
        let ranges: Vec<Cidr> = pods.into_iter().chain(services).collect();
        let by = By::foreign(hop, family, self.node)?;
        Some(Fault::Obstacle(Box::new(Obstacle::Proxied {
            by,
            port,
            program: program.clone(),
            ranges,
            knows_services,
        })))
    }

    /// Returns whether a routing policy rule keeps packets with a mark at the node, whatever their destination is.
    fn keeps_marked(&self, family: Family) -> bool {
        let (Ok(rules), Ok(routes)) = (self.node.rules(), self.node.routes()) else {
            return false;
        };
        let is_local = |table: &str| {
            routes.all.iter().any(|route| {
                route.kind == "local"
                    && route.destination.prefix == 0
                    && Family::of(route.destination.addr) == family
                    && route.table == table
            })
        };
        rules.all.iter().any(|rule| {
            let table = rule.table.as_deref();
            rule.family == family && rule.mark.is_some() && table.is_some_and(is_local)
        })
    }
}

fn is_tproxy(hop: &Hop) -> bool {
    matches!(&hop.effect, Effect::Other { what } if what == TPROXY)
}

/// Returns the port of the proxy in the text of a rule: `--on-port 12345`, `tproxy to :12345`.
fn port_of(rule: &str) -> Option<u16> {
    let words: Vec<&str> = rule.split_ascii_whitespace().collect();
    let of_iptables = words.iter().position(|word| *word == "--on-port");
    if let Some(at) = of_iptables {
        return words.get(at + 1)?.parse().ok();
    }
    let at = words.iter().position(|word| *word == "tproxy")?;
    let to = words[at..].iter().position(|word| *word == "to")?;
    let (_, port) = words.get(at + to + 1)?.rsplit_once(':')?;
    port.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_of_a_proxy_is_in_its_rule() {
        for (rule, port) in [
            (
                "-p tcp -j TPROXY --on-port 12345 --on-ip 127.0.0.1 --tproxy-mark 0x1/0x1",
                Some(12345),
            ),
            (
                "meta l4proto tcp tproxy to :7893 meta mark set 0x1 accept",
                Some(7893),
            ),
            (
                "ip protocol tcp tproxy ip to 127.0.0.1:12345 accept",
                Some(12345),
            ),
            ("meta l4proto tcp tproxy ip to 127.0.0.1", None),
            ("-p tcp -j ACCEPT", None),
        ] {
            assert_eq!(port_of(rule), port, "{rule}");
        }
    }
}
