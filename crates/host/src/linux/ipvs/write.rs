//! Runs commands in batches, with an answer to each.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::net::IpAddr;

use nix::errno::Errno;

use super::socket::{Socket, WINDOW};
use super::{GET_DEST, decode, encode};
use kpx_node::action::{IpvsCommand, IpvsVerb};
use kpx_node::apply::StepError;

/// Runs `commands` in the network namespace of the calling thread, in order. An object that already exists is updated,
/// a deleted one that no longer exists is ignored. Stops after the first batch that contains a refused command.
pub(crate) fn write(commands: &[IpvsCommand]) -> Result<(), StepError> {
    let mut socket = Socket::open("IPVS").map_err(|e| match e.raw_os_error() {
        Some(code) if code == Errno::ENOENT as i32 => {
            StepError::Absent("IPVS is not available: the module ip_vs is not loaded".to_owned())
        }
        _ => refusal("cannot open IPVS", &e),
    })?;
    let retires = |command: &IpvsCommand| command.verb == IpvsVerb::RetireReal;
    for part in commands.chunk_by(|a, b| retires(a) == retires(b)) {
        if retires(&part[0]) {
            retire(&mut socket, part)?;
        } else {
            let all: Vec<_> = part.iter().collect();
            send(&mut socket, &all)?;
        }
    }
    Ok(())
}

fn send(socket: &mut Socket, commands: &[&IpvsCommand]) -> Result<(), StepError> {
    for window in commands.chunks(WINDOW) {
        let mut again = Vec::new();
        for (command, error) in failures(socket, window)? {
            match settled(command.verb, &error) {
                Settled::No => return Err(refused(command, &error)),
                Settled::Gone => {}
                Settled::There(verb) => again.push(IpvsCommand {
                    verb,
                    ..command.clone()
                }),
            }
        }
        let again: Vec<_> = again.iter().collect();
        if let Some((command, error)) = failures(socket, &again)?.into_iter().next() {
            return Err(refused(command, &error));
        }
    }
    Ok(())
}

/// Sends `commands` at once and returns those that failed.
fn failures<'c>(
    socket: &mut Socket,
    commands: &[&'c IpvsCommand],
) -> Result<Vec<(&'c IpvsCommand, io::Error)>, StepError> {
    if commands.is_empty() {
        return Ok(Vec::new());
    }
    let requests = commands.iter().map(|command| encode::request(command));
    let answers = socket
        .batch(requests.collect())
        .map_err(|e| refusal("cannot talk to IPVS", &e))?;
    let answers = commands.iter().copied().zip(answers);
    Ok(answers
        .filter_map(|(command, error)| Some((command, error?)))
        .collect())
}

/// Meaning of an error for a command that may have been run before.
enum Settled {
    /// The command failed.
    No,
    /// The deleted object no longer exists.
    Gone,
    /// The added object exists; this command updates it.
    There(IpvsVerb),
}

fn settled(verb: IpvsVerb, error: &io::Error) -> Settled {
    let errno = error.raw_os_error().map(Errno::from_raw);
    match (verb, errno) {
        (IpvsVerb::AddServer, Some(Errno::EEXIST)) => Settled::There(IpvsVerb::EditServer),
        (IpvsVerb::AddReal, Some(Errno::EEXIST)) => Settled::There(IpvsVerb::EditReal),
        (
            IpvsVerb::DeleteServer | IpvsVerb::DeleteReal | IpvsVerb::RetireReal,
            Some(Errno::ESRCH | Errno::ENOENT),
        ) => Settled::Gone,
        _ => Settled::No,
    }
}

/// Deletes the real servers of `commands` that have no connections.
fn retire(socket: &mut Socket, commands: &[IpvsCommand]) -> Result<(), StepError> {
    let mut idle = Vec::new();
    for of_one in commands.chunk_by(|a, b| a.server == b.server) {
        let server = &of_one[0].server;
        let listed = match socket.dump(GET_DEST, &encode::key(server)) {
            Ok(listed) => listed,
            Err(e) if matches!(settled(of_one[0].verb, &e), Settled::Gone) => continue,
            Err(e) => return Err(refused(&of_one[0], &e)),
        };
        let reals = listed
            .iter()
            .filter_map(|message| decode::destination(message, server.family));
        let busy: HashSet<(IpAddr, u16)> = reals
            .filter(|real| real.active + real.inactive > 0)
            .map(|real| (real.address, real.port))
            .collect();
        let ends = |command: &&IpvsCommand| {
            let real = command.real.as_ref();
            real.is_some_and(|real| !busy.contains(&(real.address, real.port)))
        };
        idle.extend(of_one.iter().filter(ends));
    }
    send(socket, &idle)
}

fn refused(command: &IpvsCommand, error: &io::Error) -> StepError {
    let errno = error.raw_os_error().map(Errno::from_raw);
    let scheduler = &command.server.scheduler;
    match (command.verb, errno) {
        // The kernel looks for a scheduler by the name of its module.
        (IpvsVerb::AddServer | IpvsVerb::EditServer, Some(Errno::ENOENT)) => {
            StepError::Absent(format!(
                "`{command}`: scheduler {scheduler} is not available: the kernel cannot load the module ip_vs_{scheduler}"
            ))
        }
        _ => refusal(&format!("`{command}`"), error),
    }
}

fn refusal(what: &str, error: &io::Error) -> StepError {
    let text = format!("{what}: {error}");
    match error.kind() {
        ErrorKind::PermissionDenied => {
            StepError::Denied(format!("{text}; CAP_NET_ADMIN is required"))
        }
        _ => StepError::Refused(text),
    }
}
