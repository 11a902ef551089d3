//! Why a pod takes no connections.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use serde_json::Value;

use super::{Condition, Conditions, Container, ContainerStatus, Endpoint, Node, Pod};
use crate::net::Family;
use crate::words::{listed, number_of};

/// Why a pod is not ready, as its status says. [`Display`] calls the pod "it".
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Unready {
    /// It is being deleted.
    Ending,
    /// It has ended: its phase, `Succeeded` or `Failed`, and why, as far as its status says.
    Ended(String),
    /// No node runs it; the message of the scheduler.
    Unscheduled(String),
    /// A container does not run.
    Container {
        /// Name of the container; empty if it is not shown.
        name: String,
        /// How often it was started again.
        restarts: u32,
        /// `is waiting (CrashLoopBackOff)`, `ended with exit status 1`.
        state: String,
        /// How it ended before.
        last: Option<String>,
    },
    /// Its containers run, and one is not ready.
    Probe {
        /// Name of the container.
        name: String,
        /// The request of its readiness probe, in words; `None` without a probe.
        asks: Option<String>,
        /// The port that the probe asks, if that is known and asked at the pod's address.
        port: Option<u16>,
    },
    /// Its containers are ready, but not the conditions of its readiness gates.
    Gates(Vec<String>),
    /// Its containers are ready, and its condition `Ready` is not: kube-controller-manager sets that when the kubelet does not report.
    Stale,
    /// Another reason: the message of its condition `Ready`, or its phase.
    Other(String),
}

impl Display for Unready {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ending => f.write_str("it is being deleted"),
            Self::Ended(phase) => write!(f, "it has ended ({phase})"),
            Self::Unscheduled(why) if why.is_empty() => f.write_str("no node runs it yet"),
            Self::Unscheduled(why) => write!(f, "no node runs it: {why}"),
            Self::Container {
                name,
                restarts,
                state,
                last,
            } => {
                match name.as_str() {
                    // A table does not show it.
                    "" => write!(f, "it {state}")?,
                    name => write!(f, "container {name} {state}")?,
                }
                if *restarts > 0 {
                    write!(f, " after {}", number_of(*restarts, "restart"))?;
                }
                match last {
                    Some(last) => write!(f, "; before, it {last}"),
                    None => Ok(()),
                }
            }
            Self::Probe {
                name,
                asks: Some(asks),
                ..
            } => write!(
                f,
                "the readiness probe of container {name} fails, which asks {asks}"
            ),
            Self::Probe { name, .. } => write!(f, "container {name} is not ready"),
            Self::Gates(gates) => match gates.as_slice() {
                [gate] => write!(f, "its readiness gate {gate} is not met"),
                gates => write!(f, "its readiness gates {} are not met", listed(gates)),
            },
            Self::Stale => f.write_str(
                "its containers are ready, but not its condition Ready, which kube-controller-manager clears while the kubelet does not \
                 report; the kubelet has not set it again",
            ),
            Self::Other(why) => f.write_str(why),
        }
    }
}

/// Reasons of the kubelet for a container whose image it could not pull.
pub const NOT_PULLED: &[&str] = &["ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"];

impl Node {
    /// Returns whether the provider's route controller says that it made no route to the pods of this Node.
    pub fn lacks_route(&self) -> bool {
        let mut conditions = self.status.conditions.iter();
        conditions.any(|condition| {
            condition.kind == "NetworkUnavailable"
                && condition.status == "True"
                && condition.reason == "NoRouteCreated"
        })
    }

    /// Returns since when its kubelet no longer reports, RFC 3339, empty if that is not known; `None` if it does.
    pub fn silent_since(&self) -> Option<&str> {
        let mut conditions = self.status.conditions.iter();
        let silent = conditions
            .find(|condition| condition.kind == "Ready" && condition.status == "Unknown")?;
        Some(silent.since.as_deref().unwrap_or_default())
    }

    /// Returns what the kubelet says of the container runtime's network, if that is not ready, so that no pod starts.
    fn unnetworked(&self) -> Option<&str> {
        let mut conditions = self.status.conditions.iter();
        let ready = conditions.find(|condition| condition.kind == "Ready")?;
        // The kubelet puts the runtime's words into one line: `… reason:NetworkPluginNotReady message:…`.
        let line = ready.message.as_str();
        let (_, said) = line.split_once("reason:NetworkPluginNotReady")?;
        let said = said.trim_start().trim_start_matches("message:");
        (ready.status != "True").then(|| said.trim())
    }
}

