//! Providers of clusters: the evidence of each, and the page about changing the mode there.
//!
//! A provider is a distribution, a service or an installer: it writes kube-proxy's configuration, and may restore it.

mod catalogue;
mod clue;
mod entry;

pub use catalogue::{INDEX, PROVIDERS};
pub use entry::Provider;
use kpx_node::cluster::Node;
use kpx_node::evidence::{Gap, Item};
use kpx_node::node::NodeSnapshot;

/// Items that [`recognise`] uses.
pub const NEEDS: &[Item] = &[
    Item::Nodes,
    Item::ConfigMaps,
    Item::DaemonSets,
    Item::Pods,
    Item::Processes,
    Item::ProxyFiles,
];

/// A recognised provider.
#[derive(Clone, Debug)]
pub struct Recognised {
    /// The provider.
    pub provider: &'static Provider,
    /// Its evidence, in words.
    pub evidence: Vec<String>,
}

impl Provider {
    /// Returns the provider with this short name.
    pub fn named(id: &str) -> Option<&'static Self> {
        PROVIDERS.iter().find(|provider| provider.id == id)
    }

    /// Returns the path of its page in the repository.
    pub fn page(&self) -> String {
        format!("docs/migrate/{}.md", self.id)
    }
}

/// Returns the provider of node `name`: the only one that the evidence names, and that nothing contradicts.
pub fn recognise(node: &NodeSnapshot<'_>, name: &str) -> Result<Recognised, Gap> {
    let object = match node.nodes() {
        Ok(nodes) => nodes.iter().find(|node| node.metadata.name == name),
        Err(_) => None,
    };
    let found = PROVIDERS.iter().filter_map(|provider| {
        let clues = provider.clues.iter();
        let evidence: Vec<String> = clues
            .filter_map(|clue| clue.seen(node, object, name))
            .collect();
        (!evidence.is_empty()).then_some(Recognised { provider, evidence })
    });
    let mut found: Vec<Recognised> = found.collect();
    let bases: Vec<&str> = found
        .iter()
        .filter_map(|recognised| recognised.provider.builds_on)
        .collect();
    found.retain(|recognised| !bases.contains(&recognised.provider.id));
    match found.as_slice() {
        [] => Err(unrecognised(node, name)),
        [one] => match contradiction(one.provider, object) {
            None => Ok(one.clone()),
            Some(why) => Err(Gap::Failed(Item::Nodes, format!("{one}, but {why}"))),
        },
        several => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            let what = format!("evidence of several providers: {}", several.join("; "));
            Err(Gap::Failed(Item::Nodes, what))
        }
    }
}

impl std::fmt::Display for Recognised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.provider.name, self.evidence.join(", "))
    }
}

/// Returns why no provider was recognised: data is missing, or there is no evidence in it.
fn unrecognised(node: &NodeSnapshot<'_>, name: &str) -> Gap {
    let what = format!("node {name} has no evidence of a provider that kpx knows");
    let absent = Gap::Absent(Item::Nodes, what);
    node.nodes().err().unwrap_or(absent)
}

/// Returns why `node` cannot belong to `provider`.
fn contradiction(provider: &Provider, node: Option<&Node>) -> Option<String> {
    let id = node?.spec.provider_id.as_deref()?;
    let (scheme, _) = id.split_once("://")?;
    let fits = provider.clouds.is_empty() || provider.clouds.contains(&scheme);
    (!fits).then(|| format!("the node's providerID begins with {scheme}://"))
}

#[cfg(test)]
mod tests;
