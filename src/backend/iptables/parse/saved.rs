//! `iptables-save` output of which a chain is read when it is first asked for: a trace visits a handful of tens of
//! thousands.

use std::cell::OnceCell;
use std::collections::HashMap;

use super::super::model::Chain;
use super::{Reader, declared, rule_line, start};
use crate::evidence::{Gap, Item};

/// A saved ruleset, its chains found and not read.
#[derive(Debug)]
pub struct Saved<'a> {
    item: Item,
    tables: HashMap<&'a str, HashMap<&'a str, Lines<'a>>>,
}

/// Where a chain is.
#[derive(Debug, Default)]
struct Lines<'a> {
    /// The line that declares it, with its number.
    head: Option<(usize, &'a str)>,
    /// Rules that follow one another, with the number of the first.
    rules: Option<(usize, &'a str)>,
    /// Further such, which `iptables-save` does not write.
    more: Vec<(usize, &'a str)>,
    chain: OnceCell<Box<Result<Chain<'a>, Gap>>>,
}

impl<'a> Saved<'a> {
    /// Finds the chains of `text`. What is wrong with a rule shows when its chain is asked for.
    pub fn new(item: Item, text: &'a str) -> Result<Self, Gap> {
        let mut tables = HashMap::new();
        let mut open: Option<(&'a str, HashMap<&'a str, Lines<'a>>)> = None;
        // The chain whose rules are being passed, and where the first of them begins.
        let mut run: Option<(&'a str, usize, usize)> = None;
        let mut at = 0;
        let failed =
            |number: usize, why: String| Gap::Failed(item, format!("line {number}: {why}"));
        for (number, line) in (1..).zip(text.split_inclusive('\n')) {
            let here = at;
            at += line.len();
            let line = line.trim();
            let rule = match line.as_bytes().first() {
                Some(b'[' | b'-') => {
                    let (_, name, _) = rule_line(line).map_err(|why| failed(number, why))?;
                    if run.is_some_and(|(chain, ..)| chain == name) {
                        continue;
                    }
                    Some((name, number, here))
                }
                _ => None,
            };
            if let Some((name, number, begin)) = run.take() {
                if let Some((_, chains)) = &mut open {
                    chains
                        .entry(name)
                        .or_default()
                        .add(number, &text[begin..here]);
                }
            }
            run = rule;
            let wrong = match (line.as_bytes().first(), &mut open) {
                (None | Some(b'#'), _) => None,
                (Some(b'[' | b'-'), None) => Some("a rule outside a table".to_owned()),
                (Some(b'[' | b'-'), Some(_)) => None,
                (Some(b'*'), Some((table, _))) => Some(format!(
                    "table {} begins before COMMIT of {table}",
                    &line[1..]
                )),
                (Some(b'*'), None) => {
                    open = Some((line[1..].trim(), HashMap::new()));
                    None
                }
                (Some(b':'), None) => Some("a chain outside a table".to_owned()),
                (Some(b':'), Some((_, chains))) => {
                    let name = declared(&line[1..]).map_err(|why| failed(number, why))?.0;
                    let head = chains.entry(name).or_default().head.replace((number, line));
                    head.map(|_| format!("chain {name} is declared twice"))
                }
                (Some(_), _) if line == "COMMIT" => match open.take() {
                    Some((table, chains)) => {
                        tables.insert(table, chains);
                        None
                    }
                    None => Some("COMMIT without a table".to_owned()),
                },
                (Some(_), _) => Some(format!(
                    "expected a table, chain, rule or COMMIT, found {:?}",
                    start(line)
                )),
            };
            if let Some(why) = wrong {
                return Err(failed(number, why));
            }
        }
        if let Some((table, _)) = open {
            let why = format!("cut short: table {table} has no COMMIT; collect it again");
            return Err(Gap::Failed(item, why));
        }
        Ok(Self { item, tables })
    }

    /// Returns `chain` of `table`, or `None` where there is none.
    pub fn chain(&self, table: &str, chain: &str) -> Result<Option<&Chain<'a>>, Gap> {
        let Some(lines) = self.tables.get(table).and_then(|all| all.get(chain)) else {
            return Ok(None);
        };
        let read = lines.chain.get_or_init(|| Box::new(lines.read(self.item)));
        read.as_ref().as_ref().map(Some).map_err(Clone::clone)
    }
}

impl<'a> Lines<'a> {
    fn add(&mut self, number: usize, rules: &'a str) {
        if self.rules.is_none() {
            self.rules = Some((number, rules));
        } else {
            self.more.push((number, rules));
        }
    }

    fn read(&self, item: Item) -> Result<Chain<'a>, Gap> {
        let mut reader = Reader::default();
        reader.table = Some(super::Table::default());
        for (first, lines) in self.head.iter().chain(&self.rules).chain(&self.more) {
            for (number, line) in (*first..).zip(lines.lines()) {
                let read = reader.line(line.trim());
                read.map_err(|why| Gap::Failed(item, format!("line {number}: {why}")))?;
            }
        }
        Ok(reader.chains.pop().unwrap_or_default())
    }
}
