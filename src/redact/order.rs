//! Sorts the rules of endpoints as kube-proxy would have sorted their new addresses.
//!
//! kube-proxy lists the endpoints of a Service in the order of their addresses as text, and the probability of a rule
//! depends on its place. Redacted addresses have another order, so the endpoints change places. Endpoints that were not in
//! order are out of order in the same way afterwards.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::Redactor;
use crate::backend::iptables::names::SEP;

impl Redactor {
    /// Returns a listing of iptables with the rules of endpoints in their new places.
    pub(super) fn reorder_iptables(&mut self, text: &str) -> String {
        let endpoints: HashMap<&str, SocketAddr> = text
            .lines()
            .filter_map(|line| {
                let chain = line.split_once("-A ")?.1.split(' ').next()?;
                let to = line.split_once("--to-destination ")?.1.split(' ').next()?;
                Some((chain, to.parse().ok()?)).filter(|_| chain.starts_with(SEP))
            })
            .collect();
        let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
        // A group is consecutive rules of one chain, of clients that are known or of all.
        let groups: Vec<Option<(String, bool, SocketAddr)>> = lines
            .iter()
            .map(|line| {
                let chain = line.split_once("-A ")?.1.split(' ').next()?;
                let target = line.split_once(" -j ")?.1.split_whitespace().next()?;
                let endpoint = endpoints.get(target)?;
                Some((chain.to_owned(), line.contains(" -m recent "), *endpoint))
            })
            .collect();
        let mut from = 0;
        while from < groups.len() {
            let key = |at: usize| {
                groups
                    .get(at)?
                    .as_ref()
                    .map(|(chain, known, _)| (chain, known))
            };
            let mut to = from + 1;
            if key(from).is_some() {
                while to < groups.len() && key(to) == key(from) {
                    to += 1;
                }
                let old: Vec<SocketAddr> =
                    groups[from..to].iter().flatten().map(|of| of.2).collect();
                self.permute_lines(&mut lines[from..to], &old);
            }
            from = to;
        }
        lines.concat()
    }

    fn permute_lines(&mut self, lines: &mut [String], old: &[SocketAddr]) {
        const CHANCE: &str = " -m statistic --mode random --probability ";
        let places = self.places(old);
        let split = lines.iter().map(|line| {
            let (before, rest) = line.split_once(CHANCE)?;
            let (chance, after) = rest.split_once(' ')?;
            Some((format!("{before} {after}"), chance.to_owned()))
        });
        let split: Vec<Option<(String, String)>> = split.collect();
        let bodies: Vec<String> = lines
            .iter()
            .zip(&split)
            .map(|(line, split)| split.as_ref().map_or(line, |(body, _)| body).clone())
            .collect();
        for ((line, split), from) in lines.iter_mut().zip(&split).zip(places) {
            let body = &bodies[from];
            *line = match split {
                // The probability belongs to the place.
                Some((_, chance)) => body.replacen(" -j ", &format!("{CHANCE}{chance} -j "), 1),
                None => body.clone(),
            };
        }
    }

    /// Puts the endpoints in nft's JSON into their new places.
    pub(super) fn reorder_nft(&mut self, value: &mut Value) {
        let Some(list) = value["nftables"].as_array_mut() else {
            return;
        };
        let mut chains: HashMap<String, Vec<(usize, SocketAddr)>> = HashMap::new();
        for (at, object) in list.iter_mut().enumerate() {
            let rule = &mut object["rule"];
            let chain = format!("{} {} {}", rule["family"], rule["table"], rule["chain"]);
            let Some(statements) = rule["expr"].as_array_mut() else {
                continue;
            };
            for statement in statements.iter_mut() {
                self.reorder_maps(statement);
            }
            // Rules of clients that are known, one for each endpoint.
            let target = statements
                .last()
                .and_then(|last| last["goto"]["target"].as_str());
            if let Some(endpoint) = target.and_then(of_chain) {
                chains.entry(chain).or_default().push((at, endpoint));
            }
        }
        for rules in chains.into_values() {
            let old: Vec<SocketAddr> = rules.iter().map(|(_, endpoint)| *endpoint).collect();
            let bodies: Vec<Value> = rules
                .iter()
                .map(|(at, _)| list[*at]["rule"]["expr"].clone())
                .collect();
            for ((at, _), from) in rules.iter().zip(self.places(&old)) {
                list[*at]["rule"]["expr"].clone_from(&bodies[from]);
            }
        }
    }

    /// Puts the endpoints of maps with random keys into their new places.
    fn reorder_maps(&mut self, value: &mut Value) {
        match value {
            Value::Object(map) => {
                let is_random = map
                    .get("key")
                    .is_some_and(|key| key["numgen"]["mode"] == "random");
                if let Some(pairs) = map
                    .get_mut("data")
                    .filter(|_| is_random)
                    .and_then(|data| data["set"].as_array_mut())
                {
                    let old: Option<Vec<SocketAddr>> =
                        pairs.iter().map(|pair| of_datum(&pair[1])).collect();
                    if let Some(old) = old {
                        let data: Vec<Value> = pairs.iter().map(|pair| pair[1].clone()).collect();
                        for (pair, from) in pairs.iter_mut().zip(self.places(&old)) {
                            pair[1].clone_from(&data[from]);
                        }
                    }
                }
                map.values_mut().for_each(|value| self.reorder_maps(value));
            }
            Value::Array(list) => list.iter_mut().for_each(|value| self.reorder_maps(value)),
            _ => {}
        }
    }

