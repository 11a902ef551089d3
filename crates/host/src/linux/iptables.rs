//! Reads the rules of both iptables back ends and determines which one is in use.
//!
//! The rules are read from the kernel; the tool reads the tables with anything unknown.
//!
//! Reading must not create anything. The kernel loads `ip_tables` and creates each legacy table that is requested. So only
//! tables in `/proc/net/ip_tables_names` are requested, and the legacy programs run only if it lists one.
//!
//! The back end in use is determined from evidence. kube-proxy's image chooses it at start
//! (kubernetes-sigs/iptables-wrappers), the host's `iptables` may use the other one, and both may have rules. The first
//! criterion that applies decides:
//!
//! 1. only one of them has kube-proxy's own chains;
//! 2. the kubelet's hint chains are in nft, or else in legacy (the criterion of iptables-wrappers);
//! 3. one has more rules;
//! 4. the host's `iptables --version`;
//! 5. nft.

use std::fs;
use std::io::ErrorKind;
use std::sync::Arc;

use futures_util::future::join;

use super::context::{Context, gap};
use super::{Options, exec, modules, xtables};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;

/// Chains that kube-proxy creates in every mode that uses iptables.
const PROXY_CHAINS: &[&str] = &["\n:KUBE-PROXY-CANARY ", "\n:KUBE-SERVICES "];

/// Chains that the kubelet creates to show its back end to others.
const HINT_CHAINS: &[&str] = &["\n:KUBE-IPTABLES-HINT ", "\n:KUBE-KUBELET-CANARY "];

/// An iptables back end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Backend {
    Legacy,
    Nft,
}

/// Rules in both back ends, for IPv4 and IPv6.
#[derive(Debug)]
pub(super) struct BackendRules {
    legacy: [Result<String, Gap>; 2],
    nft: [Result<String, Gap>; 2],
    in_use: Backend,
}

impl BackendRules {
    /// Reads both back ends.
    pub(super) async fn read(context: &Arc<Context>) -> Self {
        let of = async |backend| {
            let (v4, v6) = join(
                save(context, backend, Family::V4),
                save(context, backend, Family::V6),
            )
            .await;
            [v4, v6]
        };
        let (legacy, nft) = join(of(Backend::Legacy), of(Backend::Nft)).await;
        let in_use = if let Some(backend) = by_rules(&known(&legacy), &known(&nft)) {
            backend
        } else {
            let item = Item::IptablesVersion;
            let version = exec::run(context, item, "iptables", &["--version"]).await;
            version.map_or(Backend::Nft, |version| Backend::of_version(&version))
        };
        Self {
            legacy,
            nft,
            in_use,
        }
    }

    /// Returns the rules for `item`.
    pub(super) fn text(&self, item: Item) -> Result<String, Gap> {
        let (store, family) = match item {
            Item::Iptables4 => return self.of_use(item, Family::V4),
            Item::Iptables6 => return self.of_use(item, Family::V6),
            Item::IptablesLegacy4 => (Backend::Legacy, Family::V4),
            Item::IptablesLegacy6 => (Backend::Legacy, Family::V6),
            Item::IptablesNft4 => (Backend::Nft, Family::V4),
            Item::IptablesNft6 => (Backend::Nft, Family::V6),
            other => return Err(Gap::NotCollected(other)),
        };
        if store == self.in_use {
            return Err(Gap::NotApplicable(format!(
                "{} is the iptables back end in use; its rules are in {}",
                store.name(),
                Item::iptables(family)
            )));
        }
        let text = self
            .side(store, family)
            .clone()
            .map_err(|gap| gap.about(item))?;
        if holds_nothing(&text) {
            return Err(nothing(store, family));
        }
        Ok(text)
    }

    /// Returns the names of the tables of `family` that the nft back end printed completely.
    pub(super) fn nft_tables(&self, family: Family) -> Vec<&str> {
        let text = self.side(Backend::Nft, family).as_deref().unwrap_or("");
        whole_tables(text)
    }

    fn of_use(&self, item: Item, family: Family) -> Result<String, Gap> {
        match self.side(self.in_use, family) {
            // A back end known to be empty is not the same as an unknown one.
            Err(Gap::NotApplicable(why)) => Ok(format!("# {why}\n")),
            side => side.clone().map_err(|gap| gap.about(item)),
        }
    }

    fn side(&self, backend: Backend, family: Family) -> &Result<String, Gap> {
        let sides = match backend {
            Backend::Legacy => &self.legacy,
            Backend::Nft => &self.nft,
        };
        match family {
            Family::V4 => &sides[0],
            Family::V6 => &sides[1],
        }
    }
}

