//! Traces in the tables of iptables' legacy back end: the kernel passes them to the logger of the family, as
//! `TRACE: table:chain:type:number`. One logger sends them to a program, the other writes them to the kernel's log.
//!
//! The mark that kpx's own table of nftables sets on a packet counts there, too, so nothing is added to those tables. kpx
//! only listens: a logger is a setting, which would stay when kpx dies.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use netlink_sys::Socket;
use nix::errno::Errno;

use super::table::number;
use super::{ITEM, decode, failed, kernel_log, named, send};
use crate::linux::context::{self, Context};
use crate::linux::netlink::{HEADERS, append, message};
use crate::linux::nf_tables::Chain;
use crate::linux::{iptables, xtables};
use kpx_node::evidence::traced::{About, ChainName, Event, InLegacy, LEGACY, Ruling, Traced};
use kpx_node::evidence::{Gap, Item};
use kpx_node::net::Family;

/// `NFULNL_MSG_PACKET` and `NFULNL_MSG_CONFIG` of `NFNL_SUBSYS_ULOG`.
pub(super) const LOGGED: u16 = 4 << 8;
const CONFIGURE: u16 = 4 << 8 | 1;

/// Group of the log to which the kernel passes traces.
const GROUP: u16 = 0;

/// Tries in addition to the first to receive it, and the pause before each.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);

/// Bytes of a packet that are needed.
const LENGTH: u32 = 128;

/// `NLM_F_REQUEST | NLM_F_ACK`.
const REQUEST: u16 = 0x5;

/// Tables of the legacy back end while packets are traced.
#[derive(Debug)]
pub(super) struct Legacy {
    family: Family,
    /// Names of the tables.
    tables: String,
    chains: Vec<(Chain, Vec<Ruling>)>,
    state: InLegacy,
    /// The kernel's log, if it has the traces, and its contents so far.
    log: Option<File>,
    logged: Vec<Event>,
    /// The kernel's numbers of the packets that it traces, by their sources: its log has no numbers.
    packets: HashMap<SocketAddr, u32>,
}

impl Legacy {
    /// Asks the kernel to send the traces of `family` to `socket`, in their order among the other messages, or opens its log.
    /// `everywhere` is the value of [`all_namespaces`] outside the node's network namespace.
    pub(super) fn listen(
        context: &Context,
        family: Family,
        socket: &Socket,
        everywhere: Result<String, Gap>,
    ) -> Result<Self, Gap> {
        let mut legacy = Self {
            family,
            tables: iptables::legacy_tables(ITEM, context, family)?,
            chains: Vec::new(),
            state: InLegacy::NoTables,
            log: None,
            logged: Vec::new(),
            packets: HashMap::new(),
        };
        if !legacy.tables.is_empty() {
            let begun = legacy.begin(context, socket, everywhere);
            legacy.state = begun.map_or_else(InLegacy::Unknown, |()| InLegacy::Traced);
        }
        Ok(legacy)
    }

    fn begin(
        &mut self,
        context: &Context,
        socket: &Socket,
        everywhere: Result<String, Gap>,
    ) -> Result<(), Gap> {
        let setting = format!("nf_log/{}", number(self.family.nft_name()));
        let logger = setting_of(ITEM, context, &setting)?;
        let instead = |why: &str| {
            let setting = format!("net.netfilter.{}", setting.replace('/', "."));
            let why = format!(
                "the kernel's logger is {logger}{why}; `sysctl -w {setting}=nfnetlink_log` makes it one that kpx can receive from"
            );
            Err(Gap::Failed(ITEM, why))
        };
        match logger.as_str() {
            "nfnetlink_log" => receive(socket)?,
            "nf_log_ipv4" | "nf_log_ipv6" => {
                // Only the initial network namespace has the setting.
                let is_initial = all_namespaces(ITEM, context)? != "NONE";
                if !is_initial && everywhere? != "1" {
                    return instead(", which skips the packets of this network namespace");
                }
                let log = kernel_log::open(&context.path("dev/kmsg"));
                self.log = Some(log.map_err(|e| failed("/dev/kmsg", &e))?);
            }
            _ => return instead(""),
        }
        self.chains = xtables::legacy::rulings(ITEM, self.family, &self.tables)?;
        Ok(())
    }

    /// Adds the chains to `traced`, with the numbers of their rules.
    pub(super) fn describe(&self, traced: &mut Traced) {
        traced.legacy = self.state.clone();
        for (chain, rulings) in &self.chains {
            let (name, base) = named(chain.clone());
            let rules = 1..rulings.len() as u64;
            traced.rules.insert(name.clone(), rules.collect());
            traced.chains.insert(name, base);
        }
    }

    /// Notes the packet of an event of nftables.
    pub(super) fn note(&mut self, event: &Event) {
        if let Some(headers) = event.headers {
            self.packets.insert(headers.source, event.packet);
        }
    }

    /// Reads new records of the kernel's log; returns whether there were any, and whether some were lost.
    pub(super) fn read_log(&mut self) -> Result<(bool, bool), Gap> {
        let Some(log) = &self.log else {
            return Ok((false, false));
        };
        let (lines, lost) = kernel_log::read(log).map_err(|e| failed("/dev/kmsg", &e))?;
        let is_new = !lines.is_empty();
        for line in lines {
            let Some((chain, number)) = parse(&line.place) else {
                continue;
            };
            let (about, verdict) = self.entry(&chain, number);
            self.logged.push(Event {
                packet: 0,
                chain,
                about,
                verdict,
                headers: Some(line.headers),
                input: None,
                output: None,
            });
        }
        Ok((is_new, lost))
    }

