//! The configuration of a machine's resolver: resolv.conf.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use super::search::queries;

/// Port of DNS.
const PORT: u16 = 53;

/// Maximum number of servers: `MAXNS` of the C library.
const MOST_SERVERS: usize = 3;

/// Upper limits of options: `RES_MAXNDOTS`, `RES_MAXRETRANS` (seconds) and `RES_MAXRETRY` of the C library.
const MOST_DOTS: u32 = 15;
const MOST_SECONDS: u32 = 30;
const MOST_ATTEMPTS: u32 = 5;

/// DNS servers of a machine, and how to query them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ResolvConf {
    /// Servers, in the order in which they are asked; at least one.
    pub servers: Vec<SocketAddr>,
    /// Domains to search, without dots at their ends.
    pub search: Vec<String>,
    /// Minimum number of dots in a name that is queried unchanged first.
    pub dots: usize,
    /// Time limit of one query.
    pub patience: Duration,
    /// Number of times that each server is asked.
    pub attempts: u32,
}

impl ResolvConf {
    /// Parses resolv.conf. Without a search list, the domain of `hostname` is searched; without a server, this machine is
    /// asked. `index` returns the number of a network interface.
    pub fn parse(text: &str, hostname: &str, index: impl Fn(&str) -> Option<u32>) -> Self {
        let mut conf = Self {
            servers: Vec::new(),
            search: hostname
                .split_once('.')
                .and_then(|(_, domain)| domain_of(domain))
                .into_iter()
                .collect(),
            dots: 1,
            patience: Duration::from_secs(5),
            attempts: 2,
        };
        for line in text.lines().filter(|line| !line.starts_with(['#', ';'])) {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => conf
                    .servers
                    .extend(words.next().and_then(|word| server(word, &index))),
                Some("domain") => {
                    conf.search = words.next().and_then(domain_of).into_iter().collect();
                }
                Some("search") => conf.search = words.filter_map(domain_of).collect(),
                Some("options") => words.for_each(|word| conf.option(word)),
                _ => {}
            }
        }
        conf.servers.truncate(MOST_SERVERS);
        if conf.servers.is_empty() {
            conf.servers.push((Ipv4Addr::LOCALHOST, PORT).into());
        }
        conf
    }

    /// Applies an option, within the limits of the C library.
    fn option(&mut self, word: &str) {
        let Some((name, Ok(value))) = word
            .split_once(':')
            .map(|(name, value)| (name, value.parse::<u32>()))
        else {
            return;
        };
        match name {
            "ndots" => self.dots = value.min(MOST_DOTS).try_into().unwrap_or(1),
            "timeout" => self.patience = Duration::from_secs(value.clamp(1, MOST_SECONDS).into()),
            "attempts" => self.attempts = value.clamp(1, MOST_ATTEMPTS),
            _ => {}
        }
    }

    /// Returns the queries for `name`, in order, without trailing dots.
    pub fn queries(&self, name: &str) -> Vec<String> {
        queries(name, &self.search, self.dots)
    }
}

/// Returns the domain `word`; `None` for the root.
fn domain_of(word: &str) -> Option<String> {
    let domain = word.trim_matches('.').to_lowercase();
    (!domain.is_empty()).then_some(domain)
}

/// Parses the address of a server, which may end in `%` and a network interface.
fn server(word: &str, index: &impl Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let Some((address, scope)) = word.split_once('%') else {
        let address: IpAddr = word.parse().ok()?;
        return Some(SocketAddr::new(address, PORT));
    };
    let address: Ipv6Addr = address.parse().ok()?;
    let scope = scope.parse().ok().or_else(|| index(scope))?;
    Some(SocketAddrV6::new(address, PORT, 0, scope).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> ResolvConf {
        ResolvConf::parse(text, "laptop.home.example", |name| {
            (name == "wlan0").then_some(3)
        })
    }

    #[test]
    fn the_file_of_a_pod() {
        let conf = parse(
            "search demo.svc.cluster.local svc.cluster.local cluster.local\n\
             nameserver 10.96.0.10\noptions ndots:5\n",
        );
        assert_eq!(conf.servers, ["10.96.0.10:53".parse().unwrap()]);
        assert_eq!(conf.dots, 5);
        assert_eq!(conf.queries("kubernetes.default").len(), 4);
        assert_eq!(
            conf.queries("kubernetes.default")[1],
            "kubernetes.default.svc.cluster.local"
        );
    }

    #[test]
    fn servers_options_and_domains_are_limited_as_in_the_c_library() {
        let conf = parse(
            "; comment\n# nameserver 10.0.0.9\nnameserver 10.0.0.1\nnameserver fe80::1%wlan0\n\
             nameserver fe80::1%gone0\nnameserver nonsense\nnameserver fd00::1\nnameserver 10.0.0.4\n\
             search a.example\ndomain Corp.Example.\noptions rotate timeout:0 attempts:99 ndots:99 edns0\n",
        );
        let servers: Vec<String> = conf.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["10.0.0.1:53", "[fe80::1%3]:53", "[fd00::1]:53"]);
        assert_eq!(conf.search, ["corp.example"]);
        assert_eq!(conf.patience, Duration::from_secs(1));
        assert_eq!((conf.attempts, conf.dots), (5, 15));
    }

    #[test]
    fn an_empty_file_means_this_machine_and_its_domain() {
        let conf = parse("");
        assert_eq!(conf.servers, ["127.0.0.1:53".parse().unwrap()]);
        assert_eq!(conf.queries("api"), ["api.home.example", "api"]);
        assert_eq!(
            conf.queries("api.corp"),
            ["api.corp", "api.corp.home.example"]
        );
        assert_eq!(conf.queries("api."), ["api"]);
        assert_eq!(parse("search .\n").search, [""; 0]);
    }
}
