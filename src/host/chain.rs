//! One chain at a time: what a trace needs of a ruleset too large to read whole.

use std::io::ErrorKind;
use std::sync::Arc;

use super::context::Context;
use super::{Options, exec};
use crate::evidence::{Gap, Item};
use crate::net::Family;

/// Reads chains of the nft back end of iptables, one by one.
#[derive(Debug)]
pub struct ChainReader {
    context: Arc<Context>,
    family: Family,
}

impl ChainReader {
    /// Returns a reader, or `None` where the legacy back end holds tables too: which of the two is in use then shows
    /// only when both are read whole.
    pub async fn new(options: &Options, family: Family) -> Option<Self> {
        let context = Context::new(options);
        let names = match family {
            Family::V4 => |_, context: &Context| read_names(context, "ip_tables_names"),
            Family::V6 => |_, context: &Context| read_names(context, "ip6_tables_names"),
        };
        let legacy = context.look(Item::iptables(family), names).await;
        matches!(legacy.as_deref(), Ok("")).then_some(Self { context, family })
    }

    /// Lists `chain` of `table` with counters, as `iptables -v -S` does; `None` where there is no such chain.
    pub async fn read(&self, table: &str, chain: &str) -> Result<Option<String>, Gap> {
        let item = Item::iptables(self.family);
        let program = match self.family {
            Family::V4 => "iptables-nft",
            Family::V6 => "ip6tables-nft",
        };
        let args = ["-t", table, "-v", "-S", chain].map(str::to_owned).to_vec();
        match exec::run_with(&self.context, item, program, args).await {
            Ok(text) => Ok(Some(text)),
            // iptables 1.8 says "incompatible" of a chain that is not there, older ones "No chain".
            Err(Gap::Failed(_, why))
                if why.contains("No chain")
                    || why.contains("incompatible")
                    || why.contains("does not exist") =>
            {
                Ok(None)
            }
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
