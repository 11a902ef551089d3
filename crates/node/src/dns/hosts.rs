//! The hosts file.

use std::net::IpAddr;

/// Returns the addresses of `name` in the hosts file `text`, in its order.
pub fn in_hosts(text: &str, name: &str) -> Vec<IpAddr> {
    let name = name.trim_end_matches('.');
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let Some(Ok(address)) = words.next().map(str::parse) else {
            continue;
        };
        if words.any(|word| word.eq_ignore_ascii_case(name)) && !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_with_the_name_or_an_alias_counts() {
        let text = "127.0.0.1\tlocalhost\n\
            10.0.0.7  api.example  api # api.other\n\
            # 10.0.0.8 api\n\
            not-an-address api\n\
            fd00::7 API\n\
            10.0.0.7 api\n";
        let of = |name| -> Vec<String> {
            let found = in_hosts(text, name);
            found.iter().map(ToString::to_string).collect()
        };
        assert_eq!(of("api"), ["10.0.0.7", "fd00::7"]);
        assert_eq!(of("Api.Example."), ["10.0.0.7"]);
        assert_eq!(of("api.other"), [""; 0]);
        assert_eq!(of("10.0.0.7"), [""; 0]);
    }
}