/// Returns the Nodes among `nodes` whose kubelet no longer reports, and which have endpoints in `endpoints`.
pub fn silent_nodes(endpoints: &[&Endpoint], nodes: &[Node]) -> Vec<String> {
    let silent = nodes.iter().filter(|node| node.silent_since().is_some());
    let names = silent.map(|node| &node.metadata.name);
    let has_endpoint = |name: &&String| {
        let mut own = endpoints.iter();
        own.any(|endpoint| endpoint.node_name.as_ref() == Some(name))
    };
    names.filter(has_endpoint).cloned().collect()
}

/// Returns the names of the Nodes of `pods` that have no address of `family`, if all of these pods use the network of their Nodes.
pub fn hosts_without<'p>(
    family: Family,
    mut pods: impl Iterator<Item = &'p Pod>,
    nodes: &[Node],
) -> Vec<String> {
    let mut hosts = BTreeSet::new();
    let all_lack = pods.all(|pod| {
        let own = nodes
            .iter()
            .find(|node| pod.spec.node_name.as_ref() == Some(&node.metadata.name));
        let lacks = own.filter(|node| {
            let mut all = node.status.addresses.iter();
            !all.any(|at| {
                at.address
                    .parse()
                    .is_ok_and(|addr| Family::of(addr) == family)
            })
        });
        hosts.extend(lacks.map(|node| node.metadata.name.clone()));
        pod.spec.host_network && lacks.is_some()
    });
    hosts.retain(|_| all_lack);
    hosts.into_iter().collect()
}

/// Returns the pods, as `NAMESPACE/NAME`, that are ready although `endpoints` list them as not ready: their EndpointSlices are behind. A pod
/// of a Node that does not report does not count.
pub fn outdated(endpoints: &[&Endpoint], pods: &[Pod], nodes: &[Node]) -> Vec<String> {
    let silent = silent_nodes(endpoints, nodes);
    let is_behind = |endpoint: &&&Endpoint| {
        let Conditions {
            ready, terminating, ..
        } = endpoint.conditions;
        ready == Some(false) && terminating != Some(true)
    };
    let pod = |endpoint: &&Endpoint| {
        let target = endpoint.target_ref.as_ref()?;
        let mut all = pods.iter();
        let pod = all.find(|pod| {
            pod.metadata.name == target.name && pod.metadata.namespace == target.namespace
        })?;
        let node = pod.spec.node_name.as_ref();
        let is_silent = node.is_some_and(|node| silent.contains(node));
        (pod.is_ready() && !is_silent).then(|| format!("{}/{}", target.namespace, target.name))
    };
    let behind = endpoints.iter().filter(is_behind);
    behind.filter_map(pod).collect()
}

