//! Requests of kpx in a pod to the network, from the node.

use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{RemoteNode, Unreached};
use crate::ProbeResult;
use kpx_node::dns::DnsFailure;
use kpx_node::net::Proto;

/// A query that a kpx in a pod sends.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Query {
    /// One connection or datagram; the answer is a [`ProbeResult`].
    Probe {
        /// The destination.
        target: SocketAddr,
        /// The number of the protocol: TCP or UDP.
        protocol: u8,
    },
    /// A DNS message; the answer is the message of the server, or why there is none.
    Dns {
        /// The DNS server.
        server: SocketAddr,
        /// The message.
        message: Vec<u8>,
    },
}

impl RemoteNode {
    /// Opens one TCP connection to `target` from the node, or sends one UDP datagram.
    pub async fn probe(
        &self,
        target: SocketAddr,
        protocol: Proto,
    ) -> Result<ProbeResult, Unreached> {
        let protocol = protocol.number();
        self.query(&Query::Probe { target, protocol }).await
    }

    /// Sends the DNS message `message` to `server` from the node; returns the answer, or why there is none.
    pub async fn ask(
        &self,
        server: SocketAddr,
        message: Vec<u8>,
    ) -> Result<Result<Vec<u8>, DnsFailure>, Unreached> {
        self.query(&Query::Dns { server, message }).await
    }

    async fn query<T: DeserializeOwned>(&self, query: &Query) -> Result<T, Unreached> {
        let failed = |why: String| Unreached::Failed(self.name.clone(), why);
        let query = serde_json::to_string(query).map_err(|e| failed(e.to_string()))?;
        let limit = self.pod.remote.api.options.timeout.as_millis();
        let words = [
            self.program.to_owned(),
            format!("--timeout={limit}ms"),
            "pod".to_owned(),
            format!("--query={query}"),
        ];
        let done = self.pod.run(&words, None).await?;
        if done.code != Some(0) {
            let why = done.stderr.strip_prefix("kpx: ").unwrap_or(&done.stderr);
            return Err(failed(why.trim().to_owned()));
        }
        serde_json::from_slice(&done.stdout)
            .map_err(|e| failed(format!("cannot read its answer: {e}")))
    }
}
