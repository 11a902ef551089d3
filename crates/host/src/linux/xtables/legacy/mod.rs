//! Reads the rules of iptables' legacy back end from the kernel, in the form of `iptables-legacy-save -c`.

mod table;

use foldhash::HashMap;

use self::table::{
    ACCEPT, Chain, DROP, Entry, RETURN, Table, Target, by_offset, extension, layout,
};
use super::saved::{Rules, Saved, order};
use super::sets::Sets;
use super::words::{self, end_line, mask, not, only, protocol};
use super::{matches, targets};
use crate::linux::nf_tables::Header;
use crate::linux::nf_tables::wire::{Odd, address, put};
use crate::linux::nf_tables::{Base, Chain as Name, built_in};
use kpx_node::evidence::traced::{LEGACY, Ruling};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;

/// `IPT_INV_*` and `IP6T_INV_*`.
mod inverted {
    pub(super) const INPUT: u8 = 1;
    pub(super) const OUTPUT: u8 = 1 << 1;
    pub(super) const SOURCE: u8 = 1 << 3;
    pub(super) const DESTINATION: u8 = 1 << 4;
    pub(super) const FRAGMENT: u8 = 1 << 5;
    pub(super) const PROTOCOL: u8 = 1 << 6;
}

/// Reads the tables `names` of `family`, which must exist: asking for any other creates it. Blocks.
pub(crate) fn read(item: Item, family: Family, names: &str) -> Result<Rules, Gap> {
    let mut sets = Sets::new(item);
    let tables = names.lines().map(|name| {
        let table = Table::read(item, family, name)?;
        Ok(match table.saved(&mut sets) {
            Ok(saved) => saved,
            Err(why) => Saved {
                name: table.name,
                chains: Vec::new(),
                odd: Some(why),
            },
        })
    });
    Ok(Rules {
        backend: "legacy",
        tables: tables.collect::<Result<_, Gap>>()?,
    })
}

/// Reads some chains, by table and name, each as a table with this chain only; `None` for one that does not exist. `names` has
/// the tables that exist. Blocks.
pub(crate) fn chains(
    item: Item,
    family: Family,
    names: &str,
    wanted: &[(String, String)],
) -> Result<Vec<Option<Result<String, Odd>>>, Gap> {
    let mut sets = Sets::new(item);
    let mut found: Vec<_> = wanted.iter().map(|_| None).collect();
    for name in names.lines() {
        let mut wanted = wanted.iter().zip(&mut found);
        let mut wanted = wanted.by_ref().filter(|((of, _), _)| of == name).peekable();
        if wanted.peek().is_none() {
            continue;
        }
        let table = Table::read(item, family, name)?;
        let chains = table.chains();
        let by_offset = chains.as_deref().map(by_offset).unwrap_or_default();
        for ((_, name), found) in wanted {
            *found = match &chains {
                Ok(chains) => chains.iter().find(|chain| chain.name == name).map(|chain| {
                    let saved = table.saved_of(std::slice::from_ref(chain), &by_offset, &mut sets);
                    saved.map(|saved| saved.text())
                }),
                Err(why) => Some(Err(why.clone())),
            };
        }
    }
    Ok(found)
}

/// Reads the actions of the entries of each chain in the tables `names`, with the hook of a base chain. The last entry
/// is the policy, or the return of a user-defined chain. Blocks.
pub(crate) fn rulings(
    item: Item,
    family: Family,
    names: &str,
) -> Result<Vec<(Name, Vec<Ruling>)>, Gap> {
    let mut all = Vec::new();
    for name in names.lines() {
        let table = Table::read(item, family, name)?;
        let found = table.rulings().map_err(|why| {
            let what = format!("cannot decode legacy table {name} of iptables: {why}");
            Gap::Failed(item, what)
        })?;
        all.extend(found);
    }
    Ok(all)
}

/// Decodes any table, for the fuzzer; `None` if it is not known.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) -> Option<(Family, String)> {
    let table = Table::of(bytes)?;
    table.rulings().ok();
    let saved = table.saved(&mut Sets::some()).ok()?;
    let mut names = std::collections::HashSet::new();
    let mut all = saved.chains.iter().map(|(header, _)| &header.chain.name);
    // iptables writes one chain of a name.
    let is_unique = all.all(|name| names.insert(name));
    is_unique.then(|| (table.family, saved.text()))
}