    /// Returns the received events, with the events of the kernel's log.
    pub(super) fn events(&self, heard: &[Event], traced: &Traced) -> Vec<Event> {
        kernel_log::merge(heard, &self.logged, &traced.chains)
    }

    /// Decodes a message of the log; `None` if it is about no packet that kpx traces.
    pub(super) fn event(&self, message: &[u8]) -> Result<Option<Event>, String> {
        let body = message.get(HEADERS..).ok_or("it has no header")?;
        let (mut prefix, mut packet) = (String::new(), Vec::new());
        let (mut input, mut output) = (None, None);
        for attribute in decode::attributes(body) {
            match attribute? {
                (4, value) => input = Some(decode::word(&value)?),
                (5, value) => output = Some(decode::word(&value)?),
                (9, value) => packet = value,
                (10, value) => prefix = decode::text(&value)?,
                _ => {}
            }
        }
        let Some(place) = prefix.strip_prefix("TRACE: ") else {
            return Ok(None);
        };
        let headers = packet.first().and_then(|first| {
            let length = match first >> 4 {
                4 => usize::from(first & 0xf) * 4,
                _ => 40,
            };
            decode::headers(&packet, packet.get(length..))
        });
        let number = headers.and_then(|headers| self.packets.get(&headers.source));
        let Some(packet) = number else {
            return Ok(None);
        };
        let (chain, number) = parse(place).ok_or_else(|| format!("{place:?} is no place"))?;
        let (about, verdict) = self.entry(&chain, number);
        Ok(Some(Event {
            packet: *packet,
            chain,
            about,
            verdict,
            headers,
            input,
            output,
        }))
    }

    /// Returns the rule with the kernel's `number` in a chain, and its effect.
    fn entry(&self, at: &ChainName, number: usize) -> (About, Ruling) {
        let is_it = |(chain, _): &&(Chain, _)| chain.table == at.table && chain.name == at.chain;
        let found = self.chains.iter().find(is_it);
        let entry = found.and_then(|(chain, rulings)| {
            let ruling = rulings.get(number.checked_sub(1)?)?.clone();
            let about = match (&chain.base, number == rulings.len()) {
                (_, false) => About::Rule(number as u64),
                (Some(_), true) => About::Policy,
                (None, true) => About::End,
            };
            Some((about, ruling))
        });
        // A rule that is new.
        entry.unwrap_or((About::Rule(number as u64), Ruling::Continue))
    }

    /// Returns whether the chains have changed since tracing began. Blocks.
    pub(super) fn has_changed(&self) -> Result<bool, Gap> {
        if self.state != InLegacy::Traced {
            return Ok(false);
        }
        let now = xtables::legacy::rulings(ITEM, self.family, &self.tables)?;
        Ok(now != self.chains)
    }
}

/// Reads whether the kernel writes packets of all network namespaces to its log.
pub(super) fn all_namespaces(item: Item, context: &Context) -> Result<String, Gap> {
    setting_of(item, context, "nf_log_all_netns")
}

/// Reads a setting of the current thread's network namespace; `NONE` if the kernel does not have it.
fn setting_of(item: Item, context: &Context, name: &str) -> Result<String, Gap> {
    let path = context.path("proc/sys/net/netfilter").join(name);
    match fs::read_to_string(&path) {
        Ok(value) => Ok(value.trim().to_owned()),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok("NONE".to_owned()),
        Err(e) => Err(context::gap(item, path.display(), &e)),
    }
}

/// Asks the kernel to send the messages of [`GROUP`] to `socket`, each at once.
fn receive(socket: &Socket) -> Result<(), Gap> {
    let mut command = Vec::new();
    // NFULNL_CFG_CMD_BIND
    append(&mut command, 1, &[1]);
    let mut mode = Vec::new();
    let mut packets = LENGTH.to_be_bytes().to_vec();
    // NFULNL_COPY_PACKET
    packets.extend([2, 0]);
    append(&mut mode, 2, &packets);
    // NFULA_CFG_QTHRESH
    append(&mut mode, 5, &1u32.to_be_bytes());
    let bind = message(CONFIGURE, REQUEST, 1, (0, GROUP), &command);
    let is_taken = |e: &io::Error| {
        let errno = e.raw_os_error().map(Errno::from_raw);
        matches!(errno, Some(Errno::EBUSY | Errno::EPERM))
    };
    // A child process has the socket of an earlier trace until it executes its tool.
    let mut bound = send(socket, &bind, 1);
    for _ in 0..TRIES {
        match &bound {
            Err(e) if is_taken(e) => thread::sleep(PAUSE),
            _ => break,
        }
        bound = send(socket, &bind, 1);
    }
    let mode = message(CONFIGURE, REQUEST, 2, (0, GROUP), &mode);
    bound.and_then(|()| send(socket, &mode, 2)).map_err(|e| {
        if is_taken(&e) {
            let why = "another program receives group 0 of the kernel's log: see /proc/net/netfilter/nfnetlink_log";
            Gap::Failed(ITEM, why.to_owned())
        } else {
            failed("the kernel's log", &e)
        }
    })
}

/// Parses `nat:KUBE-SERVICES:rule:7`.
pub(super) fn parse(place: &str) -> Option<(ChainName, usize)> {
    let (table, rest) = place.split_once(':')?;
    let (rest, number) = rest.trim_end().rsplit_once(':')?;
    let (chain, _) = rest.rsplit_once(':')?;
    let chain = ChainName {
        family: LEGACY,
        table: table.to_owned(),
        chain: chain.to_owned(),
    };
    Some((chain, number.parse().ok()?))
}
