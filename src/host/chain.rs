//! One chain at a time: what a trace needs of a ruleset too large to read whole.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::Arc;

use super::context::Context;
use super::{Options, exec, modules, nf_tables};
use crate::evidence::{Gap, Item};
use crate::net::Family;

/// Reads chains of the nft back end of iptables, one by one.
#[derive(Debug)]
pub struct ChainReader {
    context: Arc<Context>,
    family: Family,
    /// The chains there are, by table and name.
    there: HashSet<(String, String)>,
}

/// What reading a chain gave.
#[derive(Debug)]
pub enum Listing {
    /// The chain, as `iptables -v -S` prints it.
    Chain(String),
    /// There is no such chain.
    Missing,
    /// iptables cannot show it: nftables' own rules are in it, or its table is not what iptables makes.
    Incompatible,
}

impl ChainReader {
    /// Returns a reader, or `None` where only reading everything tells more: the legacy back end holds tables too, and
    /// which of the two is in use shows in their rules; or which chains there are is not known.
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
        let mut there = HashSet::new();
        if !modules::would_load(&context, "nf_tables") {
            let list = async move |_: Arc<Context>| nf_tables::chains(item);
            let of = match family {
                Family::V4 => "ip",
                Family::V6 => "ip6",
            };
            let all = context.inside(item, list).await.ok()?.into_iter();
            let own = all.filter(|chain| chain.family == of);
            there.extend(own.map(|chain| (chain.table, chain.name)));
        }
        Some(Self {
            context,
            family,
            there,
        })
    }

    /// Lists `chain` of `table` with counters.
    pub async fn read(&self, table: &str, chain: &str) -> Result<Listing, Gap> {
        // iptables 1.8.9 says of a chain that is not there that it is incompatible.
        if !self.there.contains(&(table.to_owned(), chain.to_owned())) {
            return Ok(Listing::Missing);
        }
        let item = Item::iptables(self.family);
        let program = match self.family {
            Family::V4 => "iptables-nft",
            Family::V6 => "ip6tables-nft",
        };
        let args = ["-t", table, "-v", "-S", chain].map(str::to_owned).to_vec();
        match exec::run_with(&self.context, item, program, args).await {
            Ok(text) => Ok(Listing::Chain(text)),
            Err(Gap::Failed(_, why)) if why.contains("incompatible") => Ok(Listing::Incompatible),
            Err(gap) => Err(gap),
        }
    }
}

/// Reads the names of the legacy back end's tables; none where it is not in the kernel.
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
