//! The headers of packets that a rule's matches imply, and which matches `nft` does not print.
//!
//! `nft` adds a match of the protocol before a match of a field that needs it, and does not print it with the rule.

use super::expr::Payload;
use super::headers::{Field, Header, Layer, transport};
use super::keys::{Key, ct, meta};
use crate::linux::nf_tables::wire::Odd;

/// `NFPROTO_*`.
pub(super) const INET: u8 = 1;
pub(super) const IP: u8 = 2;
pub(super) const IP6: u8 = 10;

/// The state after the matches so far.
#[derive(Debug)]
pub(super) struct Scope {
    pub(super) family: u8,
    /// The header of each layer.
    headers: [Option<Header>; 4],
    /// Type of the ICMP message, 0 if it is not known.
    icmp: u8,
    /// The match on which fields of a layer depend.
    needs: [Option<Need>; 4],
    /// Type of the ICMP message in `needs`.
    needed_icmp: u8,
}

/// A match that names the header that follows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    /// Number of the statement.
    pub(super) statement: usize,
    of: Of,
    number: u128,
}

/// The field that such a match compares.
#[derive(Clone, Copy, Debug)]
enum Of {
    Meta(u32),
    Ct,
    Payload(Header),
}

impl Scope {
    pub(super) fn new(family: u8) -> Self {
        let mut headers = [None; 4];
        match family {
            IP => headers[Layer::Network as usize] = Some(Header::Ip),
            IP6 => headers[Layer::Network as usize] = Some(Header::Ip6),
            _ => headers[Layer::Link as usize] = Some(Header::Inet),
        }
        Self {
            family,
            headers,
            icmp: 0,
            needs: [None; 4],
            needed_icmp: 0,
        }
    }

    pub(super) fn header(&self, layer: Layer) -> Option<Header> {
        self.headers[layer as usize]
    }

    /// Returns whether messages of the known type may have `field`.
    pub(super) fn may_have(&self, field: &Field) -> bool {
        self.icmp == 0
            || field
                .icmp_type
                .is_none_or(|icmp_type| icmp_type == self.icmp)
    }

    /// Marks all matches so far as explicit: the next statement depends on them, so they are printed.
    pub(super) fn keep_all(&mut self) {
        self.needs = [None; 4];
        self.needed_icmp = 0;
    }

    /// Finds the field of a part of a packet.
    pub(super) fn complete(&self, payload: &mut Payload) -> Result<(), Odd> {
        let Some(header) = self.known(payload.layer)? else {
            return Ok(());
        };
        let mut fields = header.fields().iter();
        let found = fields.find(|field| {
            field.offset == payload.offset && field.bits == payload.bits && self.may_have(field)
        });
        if let Some(field) = found {
            payload.field = Some((header, field));
        }
        Ok(())
    }

    /// Returns the header of a layer if its fields are known.
    pub(super) fn known(&self, layer: Layer) -> Result<Option<Header>, Odd> {
        match self.header(layer) {
            Some(Header::Unknown) => Err("a field of a header that is not known".to_owned()),
            Some(Header::Inet) | None => Ok(None),
            header => Ok(header),
        }
    }

    /// Notes a match of a field with `number`.
    pub(super) fn field_is(&mut self, payload: &Payload, number: u128) -> Result<(), Odd> {
        let Some(base) = self.header(payload.layer).filter(|_| payload.names_next) else {
            return Ok(());
        };
        match (base.next(number)?, base) {
            (Some(next), _) => self.headers[next.layer() as usize] = Some(next),
            // Type 0 is the reply to an echo request.
            (None, Header::Icmp) => self.icmp = if number == 0 { 8 } else { octet(number)? },
            (None, Header::Icmp6) => self.icmp = if number == 129 { 128 } else { octet(number)? },
            _ => {}
        }
        Ok(())
    }

    /// Notes a match of a field with a list that begins with `first`, if it is the type of an ICMP message.
    pub(super) fn icmp_first(&mut self, payload: &Payload, first: Option<u128>) {
        let is_icmp = matches!(
            self.header(Layer::Transport),
            Some(Header::Icmp | Header::Icmp6)
        );
        let first = first.and_then(|first| octet(first).ok());
        if let (true, 0, 0, Some(first)) = (is_icmp, self.icmp, payload.offset, first) {
            self.icmp = first;
        }
    }

