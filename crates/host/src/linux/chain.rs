//! Reads single chains, for traces of rulesets too large to read as a whole.

use std::sync::Arc;

use futures_util::future::join_all;

use super::context::Context;
use super::nf_tables::wire::consistent;
use super::nf_tables::{self, Table};
use super::{Listing, Options, exec, iptables, modules, xtables};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;

/// Reads single chains of the iptables back end in use.
#[derive(Debug)]
pub struct ChainReader {
    context: Arc<Context>,
    family: Family,
    tables: Tables,
}

/// Existing tables.
#[derive(Debug)]
enum Tables {
    Nft(Vec<Table>),
    /// Their names, one a line.
    Legacy(String),
}

impl ChainReader {
    /// Returns a reader, or `None` if the whole ruleset must be read: both back ends have tables, so only the rules show which
    /// one is in use, or the lists of tables are unknown.
    pub async fn new(options: &Options, family: Family) -> Option<Self> {
        let context = Context::new(options);
        let item = Item::iptables(family);
        let legacy = async move |c: Arc<Context>| iptables::legacy_tables(item, &c, family);
        let legacy = context.inside(item, legacy).await.ok()?;
        let mut nft = Vec::new();
        if !modules::would_load(&context, "nf_tables") {
            let list = async move |_: Arc<Context>| nf_tables::tables(item);
            nft = context.inside(item, list).await.ok()?;
        }
        let tables = if legacy.is_empty() {
            Tables::Nft(nft)
        } else if nft.iter().any(|table| table.is_iptables(&[])) {
            return None;
        } else {
            Tables::Legacy(legacy)
        };
        Some(Self {
            context,
            family,
            tables,
        })
    }

    /// Returns the family of the rules.
    pub const fn family(&self) -> Family {
        self.family
    }

    /// Lists chains, by table and name, with counters.
    pub async fn read(&self, chains: Vec<(String, String)>) -> Vec<Result<Listing, Gap>> {
        let names = match &self.tables {
            Tables::Nft(tables) => {
                let each = chains.iter();
                let each = each.map(|(table, chain)| self.read_nft(tables, table, chain));
                return join_all(each).await;
            }
            Tables::Legacy(names) => names.clone(),
        };
        // All at once: the kernel only returns whole tables.
        let (item, family, wanted) = (Item::iptables(self.family), self.family, chains.clone());
        let read =
            async move |_: Arc<Context>| xtables::legacy::chains(item, family, &names, &wanted);
        let found = self.context.inside(item, read).await;
        let found = found.map_or_else(
            |_| vec![None; chains.len()],
            |all| all.into_iter().map(Some).collect(),
        );
        let each = chains.iter().zip(found);
        join_all(each.map(async |((table, chain), found)| match found {
            Some(Some(Ok(text))) => Ok(Listing::Chain(text)),
            Some(None) => Ok(Listing::Missing),
            // The tool may know more, or may have more privileges.
            Some(Some(Err(_))) | None => self.by_tool("legacy", table, chain).await,
        }))
        .await
    }

    /// Lists a chain of the nft back end.
    async fn read_nft(&self, tables: &[Table], table: &str, chain: &str) -> Result<Listing, Gap> {
        let family = self.family;
        let of = family.nft_name();
        if !tables.iter().any(|t| t.family == of && t.name == table) {
            return Ok(Listing::Missing);
        }
        let item = Item::iptables(family);
        let names = [table, chain].map(str::to_owned);
        let read = async move |_: Arc<Context>| {
            let [table, chain] = names;
            xtables::chain(item, family, &table, &chain)
        };
        match self.context.inside(item, read).await {
            Ok(Some(Ok(text))) => return Ok(Listing::Chain(text)),
            Ok(None) => return Ok(Listing::Missing),
            // The tool may know more, or may have more privileges.
            Ok(Some(Err(_))) | Err(_) => {}
        }
        match self.by_tool("nft", table, chain).await {
            // For a chain that does not exist, iptables 1.8.9 prints that the chain is incompatible; older releases
            // print that there is no chain.
            Err(Gap::Failed(..)) => {
                let names = [table, chain].map(str::to_owned);
                let look = async move |_: Arc<Context>| {
                    let [table, chain] = names;
                    let number = nf_tables::family_number(of);
                    consistent(item, |reader| {
                        nf_tables::header(reader, number, &table, &chain)
                    })
                };
                let found = self.context.inside(item, look).await?;
                Ok(found.map_or(Listing::Missing, |_| Listing::Incompatible))
            }
            listing => listing,
        }
    }

    /// Lists a chain of an existing table with the tool of a back end.
    async fn by_tool(&self, backend: &str, table: &str, chain: &str) -> Result<Listing, Gap> {
        let program = match (self.family, backend) {
            (Family::V4, "legacy") => "iptables-legacy",
            (Family::V4, _) => "iptables-nft",
            (Family::V6, "legacy") => "ip6tables-legacy",
            (Family::V6, _) => "ip6tables-nft",
        };
        let args = ["-t", table, "-v", "-S", chain].map(str::to_owned).to_vec();
        let item = Item::iptables(self.family);
        let text = exec::run_with(&self.context, item, program, args).await?;
        Ok(Listing::Chain(as_saved(table, &text)))
    }
}

/// Returns `listing` of one chain of `table` as `iptables-save -c` would print it.
///
/// A listing has policies and counters in other places: `-P INPUT ACCEPT -c 1 60`, `-A INPUT … -c 1 60 -j …`.
fn as_saved(table: &str, listing: &str) -> String {
    let mut saved = format!("*{table}\n");
    for line in listing.lines() {
        let (line, counters) = take_counters(line);
        if let Some(policy) = line.strip_prefix("-P ") {
            saved.extend([":", policy, " ", &counters, "\n"]);
        } else if let Some(name) = line.strip_prefix("-N ") {
            saved.extend([":", name, " - [0:0]\n"]);
        } else if !line.is_empty() {
            saved.extend([&counters, " ", &line, "\n"]);
        }
    }
    saved.push_str("COMMIT\n");
    saved
}

/// Takes ` -c PACKETS BYTES` out of a line; quoted text is passed over.
fn take_counters(line: &str) -> (String, String) {
    let mut quoted = false;
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ' ' if !quoted && line[at..].starts_with(" -c ") => {
                let mut words = line[at + 4..].splitn(3, ' ');
                let (Some(packets), Some(bytes)) = (words.next(), words.next()) else {
                    break;
                };
                let rest = words
                    .next()
                    .map_or(String::new(), |rest| format!(" {rest}"));
                return (
                    format!("{}{rest}", &line[..at]),
                    format!("[{packets}:{bytes}]"),
                );
            }
            _ => {}
        }
    }
    (line.to_owned(), "[0:0]".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_becomes_what_is_saved() {
        let listing = "-P INPUT ACCEPT -c 5 300\n-A INPUT -m comment --comment \"a -c 1 2\" -c 3 180 -j DROP\n";
        assert_eq!(
            as_saved("filter", listing),
            "*filter\n:INPUT ACCEPT [5:300]\n[3:180] -A INPUT -m comment --comment \"a -c 1 2\" -j DROP\nCOMMIT\n"
        );
    }
}
