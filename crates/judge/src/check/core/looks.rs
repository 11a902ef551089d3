//! Whether a command changes something, or only reads.

use super::advice::{Advice, Line, Word};

/// Programs that only read.
const READERS: &[&str] = &[
    "arping",
    "awk",
    "cat",
    "dmesg",
    "grep",
    "head",
    "ip6tables-save",
    "iptables-legacy-save",
    "iptables-nft-save",
    "iptables-save",
    "journalctl",
    "jq",
    "ls",
    "lslocks",
    "lsmod",
    "modinfo",
    "ping",
    "ps",
    "sort",
    "ss",
    "tail",
    "uniq",
    "wc",
];

/// Words with which other programs only read.
const READING: &[(&str, &[&str])] = &[
    ("conntrack", &["-L", "-S", "-C"]),
    ("cscli", &["list"]),
    ("docker", &["ps"]),
    ("fail2ban-client", &["status"]),
    (
        "firewall-cmd",
        &["--list-all", "--list-all-zones", "--state"],
    ),
    ("ip6tables", &["-S", "-L"]),
    ("ip6tables-legacy", &["-S", "-L"]),
    ("ip6tables-nft", &["-S", "-L"]),
    ("ipset", &["list", "save"]),
    ("iptables", &["-S", "-L", "--version"]),
    ("iptables-legacy", &["-S", "-L"]),
    ("iptables-nft", &["-S", "-L"]),
    ("ipvsadm", &["-L", "-Ln", "-S", "-Sn"]),
    ("nerdctl", &["ps"]),
    ("netbird", &["status"]),
    ("networkctl", &["cat", "list", "status"]),
    ("nft", &["list"]),
    ("nmcli", &["show"]),
    ("podman", &["ps"]),
    ("systemctl", &["cat", "show", "status"]),
    ("tailscale", &["debug", "status"]),
    ("talosctl", &["get", "logs"]),
    ("ufw", &["show", "status"]),
    ("virsh", &["net-list"]),
    ("vtysh", &["'show"]),
];

/// Verbs of kubectl that only read.
const KUBECTL: &[&str] = &["auth", "describe", "diff", "explain", "get", "logs", "top"];

/// Programs that only read without one of these words.
const CHANGING: &[(&str, &[&str])] = &[
    (
        "bridge",
        &["add", "append", "del", "delete", "flush", "replace", "set"],
    ),
    ("ethtool", &["-A", "-C", "-G", "-K", "-L", "-s"]),
    (
        "ip",
        &[
            "add", "append", "change", "del", "delete", "exec", "flush", "replace", "set",
        ],
    ),
    ("sed", &["-i"]),
    ("sysctl", &["-w", "-p", "--system"]),
    ("tc", &["add", "change", "del", "delete", "replace"]),
];

/// Words of the commands of kpx that change something.
const APPLYING: &[&str] = &["--apply", "--load", "--persist"];

impl Advice {
    /// Returns whether it changes something; true for a command that is not known to only read.
    pub fn changes(&self) -> bool {
        match self {
            Self::Kpx(words) => {
                let has = |text: &&str| words.iter().any(|word| word.text() == Some(text));
                let is_first = |name: &&str| words.first().and_then(Word::text) == Some(name);
                APPLYING.iter().any(has)
                    || ["bridge", "migrate"].iter().any(is_first) && !has(&"--dry-run")
                    || is_first(&"serve")
            }
            Self::OnNode(line) | Self::Anywhere(line) => line.changes(),
            Self::Edit { .. } => true,
        }
    }
}

impl Line {
    /// Returns whether one of its commands changes something.
    fn changes(&self) -> bool {
        let mut parts = self.as_typed().split(['|', ';', '&']);
        parts.any(|part| changes(&part.split_whitespace().collect::<Vec<_>>()))
    }
}

