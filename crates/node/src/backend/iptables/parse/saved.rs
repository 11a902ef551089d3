//! `iptables-save` output whose chains are parsed on first use: a trace visits a few of tens of thousands.

use std::sync::OnceLock;

use foldhash::{HashMap, HashSet};

use super::super::model::Chain;
use super::{Reader, declared, rule_line, start, twice, whole};
use crate::evidence::{Gap, Item};

/// A saved ruleset, its chains found and not read.
#[derive(Debug)]
pub struct Saved<'a> {
    item: Item,
    tables: Vec<Found<'a>>,
    /// The tables that are shown completely, if not all are.
    whole: Option<Vec<&'a str>>,
    /// The lists of `-m recent` that rules of table nat look up.
    looked_up: OnceLock<HashSet<&'a str>>,
}

/// A table.
#[derive(Debug, Default)]
struct Found<'a> {
    name: &'a str,
    chains: Vec<Lines<'a>>,
    by_name: HashMap<&'a str, usize>,
    /// Where the last rules went: those of the next chain follow.
    last: usize,
}

/// The place of a chain.
#[derive(Debug)]
struct Lines<'a> {
    name: &'a str,
    /// The line that declares it, with its number.
    head: Option<(usize, &'a str)>,
    /// Rules that follow one another, with the number of the first.
    rules: Option<(usize, &'a str)>,
    /// Further such, which `iptables-save` does not write.
    more: Vec<(usize, &'a str)>,
    chain: OnceLock<Box<Result<Chain<'a>, Gap>>>,
}

/// Rules of one chain that are being passed.
struct Run<'a> {
    chain: &'a str,
    number: usize,
    /// Where the first of them begins.
    begin: usize,
}

impl<'a> Saved<'a> {
    /// Finds the chains of `text`. A faulty rule is an error when its chain is first used.
    pub fn new(item: Item, text: &'a str) -> Result<Self, Gap> {
        let mut saved = Self {
            item,
            tables: Vec::new(),
            whole: None,
            looked_up: OnceLock::new(),
        };
        let mut open = None;
        let mut run = None;
        let mut at = 0;
        for (number, line) in (1..).zip(text.split_inclusive('\n')) {
            let begin = at;
            at += line.len();
            saved
                .line(text, line.trim_ascii(), number, begin, &mut open, &mut run)
                .map_err(|why| Gap::Failed(item, format!("line {number}: {why}")))?;
        }
        match open {
            None => Ok(saved),
            Some(Found { name, .. }) => {
                let why = format!("cut short: table {name} has no COMMIT; collect it again");
                Err(Gap::Failed(item, why))
            }
        }
    }

    fn line(
        &mut self,
        text: &'a str,
        line: &'a str,
        number: usize,
        begin: usize,
        open: &mut Option<Found<'a>>,
        run: &mut Option<Run<'a>>,
    ) -> Result<(), String> {
        let first = line.as_bytes().first();
        if let Some(b'[' | b'-') = first {
            let table = open.as_mut().ok_or("a rule outside a table")?;
            let (_, chain, _) = rule_line(line)?;
            if run.as_ref().is_some_and(|run| run.chain == chain) {
                return Ok(());
            }
            if let Some(run) = run.take() {
                table.add(&run, &text[run.begin..begin]);
            }
            *run = Some(Run {
                chain,
                number,
                begin,
            });
            return Ok(());
        }
        if let (Some(table), Some(run)) = (open.as_mut(), run.take()) {
            table.add(&run, &text[run.begin..begin]);
        }
        match (first, open.as_mut()) {
            (None, _) => {}
            (Some(b'#'), _) => {
                if let Some(names) = whole(line) {
                    self.whole = Some(names.collect());
                }
            }
            (Some(b'*'), Some(table)) => {
                let (name, table) = (line[1..].trim_ascii(), table.name);
                return Err(format!("table {name} begins before COMMIT of {table}"));
            }
            (Some(b'*'), None) => {
                let name = line[1..].trim_ascii();
                if self.tables.iter().any(|table| table.name == name) {
                    return Err(twice(name));
                }
                *open = Some(Found {
                    name,
                    ..Found::default()
                });
            }
            (Some(b':'), None) => return Err("a chain outside a table".to_owned()),
            (Some(b':'), Some(table)) => {
                let (name, ..) = declared(&line[1..])?;
                let lines = table.chain(name);
                if lines.head.replace((number, line)).is_some() {
                    return Err(format!("chain {name} is declared twice"));
                }
            }
            _ if line == "COMMIT" => {
                let table = open.take().ok_or("COMMIT without a table")?;
                self.tables.push(table);
            }
            _ => {
                return Err(format!(
                    "expected a table, chain, rule or COMMIT, found {:?}",
                    start(line)
                ));
            }
        }
        Ok(())
    }

    /// Returns whether the evidence shows all of `table`: a chain that it does not have does not exist.
    pub fn is_whole(&self, table: &str) -> bool {
        self.whole.as_ref().is_none_or(|all| all.contains(&table))
    }

    /// Returns `chain` of `table`, or `None` where there is none.
    pub fn chain(&self, table: &str, chain: &str) -> Result<Option<&Chain<'a>>, Gap> {
        let Some(table) = self.tables.iter().find(|found| found.name == table) else {
            return Ok(None);
        };
        let Some(lines) = table.by_name.get(chain).map(|at| &table.chains[*at]) else {
            return Ok(None);
        };
        self.read(lines).map(Some)
    }

    /// Returns the readable chains of all tables whose names are `wanted`.
    pub fn chains(&self, wanted: impl Fn(&str) -> bool) -> impl Iterator<Item = &Chain<'a>> {
        let all = self.tables.iter().flat_map(|table| &table.chains);
        all.filter(move |lines| wanted(lines.name))
            .filter_map(|lines| self.read(lines).ok())
    }

    /// Returns whether a rule of table nat looks a client up in the list of `-m recent` called `name`.
    pub fn looks_up(&self, name: &str) -> bool {
        let lists = || {
            let nat = self.tables.iter().filter(|table| table.name == "nat");
            let all = nat
                .flat_map(|table| &table.chains)
                .flat_map(|chain| chain.rules.iter().chain(&chain.more));
            let lines = all.flat_map(|(_, text)| text.lines());
            let asks =
                lines.filter(|line| line.contains(" --rcheck") || line.contains(" --update"));
            let names = asks.filter_map(|line| {
                line.split_once(" --name ")?
                    .1
                    .split_ascii_whitespace()
                    .next()
            });
            names.map(|name| name.trim_matches('"')).collect()
        };
        self.looked_up.get_or_init(lists).contains(name)
    }

    fn read<'l>(&self, lines: &'l Lines<'a>) -> Result<&'l Chain<'a>, Gap> {
        let read = lines.chain.get_or_init(|| Box::new(lines.read(self.item)));
        read.as_ref().as_ref().map_err(Clone::clone)
    }
}

