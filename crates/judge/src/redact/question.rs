//! Questions about redacted evidence: the replacement of a name or an address.

use std::net::{IpAddr, SocketAddr};

use super::Redactor;
use super::names::Kind;

/// The object that a word of a question names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Named {
    /// A Service (NAME or NAMESPACE/NAME, each with or without :PORT) or an address, with or without a port.
    Target,
    /// A pod (NAMESPACE/POD) or an address.
    Client,
    /// A Node.
    Node,
}

impl Redactor {
    /// Returns the replacement of `word` in redacted evidence. Keywords such as `host` and `nodeport:N` stay.
    pub fn question(&mut self, word: &str, named: Named) -> String {
        if let Ok(at) = word.parse::<SocketAddr>() {
            return SocketAddr::new(self.address(at.ip()), at.port()).to_string();
        }
        if let Ok(address) = word.parse::<IpAddr>() {
            return self.address(address).to_string();
        }
        match named {
            Named::Node => self.node(word),
            Named::Client => match word.split_once('/') {
                Some((namespace, pod)) => {
                    let namespace = self.names.map(Kind::Namespace, namespace);
                    format!("{namespace}/{}", self.names.map(Kind::Pod, pod))
                }
                None => word.to_owned(),
            },
            Named::Target => self.asked_service(word),
        }
    }

    fn asked_service(&mut self, word: &str) -> String {
        let (word, port) = match word.rsplit_once(':') {
            Some((word, port)) => (word, Some(port)),
            None => (word, None),
        };
        let new = match word.split_once('/') {
            _ if word == "nodeport" => word.to_owned(),
            Some((kind @ ("svc" | "service" | "services"), name)) => {
                format!("{kind}/{}", self.names.map(Kind::Service, name))
            }
            Some((namespace, name)) => {
                let namespace = self.names.map(Kind::Namespace, namespace);
                format!("{namespace}/{}", self.names.map(Kind::Service, name))
            }
            None => self.dns_name(word),
        };
        match port {
            None => new,
            Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => format!("{new}:{port}"),
            Some(port) => format!("{new}:{}", self.names.map(Kind::Port, port)),
        }
    }

    /// Returns the replacement of SERVICE, or of SERVICE.NAMESPACE.svc and what follows.
    fn dns_name(&mut self, word: &str) -> String {
        let mut labels = word.splitn(3, '.');
        match (labels.next(), labels.next(), labels.next()) {
            (Some(name), Some(namespace), rest) => {
                let name = self.names.map(Kind::Service, name);
                let namespace = self.names.map(Kind::Namespace, namespace);
                let rest = rest.map_or_else(String::new, |rest| format!(".{rest}"));
                format!("{name}.{namespace}{rest}")
            }
            _ => self.names.map(Kind::Service, word),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::evidence::Evidence;

    #[test]
    fn a_question_names_what_the_redacted_evidence_names() {
        let mut redactor = Redactor::new([7; 32], &Evidence::default());
        let service = redactor.names.map(Kind::Service, "web");
        let namespace = redactor.names.map(Kind::Namespace, "shop");
        let pod = redactor.names.map(Kind::Pod, "web-0");
        let address = redactor.address("10.96.0.10".parse().unwrap());
        for (named, word, want) in [
            (
                Named::Target,
                "shop/web:80",
                format!("{namespace}/{service}:80"),
            ),
            (
                Named::Target,
                "shop/web:http",
                format!("{namespace}/{service}:http"),
            ),
            (Named::Target, "svc/web", format!("svc/{service}")),
            (Named::Target, "web", service.clone()),
            (
                Named::Target,
                "web.shop.svc.cluster.local:80",
                format!("{service}.{namespace}.svc.cluster.local:80"),
            ),
            (Named::Target, "nodeport:31082", "nodeport:31082".to_owned()),
            (
                Named::Target,
                "default/kubernetes",
                "default/kubernetes".to_owned(),
            ),
            (Named::Target, "10.96.0.10:53", format!("{address}:53")),
            (Named::Client, "10.96.0.10", address.to_string()),
            (Named::Client, "shop/web-0", format!("{namespace}/{pod}")),
            (Named::Client, "host", "host".to_owned()),
        ] {
            assert_eq!(redactor.question(word, named), want, "{word}");
        }
    }
}
