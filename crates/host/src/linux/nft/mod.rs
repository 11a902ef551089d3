//! Reads the nftables ruleset, in the format of `nft -j list ruleset`: from the kernel, and with `nft` the tables that kpx
//! does not decode.
//!
//! Only the names of iptables-nft's tables are included: `nft` needs 8 s to print 88,000 iptables rules, half of which
//! it cannot decode, and `iptables-nft-save` prints the same rules in 0.7 s. If iptables rules are read as well, a
//! table belongs to iptables-nft when `iptables-nft-save` printed it completely; a table that it calls incompatible
//! (because of native rules or chains in `ip nat`) is included here. Otherwise base chains identify the tables of
//! iptables-nft, but native rules in them go unnoticed.

mod actions;
mod counts;
mod elements;
mod expr;
mod headers;
mod json;
mod keys;
mod matches;
mod read;
mod rule;
mod scope;
mod sets;
mod statements;
#[cfg(test)]
mod tests;
mod types;

use std::fs;
use std::sync::Arc;

use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::context::Context;
use super::nf_tables::{self, Table};
use super::{exec, modules};
use kpx_node::backend::nftables::expect::{COMMENT, TABLE};
use kpx_node::evidence::{Gap, Item, by_tool as remarks};
use kpx_node::net::Family;
#[cfg(fuzzing)]
pub use read::fuzz;

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

/// `NFT_TABLE_F_DORMANT`
const DORMANT: u32 = 1;

/// `NFT_TABLE_F_OWNER`
const OWNER: u32 = 2;

/// Returns what shows that kube-proxy's table is another program's, as keys and values of its entry: its comment, and the name of its
/// owner's process. nft prints the comment from 1.1 on, and the name only in its text.
fn whose(table: &Table) -> Vec<(&'static str, String)> {
    let mut all = Vec::new();
    if table.name != TABLE {
        return all;
    }
    let comment = table
        .comment
        .as_deref()
        .filter(|comment| *comment != COMMENT);
    all.extend(comment.map(|comment| ("comment", comment.to_owned())));
    if table.flags & OWNER != 0 {
        let name = fs::read_to_string(format!("/proc/{}/comm", table.owner));
        all.extend(
            name.ok()
                .map(|name| ("progname", name.trim_end().to_owned())),
        );
    }
    all
}

/// Reads `native` tables, and names the others of `tables`.
async fn json_of(
    item: Item,
    context: &Arc<Context>,
    tables: &[Table],
    native: &[Table],
) -> Result<String, Gap> {
    let own = native.to_vec();
    let read = async move |_: Arc<Context>| read::tables(item, &own);
    let listed = match context.inside(item, read).await {
        Ok(listed) => listed,
        // A table was deleted; or the tool may know more, or may have more privileges.
        Err(gap @ Gap::Absent(..)) => return Err(gap),
        Err(gap) => vec![Err(gap.to_string()); native.len()],
    };
    let reads = native
        .iter()
        .zip(listed)
        .map(async |(table, listed)| match listed {
            Ok(objects) => Ok((objects, None)),
            Err(why) => {
                let objects = by_tool(item, context, table, &why).await?;
                Ok((
                    objects,
                    Some(remarks::entry(table.family, &table.name, &why)),
                ))
            }
        });
    let (rest, by_tool): (Vec<_>, Vec<_>) = try_join_all(reads).await?.into_iter().unzip();
    let mut head = json!({ "json_schema_version": 1, "reader": "kpx" });
    remarks::add_entries(&mut head, by_tool.into_iter().flatten().collect());
    let mut all = vec![json!({ "metainfo": head }).to_string()];
    let mut rest = rest.into_iter();
    // In the order of the kernel, which is the order of their creation. A listed table includes its own entry.
    all.extend(tables.iter().filter_map(|table| {
        if native.contains(table) {
            return rest.next();
        }
        Some(entry(table))
    }));
    Ok(format!("{{\"nftables\": [{}]}}\n", all.join(", ")))
}

/// Returns the entry of a table whose objects are not listed.
fn entry(table: &Table) -> String {
    let (family, name, handle) = (table.family, &table.name, table.handle);
    let mut of = json!({ "family": family, "name": name, "handle": handle });
    if table.flags & DORMANT != 0 {
        of["flags"] = json!("dormant");
    } else if table.flags & OWNER != 0 {
        of["flags"] = json!("owner");
    }
    json!({ "table": of }).to_string()
}