impl Pod {
    /// Returns the name of its Node among `nodes`, and what the kubelet says there, if it does not start as the container runtime of that
    /// Node has no network.
    pub fn unnetworked<'n>(&self, nodes: &'n [Node]) -> Option<(&'n str, &'n str)> {
        let own = self.spec.node_name.as_deref()?;
        let node = nodes.iter().find(|node| node.metadata.name == own)?;
        let said = node.unnetworked()?;
        self.is_starting().then_some((&*node.metadata.name, said))
    }

    /// Returns whether a container of it waits for its first start.
    pub fn is_starting(&self) -> bool {
        matches!(self.unready(), Some(Unready::Container { restarts: 0, .. }))
    }

    /// Returns whether a container of it does not run.
    pub fn is_stopped(&self) -> bool {
        matches!(self.unready(), Some(Unready::Container { .. }))
    }

    /// Returns the hostPort for which the kubelet refused it, and the pod among `pods` that has the port on the same node.
    fn port_holder<'p>(&self, pods: &'p [Self]) -> Option<(u16, &'p Self)> {
        if !self.has_ended() || self.status.reason != "NodePorts" {
            return None;
        }
        self.host_ports().find_map(|port| {
            let holder = pods.iter().find(|pod| {
                pod.spec.node_name == self.spec.node_name
                    && !pod.has_ended()
                    && pod.host_ports().any(|other| other == port)
            });
            Some((port.0, holder?))
        })
    }

    /// Returns which of `pods` has the hostPort for which the kubelet refused it, as the end of a sentence; empty if none is known.
    pub fn port_holder_note(&self, pods: &[Self]) -> String {
        self.port_holder(pods)
            .map_or_else(String::new, |(port, holder)| {
                let meta = &holder.metadata;
                format!(
                    "; pod {}/{} has hostPort {port} there",
                    meta.namespace, meta.name
                )
            })
    }

    /// Returns whether the kubelet could not pull the image of a container.
    pub fn is_unpulled(&self) -> bool {
        let mut all = self.status.container_statuses.iter();
        all.any(|container| {
            let waits = container.state.waiting.as_ref();
            let reason = waits.and_then(|waits| waits.reason.as_deref());
            reason.is_some_and(|reason| NOT_PULLED.contains(&reason))
        })
    }

    /// Returns why it is not ready; `None` if it is.
    pub fn unready(&self) -> Option<Unready> {
        let status = &self.status;
        if self.is_ready() {
            return None;
        }
        if self.metadata.deletion_timestamp.is_some() {
            return Some(Unready::Ending);
        }
        if self.has_ended() {
            let said = [&status.phase, &status.reason, &status.message];
            let said = said.map(|text| text.trim_end_matches('.'));
            let said: Vec<&str> = said.into_iter().filter(|text| !text.is_empty()).collect();
            return Some(Unready::Ended(said.join(": ")));
        }
        if let Some(scheduled) = self
            .condition("PodScheduled")
            .filter(|condition| condition.status == "False")
        {
            return Some(Unready::Unscheduled(scheduled.message.clone()));
        }
        let (initial, all) = (&status.init_container_statuses, &status.container_statuses);
        if let Some(stopped) = initial.iter().chain(all).find_map(stopped) {
            return Some(stopped);
        }
        if let Some(of) = all.iter().find(|container| container.ready == Some(false)) {
            let mut containers = self.spec.containers.iter();
            let container = containers.find(|container| container.name == of.name);
            let probe = container
                .and_then(|container| Some((container, container.readiness_probe.as_ref()?)));
            return Some(Unready::Probe {
                name: of.name.clone(),
                asks: probe.and_then(|(_, probe)| asks(probe)),
                port: probe.and_then(|(container, probe)| port(container, probe)),
            });
        }
        let gates = self.spec.readiness_gates.iter();
        let gates = gates.filter_map(|gate| gate.get("conditionType")?.as_str());
        let is_met = |gate: &&str| {
            self.condition(gate)
                .is_some_and(|condition| condition.status == "True")
        };
        let unmet: Vec<String> = gates
            .filter(|gate| !is_met(gate))
            .map(str::to_owned)
            .collect();
        if !unmet.is_empty() {
            return Some(Unready::Gates(unmet));
        }
        if self
            .condition("ContainersReady")
            .is_some_and(|condition| condition.status == "True")
        {
            return Some(Unready::Stale);
        }
        match self.condition("Ready") {
            Some(ready) if !ready.message.is_empty() => Some(Unready::Other(ready.message.clone())),
            _ if status.phase == "Running" => {
                Some(Unready::Other("its condition Ready is not True".to_owned()))
            }
            _ => Some(Unready::Other(format!("its phase is {}", status.phase))),
        }
    }

    /// Iterates over the containers with a readiness probe that asks a port of the pod's address, and these ports.
    pub fn probed_ports(&self) -> impl Iterator<Item = (&str, u16)> {
        self.spec.containers.iter().filter_map(|container| {
            let probe = container.readiness_probe.as_ref()?;
            Some((&*container.name, port(container, probe)?))
        })
    }

    fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status
            .conditions
            .iter()
            .find(|condition| condition.kind == kind)
    }
}

/// Returns why a container does not run. An init container that ended well has done its work.
fn stopped(of: &ContainerStatus) -> Option<Unready> {
    let ended = |code: i32, reason: Option<&str>, message: Option<&str>| {
        let reason = reason
            .filter(|reason| *reason != "Error")
            .map_or_else(String::new, |text| format!(" ({text})"));
        let message = message.map_or_else(String::new, |text| format!(": {}", one_line(text)));
        format!("ended with exit status {code}{reason}{message}")
    };
    let state = match (&of.state.waiting, &of.state.terminated) {
        (Some(waiting), _) => {
            let reason = waiting.reason.as_deref().unwrap_or("no reason given");
            // The message of a crash loop repeats the name of the pod.
            let message = waiting
                .message
                .as_deref()
                .filter(|_| reason != "CrashLoopBackOff");
            let message =
                message.map_or_else(String::new, |message| format!(": {}", one_line(message)));
            format!("is waiting ({reason}{message})")
        }
        (None, Some(terminated)) if terminated.exit_code != 0 || of.ready == Some(false) => ended(
            terminated.exit_code,
            terminated.reason.as_deref(),
            terminated.message.as_deref(),
        ),
        _ => return None,
    };
    let last = of.last_state.terminated.as_ref();
    Some(Unready::Container {
        name: of.name.clone(),
        restarts: of.restart_count,
        state,
        last: last.map(|exit| {
            ended(
                exit.exit_code,
                exit.reason.as_deref(),
                exit.message.as_deref(),
            )
        }),
    })
}

