//! Command lines in pasted text: the tool, its target, and whether its output is only a part.

use std::fmt;

use crate::evidence::Item;
use crate::net::Family;

/// A command of a known tool.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Command {
    /// Its name, without its path.
    pub(super) program: String,
    /// Its arguments.
    pub(super) args: Vec<String>,
    /// Why its output is only a part, if so: it was filtered.
    pub(super) fragment: Option<String>,
    /// Whether it ran in another network namespace than the node's.
    pub(super) is_elsewhere: bool,
    /// The machine on which it ran, where the command names one.
    pub(super) host: Option<String>,
}

/// The beginnings of names of pods that run in the network of their node.
const HOST_PODS: &[&str] = &[
    "kube-proxy",
    "calico-node",
    "canal",
    "cilium",
    "kube-flannel",
    "kube-router",
    "weave-net",
    "antrea-agent",
    "ovnkube-node",
    "node-debugger",
    "node-shell",
    "aws-node",
    "kindnet",
];

/// Returns where `kubectl exec` or `kubectl debug` runs a program: on the node of a pod in the host's network, or in the network of a
/// pod; and the node, if it is named.
fn target_of_kubectl(words: &[&str]) -> (bool, Option<String>) {
    let mut all = words
        .iter()
        .skip_while(|word| !["exec", "debug"].contains(*word));
    let mut is_value = false;
    let target = all
        .by_ref()
        .skip(1)
        .take_while(|word| **word != "--")
        .find(|word| {
            let is_option = word.starts_with('-');
            let was_value = std::mem::replace(
                &mut is_value,
                is_option
                    && [
                        "-n",
                        "--namespace",
                        "-c",
                        "--container",
                        "--image",
                        "--context",
                    ]
                    .contains(*word),
            );
            !is_option && !was_value
        });
    let Some(target) = target else {
        return (false, None);
    };
    if let Some(node) = target.strip_prefix("node/") {
        return (false, Some(node.to_owned()));
    }
    let pod = target.rsplit('/').next().unwrap_or(target);
    (
        !HOST_PODS.iter().any(|prefix| pod.starts_with(prefix)),
        None,
    )
}

/// The subject of a command of iptables.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Iptables {
    /// The family, if the program is of one.
    pub(super) six: bool,
    /// `legacy` or `nft`, if the program is of one back end.
    pub(super) backend: Option<&'static str>,
    /// The table of `-t`.
    pub(super) table: Option<String>,
    /// The one chain that is listed.
    pub(super) chain: Option<String>,
    /// Whether it is `iptables-save`.
    pub(super) saves: bool,
}

/// Tools whose output is read, and tools that are known in command lines.
const TOOLS: &[&str] = &[
    "ipvsadm",
    "ipset",
    "ip",
    "ss",
    "netstat",
    "ifconfig",
    "route",
    "lsmod",
    "sysctl",
    "conntrack",
    "nft",
    "kubectl",
    "oc",
    "cat",
    "uname",
    "hostname",
    "dmesg",
    "modprobe",
    "systemctl",
    "service",
    "journalctl",
    "ps",
    "curl",
    "tcpdump",
    "head",
    "tail",
    "less",
    "grep",
    "bridge",
    "tc",
    "crictl",
    "docker",
    "cilium",
    "cilium-dbg",
];

fn is_tool(name: &str) -> bool {
    TOOLS.contains(&name) || is_iptables(name)
}

fn is_iptables(name: &str) -> bool {
    let Some(rest) = name
        .strip_prefix("iptables")
        .or_else(|| name.strip_prefix("ip6tables"))
    else {
        return name == "xtables-save";
    };
    ["", "-save", "-legacy", "-nft", "-legacy-save", "-nft-save"].contains(&rest)
}

/// Returns whether `nsenter` with these words enters a network that is not the node's: the network of any process but the
/// first.
fn enters_network(words: &[&str]) -> bool {
    let (mut is_first, mut enters) = (false, false);
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).copied().unwrap_or_default();
        if let Some(path) = word.strip_prefix("--net=").or(word.strip_prefix("-n/")) {
            return !path.trim_start_matches('/').starts_with("proc/1/");
        }
        let is_short = word.starts_with('-') && !word.starts_with("--");
        let target = match *word {
            "-t" | "--target" => Some(next),
            _ if is_short && word.ends_with('t') => Some(next),
            _ if is_short => word.split_once('t').map(|(_, pid)| pid),
            _ => word.strip_prefix("--target="),
        };
        if let Some(pid) = target {
            is_first = pid == "1";
        }
        enters |= matches!(*word, "--net" | "--all") || is_short && word.contains(['n', 'a']);
        if !word.starts_with('-') && word.parse::<u32>().is_err() {
            break;
        }
    }
    enters && !is_first
}

