//! Tracked connections to addresses that are no endpoints.

use super::blame::Blame;
use super::cause::Cause;
use super::look::Look;
use crate::trace::{self, Carried, Entry, Flow};
use crate::verdict::{self, Kind};
use kpx_node::backend::Mode;
use kpx_node::net::{Family, Proto};
use kpx_node::owner::Port;

impl Look<'_> {
    /// Returns the tracked connections of TCP and SCTP to the addresses of `port` that go to addresses which are no endpoints, or that
    /// are not translated: new connections are not affected.
    pub(super) fn stale(&self, port: &Port, family: Family) -> Vec<Blame> {
        let mut blames = Vec::new();
        if port.proto == Proto::Udp {
            return blames;
        }
        for target in verdict::targets(self.node, port, family) {
            let flow = Flow {
                entry: Entry::Host,
                source: None,
                destination: target.at.ip(),
                port: target.at.port(),
                mark: 0,
                carried: Carried::default(),
                proto: port.proto,
                established: true,
            };
            // In mode ipvs, IPVS translates the packets of such an entry.
            let is_by_rules = matches!(
                self.node.configured_mode(),
                Ok(Mode::Iptables | Mode::Nftables)
            );
            let is_open = |entry: &kpx_node::node::conntrack::Entry| {
                entry.state.as_deref() == Some("ESTABLISHED")
                    && (entry.reply.source != target.at || entry.unreplied && is_by_rules)
                    && port
                        .endpoints
                        .iter()
                        .all(|endpoint| endpoint.addr != entry.reply.source)
            };
            let Ok(tracked) = trace::tracked(self.node, &flow, None, Some(port), is_open) else {
                return blames;
            };
            if target.kind == Kind::Endpoint || tracked.stale.is_empty() {
                continue;
            }
            blames.push(Blame::suspects(Cause::StaleConnections {
                count: tracked.count,
                address: target.at,
                protocol: port.proto.to_string(),
                end: trace::end_tracked(&flow, &tracked.stale),
                backends: tracked.stale,
            }));
        }
        blames
    }
}
