//! Changes of virtual servers, real servers and addresses, each with its undo.

use std::net::IpAddr;

use super::model::{DUMMY, Key, RealServer, VirtualServer};
use super::print;
use crate::action::{Action, IpvsCommand, IpvsVerb, LinkCommand};
use crate::evidence::ipvs::{Destination, Service};
use crate::net::Family;

/// Commands to IPVS in order, and their undo.
#[derive(Clone, Debug, Default)]
pub struct Edits {
    make: Vec<IpvsCommand>,
    /// In the order of `make`: the undo runs from the end.
    undo: Vec<IpvsCommand>,
}

impl Edits {
    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.make.is_empty()
    }

    /// Returns the change and its undo.
    pub fn actions(mut self) -> (Action, Action) {
        self.undo.reverse();
        let [make, undo] = [self.make, self.undo].map(|commands| Action::Ipvs { commands });
        (make, undo)
    }

    /// Adds `server` with its real servers.
    pub fn add_server(&mut self, server: &VirtualServer) {
        self.make.extend(whole(server));
        self.undo
            .push(command(IpvsVerb::DeleteServer, server, None));
    }

    /// Deletes `server` with its real servers.
    pub fn delete_server(&mut self, server: &VirtualServer) {
        self.make
            .push(command(IpvsVerb::DeleteServer, server, None));
        self.undo.extend(whole(server).into_iter().rev());
    }

    /// Changes `have` to `want`, except its real servers.
    pub fn edit_server(&mut self, have: &VirtualServer, want: &VirtualServer) {
        self.make.push(command(IpvsVerb::EditServer, want, None));
        self.undo.push(command(IpvsVerb::EditServer, have, None));
    }

    /// Adds `real` to `server`.
    pub fn add_real(&mut self, server: &VirtualServer, real: &RealServer) {
        self.make
            .push(command(IpvsVerb::AddReal, server, Some(real)));
        self.undo
            .push(command(IpvsVerb::DeleteReal, server, Some(real)));
    }

    /// Makes `have` of `server` what `want` is.
    pub fn edit_real(&mut self, server: &VirtualServer, have: &RealServer, want: &RealServer) {
        self.make
            .push(command(IpvsVerb::EditReal, server, Some(want)));
        self.undo
            .push(command(IpvsVerb::EditReal, server, Some(have)));
    }

    /// Deletes `real` from `server`, with its connections.
    pub fn delete_real(&mut self, server: &VirtualServer, real: &RealServer) {
        self.remove_real(IpvsVerb::DeleteReal, server, real);
    }

    /// Deletes `real` from `server` unless it has connections.
    pub fn retire_real(&mut self, server: &VirtualServer, real: &RealServer) {
        self.remove_real(IpvsVerb::RetireReal, server, real);
    }

    fn remove_real(&mut self, verb: IpvsVerb, server: &VirtualServer, real: &RealServer) {
        self.make.push(command(verb, server, Some(real)));
        self.undo
            .push(command(IpvsVerb::AddReal, server, Some(real)));
    }
}

fn whole(server: &VirtualServer) -> Vec<IpvsCommand> {
    let reals = server.reals.iter();
    let reals = reals.map(|real| command(IpvsVerb::AddReal, server, Some(real)));
    [command(IpvsVerb::AddServer, server, None)]
        .into_iter()
        .chain(reals)
        .collect()
}

fn command(verb: IpvsVerb, server: &VirtualServer, real: Option<&RealServer>) -> IpvsCommand {
    let key = print::key(server.key);
    let real_line = || real.map(print::real).unwrap_or_default();
    let real_key = || real.map(print::real_key).unwrap_or_default();
    let line = match verb {
        IpvsVerb::AddServer => format!("-A {key} {}", print::options(server)),
        IpvsVerb::EditServer => format!("-E {key} {}", print::options(server)),
        IpvsVerb::DeleteServer => format!("-D {key}"),
        IpvsVerb::AddReal => format!("-a {key} {}", real_line()),
        IpvsVerb::EditReal => format!("-e {key} {}", real_line()),
        IpvsVerb::DeleteReal => format!("-d {key} {}", real_key()),
        IpvsVerb::RetireReal => {
            format!("-d {key} {} # unless it has connections", real_key())
        }
    };
    IpvsCommand {
        verb,
        server: service(server),
        real: real.map(destination),
        line,
    }
}

fn service(server: &VirtualServer) -> Service {
    let (family, named, fwmark) = match server.key {
        Key::Address { proto, addr, port } => (Family::of(addr), Some((proto, addr, port)), None),
        Key::Fwmark { mark, family } => (family, None, Some(mark)),
    };
    Service {
        family,
        protocol: named.map(|(proto, _, _)| proto),
        address: named.map(|(_, addr, _)| addr),
        port: named.map(|(_, _, port)| port),
        fwmark,
        scheduler: server.scheduler.clone(),
        flags: server.flags.0,
        timeout: server.timeout,
        prefix: server.prefix,
        engine: server.engine.clone(),
        stats: None,
        destinations: Vec::new(),
        order: Vec::new(),
    }
}

fn destination(real: &RealServer) -> Destination {
    Destination {
        address: real.addr,
        port: real.port,
        weight: real.weight,
        forwarding: real.forwarding,
        upper: real.upper,
        lower: real.lower,
        active: 0,
        inactive: 0,
        persistent: 0,
        stats: None,
    }
}

/// Returns what adds kube-ipvs0, and its undo.
pub fn add_link() -> (Action, Action) {
    let name = DUMMY.to_owned();
    let add = LinkCommand::AddDummy { name: name.clone() };
    let [add, delete] = [add, LinkCommand::Delete { name }].map(|command| Action::Link {
        commands: vec![command],
    });
    (add, delete)
}

/// Returns the command that deletes kube-ipvs0, which has no addresses any more, and its undo.
pub fn delete_link() -> (Action, Action) {
    let (add, delete) = add_link();
    (delete, add)
}

/// Returns the commands that add `addrs` to kube-ipvs0, and their undo.
pub fn add_addresses(addrs: &[IpAddr]) -> (Action, Action) {
    let link = || DUMMY.to_owned();
    let add = addrs
        .iter()
        .map(|&addr| LinkCommand::AddAddress { link: link(), addr });
    let delete = addrs
        .iter()
        .map(|&addr| LinkCommand::DeleteAddress { link: link(), addr });
    let [add, delete] =
        [add.collect(), delete.rev().collect()].map(|commands: Vec<_>| Action::Link { commands });
    (add, delete)
}

/// Returns the commands that delete `addrs` from kube-ipvs0, and their undo.
pub fn delete_addresses(addrs: &[IpAddr]) -> (Action, Action) {
    let (add, delete) = add_addresses(addrs);
    (delete, add)
}