    /// Notes a match of metadata with `number`.
    pub(super) fn meta_is(&mut self, key: &Key, number: u128) -> Result<(), Odd> {
        let unknown = |header: Option<Header>| Some(header.unwrap_or(Header::Unknown));
        match key.number {
            meta::LINK_TYPE => {
                let header = (number == 1).then_some(Header::Ether);
                self.headers[Layer::Link as usize] = unknown(header);
            }
            meta::NF_PROTO => {
                if self.family != INET {
                    return Err("a table of one family matches the family".to_owned());
                }
                let header = Header::Inet.next(number)?;
                self.headers[Layer::Network as usize] = unknown(header);
            }
            meta::L4_PROTO => {
                self.headers[Layer::Transport as usize] = unknown(transport(number)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Notes a match of a connection's protocol with `number`.
    pub(super) fn ct_is(&mut self, key: &Key, number: u128) -> Result<(), Odd> {
        let base = match key.number {
            ct::L3_PROTO => Layer::Link,
            ct::PROTOCOL => Layer::Network,
            _ => return Ok(()),
        };
        let next = self
            .header(base)
            .map_or(Ok(None), |header| header.next(number))?;
        if let Some(next) = next {
            self.headers[base as usize + 1] = Some(next);
        }
        Ok(())
    }

    /// Notes `statement`, a match of a field that names the next header.
    pub(super) fn need_field(&mut self, payload: &Payload, number: u128, statement: usize) {
        let Some((header, _)) = payload.field.filter(|_| payload.names_next) else {
            return;
        };
        let kind = octet(number).unwrap_or_default();
        let (icmp, echo) = match header {
            Header::Icmp => (if number == 0 { 8 } else { kind }, [8, 8]),
            Header::Icmp6 => (kind, [128, 129]),
            _ => (0, [1, 1]),
        };
        if matches!(header, Header::Icmp | Header::Icmp6) {
            self.needed_icmp = icmp;
        }
        if !echo.contains(&icmp) {
            let of = Of::Payload(header);
            self.need(payload.layer as usize + 1, of, number, statement);
        }
    }

    /// Notes `statement`, a match of metadata that may name a header. Returns a statement that it replaces.
    pub(super) fn need_meta(&mut self, key: &Key, number: u128, statement: usize) -> Option<usize> {
        let base = match key.number {
            meta::PROTOCOL | meta::NF_PROTO => Some(Layer::Link),
            meta::L4_PROTO => Some(Layer::Network),
            meta::LINK_TYPE => None,
            _ => return None,
        };
        let replaced = base.and_then(|base| self.replaced(base, Some(key.number), number));
        let layer = base.map_or(0, |base| base as usize + 1);
        self.need(layer, Of::Meta(key.number), number, statement);
        replaced
    }

    /// Notes `statement`, a match of a connection's protocol. Returns a statement that it replaces.
    pub(super) fn need_ct(&mut self, key: &Key, number: u128, statement: usize) -> Option<usize> {
        let base = match key.number {
            ct::L3_PROTO => Layer::Link,
            ct::PROTOCOL => Layer::Network,
            ct::SOURCE | ct::TARGET => return self.replaced(Layer::Network, None, number),
            _ => return None,
        };
        let replaced = self.replaced(base, None, number);
        self.need(base as usize + 1, Of::Ct, number, statement);
        replaced
    }

    fn need(&mut self, layer: usize, of: Of, number: u128, statement: usize) {
        if let Some(slot) = self.needs.get_mut(layer) {
            *slot = Some(Need {
                statement,
                of,
                number,
            });
        }
    }

    /// Takes the match on which fields of `base` depend, if a match of metadata makes it redundant.
    fn replaced(&mut self, base: Layer, key: Option<u32>, number: u128) -> Option<usize> {
        self.needs[base as usize]?;
        if !self.is_redundant(key, number) {
            return None;
        }
        self.needs[base as usize].take().map(|need| need.statement)
    }

    fn is_redundant(&self, key: Option<u32>, number: u128) -> bool {
        let Some(need) = self.needs[Layer::Network as usize] else {
            return true;
        };
        let network = match need.of {
            Of::Meta(meta::NF_PROTO) => need.number,
            Of::Meta(meta::PROTOCOL) | Of::Payload(Header::Ether) => network(need.number),
            _ => return true,
        };
        match (self.family, key) {
            (IP | IP6, _) => network == u128::from(self.family),
            (_, Some(meta::L4_PROTO)) => {
                matches!((network, number), (2, 1) | (10, 58) | (0, 1 | 58))
            }
            _ => true,
        }
    }

    /// Takes the match on which `payload` depends, if `nft` does not print it.
    pub(super) fn implied(&mut self, payload: &Payload) -> Option<usize> {
        let (header, field) = payload.field?;
        let slot = self.slot(payload.layer)?;
        let need = self.needs[slot]?;
        if self.family == INET
            && let Of::Payload(of) = need.of
        {
            let is_network = matches!(of, Header::Ip | Header::Ip6);
            if is_network && payload.layer == Layer::Transport
                || of.layer() == payload.layer && (payload.names_next || of.layer() == Layer::Link)
            {
                return None;
            }
        }
        if let Of::Payload(of @ (Header::Icmp | Header::Icmp6)) = need.of
            && payload.layer == Layer::Transport
            && (of != header || field.icmp_type != Some(self.needed_icmp))
        {
            return None;
        }
        self.needs[slot].take().map(|need| need.statement)
    }

    /// Takes the match on which fields of `layer` depend.
    pub(super) fn take(&mut self, layer: Layer) -> Option<usize> {
        let slot = self.slot(layer)?;
        self.needs[slot].take().map(|need| need.statement)
    }

    fn slot(&self, layer: Layer) -> Option<usize> {
        let own = layer as usize;
        let inner = (layer == Layer::Transport).then_some(Layer::Inner as usize);
        [Some(own), inner]
            .into_iter()
            .flatten()
            .find(|slot| self.needs[*slot].is_some())
    }

    /// Returns `NFPROTO_*` of the network header, if the matches show it.
    pub(super) fn network(&self) -> Option<u8> {
        let link = self.header(Layer::Link)?;
        match self.header(Layer::Network)? {
            Header::Ip if matches!(link, Header::Inet | Header::Ether) => Some(IP),
            Header::Ip6 if matches!(link, Header::Inet | Header::Ether) => Some(IP6),
            _ => None,
        }
    }
}

fn octet(number: u128) -> Result<u8, Odd> {
    u8::try_from(number).map_err(|_| format!("the type {number} has more than eight bits"))
}

/// Returns `NFPROTO_*` of an Ethernet type, 0 if there is none.
const fn network(ether_type: u128) -> u128 {
    match ether_type {
        0x800 => 2,
        0x86dd => 10,
        _ => 0,
    }
}
