//! Deletes tracked connections one by one over netlink, or with `conntrack` if the kernel does not support that.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_netfilter::conntrack::{
    ConntrackAttribute, ConntrackMessage, IPTuple, ProtoTuple, Protocol, Tuple,
};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterProtoFamily};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;

use super::super::context::Context;
use super::super::exec;
use kpx_node::action::Flow;
use kpx_node::apply::StepError;
use kpx_node::net::Family;

/// Number of requests sent before their answers are read: these fit the smallest default receive buffer.
const BATCH: usize = 128;

/// Size of an acknowledgement, which quotes the request.
const ANSWER: usize = 32 * 1024;

/// Deletes `flows` in the network namespace. A flow that no longer exists counts as deleted.
pub(super) async fn delete(context: &Arc<Context>, flows: &[Flow]) -> Result<(), StepError> {
    let all = flows.to_vec();
    let by_netlink = context.change(async move |_| Ok(by_netlink(&all))).await?;
    match by_netlink {
        Ok(()) => Ok(()),
        Err((flow, e)) if is_deaf(&e) => {
            let by_tool = by_tool(context, flows).await;
            by_tool.map_err(|error| refused(flow, &format!("over netlink: {e}; {error}")))
        }
        Err((flow, e)) if e.kind() == ErrorKind::PermissionDenied => {
            let what = format!("cannot run `{flow}`: CAP_NET_ADMIN is required; run kpx as root");
            Err(StepError::Denied(what))
        }
        Err((flow, e)) => Err(refused(flow, &e.to_string())),
    }
}

fn refused(flow: Flow, why: &str) -> StepError {
    StepError::Refused(format!("cannot run `{flow}`: {why}"))
}

/// Returns whether the kernel does not support this netlink request, for example because `nf_conntrack_netlink` cannot
/// be loaded.
fn is_deaf(e: &io::Error) -> bool {
    let deaf = [
        Errno::EPROTONOSUPPORT,
        Errno::EAFNOSUPPORT,
        Errno::EOPNOTSUPP,
    ];
    // EINVAL is the answer of an unknown nfnetlink subsystem.
    let unknown = [Errno::EINVAL];
    let errno = e.raw_os_error().map(Errno::from_raw);
    errno.is_some_and(|errno| deaf.contains(&errno) || unknown.contains(&errno))
}

fn by_netlink(flows: &[Flow]) -> Result<(), (Flow, io::Error)> {
    let Some(&first) = flows.first() else {
        return Ok(());
    };
    let mut socket = open().map_err(|e| (first, e))?;
    for batch in flows.chunks(BATCH) {
        delete_batch(&mut socket, batch)?;
    }
    Ok(())
}

fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    Ok(socket)
}

fn delete_batch(socket: &mut Socket, flows: &[Flow]) -> Result<(), (Flow, io::Error)> {
    let Some(&first) = flows.first() else {
        return Ok(());
    };
    let mut bytes = Vec::new();
    for (number, flow) in (0..).zip(flows) {
        bytes.extend(request(number, flow));
    }
    let kernel = SocketAddr::new(0, 0);
    socket.send_to(&bytes, &kernel, 0).map_err(|e| (first, e))?;
    let mut pending = flows.len();
    let mut failed = None;
    let mut buffer = Vec::with_capacity(ANSWER);
    while pending > 0 {
        buffer.clear();
        socket.recv(&mut buffer, 0).map_err(|e| (first, e))?;
        let mut rest = buffer.as_slice();
        while !rest.is_empty() {
            let undecodable = |e: String| (first, io::Error::new(ErrorKind::InvalidData, e));
            let length = NetlinkBuffer::new_checked(rest)
                .map_err(|e| undecodable(e.to_string()))?
                .length() as usize;
            let message = NetlinkMessage::<NetfilterMessage>::deserialize(rest)
                .map_err(|e| undecodable(e.to_string()))?;
            rest = rest
                .get(length.next_multiple_of(4).max(4)..)
                .unwrap_or_default();
            let NetlinkPayload::Error(answer) = message.payload else {
                continue;
            };
            pending -= 1;
            let at = message.header.sequence_number as usize;
            let flow = flows.get(at).copied().unwrap_or(first);
            match answer.raw_code() {
                0 => {}
                code if Errno::from_raw(-code) == Errno::ENOENT => {}
                code => {
                    failed.get_or_insert((flow, io::Error::from_raw_os_error(-code)));
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

fn request(number: u32, flow: &Flow) -> Vec<u8> {
    let family = match Family::of(flow.destination.ip()) {
        Family::V4 => NetfilterProtoFamily::IPv4,
        Family::V6 => NetfilterProtoFamily::IPv6,
    };
    let tuple = vec![
        Tuple::Ip(vec![
            IPTuple::SourceAddress(flow.source.ip()),
            IPTuple::DestinationAddress(flow.destination.ip()),
        ]),
        Tuple::Proto(vec![
            ProtoTuple::Protocol(Protocol::from(flow.proto.number())),
            ProtoTuple::SourcePort(flow.source.port()),
            ProtoTuple::DestinationPort(flow.destination.port()),
        ]),
    ];
    let message = NetfilterMessage::new(
        NetfilterHeader::new(family, 0, 0),
        ConntrackMessage::Delete(vec![ConntrackAttribute::CtaTupleOrig(tuple)]),
    );
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_ACK;
    header.sequence_number = number;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    // Messages are aligned to four bytes.
    let mut bytes = vec![0; message.buffer_len().next_multiple_of(4)];
    message.serialize(&mut bytes);
    bytes
}

/// Deletes `flows` with `conntrack`, one call each because it accepts no list.
async fn by_tool(context: &Arc<Context>, flows: &[Flow]) -> Result<(), StepError> {
    for flow in flows {
        let line = flow.to_string();
        let args = line.split(' ').skip(1).map(str::to_owned).collect();
        match exec::feed(context, "conntrack", args, String::new()).await {
            // The message if nothing matched.
            Err(StepError::Refused(said)) if said.contains("0 flow entries have been deleted") => {}
            done => done?,
        }
    }
    Ok(())
}