impl Table {
    fn saved(&self, sets: &mut Sets) -> Result<Saved, Odd> {
        let chains = self.chains()?;
        self.saved_of(&chains, &by_offset(&chains), sets)
    }

    /// Returns `chains`; `names` has those that they can jump to.
    fn saved_of(
        &self,
        chains: &[Chain<'_>],
        names: &HashMap<usize, &str>,
        sets: &mut Sets,
    ) -> Result<Saved, Odd> {
        let mut all = Vec::with_capacity(chains.len());
        for chain in chains {
            let of_chain = |why: Odd| format!("chain {}: {why}", chain.name);
            let (header, entries) = self.header(chain).map_err(of_chain)?;
            let mut rules = String::new();
            for entry in entries {
                self.rule(&mut rules, chain.name, entry, names, sets)
                    .map_err(of_chain)?;
            }
            all.push((header, rules));
        }
        all.sort_by(order);
        Ok(Saved {
            name: self.name,
            chains: all,
            odd: None,
        })
    }

    fn rulings(&self) -> Result<Vec<(Name, Vec<Ruling>)>, Odd> {
        let chains = self.chains()?;
        let names = by_offset(&chains);
        let built_in = built_in(self.family.nft_name(), self.name);
        let all = chains.iter().map(|chain| {
            let hook = chain.base.map(|(hook, _)| hook);
            let of_hook = |name: &&Name| name.base.as_ref().map(|base| base.hook) == hook;
            let name = Name {
                family: LEGACY,
                table: self.name.to_owned(),
                name: chain.name.to_owned(),
                base: built_in
                    .iter()
                    .find(of_hook)
                    .and_then(|name| name.base.clone()),
            };
            let each = chain.entries.iter();
            let each = each.map(|entry| entry.ruling(self.family, &names));
            Ok((name, each.collect::<Result<_, Odd>>()?))
        });
        all.collect()
    }

    /// Returns a chain's name, policy and counters, and its rules.
    fn header<'c, 't>(&self, chain: &'c Chain<'t>) -> Result<(Header, &'c [Entry<'t>]), Odd> {
        let (policy, rules) = chain.entries.split_last().ok_or("it has no policy")?;
        let mut header = Header::new(Name {
            family: self.family.nft_name(),
            table: self.name.to_owned(),
            name: chain.name.to_owned(),
            base: None,
        });
        match (chain.base, policy.target) {
            (None, Target::Standard(RETURN)) => {}
            (Some((hook, end)), Target::Standard(verdict @ (DROP | ACCEPT)))
                if end == policy.offset =>
            {
                header.chain.base = Some(Base {
                    kind: String::new(),
                    hook,
                    priority: 0,
                });
                header.policy = u32::from(verdict == ACCEPT);
                (header.packets, header.bytes) = policy.counters(self.family)?;
            }
            (_, other) => return Err(format!("its policy {other:?} is unknown")),
        }
        Ok((header, rules))
    }

    /// Appends the line of a rule of `chain`; `names` has the chains by the offsets of their first entries.
    fn rule(
        &self,
        to: &mut String,
        chain: &str,
        entry: &Entry<'_>,
        names: &HashMap<usize, &str>,
        sets: &mut Sets,
    ) -> Result<(), Odd> {
        let (family, layout) = (self.family, layout(self.family));
        let (packets, bytes) = entry.counters(family)?;
        let from = to.len();
        put!(to, "[{packets}:{bytes}] -A {chain}");
        let flags = entry.fields.u8(layout.flags)?;
        only(flags.into(), layout.known.into())?;
        entry.packet(to, family)?;
        let mut rest = entry.matches;
        while !rest.is_empty() {
            let (of, size) = extension(rest)?;
            matches::write(to, family, sets, of.name, of.revision.into(), of.info)?;
            rest = &rest[size..];
        }
        let goto = flags & layout.goto != 0;
        match entry.target {
            Target::Standard(verdict @ 0..) => {
                let offset = usize::try_from(verdict).expect("it is positive");
                match names.get(&offset) {
                    Some(name) => put!(to, " -{} {name}", if goto { 'g' } else { 'j' }),
                    // On to the next rule.
                    None if offset == entry.next && !goto => {}
                    None => return Err("a jump leads to no chain".to_owned()),
                }
            }
            _ if goto => return Err("a rule goes to no chain".to_owned()),
            Target::Standard(DROP) => to.push_str(" -j DROP"),
            Target::Standard(ACCEPT) => to.push_str(" -j ACCEPT"),
            Target::Standard(RETURN) => to.push_str(" -j RETURN"),
            Target::Standard(other) => return Err(format!("verdict {other} is unknown")),
            Target::Head(_) => return Err("a rule is the head of a chain".to_owned()),
            Target::Extension(of) => {
                targets::write(to, family, of.name, of.revision.into(), of.info)?;
            }
        }
        end_line(to, from)
    }
}

