//! The text of the networks of pods: items of each one after another.

use std::fmt::Write as _;

use super::{Evidence, Gap, Item};

/// The beginning of the line before the items of a network; a process inside follows.
const HEAD: &str = "=== ";

/// The beginning of the line before an item; its file follows.
const PART: &str = "--- ";

/// The network of a pod.
#[derive(Clone, Debug)]
pub struct PodNetwork {
    /// A process inside.
    pub pid: u32,
    /// Its addresses, links, sockets and rules.
    pub evidence: Evidence,
}

/// Parses the text of `item`.
///
/// # Errors
///
/// A line belongs to no network or to no item.
pub fn parse(item: Item, text: &str) -> Result<Vec<PodNetwork>, Gap> {
    let mut all: Vec<PodNetwork> = Vec::new();
    let mut part: Option<(Item, String)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = |what: &str| Gap::Failed(item, format!("line {number}: {what}"));
        if let Some(pid) = line.strip_prefix(HEAD) {
            end(&mut all, &mut part);
            let pid = pid.parse().map_err(|_| wrong("it has no process ID"))?;
            let evidence = Evidence::default();
            all.push(PodNetwork { pid, evidence });
        } else if let Some(file) = line.strip_prefix(PART).filter(|_| !all.is_empty()) {
            end(&mut all, &mut part);
            let of = Item::of_file(file).filter(|known| *known != item);
            let of = of.ok_or_else(|| wrong("it names no item"))?;
            part = Some((of, String::new()));
        } else {
            let (_, text) = part
                .as_mut()
                .ok_or_else(|| wrong("it belongs to no item"))?;
            text.push_str(line);
            text.push('\n');
        }
    }
    end(&mut all, &mut part);
    Ok(all)
}

/// Adds an item that is read to its network.
fn end(all: &mut [PodNetwork], part: &mut Option<(Item, String)>) {
    if let (Some(network), Some((item, mut text))) = (all.last_mut(), part.take()) {
        // In a pod without listeners, ss prints only the heads of its columns.
        if item == Item::Sockets && text.trim().is_empty() {
            "Netid State\n".clone_into(&mut text);
        }
        network.evidence.insert(item, Ok(text));
    }
}

/// Adds the line before the items of the network of process `pid`.
pub fn add_network(text: &mut String, pid: u32) {
    // Writing to a string cannot fail.
    writeln!(text, "{HEAD}{pid}").ok();
}

/// Adds an item of a network.
pub fn add_item(text: &mut String, item: Item, read: &str) {
    // Writing to a string cannot fail.
    writeln!(text, "{PART}{item}\n{}", read.trim_end_matches('\n')).ok();
}

/// Returns the text of `all`, with each item as `edit` makes it.
///
/// # Errors
///
/// An item cannot be edited.
pub fn print(
    all: &[PodNetwork],
    mut edit: impl FnMut(Item, &str) -> Result<String, Gap>,
) -> Result<String, Gap> {
    let mut printed = String::new();
    for network in all {
        add_network(&mut printed, network.pid);
        for item in super::ITEMS {
            if let Ok(text) = network.evidence.text(*item) {
                add_item(&mut printed, *item, &edit(*item, text)?);
            }
        }
    }
    Ok(printed)
}
