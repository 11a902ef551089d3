//! One change to a node or its cluster.

use std::fmt::{self, Display, Formatter};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::objects::KubeCommand;
use super::routes::RouteCommand;
use crate::evidence::ipvs::{Destination, Service};
use crate::net::{Family, Proto};

/// One change to a node or its cluster. Journals keep it serialised; reports print its text.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// Rules, by one `iptables-restore --noflush`.
    Iptables {
        /// The back end to write to.
        backend: Backend,
        /// The family.
        family: Family,
        /// Its input: one table, with whole chains and single rules of other chains.
        input: String,
    },
    /// One transaction of `nft -f`.
    Nft {
        /// Its input.
        input: String,
    },
    /// `ipset restore`.
    Ipset {
        /// Its input.
        input: String,
    },
    /// Virtual and real servers, by generic netlink.
    Ipvs {
        /// The commands, in order.
        commands: Vec<IpvsCommand>,
    },
    /// Links and addresses, by route netlink.
    Link {
        /// The commands, in order.
        commands: Vec<LinkCommand>,
    },
    /// Routes of Service addresses on this node, by route netlink.
    Routes {
        /// The commands, in order.
        commands: Vec<RouteCommand>,
    },
    /// A sysctl of the network namespace.
    Sysctl {
        /// The dotted name.
        key: String,
        /// The value.
        value: String,
    },
    /// Deletes tracked connections.
    Conntrack {
        /// The connections.
        flows: Vec<Flow>,
    },
    /// Loads kernel modules with their dependencies.
    LoadModules {
        /// The names, in order.
        names: Vec<String>,
    },
    /// Unloads kernel modules that nothing uses.
    UnloadModules {
        /// The names, in order: dependent modules first.
        names: Vec<String>,
    },
    /// Writes a file atomically, and creates its folder.
    WriteFile {
        /// The path below the host's root.
        path: PathBuf,
        /// The text.
        text: String,
    },
    /// Removes a file.
    RemoveFile {
        /// The path below the host's root.
        path: PathBuf,
    },
    /// Restarts a systemd unit of the host.
    RestartUnit {
        /// The unit.
        unit: String,
    },
    /// Changes the cluster.
    Kube {
        /// The command.
        command: KubeCommand,
    },
}

/// A back end of iptables.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// The one behind the plain names of the programs.
    Plain,
    /// `iptables-legacy`.
    Legacy,
    /// `iptables-nft`.
    Nft,
}

impl Backend {
    /// Returns the program that restores rules of `family`.
    pub const fn restore(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::Plain, Family::V4) => "iptables-restore",
            (Self::Plain, Family::V6) => "ip6tables-restore",
            (Self::Legacy, Family::V4) => "iptables-legacy-restore",
            (Self::Legacy, Family::V6) => "ip6tables-legacy-restore",
            (Self::Nft, Family::V4) => "iptables-nft-restore",
            (Self::Nft, Family::V6) => "ip6tables-nft-restore",
        }
    }
}

/// One command to IPVS.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct IpvsCommand {
    /// The verb.
    pub verb: IpvsVerb,
    /// The virtual server: its key, and the fields that `verb` needs. Its destinations are ignored.
    pub server: Service,
    /// The real server, if `verb` is about one.
    pub real: Option<Destination>,
    /// The equivalent arguments of `ipvsadm`.
    pub line: String,
}

/// A verb on a virtual or real server.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IpvsVerb {
    /// `ipvsadm -A`
    AddServer,
    /// `ipvsadm -E`
    EditServer,
    /// `ipvsadm -D`
    DeleteServer,
    /// `ipvsadm -a`
    AddReal,
    /// `ipvsadm -e`
    EditReal,
    /// `ipvsadm -d`
    DeleteReal,
    /// `ipvsadm -d`, after the earlier commands, and only if the real server then has no connections.
    RetireReal,
}

