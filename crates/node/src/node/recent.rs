//! Lists of `xt_recent`, in which kube-proxy's iptables rules remember clients.

use std::net::IpAddr;

use crate::evidence::{Gap, Item};

/// Frequencies of the kernel's clock (`CONFIG_HZ`), in ticks per second.
const FREQUENCIES: [f64; 4] = [100.0, 250.0, 300.0, 1000.0];

/// The kernel's clock begins five minutes before this count (`INITIAL_JIFFIES`).
const WRAP: f64 = 4_294_967_296.0;
const BEFORE_WRAP: f64 = 300.0;

/// Clients in lists of `xt_recent`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recent {
    /// Clients, in the order of the lists.
    pub clients: Vec<Client>,
}

/// A client in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Client {
    /// The name of the list.
    pub list: String,
    /// The client's address.
    pub addr: IpAddr,
    /// Seconds since it was last recorded; `None` if the kernel's clock is unknown.
    pub age: Option<f64>,
}

/// Parses the lines of `/proc/net/xt_recent/*`, `/proc/uptime` and the clock of `/proc/timer_list`, each prefixed with its file
/// name.
///
/// A list gives times in ticks of the kernel's clock. Its frequency follows from the count of ticks and the time since boot.
pub fn parse(text: &str) -> Result<Recent, Gap> {
    let mut clients = Vec::new();
    let (mut uptime, mut now) = (None, None);
    for (number, line) in (1..).zip(text.lines()) {
        let failed = || {
            let why = format!("line {number}: {:?} is no client of a list", line.trim());
            Gap::Failed(Item::Recent, why)
        };
        let (file, rest) = line.split_once(": ").ok_or_else(failed)?;
        let mut words = rest.split_ascii_whitespace();
        match file.rsplit_once('/') {
            Some((_, "uptime")) => uptime = words.next().and_then(|word| word.parse().ok()),
            Some((_, "timer_list")) => now = words.nth(1).and_then(|word| word.parse().ok()),
            Some((folder, list)) if folder.ends_with("/xt_recent") => {
                let (addr, seen) = client(rest).ok_or_else(failed)?;
                clients.push((list.to_owned(), addr, seen));
            }
            _ => return Err(failed()),
        }
    }
    let clock = now.and_then(|now: f64| Some((now, frequency(now, uptime?)?)));
    let clients = clients.into_iter().map(|(list, addr, seen)| Client {
        list,
        addr,
        age: clock.map(|(now, frequency)| ((now - seen) / frequency).max(0.0)),
    });
    Ok(Recent {
        clients: clients.collect(),
    })
}

/// Parses `src=10.0.0.1 ttl: 63 last_seen: 4313745930 oldest_pkt: 1 4313745930`.
fn client(text: &str) -> Option<(IpAddr, f64)> {
    let mut words = text.split_ascii_whitespace();
    let addr = words.next()?.strip_prefix("src=")?.parse().ok()?;
    words.find(|word| *word == "last_seen:")?;
    Some((addr, words.next()?.parse().ok()?))
}

/// Returns the frequency of the clock that counts `now` ticks at `uptime` seconds after boot, if it is a usual one.
fn frequency(now: f64, uptime: f64) -> Option<f64> {
    let estimate = (now - WRAP) / (uptime - BEFORE_WRAP);
    let mut all = FREQUENCIES.into_iter();
    all.find(|usual| (estimate / usual - 1.0).abs() < 0.02)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "/proc/net/xt_recent/KUBE-SEP-A: src=10.244.1.5 ttl: 63 last_seen: 4313745930 oldest_pkt: 2 4313745000, 4313745930\n";

    #[test]
    fn the_clock_gives_the_age_of_a_client() {
        let text = format!(
            "{LIST}/proc/uptime: 75424.85 51816.23\n/proc/timer_list: jiffies: 4313748430\n"
        );
        let recent = parse(&text).unwrap();
        assert_eq!(recent.clients.len(), 1);
        assert_eq!(recent.clients[0].list, "KUBE-SEP-A");
        assert_eq!(recent.clients[0].age, Some(10.0));
    }

    #[test]
    fn without_a_clock_the_age_is_unknown() {
        assert_eq!(parse(LIST).unwrap().clients[0].age, None);
        let odd =
            format!("{LIST}/proc/uptime: 75424.85 1\n/proc/timer_list: jiffies: 4400000000\n");
        assert_eq!(parse(&odd).unwrap().clients[0].age, None);
    }

    #[test]
    fn another_line_is_an_error() {
        assert!(parse("/proc/net/xt_recent/KUBE-SEP-A: ttl: 63\n").is_err());
        assert!(parse("/etc/passwd: root\n").is_err());
    }
}