    /// Puts the endpoints of maps with random keys in nft's text into their new places.
    pub(super) fn reorder_nft_text(&mut self, text: &str) -> String {
        let mut new = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            new.push_str(&self.reorder_line(line).unwrap_or_else(|| line.to_owned()));
        }
        new
    }

    fn reorder_line(&mut self, line: &str) -> Option<String> {
        let (before, rest) = line.split_once("numgen random mod ")?;
        let (modulus, rest) = rest.split_once("{ ")?;
        let (pairs, after) = rest.split_once(" }")?;
        let pairs: Option<Vec<(&str, &str)>> = pairs
            .split(", ")
            .map(|pair| pair.split_once(" : "))
            .collect();
        let pairs = pairs?;
        let old: Option<Vec<SocketAddr>> = pairs
            .iter()
            .map(|(_, datum)| match datum.split_once(" . ") {
                Some((ip, port)) => Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?)),
                None => of_chain(datum.split_once("goto ")?.1),
            })
            .collect();
        let places = self.places(&old?);
        let pairs: Vec<String> = pairs
            .iter()
            .zip(places)
            .map(|((key, _), from)| format!("{key} : {}", pairs[from].1))
            .collect();
        let pairs = pairs.join(", ");
        Some(format!(
            "{before}numgen random mod {modulus}{{ {pairs} }}{after}"
        ))
    }

    /// Returns for each place which of the endpoints `old` belongs there.
    fn places(&mut self, old: &[SocketAddr]) -> Vec<usize> {
        let new: Vec<String> = old
            .iter()
            .map(|at| SocketAddr::new(self.addresses.map(at.ip()), at.port()).to_string())
            .collect();
        let old: Vec<String> = old.iter().map(SocketAddr::to_string).collect();
        let sorted = |names: &[String]| {
            let mut all: Vec<usize> = (0..names.len()).collect();
            all.sort_by(|a, b| names[*a].cmp(&names[*b]));
            all
        };
        let (was, is) = (sorted(&old), sorted(&new));
        let mut places = vec![0; old.len()];
        for (rank, place) in was.into_iter().enumerate() {
            places[place] = is[rank];
        }
        places
    }
}

/// Returns the endpoint that an nftables chain is named after.
fn of_chain(name: &str) -> Option<SocketAddr> {
    let (ip, port) = name.rsplit_once("__")?.1.split_once('/')?;
    let ip: IpAddr = ip.parse().or_else(|_| ip.replace('.', ":").parse()).ok()?;
    Some(SocketAddr::new(ip, port.parse().ok()?))
}

/// Returns the endpoint in the datum of a map: an address and a port, or a chain.
fn of_datum(datum: &Value) -> Option<SocketAddr> {
    if let Some(target) = datum["goto"]["target"].as_str() {
        return of_chain(target);
    }
    let ip = datum["concat"][0].as_str()?.parse().ok()?;
    let port = u16::try_from(datum["concat"][1].as_u64()?).ok()?;
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Evidence;

    fn ports(redactor: &mut Redactor, places: &[SocketAddr]) -> Vec<String> {
        let new = redactor.places(places).into_iter().map(|at| {
            let ip = redactor.addresses.map(places[at].ip());
            SocketAddr::new(ip, places[at].port()).to_string()
        });
        new.collect()
    }

    #[test]
    fn endpoints_in_order_stay_in_order_and_others_do_not() {
        let mut redactor = Redactor::new([3; 32], &Evidence::default());
        let mut all: Vec<SocketAddr> =
            ["10.0.1.10:80", "10.0.1.2:80", "10.0.2.9:80", "10.0.9.1:80"]
                .map(|text| text.parse().unwrap())
                .to_vec();
        assert!(ports(&mut redactor, &all).is_sorted());
        all.reverse();
        let new = ports(&mut redactor, &all);
        assert!(new.is_sorted_by(|a, b| a >= b), "{new:?}");
    }

    #[test]
    fn a_probability_stays_in_its_place() {
        let mut rules = String::new();
        let chance = [
            " -m statistic --mode random --probability 0.33333333349",
            " -m statistic --mode random --probability 0.50000000000",
            "",
        ];
        for (at, chance) in chance.iter().enumerate() {
            let sep = format!("KUBE-SEP-AAAAAAAAAAAAAAA{}", at + 2);
            rules += &format!("-A {sep} -p tcp -j DNAT --to-destination 10.0.{at}.1:80\n");
            rules += &format!(
                "-A KUBE-SVC-AAAAAAAAAAAAAAAA -m comment --comment \"a/b -> 10.0.{at}.1:80\"{chance} -j {sep}\n"
            );
        }
        let mut lines: Vec<&str> = rules.lines().collect();
        lines.sort_unstable();
        let text = lines.join("\n") + "\n";
        let mut orders = std::collections::BTreeSet::new();
        for key in 0..20 {
            let mut redactor = Redactor::new([key; 32], &Evidence::default());
            let new = redactor.reorder_iptables(&text);
            let order: Vec<&str> = new
                .lines()
                .filter(|line| line.contains("-A KUBE-SVC"))
                .collect();
            for (line, chance) in order.iter().zip(chance) {
                assert!(line.contains(&format!("\"{chance} -j KUBE-SEP")), "{new}");
            }
            let mut sorted: Vec<&str> = new.lines().collect();
            sorted.sort_unstable();
            assert_eq!(sorted.len(), lines.len());
            orders.insert(order.join("\n"));
        }
        assert!(orders.len() > 3);
    }
}