/// Returns the last line that is not empty: it has the reason.
fn one_line(text: &str) -> &str {
    let mut lines = text.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty()).unwrap_or_default()
}

/// Returns what a probe asks, in words.
fn asks(probe: &Value) -> Option<String> {
    let text = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    if let Some(get) = probe.get("httpGet") {
        let path = get.get("path").and_then(Value::as_str).unwrap_or("/");
        return Some(format!("port {} for {path}", text(get.get("port")?)));
    }
    if let Some(socket) = probe.get("tcpSocket").or_else(|| probe.get("grpc")) {
        return Some(format!("port {}", text(socket.get("port")?)));
    }
    let words = probe.get("exec")?.get("command")?.as_array()?;
    let words: Vec<String> = words.iter().map(text).collect();
    Some(one_line(&words.join(" ")).to_owned())
}

/// Returns the port that a probe asks, by number or by name.
fn port(container: &Container, probe: &Value) -> Option<u16> {
    let kinds = ["httpGet", "tcpSocket", "grpc"];
    let asked = kinds.iter().find_map(|kind| probe.get(kind))?;
    // Another host is asked, such as the loopback address of the node.
    let asked = asked.get("port").filter(|_| asked.get("host").is_none())?;
    let number = match asked {
        Value::String(name) if name.parse::<u16>().is_err() => {
            let mut ports = container.ports.iter();
            let named =
                ports.find(|port| port.get("name").and_then(Value::as_str) == Some(name))?;
            return u16::try_from(named.get("containerPort")?.as_u64()?).ok();
        }
        Value::String(number) => return number.parse().ok(),
        number => number.as_u64()?,
    };
    u16::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(spec: &Value, status: &Value) -> String {
        let pod = json!({"metadata": {"name": "web-1", "namespace": "demo"}, "spec": spec, "status": status});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        pod.unready()
            .map_or_else(|| "ready".to_owned(), |unready| unready.to_string())
    }

    #[test]
    fn the_status_of_a_pod_tells_why_it_takes_no_connections() {
        let ready = |status: &str| json!({"type": "Ready", "status": status});
        let conditions = |status: &str| json!([ready(status)]);
        let none = json!({});
        assert_eq!(
            said(
                &none,
                &json!({"phase": "Running", "conditions": conditions("True")})
            ),
            "ready"
        );
        assert_eq!(
            said(
                &none,
                &json!({"phase": "Pending", "conditions": [{
                    "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient cpu."
                }]})
            ),
            "no node runs it: 0/3 nodes are available: 3 Insufficient cpu."
        );
        assert_eq!(
            said(
                &none,
                &json!({"phase": "Running", "containerStatuses": [{
                    "name": "main", "ready": false, "restartCount": 7,
                    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting"}},
                    "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                }]})
            ),
            "container main is waiting (CrashLoopBackOff) after 7 restarts; before, it ended with exit status 137 (OOMKilled)"
        );
        assert_eq!(
            said(
                &none,
                &json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "done", "ready": true, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
                {"name": "migrate", "ready": false, "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}},
            ], "containerStatuses": [{"name": "main", "ready": false, "state": {"waiting": {"reason": "PodInitializing"}}}]})
            ),
            "container migrate is waiting (ErrImagePull: not found)"
        );
        let runs = json!({"phase": "Running", "conditions": conditions("False"),
            "containerStatuses": [{"name": "main", "ready": false, "state": {"running": {}}}]});
        let probed = |probe: Value| {
            json!({"containers": [{"name": "main", "readinessProbe": probe,
            "ports": [{"name": "health", "containerPort": 9200}]}]})
        };
        let http = probed(json!({"httpGet": {"path": "/ready", "port": "health"}}));
        assert_eq!(
            said(&http, &runs),
            "the readiness probe of container main fails, which asks port health for /ready"
        );
        let pod = json!({"spec": http, "status": runs});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert!(matches!(
            pod.unready(),
            Some(Unready::Probe {
                port: Some(9200),
                ..
            })
        ));
        assert_eq!(said(&none, &runs), "container main is not ready");
        let gated = json!({"readinessGates": [{"conditionType": "target-health.example/x"}]});
        let well = json!({"phase": "Running", "conditions": [ready("False"), {"type": "ContainersReady", "status": "True"}],
            "containerStatuses": [{"name": "main", "ready": true, "state": {"running": {}}}]});
        assert_eq!(
            said(&gated, &well),
            "its readiness gate target-health.example/x is not met"
        );
        let stale = said(&none, &well);
        assert!(
            stale.starts_with("its containers are ready, but not its condition Ready"),
            "{stale}"
        );
    }
}
