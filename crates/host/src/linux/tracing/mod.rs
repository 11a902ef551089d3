//! Lets the kernel trace packets of one flow, and receives its messages about them.

mod decode;
mod kernel_log;
mod legacy;
mod table;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join;
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, poll};
use tokio::sync::oneshot;

use self::legacy::Legacy;
use super::context::{self, Context};
use super::{Options, netlink, nf_tables};
use kpx_node::evidence::traced::{Base, ChainName, LEGACY, Traced, Wanted};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;

/// The objects that the errors name.
const ITEM: Item = Item::Nft;
const WHAT: &str = "the kernel's packet traces";

/// `NFNLGRP_NFTRACE`.
const GROUP: u32 = 9;
/// `NFT_MSG_TRACE` of `NFNL_SUBSYS_NFTABLES`.
const TRACE: u16 = 0x0a11;
/// `NFT_MSG_NEWGEN`.
const GENERATION: u16 = 0x0a0f;
const ERROR: u16 = 2;
const NOT_SUPPORTED: i32 = Errno::EOPNOTSUPP as i32;

/// How long a receive waits, in ms.
const MOMENT: u8 = 50;
/// Most messages that are kept.
const MOST: usize = 20_000;
/// Receive buffer in bytes.
const BUFFER: usize = 4 << 20;

