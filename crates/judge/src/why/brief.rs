//! Causes in a few words, for pictures.

use super::cause::Cause;
use super::endpoints::Lack;
use crate::diff::ChangeKind;
use crate::trace::mismatch::listed;
use crate::verdict::Odd;

impl Cause {
    /// Returns the cause in a few words: an object, and what is wrong with it.
    pub fn brief(&self) -> String {
        match self {
            Self::NoService {
                namespace, name, ..
            } => format!("no Service {namespace}/{name}"),
            Self::Dns { name, .. } | Self::NodeResolver { name, .. } => {
                format!("DNS does not resolve {name}")
            }
            Self::DnsFails { .. } => "connections to cluster DNS fail".to_owned(),
            Self::NoAddress { address, .. } => format!("no Service has {address}"),
            Self::OfNode { at, other, .. } => format!("{at} is of {other}"),
            Self::NoNodePort { port } => format!("no Service has NodePort {port}"),
            Self::NoPort { port, .. } => format!("no port {port}"),
            Self::ExternalName { target, .. } => format!("ExternalName: an alias of {target}"),
            Self::HeadlessLabel => "labelled as headless".to_owned(),
            Self::OtherProxy { proxy } => format!("left to proxy {proxy}"),
            Self::NoClusterIp => "no cluster IP yet".to_owned(),
            Self::StaleConnections { count, .. } => {
                format!("{count} tracked to endpoints that are gone")
            }
            Self::TableFull { count, most, .. } => format!("conntrack is full: {count} of {most}"),
            Self::ForeignRule {
                table,
                chain,
                number: 0,
                ..
            } => format!("{table} {chain}: its policy drops"),
            Self::ForeignRule {
                table,
                chain,
                number,
                effect,
                ..
            } => format!("{table} {chain} rule {number} {effect}"),
            Self::Leftover { mode, object } => format!("{object}, left behind by mode {mode}"),
            Self::Rules {
                object: (object, kind),
                ..
            } => {
                let what = match kind {
                    ChangeKind::Missing => "is missing",
                    ChangeKind::Extra => "is extra",
                    ChangeKind::Differs => "is wrong",
                };
                format!("{object} {what}")
            }
            Self::Idle(_) => "kube-proxy does not write rules".to_owned(),
            Self::SharedAddress { other, .. } => format!("the rules serve {other}"),
            Self::NodePortAddresses { address, .. } => {
                format!("nodePortAddresses lacks {address}")
            }
            Self::OnLoopback { address, .. } => format!("no NodePorts on {}", address.ip()),
            Self::OtherFamily { families, .. } => {
                let families: Vec<String> = families.iter().map(ToString::to_string).collect();
                format!("the Service is {} only", listed(&families))
            }
            Self::NoEndpoints { lack, .. } => match lack {
                Lack::OtherFamily { .. } => "no pod has an address of the family",
                Lack::SliceFamily { .. } => "no EndpointSlice has an address of the family",
                Lack::HostNames { .. } => "the EndpointSlice lists host names",
                Lack::NoPods { .. } => "no pod matches the selector",
                Lack::NotStarted { .. } => "its pods have not started",
                Lack::NoSlice { .. } => "no EndpointSlice",
                Lack::Unlisted { .. } => "the EndpointSlice is empty",
                Lack::Labelled { .. } => "a label keeps kube-proxy from the EndpointSlice",
                Lack::SelectorUnread { .. } => "no endpoint",
                Lack::StatesUnread { .. } => "no ready endpoint",
                Lack::NoSelector { .. } => "no selector and no EndpointSlice",
                Lack::NotReady { .. } => "no endpoint is ready",
                Lack::Outdated { .. } => "the EndpointSlice is behind",
                Lack::Terminating { .. } => "all endpoints are terminating",
                Lack::PortName { .. } => "no endpoint has a port of this name",
                Lack::TargetPort { .. } => "no container has the targetPort",
            }
            .to_owned(),
            Self::NoLocalEndpoints {
                policy, here: true, ..
            } => format!("{policy} is Local"),
            Self::NoLocalEndpoints { policy, .. } => {
                format!("no endpoint on this node, and {policy} is Local")
            }
            Self::SourceRanges { .. } => "outside loadBalancerSourceRanges".to_owned(),
            Self::ForwardingOff { key } => format!("{key} is 0"),
            Self::Obstacle { text, .. } => text.clone(),
            Self::NoRoute { backend, .. } => format!("no route to {}", backend.ip()),
            Self::WrongNode { way, .. } => format!("routed off the node, by {way}"),
            Self::Route { route, .. } => route.clone(),
            Self::PodRoute { range, odd, .. } => match odd.as_ref().map(|odd| &odd.why) {
                None | Some(Odd::NoRoutes | Odd::Unlearned { .. }) => {
                    format!("no route to {range}")
                }
                Some(_) => format!("odd way to {range}"),
            },
            Self::Dormant { table } => format!("table {table} is dormant"),
            Self::BypassedReply { key, .. } => format!("reply: {key} is not 1"),
            Self::NotMasqueraded { .. } => "reply: the source is not masqueraded".to_owned(),
            Self::HairpinPort { bridge } => format!("hairpin mode is off on {bridge}"),
            Self::Pending { .. } => "no load-balancer address".to_owned(),
            Self::Balancer { names, .. } => format!("load balancer {}", listed(names)),
            Self::HeadlessPort { port, .. } => format!("nothing translates port {port}"),
            Self::UndeclaredPort { port, .. } => format!("targetPort {port} is not declared"),
            Self::NoPod { backend, .. } => format!("no pod has {}", backend.ip()),
            Self::Twice { other, .. } => format!("an endpoint is {other}: translated once"),
            Self::Finding { reason, .. } | Self::Unexplained { reason, .. } => reason.clone(),
            Self::Probe { result, .. } => result.clone(),
        }
    }

    /// Returns whether something is absent that should exist, rather than that something blocks the packets.
    pub const fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::NoService { .. }
                | Self::Dns { .. }
                | Self::DnsFails { .. }
                | Self::NodeResolver { .. }
                | Self::NoAddress { .. }
                | Self::OfNode { .. }
                | Self::NoNodePort { .. }
                | Self::NoPort { .. }
                | Self::NoClusterIp
                | Self::Rules {
                    object: (_, ChangeKind::Missing),
                    ..
                }
                | Self::Idle(_)
                | Self::NoEndpoints { .. }
                | Self::NoLocalEndpoints { here: false, .. }
                | Self::NoPod { .. }
                | Self::NoRoute { .. }
                | Self::PodRoute { .. }
                | Self::NotMasqueraded { .. }
        )
    }
}