/// Returns whether the command of these words changes something.
fn changes(words: &[&str]) -> bool {
    let among = |table: &[(&str, &'static [&'static str])], program: &str| {
        let mut rows = table.iter();
        rows.find(|(of, _)| *of == program).map(|(_, words)| *words)
    };
    let has = |text: &&str| words.contains(text);
    match words {
        [] => false,
        _ if words.iter().any(|word| word.contains('>')) => true,
        ["sudo", rest @ ..] => changes(rest),
        ["nsenter", rest @ ..] => {
            let inner = rest.iter().position(|word| !word.starts_with('-'));
            inner.is_none_or(|at| changes(&rest[at..]))
        }
        ["kpx" | "kubectl-kpx", rest @ ..] => {
            Advice::kpx(rest.iter().map(|word| (*word).to_owned())).changes()
        }
        [program, ..] => {
            if *program == "kubectl" {
                kubectl_changes(words)
            } else if let Some(reading) = among(READING, program) {
                !reading.iter().any(has)
            } else if let Some(changing) = among(CHANGING, program) {
                changing.iter().any(has)
            } else {
                !READERS.contains(program)
            }
        }
    }
}

/// Returns whether the command of kubectl with these words changes something: its verb is the first that is no option or its value.
fn kubectl_changes(words: &[&str]) -> bool {
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        match *word {
            "-n" | "--namespace" | "--context" | "--kubeconfig" => drop(words.next()),
            option if option.starts_with('-') => {}
            "exec" => {
                let inner: Vec<&str> = words.copied().skip_while(|word| *word != "--").collect();
                return inner.is_empty() || changes(&inner[1..]);
            }
            verb => return !KUBECTL.contains(&verb),
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_only_looks_changes_nothing() {
        let line = |text: &'static str| Advice::OnNode(text.into());
        for text in [
            "ping -c 1 -I eth0 10.0.0.1",
            "ip -d link show dev docker0",
            "ip route get 10.244.2.2",
            "ip -br address; nsenter --net=/proc/7/ns/net ip route get 10.0.0.1",
            "kubectl -n shop get pods -l app=web",
            "kubectl get nodes -o yaml | grep flannel",
            "kubectl -n shop logs web -c app --previous",
            "kubectl -n shop exec $(kubectl -n shop get pods -o name) -- iptables --version",
            "nft -a list chain ip filter forward",
            "iptables -t nat -S POSTROUTING",
            "ls /etc/cni/net.d; cat /etc/cni/net.d/*",
            "vtysh -c 'show running-config'",
            "tailscale debug prefs",
            "sysctl net.ipv4.ip_forward",
            "kpx trace 10.0.0.1 --source host",
        ] {
            assert!(!line(text).changes(), "{text}");
        }
        assert!(!Advice::kpx(["why", "shop/web"]).changes());
        assert!(!Advice::kpx(["reconcile"]).changes());
    }

    #[test]
    fn a_command_that_is_not_known_to_look_changes_something() {
        let line = |text: &'static str| Advice::OnNode(text.into());
        for text in [
            "ip route replace 10.244.2.0/24 via 10.0.0.2",
            "ip addr del 10.0.0.1/24 dev cni0 && ip route get 10.0.0.1",
            "kubectl -n shop delete pod get",
            "kubectl -n shop edit service web",
            "kubectl -n shop exec web -- rm -r /data",
            "kubectl -n shop exec -it web sh",
            "nft delete rule ip filter forward handle 7",
            "iptables -t nat -D POSTROUTING -s 10.0.0.0/8 -j SNAT",
            "sysctl -w net.ipv4.ip_forward=1",
            "modprobe br_netfilter; sysctl -w net.bridge.bridge-nf-call-iptables=1",
            "for port in /sys/class/net/cni0/brif/*/isolated; do echo 0 >$port; done",
            "nsenter --net=/proc/7/ns/net ip link set eth0 up",
            "ufw allow 30000:32767/tcp",
            "systemctl restart kube-proxy",
        ] {
            assert!(line(text).changes(), "{text}");
        }
        assert!(Advice::kpx(["reconcile", "--apply"]).changes());
        assert!(Advice::kpx(["migrate", "--to", "nftables"]).changes());
    }
}
