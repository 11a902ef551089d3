//! The nftables ruleset, as `nft -j list ruleset` prints it.
//!
//! Tables that iptables-nft owns are left out, all but their names: `nft` needs 8 s to print what 88,000 iptables rules
//! look like to it, half of which it cannot decode, and `iptables-nft-save` prints the same in 0.7 s. A table is taken
//! to be iptables-nft's when `iptables-nft-save` has just printed it whole; one that it calls incompatible, or with
//! incompatible base chains (somebody put native rules or chains into `ip nat`), is listed here.

use std::sync::Arc;

use futures_util::future::try_join_all;
use serde_json::{Map, Value, json};

use super::context::Context;
use super::{exec, modules};
use crate::evidence::{Gap, Item};
use crate::net::Family;

/// What an `nft` says that was built without JSON.
const NO_JSON: &str = "JSON support not compiled-in";

/// Reads the ruleset as JSON.
pub(super) async fn json(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    if modules::would_load(context, "nf_tables") {
        return Err(Gap::NotApplicable(
            "nf_tables is not loaded, so there are no nftables rules".to_owned(),
        ));
    }
    let listed = exec::run(context, item, "nft", &["-j", "list", "tables"]).await?;
    let tables = objects(item, &listed)?;
    let stores = context.iptables().await;
    let is_iptables = |table: &Map<String, Value>| {
        let family = match table.get("family").and_then(Value::as_str) {
            Some("ip") => Family::V4,
            Some("ip6") => Family::V6,
            _ => return false,
        };
        let name = table.get("name").and_then(Value::as_str);
        name.is_some_and(|name| stores.nft_tables(family).contains(&name))
    };
    let of = |object: &Value| object.get("table").and_then(Value::as_object).cloned();
    if !tables
        .iter()
        .filter_map(of)
        .any(|table| is_iptables(&table))
    {
        return exec::run(context, item, "nft", &["-j", "list", "ruleset"]).await;
    }
    let native = tables
        .iter()
        .filter_map(of)
        .filter(|table| !is_iptables(table));
    let reads = native.map(async |table| {
        let word = |key: &str| {
            table
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let mut args: Vec<_> = ["-j", "list", "table"].map(str::to_owned).into();
        args.extend([word("family"), word("name")]);
        let text = exec::run_with(context, item, "nft", args).await?;
        objects(item, &text)
    });
    let mut all = tables.clone();
    for table in try_join_all(reads).await? {
        let inner = table
            .into_iter()
            .filter(|object| object.get("metainfo").is_none() && object.get("table").is_none());
        all.extend(inner);
    }
    Ok(format!("{}\n", json!({ "nftables": all })))
}

/// Reads the ruleset as text, where `nft` cannot print JSON.
pub(super) async fn text(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    if modules::would_load(context, "nf_tables") {
        return Err(Gap::NotApplicable(
            "nf_tables is not loaded, so there are no nftables rules".to_owned(),
        ));
    }
    match exec::run(context, item, "nft", &["-j", "list", "tables"]).await {
        Ok(_) => Err(Gap::NotApplicable(format!("{} tells the same", Item::Nft))),
        Err(Gap::Failed(_, why)) if why.contains(NO_JSON) => {
            exec::run(context, item, "nft", &["list", "ruleset"]).await
        }
        Err(gap) => Err(gap),
    }
}

/// Returns what a JSON document of `nft` lists.
fn objects(item: Item, text: &str) -> Result<Vec<Value>, Gap> {
    let undecodable =
        |why: String| Gap::Failed(item, format!("cannot decode what `nft -j` printed: {why}"));
    let mut document: Value = serde_json::from_str(text).map_err(|e| undecodable(e.to_string()))?;
    match document.get_mut("nftables").map(Value::take) {
        Some(Value::Array(objects)) => Ok(objects),
        _ => Err(undecodable("no list called nftables".to_owned())),
    }
}