/// One command about a link or an address.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkCommand {
    /// Adds a dummy link, down and without ARP.
    AddDummy {
        /// Name of the link.
        name: String,
    },
    /// Deletes a link, with its addresses.
    Delete {
        /// Name of the link.
        name: String,
    },
    /// Adds a host address (/32, /128) to a link.
    AddAddress {
        /// The link.
        link: String,
        /// The address.
        addr: IpAddr,
    },
    /// Deletes a host address from a link.
    DeleteAddress {
        /// The link.
        link: String,
        /// The address.
        addr: IpAddr,
    },
}

/// A tracked connection, by its first packet.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Flow {
    /// The protocol.
    pub proto: Proto,
    /// The source.
    pub source: SocketAddr,
    /// The destination before any translation.
    pub destination: SocketAddr,
}

impl Action {
    /// Returns whether it is a transaction: done completely or not at all.
    pub const fn is_atomic(&self) -> bool {
        match self {
            Self::Iptables { .. }
            | Self::Nft { .. }
            | Self::Sysctl { .. }
            | Self::WriteFile { .. }
            | Self::RemoveFile { .. }
            | Self::RestartUnit { .. }
            | Self::Kube { .. } => true,
            Self::Ipset { .. }
            | Self::Ipvs { .. }
            | Self::Link { .. }
            | Self::Routes { .. }
            | Self::Conntrack { .. }
            | Self::LoadModules { .. }
            | Self::UnloadModules { .. } => false,
        }
    }
}

/// Prints a command with its input as a here-document.
pub(super) fn fed(f: &mut Formatter<'_>, command: &str, input: &str) -> fmt::Result {
    writeln!(f, "{command} <<'EOF'")?;
    f.write_str(input)?;
    if !input.ends_with('\n') {
        writeln!(f)?;
    }
    f.write_str("EOF")
}

/// Prints `parts`, a line each.
pub(super) fn lines<T: Display>(f: &mut Formatter<'_>, parts: &[T]) -> fmt::Result {
    for (at, part) in parts.iter().enumerate() {
        let end = if at == 0 { "" } else { "\n" };
        write!(f, "{end}{part}")?;
    }
    Ok(())
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iptables {
                backend,
                family,
                input,
            } => {
                let program = backend.restore(*family);
                fed(f, &format!("{program} --noflush"), input)
            }
            Self::Nft { input } => fed(f, "nft -f -", input),
            Self::Ipset { input } => fed(f, "ipset restore", input),
            Self::Ipvs { commands } => lines(f, commands),
            Self::Link { commands } => lines(f, commands),
            Self::Routes { commands } => lines(f, commands),
            Self::Sysctl { key, value } => write!(f, "sysctl -w {key}={value}"),
            Self::Conntrack { flows } => lines(f, flows),
            Self::LoadModules { names } => write!(f, "modprobe -a {}", names.join(" ")),
            Self::UnloadModules { names } => write!(f, "rmmod {}", names.join(" ")),
            Self::WriteFile { path, text } => fed(f, &format!("cat > {}", path.display()), text),
            Self::RemoveFile { path } => write!(f, "rm {}", path.display()),
            Self::RestartUnit { unit } => write!(f, "systemctl restart {unit}"),
            Self::Kube { command } => command.fmt(f),
        }
    }
}

impl Display for IpvsCommand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "ipvsadm {}", self.line)
    }
}

impl Display for LinkCommand {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let prefix = |addr: &IpAddr| Family::of(*addr).bits();
        match self {
            Self::AddDummy { name } => write!(f, "ip link add {name} type dummy arp off"),
            Self::Delete { name } => write!(f, "ip link delete {name}"),
            Self::AddAddress { link, addr } => {
                write!(f, "ip addr add {addr}/{} dev {link}", prefix(addr))
            }
            Self::DeleteAddress { link, addr } => {
                write!(f, "ip addr delete {addr}/{} dev {link}", prefix(addr))
            }
        }
    }
}

impl Display for Flow {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "conntrack -D -p {} -s {} -d {} --sport {} --dport {}",
            self.proto,
            self.source.ip(),
            self.destination.ip(),
            self.source.port(),
            self.destination.port()
        )
    }
}
