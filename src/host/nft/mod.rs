//! Reads the nftables ruleset, in the format of `nft -j list ruleset`.
//!
//! Only the names of iptables-nft's tables are included: `nft` needs 8 s to print 88,000 iptables rules, half of which
//! it cannot decode, and `iptables-nft-save` prints the same rules in 0.7 s. If iptables rules are read as well, a
//! table belongs to iptables-nft when `iptables-nft-save` printed it completely; a table that it calls incompatible
//! (because of native rules or chains in `ip nat`) is included here. Otherwise base chains identify the tables of
//! iptables-nft, but native rules in them go unnoticed.

use std::sync::Arc;

use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::context::Context;
use super::nf_tables::{self, Table};
use super::{exec, modules};
use crate::evidence::{Gap, Item};
use crate::net::Family;

/// Reads the version of `nft`. Even for that it opens a socket, which loads nfnetlink.
pub(super) async fn version(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    if modules::would_load(context, "nfnetlink") {
        let why = "nfnetlink is not loaded, and `nft --version` would load it";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    exec::run(context, item, "nft", &["--version"]).await
}

/// Number of attempts while tables are created and deleted.
const TRIES: u32 = 4;

/// Reads the ruleset as JSON.
pub(super) async fn json(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    let read =
        async |tables: &[Table], native: &[Table]| json_of(item, context, tables, native).await;
    steadily(item, context, read).await
}

/// Calls `read` with all tables and the native ones, and again if a table was deleted meanwhile: kube-proxy deletes its
/// own when it starts in another mode.
async fn steadily(
    item: Item,
    context: &Arc<Context>,
    read: impl AsyncFn(&[Table], &[Table]) -> Result<String, Gap>,
) -> Result<String, Gap> {
    let mut tries = 1;
    loop {
        let (before, native) = tables(item, context).await?;
        let gap = match read(&before, &native).await {
            Err(gap) if tries < TRIES => gap,
            done => return done,
        };
        let (after, _) = tables(item, context).await?;
        if before.iter().all(|table| after.contains(table)) {
            return Err(gap);
        }
        tries += 1;
    }
}

async fn json_of(
    item: Item,
    context: &Arc<Context>,
    tables: &[Table],
    native: &[Table],
) -> Result<String, Gap> {
    if tables.len() == native.len() {
        return exec::run(context, item, "nft", &["-j", "list", "ruleset"]).await;
    }
    let reads = native.iter().map(async |table| {
        let text = list(item, context, &["-j"], table).await?;
        objects(item, &text)
    });
    let (mut head, mut rest) = (Vec::new(), Vec::new());
    for object in try_join_all(reads).await?.into_iter().flatten() {
        if object.get("metainfo").is_none() {
            rest.push(object);
        } else if head.is_empty() {
            head.push(object);
        }
    }
    // A listed table includes its own entry.
    head.extend(tables.iter().filter(|t| !native.contains(t)).map(|table| {
        let (family, name, handle) = (table.family, &table.name, table.handle);
        json!({ "table": { "family": family, "name": name, "handle": handle } })
    }));
    head.extend(rest);
    Ok(format!("{}\n", json!({ "nftables": head })))
}

/// Reads the ruleset as text, if `nft` does not support JSON.
pub(super) async fn text(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    // With this option, `nft` reports missing JSON support before anything else.
    match exec::run(context, item, "nft", &["-j", "-v"]).await {
        Ok(_) => Err(Gap::NotApplicable(format!(
            "{} has the same data",
            Item::Nft
        ))),
        Err(Gap::Unsupported(..)) => {
            let read = async |_: &[Table], native: &[Table]| {
                let reads = native
                    .iter()
                    .map(async |table| list(item, context, &[], table).await);
                Ok(try_join_all(reads).await?.concat())
            };
            steadily(item, context, read).await
        }
        Err(gap) => Err(gap),
    }
}

async fn list(
    item: Item,
    context: &Arc<Context>,
    options: &[&str],
    table: &Table,
) -> Result<String, Gap> {
    let words = [options, &["list", "table", table.family, &table.name]].concat();
    let args = words.into_iter().map(str::to_owned).collect();
    exec::run_with(context, item, "nft", args).await
}

/// Returns the family and name of every table.
pub(super) async fn names(context: &Arc<Context>) -> Result<Vec<(&'static str, String)>, Gap> {
    let item = Item::Nft;
    if modules::would_load(context, "nf_tables") {
        return Ok(Vec::new());
    }
    let dump = async move |_: Arc<Context>| nf_tables::tables(item);
    let tables = context.inside(item, dump).await?;
    Ok(tables.into_iter().map(|of| (of.family, of.name)).collect())
}

/// Returns all tables, and those of them that do not belong to iptables-nft.
async fn tables(item: Item, context: &Arc<Context>) -> Result<(Vec<Table>, Vec<Table>), Gap> {
    if modules::would_load(context, "nf_tables") {
        return Err(Gap::NotApplicable(
            "nf_tables is not loaded, so there are no nftables rules".to_owned(),
        ));
    }
    let dump =
        async move |_: Arc<Context>| Ok((nf_tables::tables(item)?, nf_tables::chains(item)?));
    let (tables, chains) = context.inside(item, dump).await?;
    let mut native = Vec::new();
    for table in &tables {
        let family = match table.family {
            "ip" => Some(Family::V4),
            "ip6" => Some(Family::V6),
            _ => None,
        };
        let is_iptables = match family {
            Some(family) if context.saves => {
                let stores = context.iptables().await;
                stores.nft_tables(family).contains(&table.name.as_str())
            }
            _ => table.is_iptables(&chains),
        };
        if !is_iptables {
            native.push(table.clone());
        }
    }
    Ok((tables, native))
}

/// Returns the objects in a JSON document of `nft`.
fn objects(item: Item, text: &str) -> Result<Vec<Value>, Gap> {
    let undecodable =
        |why: String| Gap::Failed(item, format!("cannot decode the output of `nft -j`: {why}"));
    let mut document: Value = serde_json::from_str(text).map_err(|e| undecodable(e.to_string()))?;
    match document.get_mut("nftables").map(Value::take) {
        Some(Value::Array(objects)) => Ok(objects),
        _ => Err(undecodable("it has no list \"nftables\"".to_owned())),
    }
}
