//! The pods that a Service selects, as the EndpointSlice controller selects them.

use super::{EndpointSlice, Pod, Service};
use crate::net::Family;

/// Pods with an address that a selector matches, as `NAMESPACE/NAME`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Matching {
    /// Ready pods.
    pub ready: Vec<String>,
    /// Pods that are not ready.
    pub unready: Vec<String>,
}

impl Matching {
    /// Returns the pods that `service` selects, with an address of `family` if one is given.
    pub fn of(service: &Service, family: Option<Family>, pods: &[Pod]) -> Self {
        let mut found = Self::default();
        for pod in pods.iter().filter(|pod| service.selects(pod)) {
            if !pod.has_address(family) {
                continue;
            }
            let name = format!("{}/{}", pod.metadata.namespace, pod.metadata.name);
            if pod.is_ready() {
                found.ready.push(name);
            } else {
                found.unready.push(name);
            }
        }
        found
    }

    /// Returns the pods to name: the ready ones, if any are.
    pub fn shown(self) -> Vec<String> {
        if self.ready.is_empty() {
            self.unready
        } else {
            self.ready
        }
    }

    /// Returns whether no pod matches.
    pub const fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.unready.is_empty()
    }
}

impl Service {
    /// Returns its selector, unless its endpoints are managed manually.
    pub fn selector(&self) -> Option<&super::Labels> {
        let selector = self.spec.selector.as_ref();
        selector.filter(|labels| !labels.is_empty())
    }

    /// Returns whether kube-proxy serves it in `family`, by its `ipFamilies`; true if it has none.
    pub fn has_family(&self, family: Family) -> bool {
        let all = &self.spec.ip_families;
        all.is_empty() || all.iter().any(|text| text.parse() == Ok(family))
    }

    /// Returns whether its selector matches `pod`.
    pub fn selects(&self, pod: &Pod) -> bool {
        let has = |(key, value): (&String, &String)| pod.metadata.labels.get(key) == Some(value);
        pod.metadata.namespace == self.metadata.namespace
            && self.selector().is_some_and(|labels| labels.iter().all(has))
    }
}

impl Pod {
    /// Returns whether it takes connections.
    pub fn is_ready(&self) -> bool {
        let mut conditions = self.status.conditions.iter();
        self.metadata.deletion_timestamp.is_none()
            && conditions.any(|condition| condition.kind == "Ready" && condition.status == "True")
    }

    /// Returns whether it has an address, of `family` if one is given.
    fn has_address(&self, family: Option<Family>) -> bool {
        let is_it = |addr| family.is_none_or(|family| Family::of(addr) == family);
        self.addresses().any(is_it)
    }
}

/// Returns whether several of `services` have selectors, and none of these has an EndpointSlice: then nothing creates
/// slices.
pub fn makes_none(services: &[Service], slices: &[EndpointSlice]) -> bool {
    let slices = EndpointSlice::by_service(slices);
    let mut selecting = services
        .iter()
        .filter(|service| service.selector().is_some());
    let has_none = |service: &Service| {
        let meta = &service.metadata;
        !slices.contains_key(&(meta.namespace.as_str(), meta.name.as_str()))
    };
    selecting.clone().count() > 1 && selecting.all(has_none)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, labels: &serde_json::Value, ready: &str, ip: &str) -> Pod {
        let pod = json!({
            "metadata": {"name": name, "namespace": "demo", "labels": labels},
            "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn every_label_of_the_selector_must_match_and_the_pod_must_have_an_address() {
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "demo"},
            "spec": {"selector": {"app": "web", "tier": "front"}},
        }))
        .unwrap();
        let both = json!({"app": "web", "tier": "front", "more": "x"});
        let mut done = pod("done", &both, "True", "10.244.1.9");
        done.status.phase = "Succeeded".to_owned();
        let mut elsewhere = pod("elsewhere", &both, "True", "10.244.1.9");
        elsewhere.metadata.namespace = "other".to_owned();
        let pods = [
            pod("half", &json!({"app": "web"}), "True", "10.244.1.4"),
            pod("ready", &both, "True", "10.244.1.5"),
            pod("six", &both, "True", "fd00::5"),
            pod("late", &both, "False", "10.244.1.6"),
            pod("new", &both, "False", ""),
            done,
            elsewhere,
        ];
        let of = |family| Matching::of(&service, family, &pods);
        let v4 = of(Some(Family::V4));
        assert_eq!(v4.ready, ["demo/ready"]);
        assert_eq!(v4.unready, ["demo/late"]);
        assert_eq!(of(Some(Family::V6)).ready, ["demo/six"]);
        assert_eq!(of(None).ready, ["demo/ready", "demo/six"]);
        let manual = Service::default();
        assert!(Matching::of(&manual, None, &pods).is_empty());
    }

    #[test]
    fn one_slice_of_a_selecting_service_shows_that_slices_are_made() {
        let service = |name: &str, selector: serde_json::Value| -> Service {
            let of = json!({"metadata": {"name": name, "namespace": "demo"}, "spec": {"selector": selector}});
            serde_json::from_value(of).unwrap()
        };
        let slice = |name: &str| -> EndpointSlice {
            let labels = json!({"kubernetes.io/service-name": name});
            let of = json!({"metadata": {"namespace": "demo", "labels": labels}});
            serde_json::from_value(of).unwrap()
        };
        let services = [
            service("a", json!({"app": "a"})),
            service("b", json!({"app": "b"})),
            service("manual", json!(null)),
        ];
        assert!(makes_none(&services, &[slice("manual")]));
        assert!(!makes_none(&services, &[slice("b")]));
        assert!(
            !makes_none(&services[1..], &[]),
            "one Service shows nothing"
        );
    }
}