impl<'a> Found<'a> {
    /// Returns the place of `name`, which may be new.
    fn chain(&mut self, name: &'a str) -> &mut Lines<'a> {
        let next = self.chains.len();
        let at = *self.by_name.entry(name).or_insert(next);
        if at == next {
            self.chains.push(Lines {
                name,
                head: None,
                rules: None,
                more: Vec::new(),
                chain: OnceLock::new(),
            });
        }
        &mut self.chains[at]
    }

    fn add(&mut self, run: &Run<'a>, rules: &'a str) {
        // Rules are in the order of the chains, some of which have none.
        let near = self.chains.iter().skip(self.last).take(4);
        let ahead = near
            .map(|lines| lines.name)
            .position(|name| name == run.chain);
        let lines = if let Some(ahead) = ahead {
            self.last += ahead;
            &mut self.chains[self.last]
        } else {
            if let Some(at) = self.by_name.get(run.chain) {
                self.last = *at;
            }
            self.chain(run.chain)
        };
        if lines.rules.is_none() {
            lines.rules = Some((run.number, rules));
        } else {
            lines.more.push((run.number, rules));
        }
    }
}

impl<'a> Lines<'a> {
    fn read(&self, item: Item) -> Result<Chain<'a>, Gap> {
        let mut reader = Reader {
            table: Some(super::Table::default()),
            ..Reader::default()
        };
        for (first, lines) in self.head.iter().chain(&self.rules).chain(&self.more) {
            for (number, line) in (*first..).zip(lines.lines()) {
                let read = reader.line(line.trim_ascii());
                read.map_err(|why| Gap::Failed(item, format!("line {number}: {why}")))?;
            }
        }
        Ok(reader.chains.pop().unwrap_or_default())
    }
}
