//! The fix of each cause: a sentence and a command.

use super::cause::{At, Cause, PROXY_NAME};
use super::endpoints::Lack;
use crate::check::Fix;

impl Cause {
    /// Returns the fix; `subject` is the Service port as `kpx trace` takes it.
    pub(super) fn fix(&self, at: &At) -> Option<Fix> {
        let (full, _) = at.subject.split_once(':').unwrap_or((&at.subject, ""));
        let (namespace, name) = full.split_once('/').unwrap_or(("default", full));
        let edit = format!("kubectl -n {namespace} edit service {name}");
        let with = |text: &str, command: String| {
            Some(Fix {
                text: text.to_owned(),
                command: Some(command),
            })
        };
        match self {
            Self::NoService {
                name, elsewhere, ..
            } => match elsewhere.first() {
                Some(namespace) => with(
                    "Use the Service's own namespace.",
                    format!("kpx why {namespace}/{name}"),
                ),
                None => with(
                    "Use the name of an existing Service, or create this one.",
                    "kubectl get services -A".to_owned(),
                ),
            },
            Self::NoAddress { .. } | Self::NoNodePort { .. } => with(
                "Use the address of an existing Service.",
                "kubectl get services -A -o wide".to_owned(),
            ),
            Self::NoPort { service, .. } => {
                let (namespace, name) = service.split_once('/')?;
                with(
                    "Use one of the Service's ports, or add this one.",
                    format!("kubectl -n {namespace} edit service {name}"),
                )
            }
            Self::ExternalName { .. } => with(
                "Check that the alias resolves.",
                format!("kpx resolve {name} --namespace {namespace}"),
            ),
            Self::OtherProxy { .. } => with(
                "If no other proxy serves the Service, remove the label.",
                format!("kubectl -n {namespace} label service {name} {PROXY_NAME}-"),
            ),
            Self::NoClusterIp => with(
                "Look for events of the Service.",
                format!("kubectl -n {namespace} describe service {name}"),
            ),
            Self::StaleConnections { end, .. } => with(
                "End the connections; the next packet creates a correct one.",
                end.clone(),
            ),
            Self::ForeignRule { number: 0, .. } => with(
                "Add a rule to the chain that accepts traffic of pods and Services.",
                "kpx doctor --only IR16".to_owned(),
            ),
            Self::ForeignRule { fix, effect, .. } => fix.clone().or_else(|| {
                let command = match *effect {
                    "drops" | "rejects" => "kpx doctor --only IR16".to_owned(),
                    _ => format!("kpx trace {} -o wide", at.subject),
                };
                let text = "If the rule is not needed, delete it, also in the configuration that creates it.";
                with(text, command)
            }),
            Self::Finding { id, fix, .. } => fix
                .clone()
                .filter(|fix| fix.command.is_some())
                .or_else(|| {
                    let text = fix.as_ref().map_or("", |fix| &fix.text);
                    with(text, format!("kpx explain {id}"))
                }),
            Self::Rules { fix: Some(fix), .. } => Some(fix.clone()),
            Self::Rules { .. } | Self::StaleBackends { .. } | Self::Hairpin { .. } => with(
                "Repair kube-proxy's rules; if they break again, read kube-proxy's log.",
                "kpx reconcile --apply".to_owned(),
            ),
            Self::NoEndpoints { lack } => Some(fix_endpoints(lack, namespace, name, &edit)),
            Self::NoLocalEndpoints { policy, .. } => with(
                "Send clients to a node with an endpoint, run an endpoint on every node, or set the policy to Cluster.",
                format!(
                    "kubectl -n {namespace} patch service {name} -p '{{\"spec\":{{\"{policy}\":\"Cluster\"}}}}'"
                ),
            ),
            Self::SourceRanges { .. } => with("Add the client's range to the Service.", edit),
            Self::ForwardingOff { key } => with(
                "Turn forwarding on, also in /etc/sysctl.d.",
                format!("sysctl -w {key}=1"),
            ),
            Self::NoRoute { backend, .. } | Self::WrongNode { backend, .. } => with(
                "Repair the network plugin's routes; its pods run on every node.",
                format!("ip route get {}", backend.ip()),
            ),
            Self::HairpinPort { .. } => with(
                "Turn hairpin mode on in the network plugin's configuration.",
                "kpx explain CN07".to_owned(),
            ),
            Self::UndeclaredPort { .. } => with("Correct targetPort.", edit),
            Self::Unexplained { .. } => with(
                "Follow the packets rule by rule.",
                format!("kpx trace {} -o wide", at.subject),
            ),
            Self::Probe { .. } => with(
                "Read the log of the application.",
                format!("kubectl -n {namespace} logs service/{name}"),
            ),
        }
    }
}

fn fix_endpoints(lack: &Lack, namespace: &str, name: &str, edit: &str) -> Fix {
    let pods = |what: &str| format!("kubectl -n {namespace} {what}");
    let (text, command) = match lack {
        Lack::NoPods { selector } => (
            "Start the pods, or correct the selector.",
            pods(&format!("get pods -l {selector}")),
        ),
        Lack::NoSelector => (
            "Create an EndpointSlice with the label kubernetes.io/service-name, or set a selector.",
            edit.to_owned(),
        ),
        Lack::NotReady { endpoints } | Lack::Terminating { endpoints } => {
            let first = endpoints.first().and_then(|of| of.split_once('/'));
            let command = match first {
                Some((_, pod)) => pods(&format!("describe pod {pod}")),
                None => pods(&format!(
                    "get endpointslices -l kubernetes.io/service-name={name} -o yaml"
                )),
            };
            ("Find out why the pods are not ready.", command)
        }
        Lack::TargetPort { .. } => (
            "Use a port name of the containers as targetPort, or its number.",
            edit.to_owned(),
        ),
    };
    Fix {
        text: text.to_owned(),
        command: Some(command),
    }
}
