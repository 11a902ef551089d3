//! Rules as `iptables-save` and `iptables -S` write them.

use super::super::command::Iptables;
use super::{
    BUILT_IN, Chain, Rules, cut, hollow, is_complete, is_cut, is_name, is_target, jump, table_of,
};

/// A table as it is read. A listing declares all chains, and lists their rules in the same order.
#[derive(Default)]
struct Open {
    name: Option<String>,
    chains: Vec<Chain>,
    /// The chain of the last rule.
    last: Option<usize>,
    /// Whether chains are declared.
    has_head: bool,
    /// Whether the rules are not in the order of the declarations.
    is_mixed: bool,
    /// Where lines are missing.
    cut: Cut,
}

/// Where lines are missing, as far as a listing is read.
#[derive(Clone, Copy, Default, Eq, PartialEq)]
enum Cut {
    /// Nowhere.
    #[default]
    None,
    /// Before the last rule.
    Earlier,
    /// After the last rule.
    Now,
}

impl Open {
    fn declare(&mut self, chain: Chain) {
        self.has_head = true;
        // A cut between declarations hides chains, and no rules of the others.
        if self.cut == Cut::Now && self.last.is_none() {
            self.cut = Cut::Earlier;
        }
        if !self.chains.iter().any(|known| known.name == chain.name) {
            self.chains.push(chain);
        }
    }

    /// Returns the place of chain `name`, whose next rule follows.
    fn rule_of(&mut self, name: &str) -> usize {
        let known = self.chains.iter().position(|chain| chain.name == name);
        let at = known.unwrap_or_else(|| {
            self.chains.push(Chain {
                name: name.to_owned(),
                is_whole: true,
                ..Chain::default()
            });
            self.chains.len() - 1
        });
        self.is_mixed |= known.is_none() || self.last.is_some_and(|last| at < last);
        if self.cut == Cut::Now {
            self.cut = Cut::Earlier;
            if self.last != Some(at) {
                self.skip(Some(at));
            }
        }
        self.last = Some(at);
        at
    }

    /// Marks that lines are missing after the last rule.
    fn cut(&mut self) {
        let before = std::mem::replace(&mut self.cut, Cut::Now);
        if before != Cut::Now
            && let Some(last) = self.last
        {
            cut(&mut self.chains[last]);
        }
    }

    /// Marks the chains that may have rules between the last rule and the first one of chain `to`, or the end.
    fn skip(&mut self, to: Option<usize>) {
        let from = self.last.map_or(0, |last| last + 1);
        for (at, chain) in self.chains.iter_mut().enumerate() {
            let is_between = at >= from && to.is_none_or(|to| at < to);
            if is_between || to == Some(at) || self.is_mixed && chain.rules.is_empty() {
                cut(chain);
            }
        }
    }

    /// Marks what is missing after the last line.
    fn end(&mut self) {
        let names = || self.chains.iter().map(|chain| chain.name.as_str());
        let last = self.last.map(|last| &self.chains[last]);
        let is_half = last
            .and_then(|chain| chain.rules.last())
            .is_some_and(|rule| {
                // A name or an option at the end may be the beginning of another.
                let to = jump(rule);
                let is_known =
                    to.is_some_and(|to| BARE.contains(&to) || names().any(|name| name == to));
                !is_known && (self.name.is_some() || !to.is_some_and(is_target))
            });
        let rest = &self.chains[self.last.map_or(0, |last| last + 1)..];
        let lacks = rest.iter().any(|chain| is_filled(&chain.name));
        if let Some(last) = self.last.filter(|_| is_half && self.cut != Cut::Now) {
            self.chains[last].rules.pop();
        }
        if is_half || lacks || self.name.is_some() {
            self.cut();
        }
    }
}

/// Targets that are complete without options.
const BARE: [&str; 4] = ["ACCEPT", "DROP", "RETURN", "MASQUERADE"];

/// Returns whether kube-proxy's chain `name` always has rules.
fn is_filled(name: &str) -> bool {
    const STARTS: [&str; 5] = [
        "KUBE-SEP-",
        "KUBE-SVC-",
        "KUBE-SVL-",
        "KUBE-EXT-",
        "KUBE-FW-",
    ];
    const NAMES: [&str; 3] = ["KUBE-FORWARD", "KUBE-MARK-MASQ", "KUBE-POSTROUTING"];
    STARTS.iter().any(|start| name.starts_with(start)) || NAMES.contains(&name)
}

impl Rules {
    /// Reads lines of `iptables-save` or `iptables -S`.
    pub(in crate::foreign) fn saved(
        &mut self,
        lines: &[String],
        command: Option<&Iptables>,
        fragment: Option<&str>,
    ) {
        let is_save = command.is_some_and(|command| command.saves);
        let one = command.is_some_and(|command| command.table.is_some());
        let mut open = Open::default();
        let mut lists_all = is_save;
        for line in lines {
            let text = line.trim();
            if text.is_empty() {
            } else if is_cut(text) {
                open.cut();
            } else if text.starts_with('#') {
                lists_all |= text.starts_with("# Generated by");
            } else if let Some(name) = text.strip_prefix('*').filter(|name| is_name(name)) {
                self.save(std::mem::take(&mut open), command, fragment, false);
                open.name = Some(name.to_owned());
            } else if text == "COMMIT" {
                self.save(std::mem::take(&mut open), command, fragment, true);
            } else if let Some(chain) = declared(text) {
                if open.name.is_none() && open.last.is_some() {
                    // Rules of a table follow its declarations.
                    self.save(std::mem::take(&mut open), command, fragment, false);
                }
                open.declare(chain);
            } else if let Some((counters, name, rule)) = saved_rule(text) {
                if rule.contains("[unsupported revision]") || rule.contains("--to-destination :0 ")
                {
                    self.lost.insert(
                        "some rules were listed with an iptables that cannot read them".to_owned(),
                    );
                }
                let at = open.rule_of(name);
                open.chains[at]
                    .rules
                    .push(format!("{counters}-A {name}{rule}"));
            } else {
                // A row that is cut, or not as it was printed.
                if let Some(name) = chain_of(text) {
                    let is_known = open.chains.iter().any(|chain| chain.name == name);
                    if is_known {
                        open.rule_of(name);
                    }
                    self.lost
                        .insert(format!("a rule of chain {name} is not read"));
                }
                open.cut();
            }
        }
        self.save(open, command, fragment, false);
        self.lists_all |= lists_all && !one && fragment.is_none();
    }