/// Reads `table` with the tool, because of `why`; returns its objects, separated by commas.
async fn by_tool(
    item: Item,
    context: &Arc<Context>,
    table: &Table,
    why: &str,
) -> Result<String, Gap> {
    let listed = list(item, context, &["-j"], table).await;
    let text = listed.map_err(|gap| match gap {
        Gap::Absent(item, what) => {
            let (family, name) = (table.family, &table.name);
            let what = format!("{what}; kpx alone cannot read table {family} {name}: {why}");
            Gap::Absent(item, what)
        }
        other => other,
    })?;
    let mut objects = objects(item, &text)?;
    objects.retain(|object| object.get("metainfo").is_none());
    // Old releases of nft do not list the devices of a hook.
    let of = table.clone();
    let devices = async move |_: Arc<Context>| nf_tables::devices(item, &of);
    let devices = context.inside(item, devices).await?;
    for object in &mut objects {
        let Some(chain) = object.get_mut("chain") else {
            continue;
        };
        let names = chain["name"].as_str().and_then(|name| devices.get(name));
        if let Some(names) = names {
            chain["dev"] = json!(names);
        }
    }
    Ok(objects
        .into_iter()
        .map(|object| object.to_string())
        .collect::<Vec<_>>()
        .join(", "))
}

/// Reads the set `name` of a table, as a document like that of [`json`] or the text that the tool prints.
pub(super) async fn set(
    context: &Arc<Context>,
    family: &str,
    table: &str,
    name: &str,
) -> Result<String, Gap> {
    let item = Item::NftText;
    let (tables, _) = tables(item, context).await?;
    let found = tables
        .into_iter()
        .find(|listed_table| listed_table.family == family && listed_table.name == table);
    let of = found.ok_or_else(|| no_set(item, family, table, name))?;
    let names = [family, table, name].map(str::to_owned);
    let set = names.clone();
    let read = async move |_: Arc<Context>| read::set(item, &of, &set[2]);
    match context.inside(item, read).await {
        Ok(Some(Ok(objects))) => return Ok(format!("{{\"nftables\": [{objects}]}}\n")),
        Ok(None) => return Err(no_set(item, family, table, name)),
        Ok(Some(Err(_))) | Err(_) => {}
    }
    let args = ["list", "set"].map(str::to_owned).into_iter().chain(names);
    exec::run_with(context, item, "nft", args.collect()).await
}

fn no_set(item: Item, family: &str, table: &str, name: &str) -> Gap {
    Gap::Failed(item, format!("table {family} {table} has no set {name}"))
}

/// Reads the ruleset as text, if `nft` does not support JSON.
pub(super) async fn text(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    match context.nft().await {
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
        Err(gap) => Err(gap.clone().about(item)),
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
    Ok(tables
        .into_iter()
        .map(|table| (table.family, table.name))
        .collect())
}

/// Returns all tables, and the tables that do not belong to iptables-nft.
async fn tables(item: Item, context: &Arc<Context>) -> Result<(Vec<Table>, Vec<Table>), Gap> {
    if modules::would_load(context, "nf_tables") {
        return Err(Gap::NotApplicable(
            "nf_tables is not loaded, so there are no nftables rules".to_owned(),
        ));
    }
    let saves = context.saves;
    let dump = async move |_: Arc<Context>| {
        let bases = if saves {
            Vec::new()
        } else {
            nf_tables::base_chains(item)?
        };
        Ok((nf_tables::tables(item)?, bases))
    };
    let (tables, bases) = context.inside(item, dump).await?;
    let mut native = Vec::new();
    for table in &tables {
        let family = match table.family {
            "ip" => Some(Family::V4),
            "ip6" => Some(Family::V6),
            _ => None,
        };
        let is_iptables = match family {
            Some(family) if saves => {
                let stores = context.iptables().await;
                stores.nft_tables(family).contains(&table.name.as_str())
            }
            _ => table.is_iptables(&bases),
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

/// Returns the notes that `nft` stores with an object: number and value of each, or why they are malformed.
pub(super) fn notes(mut list: &[u8]) -> impl Iterator<Item = Result<(u8, &[u8]), String>> {
    std::iter::from_fn(move || {
        let [kind, length, rest @ ..] = list else {
            return (!std::mem::take(&mut list).is_empty())
                .then(|| Err("a note is cut off".to_owned()));
        };
        let Some((value, rest)) = rest.split_at_checked(usize::from(*length)) else {
            list = &[];
            return Some(Err("a note is cut off".to_owned()));
        };
        list = rest;
        Some(Ok((*kind, value)))
    })
}
