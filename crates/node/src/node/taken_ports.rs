//! Ports of pods in the network of the node that another program has.

use super::NodeSnapshot;
use super::sockets::Socket;
use crate::cluster::{Container, Pod, Unready};

impl NodeSnapshot<'_> {
    /// Returns which program has a port of `pod`, a pod of this node in its network whose container does not stay up, in words.
    pub fn port_taken(&self, pod: &Pod) -> Option<String> {
        let here = self.name().ok();
        if !pod.spec.host_network || here.is_none() || pod.spec.node_name != here {
            return None;
        }
        let Some(Unready::Container { name, restarts, .. }) = pod.unready() else {
            return None;
        };
        let mut containers = pod.spec.containers.iter();
        let container = containers.find(|container| container.name == name && restarts > 0)?;
        let sockets = self.sockets().ok()?;
        let taken = |socket: &&Socket| {
            let mut ports = Container::declared_ports(container);
            ports.any(|port| (port.number, port.proto) == (socket.local.port(), socket.proto))
        };
        let socket = sockets.listening.iter().find(taken)?;
        let program = socket.processes.first().map_or_else(
            || "another program".to_owned(),
            |process| format!("{} (pid {})", process.name, process.pid),
        );
        Some(format!(
            "{program} on the node has its port {}",
            socket.local.port()
        ))
    }
}