impl Backend {
    const fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Nft => "nft",
        }
    }

    /// Parses `iptables --version`. Releases before 1.8 have only the legacy back end and do not print it.
    fn of_version(version: &str) -> Self {
        if version.contains("nf_tables") {
            Self::Nft
        } else {
            Self::Legacy
        }
    }

    const fn item(self, family: Family) -> Item {
        match (self, family) {
            (Self::Legacy, Family::V4) => Item::IptablesLegacy4,
            (Self::Legacy, Family::V6) => Item::IptablesLegacy6,
            (Self::Nft, Family::V4) => Item::IptablesNft4,
            (Self::Nft, Family::V6) => Item::IptablesNft6,
        }
    }
}

/// Prints the rules of one back end.
async fn save(context: &Arc<Context>, backend: Backend, family: Family) -> Result<String, Gap> {
    let item = backend.item(family);
    if !context.options.families.contains(&family) {
        return Err(Gap::NotCollected(item));
    }
    let (legacy, has_tables) = match backend {
        Backend::Legacy => {
            let names = async move |c: Arc<Context>| legacy_tables(item, &c, family);
            let names = context.inside(item, names).await?;
            let has_tables = !names.is_empty();
            (names, has_tables)
        }
        Backend::Nft => (String::new(), !modules::would_load(context, "nf_tables")),
    };
    if !has_tables {
        return Err(nothing(backend, family));
    }
    let (own, plain) = match (backend, family) {
        (Backend::Legacy, Family::V4) => ("iptables-legacy-save", "iptables-save"),
        (Backend::Legacy, Family::V6) => ("ip6tables-legacy-save", "ip6tables-save"),
        (Backend::Nft, Family::V4) => ("iptables-nft-save", "iptables-save"),
        (Backend::Nft, Family::V6) => ("ip6tables-nft-save", "ip6tables-save"),
    };
    if let Some(text) = from_kernel(context, backend, family, legacy, own).await {
        return Ok(text);
    }
    match exec::run(context, item, own, &["-c"]).await {
        // A distribution with a single back end may only have the plain name.
        Err(absent @ Gap::Absent(..)) => {
            match exec::run(context, item, plain, &["--version"]).await {
                Ok(version) if Backend::of_version(&version) == backend => {
                    exec::run(context, item, plain, &["-c"]).await
                }
                _ => Err(absent),
            }
        }
        saved => saved,
    }
}

/// Reads a back end from the kernel, and the tables that [`xtables`] does not know with the tool `save`; `None` if the tool
/// must read all of them. `legacy` has the names of the legacy back end's tables.
async fn from_kernel(
    context: &Arc<Context>,
    backend: Backend,
    family: Family,
    legacy: String,
    save: &'static str,
) -> Option<String> {
    let item = backend.item(family);
    let read = async move |_: Arc<Context>| match backend {
        Backend::Legacy => xtables::legacy::read(item, family, &legacy),
        Backend::Nft => xtables::read(item, family),
    };
    let rules = context.inside(item, read).await.ok()?;
    let mut by_tool = Vec::new();
    for (table, is_native) in rules.odd() {
        if is_native {
            by_tool.push((table, xtables::incompatible(table)));
            continue;
        }
        let args = ["-c", "-t", table].map(str::to_owned).to_vec();
        let text = match exec::run_with(context, item, save, args).await {
            Ok(text) => text,
            // A rule of nftables that the tool cannot print; the list of nftables has the table.
            Err(Gap::Failed(..)) if matches!(backend, Backend::Nft) => xtables::incompatible(table),
            Err(_) => return None,
        };
        by_tool.push((table, text));
    }
    Some(rules.text(&by_tool))
}