    /// Adds the chains of `open`; `is_closed` says that COMMIT ends them.
    fn save(
        &mut self,
        mut open: Open,
        command: Option<&Iptables>,
        fragment: Option<&str>,
        is_closed: bool,
    ) {
        if open.chains.is_empty() && open.name.is_none() {
            return;
        }
        if !is_closed {
            open.end();
        }
        if open.cut == Cut::Now {
            open.skip(None);
        }
        let has_cut = open.cut != Cut::None;
        let Open {
            name,
            mut chains,
            has_head,
            ..
        } = open;
        let is_named = name.is_some();
        let Some(table) = name.or_else(|| table_of(command, &chains)) else {
            self.lost
                .insert("rules whose table is not shown are not used".to_owned());
            return;
        };
        // Lines without the head of their listing are a choice.
        let is_chosen = !has_head && !is_named;
        if fragment.is_some() || is_chosen {
            chains.iter_mut().for_each(hollow);
        }
        if let Some(why) = fragment {
            self.lost.insert(why.to_owned());
        } else if has_cut || is_chosen || is_closed && !is_named {
            self.is_cut = true;
            self.lost.insert(format!("table {table} is cut"));
        }
        let one = command.is_some_and(|command| command.chain.is_some());
        let is_part = one || has_cut || fragment.is_some() || is_chosen || is_closed && !is_named;
        let is_whole = !is_part && (is_named || is_complete(&table, &chains));
        self.add(&table, chains, is_whole);
    }
}

/// Reads `:NAME POLICY [0:0]`, `-P NAME POLICY` or `-N NAME`.
fn declared(line: &str) -> Option<Chain> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (name, policy, counters) = match words.as_slice() {
        [first, policy, rest @ ..] if first.len() > 1 && first.starts_with(':') => {
            let counters = rest.first().and_then(|text| {
                let (packets, bytes) =
                    text.strip_prefix('[')?.strip_suffix(']')?.split_once(':')?;
                Some((packets.parse().ok()?, bytes.parse().ok()?))
            });
            (
                &first[1..],
                Some(*policy).filter(|policy| *policy != "-"),
                counters,
            )
        }
        ["-P", name, policy, rest @ ..] => {
            let counters = match rest {
                ["-c", packets, bytes] => Some((packets.parse().ok()?, bytes.parse().ok()?)),
                _ => None,
            };
            (*name, Some(*policy), counters)
        }
        ["-N", name] => (*name, None, None),
        _ => return None,
    };
    if name.contains('"') || policy.is_some_and(|policy| !["ACCEPT", "DROP"].contains(&policy)) {
        return None;
    }
    Some(Chain {
        name: name.to_owned(),
        policy: policy.map(str::to_owned),
        counters,
        is_whole: true,
        ..Chain::default()
    })
}

/// Returns the chain of a line that begins as a rule.
fn chain_of(line: &str) -> Option<&str> {
    let rest = match line.strip_prefix('[') {
        Some(inside) => inside.split_once(']')?.1.trim_start(),
        None => line,
    };
    rest.strip_prefix("-A ")?.split_whitespace().next()
}

/// Returns whether `line` begins as a rule of `iptables-save` or `iptables -S`, whether it can be read or not.
pub(in crate::foreign) fn begins_rule(line: &str) -> bool {
    chain_of(line.trim()).is_some_and(|name| !name.starts_with('-'))
}

/// Reads `[5:300] -A CHAIN RULE`; returns the counters as they are written before a rule, the chain, and the rule.
fn saved_rule(line: &str) -> Option<(String, &str, &str)> {
    let (counters, rest) = match line.strip_prefix('[') {
        Some(inside) => {
            let (numbers, rest) = inside.split_once(']')?;
            let (packets, bytes) = numbers.split_once(':')?;
            let _: (u64, u64) = (packets.parse().ok()?, bytes.parse().ok()?);
            (format!("[{numbers}] "), rest.trim_start())
        }
        None => (String::new(), line),
    };
    let rest = rest.strip_prefix("-A ")?.trim_start();
    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
    let (name, rule) = rest.split_at(end);
    // A line that kpx's own parser refuses is no rule.
    let is_rule = !name.is_empty()
        && !name.starts_with('-')
        && !name.contains('"')
        && crate::backend::iptables::parse::rule(rule).is_ok();
    is_rule.then_some((counters, name, rule))
}

/// Returns whether `line` is of `iptables-save` or `iptables -S`.
pub(in crate::foreign) fn is_of_save(line: &str) -> bool {
    let line = line.trim();
    declared(line).is_some()
        || saved_rule(line).is_some()
        || line == "COMMIT"
        || line
            .strip_prefix('*')
            .is_some_and(|name| BUILT_IN.iter().any(|(table, _)| *table == name))
        || [
            "# Generated by",
            "# Completed on",
            "# Warning: iptables-legacy",
        ]
        .iter()
        .any(|start| line.starts_with(start))
}
