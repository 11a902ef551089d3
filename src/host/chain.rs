//! Reads single chains, for traces of rulesets too large to read as a whole.

use std::io::ErrorKind;
use std::sync::Arc;

use super::context::Context;
use super::nf_tables::{self, Table};
use super::{Options, exec, modules};
use crate::evidence::{Gap, Item};
use crate::net::Family;

/// Reads single chains of iptables' nft back end.
#[derive(Debug)]
pub struct ChainReader {
    context: Arc<Context>,
    family: Family,
    /// Existing tables.
    tables: Vec<Table>,
}

/// Result of reading a chain.
#[derive(Debug)]
pub enum Listing {
    /// The chain, as `iptables -v -S` prints it.
    Chain(String),
    /// The chain does not exist.
    Missing,
    /// iptables cannot print the chain: it contains native nftables rules, or its table is not one of iptables.
    Incompatible,
}

impl ChainReader {
    /// Returns a reader, or `None` if the whole ruleset must be read: the legacy back end also has tables, so only the
    /// rules show which back end is in use, or the list of chains is unknown.
    pub async fn new(options: &Options, family: Family) -> Option<Self> {
        let context = Context::new(options);
        let item = Item::iptables(family);
        let names = match family {
            Family::V4 => |_, context: &Context| read_names(context, "ip_tables_names"),
            Family::V6 => |_, context: &Context| read_names(context, "ip6_tables_names"),
        };
        if context.look(item, names).await.as_deref() != Ok("") {
            return None;
        }
        let mut tables = Vec::new();
        if !modules::would_load(&context, "nf_tables") {
            let list = async move |_: Arc<Context>| nf_tables::tables(item);
            tables = context.inside(item, list).await.ok()?;
        }
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

    /// Lists `chain` of `table` with counters.
    pub async fn read(&self, table: &str, chain: &str) -> Result<Listing, Gap> {
        let family = self.family;
        let of = family.nft_name();
        if !self
            .tables
            .iter()
            .any(|t| t.family == of && t.name == table)
        {
            return Ok(Listing::Missing);
        }
        let item = Item::iptables(family);
        let program = match family {
            Family::V4 => "iptables-nft",
            Family::V6 => "ip6tables-nft",
        };
        let args = ["-t", table, "-v", "-S", chain].map(str::to_owned).to_vec();
        match exec::run_with(&self.context, item, program, args).await {
            Ok(text) => Ok(Listing::Chain(text)),
            // For a chain that does not exist, iptables 1.8.9 prints that the chain is incompatible; older releases
            // print that there is no chain.
            Err(Gap::Failed(..)) => {
                let list = async move |_: Arc<Context>| nf_tables::chains(item);
                let mut all = self.context.inside(item, list).await?.into_iter();
                let is_there = all.any(|c| c.family == of && c.table == table && c.name == chain);
                Ok(if is_there {
                    Listing::Incompatible
                } else {
                    Listing::Missing
                })
            }
            Err(gap) => Err(gap),
        }
    }
}

/// Reads the names of the legacy back end's tables; empty if the kernel does not have it.
fn read_names(context: &Context, file: &str) -> Result<String, Gap> {
    let path = context.path("proc/thread-self/net").join(file);
    match std::fs::read_to_string(&path) {
        Ok(names) => Ok(names.trim().to_owned()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(e) => Err(super::context::gap(
            Item::Iptables4,
            format!("/proc/net/{file}"),
            &e,
        )),
    }
}
