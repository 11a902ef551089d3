//! Neighbours: which link-layer address an IP address has on a link.

use std::net::IpAddr;

use foldhash::HashMap;
use serde::Deserialize;

use crate::evidence::{Gap, Item};

/// Neighbours on every link.
#[derive(Clone, Debug, Default)]
pub struct Neighbours {
    /// Neighbours, in the order of the list.
    pub all: Vec<Neighbour>,
    /// The positions of those with an address.
    by_address: HashMap<IpAddr, Vec<usize>>,
}

impl Neighbours {
    fn new(all: Vec<Neighbour>) -> Self {
        let mut by_address: HashMap<IpAddr, Vec<usize>> = HashMap::default();
        for (at, of) in all.iter().enumerate() {
            by_address.entry(of.address).or_default().push(at);
        }
        Self { all, by_address }
    }

    /// Returns the neighbour with `address` on `link`.
    pub fn on(&self, address: IpAddr, link: &str) -> Option<&Neighbour> {
        let all = self.by_address.get(&address).into_iter().flatten();
        all.map(|at| &self.all[*at])
            .find(|neighbour| neighbour.link == link)
    }
}

/// A neighbour.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Neighbour {
    /// The IP address.
    pub address: IpAddr,
    /// The link.
    pub link: String,
    /// The link-layer address; `None` if it is not resolved.
    pub mac: Option<String>,
    /// Whether nothing answered when the node last asked for it.
    pub failed: bool,
    /// Whether the node is asking for the link-layer address, and nothing has answered yet.
    pub incomplete: bool,
    /// Whether an administrator or a program set it, and no answer changes it.
    pub permanent: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Raw {
    dst: String,
    dev: String,
    lladdr: Option<String>,
    state: Vec<String>,
}

/// Parses `ip -j neigh`; iproute2 5.x leaves empty objects in place of filtered entries.
pub fn parse(text: &str) -> Result<Neighbours, Gap> {
    let bad = |why: String| Gap::Failed(Item::NeighbourTable, why);
    let mut all = Vec::new();
    for document in serde_json::Deserializer::from_str(text).into_iter::<Vec<Raw>>() {
        let document = document.map_err(|e| Gap::of_json(Item::NeighbourTable, text, &e))?;
        for raw in document.into_iter().filter(|raw| !raw.dst.is_empty()) {
            let address = raw.dst.parse();
            let address = address.map_err(|_| bad(format!("{:?} is not an address", raw.dst)))?;
            let is = |state: &str| raw.state.iter().any(|own_state| own_state == state);
            all.push(Neighbour {
                address,
                link: raw.dev,
                mac: raw.lladdr,
                failed: is("FAILED"),
                incomplete: is("INCOMPLETE"),
                permanent: is("PERMANENT"),
            });
        }
    }
    Ok(Neighbours::new(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_parsed_as_ip_prints_them() {
        let text = r#"[{"dst":"10.244.1.6","dev":"cni0","lladdr":"02:00:00:00:00:01","state":["PERMANENT"]},{},
            {"dst":"fd00::1","dev":"eth0","state":["FAILED"]}]"#;
        let all = parse(text).unwrap().all;
        assert_eq!(all.len(), 2);
        assert!(all[0].permanent && !all[0].failed && all[0].link == "cni0");
        assert!(all[1].failed && all[1].mac.is_none());
        assert!(parse("[{\"dst\":\"x\"}]").is_err() && parse("[ ]").unwrap().all.is_empty());
    }
}