/// Traces packets until `is_enough` returns true, but no longer than `limit`; it gets all messages and the time since
/// the last one. Once packets are traced, runs `meanwhile`.
///
/// # Errors
///
/// The kernel has no tables with an owner, or root privileges are missing.
pub async fn trace_packets<T>(
    options: &Options,
    wanted: Wanted,
    limit: Duration,
    is_enough: impl Fn(&Traced, Duration) -> bool + Send + 'static,
    meanwhile: impl Future<Output = T>,
) -> Result<(Traced, Option<T>), Gap> {
    let context = Context::new(options);
    let (ready, is_ready) = oneshot::channel();
    // Not inside the namespace: a thread starts in the namespace of its parent.
    let everywhere = context.look_apart(ITEM, legacy::all_namespaces).await;
    let work = async move |context: Arc<Context>| {
        let own = format!("kpx-trace-{}", std::process::id());
        let events = listen().map_err(|e| failed("listening", &e))?;
        let family = Family::of(wanted.destination.ip());
        let mut legacy = Legacy::listen(&context, family, &events, everywhere)?;
        let owner = open().map_err(|e| failed("opening", &e))?;
        let batch = table::create(&own, &wanted);
        send(&owner, &batch.bytes, batch.last).map_err(|e| match e.raw_os_error() {
            Some(NOT_SUPPORTED) => Gap::Failed(
                ITEM,
                "cannot trace packets: the kernel has no tables that go away with their owner (Linux 5.12)"
                    .to_owned(),
            ),
            _ => failed("tracing", &e),
        })?;
        let before = generation()?;
        let mut traced = Traced {
            chains: nf_tables::chains(ITEM)?.into_iter().map(named).collect(),
            own,
            ..Traced::default()
        };
        legacy.describe(&mut traced);
        // The caller may have given up.
        ready.send(()).ok();
        let begin = Instant::now();
        let mut last = begin;
        let mut heard = Vec::new();
        while begin.elapsed() < limit && !is_enough(&traced, last.elapsed()) {
            match receive(&events) {
                Ok(None) => {
                    let (is_new, overwritten) = legacy.read_log()?;
                    if is_new {
                        last = Instant::now();
                    }
                    traced.lost |= overwritten;
                    traced.events = legacy.events(&heard, &traced);
                }
                Ok(Some(bytes)) => {
                    last = Instant::now();
                    for message in messages(&bytes) {
                        match kind(message) {
                            TRACE => {
                                let event = decoded(decode::event(message))?;
                                legacy.note(&event);
                                heard.push(event);
                            }
                            legacy::LOGGED => {
                                let event = decoded(legacy.event(message))?;
                                heard.extend(event);
                            }
                            _ => {}
                        }
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.raw_os_error() == Some(Errno::ENOBUFS as i32) => traced.lost = true,
                Err(e) => return Err(failed("receiving", &e)),
            }
            if heard.len() > MOST {
                traced.lost = true;
                break;
            }
            tokio::task::yield_now().await;
        }
        traced.lost |= legacy.read_log()?.1;
        traced.events = legacy.events(&heard, &traced);
        let chains: BTreeSet<_> = traced.events.iter().map(|event| &event.chain).collect();
        let foreign = |chain: &&ChainName| chain.table != traced.own && chain.family != LEGACY;
        let chains = chains.into_iter().filter(foreign);
        let rules = chains.map(|chain| Ok((chain.clone(), handles(chain)?)));
        let rules: Vec<_> = rules.collect::<Result<_, Gap>>()?;
        traced.rules.extend(rules);
        let batch = table::remove(&traced.own, &wanted);
        send(&owner, &batch.bytes, batch.last).map_err(|e| failed("ending", &e))?;
        traced.generation = generation()?;
        traced.changed = traced.generation != before.wrapping_add(1) || legacy.has_changed()?;
        Ok(traced)
    };
    let total = limit + options.timeout;
    let tracing = context.inside_for(total, ITEM, "the trace", work);
    let meanwhile = async {
        match is_ready.await {
            Ok(()) => Some(meanwhile.await),
            Err(_) => None,
        }
    };
    let (traced, done) = join(tracing, meanwhile).await;
    Ok((traced?, done))
}

/// Returns the generation of nftables' rules: a number that changes with them.
pub async fn nft_generation(options: &Options) -> Result<u32, Gap> {
    let work = async move |_| generation();
    Context::new(options).inside(ITEM, work).await
}

fn failed(what: &str, error: &io::Error) -> Gap {
    context::gap(ITEM, format!("{WHAT} ({what})"), error)
}

/// Returns the name of a chain, and where it begins, if it does.
fn named(chain: nf_tables::Chain) -> (ChainName, Option<Base>) {
    let name = ChainName {
        family: chain.family,
        table: chain.table,
        chain: chain.name,
    };
    let base = chain.base.map(|base| Base {
        hook: base.hook,
        priority: base.priority,
    });
    (name, base)
}

fn decoded<T>(found: Result<T, String>) -> Result<T, Gap> {
    found.map_err(|why| Gap::Failed(ITEM, format!("cannot decode one of {WHAT}: {why}")))
}

fn listen() -> io::Result<Socket> {
    let socket = open()?;
    socket.add_membership(GROUP)?;
    // The kernel gives as much of it as it allows.
    socket.set_rx_buf_sz(BUFFER)?;
    Ok(socket)
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    Ok(socket)
}

/// Receives a datagram; `None` if there is none for a moment.
fn receive(socket: &Socket) -> io::Result<Option<Vec<u8>>> {
    let mut waiting = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    if poll(&mut waiting, MOMENT)? == 0 {
        return Ok(None);
    }
    let mut buffer = Vec::with_capacity(64 * 1024);
    socket.recv(&mut buffer, 0)?;
    Ok(Some(buffer))
}

/// Returns the messages in a datagram, with their headers.
fn messages(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*rest.first_chunk::<4>()?) as usize;
        let message = rest.get(..length).filter(|message| message.len() >= 16)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// Returns the type of a message.
fn kind(message: &[u8]) -> u16 {
    u16::from_ne_bytes([message[4], message[5]])
}

/// Sends requests and waits for the answer to the one with the sequence number `last`.
fn send(socket: &Socket, requests: &[u8], last: u32) -> io::Result<()> {
    socket.send_to(requests, &SocketAddr::new(0, 0), 0)?;
    loop {
        let bytes = receive(socket)?.unwrap_or_default();
        for message in messages(&bytes).filter(|message| kind(message) == ERROR) {
            match number(message, 16).map(u32::cast_signed) {
                Some(0) if number(message, 8) == Some(last) => return Ok(()),
                Some(0) => {}
                code => {
                    let code = code.unwrap_or(Errno::EBADMSG as i32);
                    return Err(io::Error::from_raw_os_error(code.saturating_abs()));
                }
            }
        }
    }
}

/// Returns the number at byte `at`, which is not in the order of the network.
fn number(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

/// Returns the handles of the rules of `chain`, in order; empty for a chain that is gone. Blocks.
fn handles(chain: &ChainName) -> Result<Vec<u64>, Gap> {
    let asks = |sequence| table::list_rules(chain, sequence);
    netlink::stream(
        ITEM,
        NETLINK_NETFILTER,
        asks,
        |all: &mut Vec<u64>, answer| {
            let undecodable = |why| Gap::Failed(ITEM, format!("cannot decode a rule: {why}"));
            all.push(decode::handle(answer).map_err(undecodable)?);
            Ok(())
        },
    )
}

/// Reads the generation of the rules. Blocks.
fn generation() -> Result<u32, Gap> {
    let asked = || -> io::Result<Option<u32>> {
        let socket = open()?;
        socket.send_to(&table::get_generation(), &SocketAddr::new(0, 0), 0)?;
        let answer = receive(&socket)?.unwrap_or_default();
        let mut all = messages(&answer).filter(|message| kind(message) == GENERATION);
        Ok(all.find_map(decode::generation))
    };
    let number = asked().map_err(|e| failed("the generation of the rules", &e))?;
    number.ok_or_else(|| {
        Gap::Failed(
            ITEM,
            "the kernel did not tell the generation of its rules".to_owned(),
        )
    })
}

/// Decodes any messages about traced packets and any records of the kernel's log, for the fuzzer.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    for (_, message) in netlink::messages(bytes) {
        decode::event(message).ok();
        decode::handle(message).ok();
        decode::generation(message);
    }
    kernel_log::parse(&String::from_utf8_lossy(bytes)).map(|line| legacy::parse(&line.place));
}