/// Returns whether the legacy back end has tables, of any family, in the network namespace of `options`.
pub async fn has_legacy_tables(options: &Options) -> Result<bool, Gap> {
    let context = Context::new(options);
    for family in Family::BOTH {
        let item = Item::iptables(family);
        let names = async move |c: Arc<Context>| legacy_tables(item, &c, family);
        if !context.inside(item, names).await?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the names of the legacy tables in the current thread's network namespace, one a line; empty if the kernel does
/// not have that back end.
pub(super) fn legacy_tables(item: Item, context: &Context, family: Family) -> Result<String, Gap> {
    let name = match family {
        Family::V4 => "ip_tables_names",
        Family::V6 => "ip6_tables_names",
    };
    table_names(item, context, name)
}

/// Returns the lines of the file `name` with names of tables; empty if it does not exist.
fn table_names(item: Item, context: &Context, name: &str) -> Result<String, Gap> {
    let path = context.path("proc/thread-self/net").join(name);
    match fs::read_to_string(&path) {
        Ok(names) => Ok(names.trim().to_owned()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(String::new()),
        Err(e) => Err(gap(item, format!("/proc/net/{name}"), &e)),
    }
}

/// Reads the rules of arptables in the legacy back end. Without a tool, they are unknown if the kernel has a table of them.
pub(super) async fn arptables(item: Item, context: &Arc<Context>) -> Result<String, Gap> {
    let names = async move |c: Arc<Context>| table_names(item, &c, "arp_tables_names");
    if context.inside(item, names).await?.is_empty() {
        let why = "the kernel has no table of the legacy back end of arptables";
        return Err(Gap::NotApplicable(why.to_owned()));
    }
    let args = &["-n", "--line-numbers", "-L"];
    let listed = exec::run(context, item, "arptables-legacy", args).await;
    listed.map_err(|gap| match gap {
        Gap::Absent(item, why) => {
            let table = "the kernel has a table of the legacy back end of arptables";
            Gap::Failed(item, format!("{table}, and {why}"))
        }
        other => other,
    })
}

/// Returns the back end in use; `None` if only the program's version shows it.
fn by_rules(legacy: &[&str], nft: &[&str]) -> Option<Backend> {
    let has = |texts: &[&str], chains: &[&str]| {
        texts
            .iter()
            .any(|text| chains.iter().any(|chain| text.contains(chain)))
    };
    match (has(legacy, PROXY_CHAINS), has(nft, PROXY_CHAINS)) {
        (true, false) => return Some(Backend::Legacy),
        (false, true) => return Some(Backend::Nft),
        _ => {}
    }
    if has(nft, HINT_CHAINS) {
        return Some(Backend::Nft);
    }
    if has(legacy, HINT_CHAINS) {
        return Some(Backend::Legacy);
    }
    let rules = |texts: &[&str]| {
        texts
            .iter()
            .map(|text| text.matches("] -A ").count())
            .sum::<usize>()
    };
    match rules(legacy).cmp(&rules(nft)) {
        std::cmp::Ordering::Greater => Some(Backend::Legacy),
        std::cmp::Ordering::Less => Some(Backend::Nft),
        std::cmp::Ordering::Equal => None,
    }
}

/// Returns the texts that were read.
fn known(sides: &[Result<String, Gap>; 2]) -> Vec<&str> {
    sides
        .iter()
        .filter_map(|side| side.as_deref().ok())
        .collect()
}

/// Returns whether a saved text has no rules, no user-defined chains, and only ACCEPT policies.
fn holds_nothing(text: &str) -> bool {
    let says_nothing = |line: &str| {
        line.is_empty()
            || line.starts_with(['#', '*'])
            || line == "COMMIT"
            || line.starts_with(':') && line.split(' ').nth(1) == Some("ACCEPT")
    };
    text.lines().all(says_nothing)
}

/// Returns the names of the tables in a saved text, without tables that the program marks as incomplete.
fn whole_tables(text: &str) -> Vec<&str> {
    let in_part = |name: &str| {
        let lead = format!("# Table `{name}' ");
        text.lines()
            .any(|line| line.starts_with(&lead) && line.contains("incompatible"))
    };
    text.lines()
        .filter_map(|line| line.strip_prefix('*'))
        .filter(|name| !in_part(name))
        .collect()
}

fn nothing(backend: Backend, family: Family) -> Gap {
    Gap::NotApplicable(format!(
        "the {} back end of iptables has no {family} rules",
        backend.name(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANARY: &str = "*mangle\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n";
    const HINT: &str = "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n";
    const RULE: &str = "*filter\n:INPUT ACCEPT [0:0]\n[1:2] -A INPUT -j ACCEPT\nCOMMIT\n";

    #[test]
    fn the_back_end_with_kube_proxys_chains_is_in_use() {
        assert_eq!(by_rules(&[CANARY], &[HINT, RULE]), Some(Backend::Legacy));
        assert_eq!(by_rules(&[HINT, RULE], &[CANARY]), Some(Backend::Nft));
    }

    #[test]
    fn the_kubelets_hint_decides_if_both_or_neither_have_them() {
        let both = by_rules(&[CANARY, HINT], &[CANARY]);
        assert_eq!(both, Some(Backend::Legacy));
        assert_eq!(by_rules(&[HINT], &[HINT]), Some(Backend::Nft));
    }

    #[test]
    fn more_rules_decide_next_and_the_program_version_last() {
        assert_eq!(by_rules(&[RULE], &[]), Some(Backend::Legacy));
        assert_eq!(by_rules(&[], &[]), None);
        let of = Backend::of_version;
        assert_eq!(of("iptables v1.6.1"), Backend::Legacy);
        assert_eq!(of("iptables v1.8.9 (nf_tables)"), Backend::Nft);
    }

    #[test]
    fn a_table_with_native_chains_is_incomplete() {
        let note =
            "# Table `nat' contains incompatible base-chains, use 'nft' tool to list them.\n";
        let text = format!("{note}*nat\n:INPUT ACCEPT [0:0]\nCOMMIT\n{RULE}");
        assert_eq!(whole_tables(&text), ["filter"]);
    }

    #[test]
    fn a_drop_policy_counts_as_rules() {
        assert!(holds_nothing("# x\n*filter\n:INPUT ACCEPT [1:2]\nCOMMIT\n"));
        assert!(!holds_nothing("*filter\n:INPUT DROP [1:2]\nCOMMIT\n"));
        assert!(!holds_nothing(CANARY));
    }
}
