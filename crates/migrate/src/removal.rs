//! The leftovers that a migration will remove, counted before it.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;

use kpx_judge::plan::{self, Plan, Refusal};
use kpx_node::action::{Action, IpvsVerb, LinkCommand};
use kpx_node::backend::Mode;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

/// Counts of what is removed.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "testing", derive(schemars::JsonSchema))]
pub struct Removal {
    /// Chains of iptables, with the rules in them.
    pub chains: usize,
    /// Rules of other chains that jump there.
    pub rules: usize,
    /// IP sets.
    pub sets: usize,
    /// Virtual servers, with their real servers.
    pub servers: usize,
    /// Addresses of links.
    pub addresses: usize,
    /// Links.
    pub links: usize,
    /// Tables of nftables.
    pub tables: usize,
    /// Sysctls that are restored, as `key = value`.
    pub sysctls: Vec<String>,
}

impl Removal {
    /// Counts the leftovers of mode `from` that there will be once the node of `evidence` runs in mode `to`.
    pub fn expected(evidence: &Evidence, from: Mode, to: Mode) -> Result<Self, Refusal> {
        let mut evidence = evidence.clone();
        evidence.insert(Item::ProxyMode, Ok(to.name().to_owned()));
        let node = NodeSnapshot::new(&evidence);
        let plan = plan::cleanup(&node, from, &Family::BOTH, true)?;
        Ok(Self::of(&plan))
    }

    /// Counts what `plan` removes.
    pub fn of(plan: &Plan) -> Self {
        let mut all = Self::default();
        for step in &plan.steps {
            all.count(&step.action);
        }
        all
    }

    fn count(&mut self, action: &Action) {
        let begin = |input: &str, word: &str| {
            let lines = input.lines();
            lines.filter(|line| line.starts_with(word)).count()
        };
        match action {
            Action::Iptables { input, .. } => {
                self.chains += begin(input, "-X ");
                self.rules += begin(input, "-D ");
            }
            Action::Nft { input } => self.tables += begin(input, "delete table "),
            Action::Ipset { input } => self.sets += begin(input, "destroy "),
            Action::Ipvs { commands } => {
                let gone = commands.iter();
                self.servers += gone
                    .filter(|command| command.verb == IpvsVerb::DeleteServer)
                    .count();
            }
            Action::Link { commands } => {
                for command in commands {
                    match command {
                        LinkCommand::Delete { .. } => self.links += 1,
                        LinkCommand::DeleteAddress { .. } => self.addresses += 1,
                        LinkCommand::AddDummy { .. } | LinkCommand::AddAddress { .. } => {}
                    }
                }
            }
            Action::Sysctl { key, value } => self.sysctls.push(format!("{key} = {value}")),
            _ => {}
        }
    }
}

impl Display for Removal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.chains, "chain", "chains"),
            (
                self.rules,
                "rule of other chains that jumps there",
                "rules of other chains that jump there",
            ),
            (self.sets, "IP set", "IP sets"),
            (self.servers, "virtual server", "virtual servers"),
            (self.addresses, "address", "addresses"),
            (self.links, "link", "links"),
            (self.tables, "nftables table", "nftables tables"),
        ];
        let counts = counts.into_iter().filter(|(count, ..)| *count > 0);
        let gone: Vec<String> = counts
            .map(|(count, one, many)| format!("{count} {}", if count == 1 { one } else { many }))
            .collect();
        let mut text = Vec::new();
        if !gone.is_empty() {
            text.push(format!("removes {}", gone.join(", ")));
        }
        text.extend(self.sysctls.iter().map(|set| format!("sets {set}")));
        if text.is_empty() {
            return f.write_str("no leftovers to remove");
        }
        f.write_str(&text.join("; "))
    }
}