impl Command {
    /// Reads a command line; `None` if it is of no known tool.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.split(" #").next().unwrap_or(text).trim();
        if text.contains(" && ") || text.contains("; ") {
            return None;
        }
        let mut stages = text.split('|').map(str::trim);
        let mut words: Vec<&str> = stages.next()?.split_whitespace().collect();
        let mut is_elsewhere = false;
        let mut host = None;
        loop {
            let first = base(words.first()?);
            let skip = match first {
                "sudo" | "time" | "watch" | "nohup" | "command" => {
                    1 + words[1..]
                        .iter()
                        .take_while(|word| word.starts_with('-'))
                        .count()
                }
                "chroot" | "timeout" => 2,
                "ssh" => {
                    let options = words[1..].iter().take_while(|word| word.starts_with('-'));
                    let at = 1 + options.count();
                    let to = words.get(at).map(|to| to.rsplit('@').next().unwrap_or(to));
                    host = to.filter(|to| is_host(to)).map(str::to_owned);
                    at + 1
                }
                "nsenter" | "env" => {
                    is_elsewhere |= first == "nsenter" && enters_network(&words[1..]);
                    1 + words[1..]
                        .iter()
                        .take_while(|word| {
                            word.starts_with('-')
                                || word.contains('=')
                                || word.parse::<u32>().is_ok()
                        })
                        .count()
                }
                "ip" if words.get(1..3) == Some(&["netns", "exec"]) => {
                    is_elsewhere = true;
                    4
                }
                "kubectl" | "oc"
                    if words.iter().any(|word| ["exec", "debug"].contains(word))
                        && words.contains(&"--") =>
                {
                    let (of_pod, node) = target_of_kubectl(&words);
                    is_elsewhere |= of_pod;
                    host = node.or(host);
                    1 + words.iter().position(|word| *word == "--")?
                }
                "docker" | "podman" | "nerdctl" | "crictl" if words.get(1) == Some(&"exec") => {
                    let options = words[2..].iter().take_while(|word| word.starts_with('-'));
                    let at = 2 + options.count();
                    // The nodes of kind and minikube are containers; containers of crictl have numbers.
                    let of = words.get(at).filter(|_| first != "crictl");
                    host = of
                        .filter(|name| is_host(name))
                        .map(|name| (*name).to_owned())
                        .or(host);
                    at + 1
                }
                "k3s" | "microk8s" | "rke2" | "minikube" if words.get(1) == Some(&"kubectl") => 1,
                "k" | "microk8s.kubectl" => {
                    words[0] = "kubectl";
                    0
                }
                _ => 0,
            };
            if skip == 0 {
                break;
            }
            words.drain(..skip.min(words.len()));
        }
        let program = base(words.first()?).to_owned();
        if !is_tool(&program) {
            return None;
        }
        let redirects = words
            .iter()
            .position(|word| word.starts_with('>') || word.starts_with("2>"));
        words.truncate(redirects.unwrap_or(words.len()));
        let args = words[1..]
            .iter()
            .map(|word| (*word).trim_matches(['\'', '"']).to_owned())
            .collect();
        let filter = stages.find(|stage| {
            let name = base(stage.split_whitespace().next().unwrap_or_default());
            !["less", "more", "tee", "cat", "column", "sort", "sudo"].contains(&name)
        });
        Some(Self {
            program,
            args,
            fragment: filter.map(|filter| format!("only what `{filter}` leaves is shown")),
            is_elsewhere,
            host,
        })
    }

    /// Returns the item of a node that the output is of, if it is of one.
    pub(super) fn item(&self) -> Option<Item> {
        // `ip` takes the beginnings of its words.
        let object = self.args.iter().find(|arg| !arg.starts_with('-'));
        let is = |word: &str| object.is_some_and(|object| word.starts_with(object.as_str()));
        Some(match self.program.as_str() {
            _ if self.iptables().is_some() => Item::iptables(self.family().unwrap_or(Family::V4)),
            "ipvsadm" => Item::IpvsSave,
            "ipset" => Item::Ipset,
            "nft" => Item::Nft,
            "netstat" if self.flag('r', "--route") => Item::Routes,
            "ss" | "netstat" => Item::Sockets,
            "conntrack" if self.flag('S', "--stats") => Item::ConntrackStat,
            "conntrack" => Item::Conntrack,
            "sysctl" => Item::Sysctl,
            "lsmod" => Item::Modules,
            "ifconfig" => Item::Addresses,
            "route" => Item::Routes,
            "ip" if is("address") => Item::Addresses,
            "ip" if is("link") => Item::Links,
            "ip" if is("route") => Item::Routes,
            "ip" if is("rule") => Item::Rules,
            _ => return None,
        })
    }

    /// Returns whether it shows a file from which rules, sets or sysctls are loaded.
    pub(super) fn shows_settings(&self) -> bool {
        const FILES: [&str; 13] = [
            "/etc/sysctl.",
            "/usr/lib/sysctl.",
            "/lib/sysctl.",
            "/run/sysctl.",
            "/etc/iptables",
            "/etc/sysconfig/ip",
            "/etc/sysconfig/nft",
            "/etc/nftables",
            "/etc/ipset",
            "/etc/ipvsadm",
            "/etc/ufw/",
            "/etc/firewalld/",
            "/var/lib/iptables/",
        ];
        let is_file = |arg: &String| FILES.iter().any(|file| arg.starts_with(file));
        self.item().is_none() && self.iptables().is_none() && self.args.iter().any(is_file)
    }

    /// Returns whether it prints the kernel's log.
    pub(super) fn is_of_kernel_log(&self) -> bool {
        self.program == "dmesg" || self.program == "journalctl" && self.flag('k', "--dmesg")
    }

    /// Returns whether it prints lines of the journal of units.
    pub(super) fn is_of_journal(&self) -> bool {
        self.program == "journalctl"
            || ["systemctl", "service"].contains(&self.program.as_str()) && self.has("status")
    }

    /// Returns whether it prints objects of the cluster.
    pub(super) fn is_read(&self) -> bool {
        let shows = ["get", "describe", "logs"]
            .iter()
            .any(|verb| self.has(verb));
        ["kubectl", "oc"].contains(&self.program.as_str()) && shows
    }

    /// Returns whether it shows anything about a node that kpx does not read.
    pub(super) fn is_of_node(&self) -> bool {
        let programs = [
            "crictl",
            "docker",
            "bridge",
            "tc",
            "cilium",
            "cilium-dbg",
            "tcpdump",
        ];
        programs.contains(&self.program.as_str())
    }

    /// Returns whether the arguments have `word`.
    pub(super) fn has(&self, word: &str) -> bool {
        self.args.iter().any(|arg| arg == word)
    }

    /// Returns the value of an option: `-t nat`, `--table=nat`, `-tnat`.
    pub(super) fn option(&self, short: &str, long: &str) -> Option<&str> {
        for (at, arg) in self.args.iter().enumerate() {
            if arg == short || arg == long {
                return self.args.get(at + 1).map(String::as_str);
            }
            let joined = arg
                .strip_prefix(long)
                .and_then(|rest| rest.strip_prefix('='));
            if joined.is_some() && !long.is_empty() {
                return joined;
            }
            if let Some(rest) = arg
                .strip_prefix(short)
                .filter(|rest| !rest.is_empty() && short.len() == 2 && !rest.starts_with('-'))
            {
                return Some(rest.trim_start_matches('='));
            }
        }
        None
    }

    /// Returns the node on which `kubectl debug` opens a shell: the commands below run there.
    pub(super) fn debugged_node(&self) -> Option<&str> {
        let is_debug = ["kubectl", "oc"].contains(&self.program.as_str()) && self.has("debug");
        let mut args = self.args.iter().filter(|_| is_debug);
        args.find_map(|arg| arg.strip_prefix("node/"))
    }

    /// Returns whether it is kubectl with an output that shows the fields that were chosen.
    pub(super) fn prints_chosen_fields(&self) -> bool {
        let output = self.option("-o", "--output").unwrap_or_default();
        ["kubectl", "oc"].contains(&self.program.as_str())
            && ["jsonpath", "go-template"]
                .iter()
                .any(|template| output.starts_with(template))
    }

    /// Returns whether one of the bundled short options, such as `-nvL`, is `letter`, or an argument is `long`.
    pub(super) fn flag(&self, letter: char, long: &str) -> bool {
        self.args.iter().any(|arg| {
            arg == long
                || arg.len() > 1
                    && arg.starts_with('-')
                    && !arg.starts_with("--")
                    && arg[1..].contains(letter)
        })
    }

    /// Returns the chain or table that is listed, if it is a command of iptables.
    pub(super) fn iptables(&self) -> Option<Iptables> {
        if !is_iptables(&self.program) {
            return None;
        }
        let backend = ["legacy", "nft"]
            .into_iter()
            .find(|backend| self.program.contains(backend));
        let saves = self.program.ends_with("-save");
        let table = self.option("-t", "--table").map(str::to_owned);
        let mut chain = None;
        if !saves {
            let mut args = self.args.iter().skip_while(|arg| {
                let listing =
                    arg.starts_with('-') && !arg.starts_with("--") && arg.ends_with(['L', 'S']);
                !(listing || *arg == "--list" || *arg == "--list-rules")
            });
            let is_grouped = |arg: &&String| {
                arg.starts_with('-') && !arg.starts_with("--") && arg[1..].contains(['L', 'S'])
            };
            let listing = args.next().or_else(|| self.args.iter().find(is_grouped));
            if let Some(listing) = listing {
                let at = self
                    .args
                    .iter()
                    .position(|arg| arg == listing)
                    .unwrap_or_default();
                chain = self
                    .args
                    .get(at + 1)
                    .filter(|name| !name.starts_with('-'))
                    .cloned();
                // The table's name may follow: `-L -t nat`.
            }
        }
        Some(Iptables {
            six: self.program.starts_with("ip6"),
            backend,
            table,
            chain,
            saves,
        })
    }

    /// Returns the family that the program or `-4` and `-6` select.
    pub(super) fn family(&self) -> Option<Family> {
        if self.has("-6") || self.program.starts_with("ip6") {
            Some(Family::V6)
        } else if self.has("-4") || is_iptables(&self.program) {
            Some(Family::V4)
        } else {
            None
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

/// Returns the last part of a path.
fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// A line with a prompt.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Prompt {
    /// The host that it names.
    pub(super) host: Option<String>,
    /// The command, if it is of a known tool.
    pub(super) command: Option<Command>,
}

/// Reads a line with a prompt and a command; `None` if it is none.
pub(super) fn prompt(line: &str) -> Option<Prompt> {
    let line = line.trim();
    if let Some((host, rest)) = line.split_once(" | ")
        && (rest.starts_with("SUCCESS")
            || rest.starts_with("CHANGED")
            || rest.starts_with("FAILED"))
        && rest.trim_end().ends_with(">>")
        && is_host(host)
    {
        return Some(Prompt {
            host: Some(host.to_owned()),
            command: None,
        });
    }
    // The title of `watch`, with the host and the time at its right edge.
    if let Some((every, rest)) = line.split_once("s: ")
        && every
            .strip_prefix("Every ")
            .is_some_and(|seconds| seconds.parse::<f64>().is_ok())
    {
        let (text, host) = match rest.split_once("  ") {
            Some((text, end)) => (text, end.split(':').next().map(str::trim)),
            None => (rest, None),
        };
        return Command::parse(text).map(|command| Prompt {
            host: host.filter(|host| is_host(host)).map(str::to_owned),
            command: Some(command),
        });
    }
    // A bare path of a tool, or an output of `set -x`.
    if line.starts_with("/usr/") || line.starts_with("/sbin/") || line.starts_with("/bin/") {
        let command = Command::parse(line.split('(').next()?)?;
        return Some(Prompt {
            host: None,
            command: Some(command),
        });
    }
    if let Some(text) = line
        .strip_prefix("*** Output of ")
        .and_then(|rest| rest.strip_suffix("***"))
    {
        return Command::parse(text).map(|command| Prompt {
            host: None,
            command: Some(command),
        });
    }
    if let Some(text) = line
        .strip_prefix("===")
        .map(|rest| rest.trim_matches(['=', ' ']))
    {
        return Command::parse(text).map(|command| Prompt {
            host: None,
            command: Some(command),
        });
    }
    if let Some(command) = line.strip_prefix("+ ").and_then(Command::parse) {
        return Some(Prompt {
            host: None,
            command: Some(command),
        });
    }
    // A folder follows, and the branch of a repository may.
    if let Some(rest) = line.strip_prefix(['➜', '❯', 'λ']) {
        let mut rest = rest.trim_start();
        loop {
            if let Some(command) = Command::parse(rest) {
                return Some(Prompt {
                    host: None,
                    command: Some(command),
                });
            }
            rest = rest.split_once(' ')?.1.trim_start();
        }
    }
    for (at, mark) in line.match_indices(['#', '$', '%', '>']) {
        let (before, after) = (line[..at].trim_end(), &line[at + mark.len()..]);
        if !(after.is_empty() || after.starts_with(' ')) {
            continue;
        }
        let after = after.trim();
        let before = before
            .strip_prefix('(')
            .and_then(|rest| rest.split_once(") "))
            .map_or(before, |(_, rest)| rest);
        if before.is_empty()
            || before.starts_with("PS ")
            || before.starts_with("sh-")
            || before.starts_with("bash-")
        {
            let known = Command::parse(after).filter(|_| mark != ">" || before.starts_with("PS "));
            return known.map(|command| Prompt {
                host: None,
                command: Some(command),
            });
        }
        if before.contains(['"', '\'', '|', '=', '{']) {
            return None;
        }
        let command = Command::parse(after);
        let inner = before.strip_prefix('[').unwrap_or(before);
        let host = if let Some((user, rest)) = inner.split_once('@') {
            let host = rest.split([':', ' ', ']', '~', '$']).next()?;
            is_host(user).then_some(host)
        } else if inner.ends_with(']') && command.is_some() {
            inner.split([' ', ']']).next()
        } else if inner.contains(":~") || inner.contains(":/") {
            inner
                .split(':')
                .next()
                .filter(|host| is_host(host) && command.is_some())
        } else {
            None
        };
        let host = host.filter(|host| is_host(host))?;
        return Some(Prompt {
            host: Some(host.to_owned()),
            command,
        });
    }
    None
}

pub(super) fn is_host(name: &str) -> bool {
    !name.is_empty()
        && name.len() < 254
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ['-', '.', '_'].contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_name_hosts_and_commands() {
        for (line, host, program) in [
            (
                "root@master:~# iptables -t nat -nvL OUTPUT",
                Some("master"),
                "iptables",
            ),
            ("[root@node1 ~]# ipvsadm -Ln", Some("node1"), "ipvsadm"),
            ("master1 ~]# kubectl get svc", Some("master1"), "kubectl"),
            ("master1 ]# ipvsadm -Ln", Some("master1"), "ipvsadm"),
            ("node1:~ # iptables-save", Some("node1"), "iptables-save"),
            ("$ sudo iptables -nL", None, "iptables"),
            ("➜  ~ kubectl get svc -n shop", None, "kubectl"),
            ("➜  repo git:(main) ✗ ipvsadm -Ln", None, "ipvsadm"),
            ("# nft list ruleset", None, "nft"),
            ("/usr/sbin/iptables-save", None, "iptables-save"),
            ("*** Output of conntrack -L ***", None, "conntrack"),
            ("user@master:~$ k get svc -A", Some("master"), "kubectl"),
        ] {
            let prompt = prompt(line).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(prompt.host.as_deref(), host, "{line}");
            assert_eq!(prompt.command.unwrap().program, program, "{line}");
        }
        for line in [
            "0 0 KUBE-SVC-X tcp -- * * 0.0.0.0/0 10.0.0.1 /* a # iptables */",
            "# Warning: iptables-legacy tables present, use iptables-legacy to see them",
            "-> 10.244.3.214:80 Masq 1 0 0 # address of the pod",
            "10.244.1.20(busybox) --> 10.97.54.248:80(nginx-svc)",
            "\tchain services { # handle 5",
        ] {
            assert_eq!(prompt(line), None, "{line}");
        }
    }

    #[test]
    fn what_is_listed_is_known_from_the_arguments() {
        let of = |text: &str| Command::parse(text).unwrap().iptables().unwrap();
        let chain = of("iptables -t nat -nvL KUBE-SERVICES");
        assert_eq!(
            (chain.table.as_deref(), chain.chain.as_deref()),
            (Some("nat"), Some("KUBE-SERVICES"))
        );
        assert_eq!(
            of("sudo ip6tables-legacy-save -t nat").backend,
            Some("legacy")
        );
        assert_eq!(of("iptables -L -n -t nat").chain, None);
        assert_eq!(of("iptables -vnxL").table, None);
        assert!(
            Command::parse("iptables-save | grep web")
                .unwrap()
                .fragment
                .is_some()
        );
        for (text, is_elsewhere) in [
            ("ip netns exec cni-1 iptables-save", true),
            ("nsenter -t 479 -n iptables-save", true),
            ("sudo nsenter -n -t 479 ip addr", true),
            ("nsenter --net=/run/netns/cni-1 ip addr", true),
            ("nsenter -t 1 -m -n iptables-save", false),
            ("nsenter --target=1 --net iptables-save", false),
            ("nsenter --net=/proc/1/ns/net ip addr", false),
            ("nsenter -t 479 -m ip addr", false),
        ] {
            let command = Command::parse(text).unwrap();
            assert_eq!(command.is_elsewhere, is_elsewhere, "{text}");
        }
    }
}