impl Entry<'_> {
    fn ruling(&self, family: Family, names: &HashMap<usize, &str>) -> Result<Ruling, Odd> {
        let layout = layout(family);
        let goto = self.fields.u8(layout.flags)? & layout.goto != 0;
        Ok(match self.target {
            Target::Standard(verdict @ 0..) => {
                match names.get(&usize::try_from(verdict).expect("it is positive")) {
                    Some(name) if goto => Ruling::Goto((*name).to_owned()),
                    Some(name) => Ruling::Jump((*name).to_owned()),
                    None => Ruling::Continue,
                }
            }
            Target::Standard(DROP) => Ruling::Drop,
            Target::Standard(ACCEPT) => Ruling::Accept,
            Target::Standard(RETURN) => Ruling::Return,
            Target::Standard(_) => Ruling::Taken,
            Target::Head(_) => return Err("a rule is the head of a chain".to_owned()),
            Target::Extension(of) => match of.name {
                "DNAT" | "SNAT" | "MASQUERADE" | "REDIRECT" | "NETMAP" | "TPROXY" => Ruling::Accept,
                "REJECT" => Ruling::Drop,
                "NFQUEUE" | "SYNPROXY" => Ruling::Taken,
                _ => Ruling::Continue,
            },
        })
    }

    /// Appends the options for the matches in `struct ipt_ip` or `struct ip6t_ip6`.
    fn packet(&self, to: &mut String, family: Family) -> Result<(), Odd> {
        let (layout, fields) = (layout(family), self.fields);
        let inversions = fields.u8(layout.inverted)?;
        let is = |bit: u8| inversions & bit != 0;
        let mut known = !(1 << 2 | 1 << 7);
        for (number, option, bit) in [
            (0, "-s", inverted::SOURCE),
            (1, "-d", inverted::DESTINATION),
        ] {
            let value = fields.address(number * layout.address, family)?;
            let bits = fields.address((number + 2) * layout.address, family)?;
            if !is(bit) && bits.is_unspecified() && (value.is_unspecified() || value.is_ipv6()) {
                continue;
            }
            put!(to, "{} {option} ", not(is(bit)));
            address(to, value);
            mask(to, bits);
        }
        for (number, option, bit) in [(0, "-i", inverted::INPUT), (1, "-o", inverted::OUTPUT)] {
            let at = 4 * layout.address + 16 * number;
            let name = fields.text(at, 16)?;
            let mask = fields.bytes(at + 32, 16)?;
            let length = mask.iter().take_while(|byte| **byte == 0xff).count();
            let odd = || format!("link {name} has an unknown mask");
            if mask[length..].iter().any(|byte| *byte != 0)
                || !name.is_char_boundary(length.min(name.len()))
            {
                return Err(odd());
            }
            let (name, wildcard) = match name.len() {
                0 if length == 0 && !is(bit) => continue,
                _ if name == "+" && length == 0 && !is(bit) => continue,
                0 => return Err(odd()),
                all if all + 1 == length => (name, ""),
                all if all == length => (name, "+"),
                all if all == length + 1 && name.ends_with('+') && length > 0 => {
                    (&name[..length], "+")
                }
                _ => return Err(odd()),
            };
            put!(
                to,
                "{} {option} {}{wildcard}",
                not(is(bit)),
                words::name(name)?
            );
        }
        match fields.u16(layout.protocol)? {
            0 => known &= !inverted::PROTOCOL,
            number => {
                let number = number.try_into();
                let number = number.map_err(|_| "a protocol has more than 8 bits")?;
                protocol(to, is(inverted::PROTOCOL), number);
            }
        }
        if fields.u8(layout.flags)? & layout.fragment == 0 {
            known &= !inverted::FRAGMENT;
        } else {
            put!(to, "{} -f", not(is(inverted::FRAGMENT)));
        }
        only(inversions.into(), known.into())
    }
}
