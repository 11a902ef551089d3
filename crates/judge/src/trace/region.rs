//! Sets of first packets that meet the same answers.
//!
//! A walk asks about fields of the packet: is the destination in this prefix, is the port this one? Each answer holds for more
//! packets than the one that is walked. Where a walk records them, they bound a region: every packet in it takes the same way.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::net::IpAddr;

use super::packet::{Flow, SentMark};
use kpx_node::net::{Cidr, Family, Mark};

/// A set of values of one field: disjoint ranges in ascending order that do not touch, each with its first and last value.
///
/// Addresses are numbers in network byte order, of 32 or 128 bits.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// Returns the values from `first` to `last`.
    pub fn between(first: u128, last: u128) -> Self {
        Self(vec![(first, last)])
    }

    /// Returns the set of these ranges, which may overlap, in any order.
    pub fn of(mut ranges: Vec<(u128, u128)>) -> Self {
        ranges.sort_unstable();
        let mut all: Vec<(u128, u128)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match all.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => all.push((first, last)),
            }
        }
        Self(all)
    }

    /// Returns the addresses of a prefix.
    pub fn prefix(net: Cidr) -> Self {
        let (first, last) = ends(net);
        Self::between(first, last)
    }

    /// Returns whether the set has no value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ranges.
    pub fn ranges(&self) -> &[(u128, u128)] {
        &self.0
    }

    /// Returns the range that has `value`.
    fn around(&self, value: u128) -> Option<(u128, u128)> {
        let next = self.0.partition_point(|(first, _)| *first <= value);
        let found = self.0[..next].last()?;
        (found.1 >= value).then_some(*found)
    }

    /// Returns whether the set has `value`.
    pub fn contains(&self, value: u128) -> bool {
        self.around(value).is_some()
    }

    /// Returns whether no value lies between the first and the last of `other`.
    fn misses(&self, other: &Self) -> bool {
        let (Some((first, _)), Some((_, last))) = (other.0.first(), other.0.last()) else {
            return true;
        };
        let next = self.0.partition_point(|(_, end)| end < first);
        self.0.get(next).is_none_or(|(start, _)| start > last)
    }

    /// Keeps the values from `first` to `last`.
    pub(crate) fn keep(&mut self, first: u128, last: u128) {
        let begin = self.0.partition_point(|(_, end)| *end < first);
        let end = self.0.partition_point(|(start, _)| *start <= last);
        self.0.truncate(end);
        self.0.drain(..begin.min(end));
        if let Some(range) = self.0.first_mut() {
            range.0 = range.0.max(first);
        }
        if let Some(range) = self.0.last_mut() {
            range.1 = range.1.min(last);
        }
    }

    /// Removes the values from `first` to `last`.
    fn remove(&mut self, first: u128, last: u128) {
        let begin = self.0.partition_point(|(_, end)| *end < first);
        let end = self.0.partition_point(|(start, _)| *start <= last);
        if begin >= end {
            return;
        }
        let (low, high) = (self.0[begin].0, self.0[end - 1].1);
        let below = (low < first).then(|| (low, first - 1));
        let above = (high > last).then(|| (last + 1, high));
        self.0.splice(begin..end, below.into_iter().chain(above));
    }

    /// Keeps the values that `other` has, too.
    pub(crate) fn intersect(&mut self, other: &Self) {
        let (Some(&(first, _)), Some(&(_, last))) = (self.0.first(), self.0.last()) else {
            return;
        };
        let begin = other.0.partition_point(|(_, end)| *end < first);
        let end = other.0.partition_point(|(start, _)| *start <= last);
        if let [(one, two)] = other.0[begin.min(end)..end] {
            self.keep(one, two);
            return;
        }
        let mut both = Vec::new();
        let (mut mine, mut theirs) = (
            self.0.iter().peekable(),
            other.0[begin.min(end)..end].iter().peekable(),
        );
        while let (Some(a), Some(b)) = (mine.peek(), theirs.peek()) {
            let (low, high) = (a.0.max(b.0), a.1.min(b.1));
            if low <= high {
                both.push((low, high));
            }
            if a.1 < b.1 {
                mine.next();
            } else {
                theirs.next();
            }
        }
        self.0 = both;
    }

    /// Removes the values that `other` has.
    pub fn subtract(&mut self, other: &Self) {
        match other.0.as_slice() {
            [] => {}
            [(first, last)] => self.remove(*first, *last),
            _ => self.intersect(&other.complement()),
        }
    }

    /// Returns all values that this does not have.
    #[must_use]
    pub fn complement(&self) -> Self {
        let mut rest = Vec::with_capacity(self.0.len() + 1);
        let mut next = Some(0);
        for &(first, last) in &self.0 {
            if let Some(next) = next.filter(|next| *next < first) {
                rest.push((next, first - 1));
            }
            next = last.checked_add(1);
        }
        rest.extend(next.map(|next| (next, u128::MAX)));
        Self(rest)
    }

    /// Returns whether the set has the number of `addr`.
    pub fn has(&self, addr: IpAddr) -> bool {
        self.contains(addr.number())
    }

    /// Returns the greatest value.
    pub fn last(&self) -> Option<u128> {
        self.0.last().map(|(_, last)| *last)
    }
}

/// Returns the first and last address of `net`, as numbers.
pub(crate) fn ends(net: Cidr) -> (u128, u128) {
    let first = net.normal().addr.number();
    let host = Family::of(net.addr).bits() - net.prefix;
    let rest = 1u128
        .checked_shl(u32::from(host))
        .map_or(u128::MAX, |size| size - 1);
    (first, first | rest)
}

/// Returns the address of `family` with this number.
pub fn address(family: Family, number: u128) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(u32::try_from(number).unwrap_or(u32::MAX).into()),
        Family::V6 => IpAddr::V6(number.into()),
    }
}

/// A field of the first packet.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Field {
    /// The destination address.
    Destination,
    /// The number of the protocol.
    Proto,
    /// The destination port.
    Port,
    /// The source address.
    Source,
    /// The mark.
    Mark,
}

impl Field {
    /// All fields, in the order in which a region is divided by them.
    pub const ALL: [Self; 5] = [
        Self::Destination,
        Self::Proto,
        Self::Port,
        Self::Source,
        Self::Mark,
    ];
}

/// First packets of one entry and family: all whose fields are in these sets.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Region([Ranges; 5]);

impl Region {
    /// Returns the region with these sets, in the order of [`Field::ALL`]. The marks are few.
    pub const fn new(fields: [Ranges; 5]) -> Self {
        Self(fields)
    }

    /// Returns the region of all packets without marks.
    pub fn whole() -> Self {
        let any = || Ranges::between(0, u128::MAX);
        Self([any(), any(), any(), any(), Ranges::between(0, 0)])
    }

    /// Returns the values of `field`.
    pub const fn of(&self, field: Field) -> &Ranges {
        &self.0[field as usize]
    }

    /// Returns the values of `field`, to change them.
    pub const fn of_mut(&mut self, field: Field) -> &mut Ranges {
        &mut self.0[field as usize]
    }

    /// Takes the last `most` ranges of destinations out, if there are more.
    pub(crate) fn split_off(&mut self, most: usize) -> Option<Self> {
        let all = &mut self.of_mut(Field::Destination).0;
        let at = all.len().checked_sub(most).filter(|at| *at > 0)?;
        let taken = Ranges(all.split_off(at));
        let mut other = Self(std::array::from_fn(|field| match field {
            0 => Ranges::default(),
            field => self.0[field].clone(),
        }));
        *other.of_mut(Field::Destination) = taken;
        Some(other)
    }

    /// Returns whether the packet of `flow` is in it, if it enters there. A source that the node chooses is 0.
    pub fn contains(&self, flow: &Flow) -> bool {
        let fields = [
            flow.destination.number(),
            flow.proto.number().into(),
            flow.port.into(),
            flow.source.map_or(0, Coordinate::number),
            flow.mark.into(),
        ];
        let mut fields = self.0.iter().zip(fields);
        fields.all(|(of, value)| of.contains(value))
    }

    /// Returns whether no packet is in it.
    pub fn is_empty(&self) -> bool {
        self.0.iter().any(Ranges::is_empty)
    }
}

/// The questions of a walk about its packet, as the region of all packets with the same answers.
#[derive(Debug)]
pub(crate) struct Seen {
    region: RefCell<Region>,
    /// Whether the packet is a reply, and a rule asked what it answers.
    is_original_asked: Cell<bool>,
}

impl Seen {
    /// Returns a record for packets of `region`.
    pub(crate) const fn new(region: Region) -> Self {
        Self {
            region: RefCell::new(region),
            is_original_asked: Cell::new(false),
        }
    }

    pub(crate) fn region(&self) -> Region {
        self.region.borrow().clone()
    }

    /// Records that a rule asks what a reply answers.
    pub(crate) fn ask_original(&self) {
        self.is_original_asked.set(true);
    }

    /// Returns whether a rule asked what a reply answers.
    pub(crate) const fn is_original_asked(&self) -> bool {
        self.is_original_asked.get()
    }

    /// Keeps the marks that share `bits` with `mark`.
    pub(crate) fn keep_marks(&self, mark: u32, bits: u32) {
        let mut region = self.region.borrow_mut();
        let marks = region.of_mut(Field::Mark);
        if let [(one, same)] = marks.0.as_slice()
            && one == same
        {
            return;
        }
        let all = marks.0.iter().flat_map(|(first, last)| *first..=*last);
        let alike = all.filter(|other| (other ^ u128::from(mark)) & u128::from(bits) == 0);
        *marks = Ranges::of(alike.map(|one| (one, one)).collect());
    }
}

/// Records of the same walk are the same.
impl PartialEq for Seen {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The value of a field that numbers can be compared with.
pub trait Coordinate: Copy + PartialEq {
    /// Returns the number.
    fn number(self) -> u128;
}

impl Coordinate for IpAddr {
    fn number(self) -> u128 {
        match self {
            Self::V4(addr) => u128::from(addr.to_bits()),
            Self::V6(addr) => addr.to_bits(),
        }
    }
}

impl Coordinate for u16 {
    fn number(self) -> u128 {
        u128::from(self)
    }
}

impl Coordinate for u8 {
    fn number(self) -> u128 {
        u128::from(self)
    }
}

/// A value read from a packet. Questions about it are recorded if the packet had it from the beginning.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'p, T> {
    value: T,
    of: Option<(&'p Seen, Field)>,
}

impl<T: fmt::Debug> fmt::Debug for Asked<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value.fmt(f)
    }
}

impl<'p, T: Coordinate> Asked<'p, T> {
    pub(crate) const fn new(value: T, of: Option<(&'p Seen, Field)>) -> Self {
        Self { value, of }
    }

    /// Returns the field about which questions are recorded.
    pub(crate) fn field(self) -> Option<Field> {
        self.of.map(|(_, field)| field)
    }

    /// Returns whether questions are recorded.
    pub(crate) const fn is_recorded(self) -> bool {
        self.of.is_some()
    }

    /// Returns the value for texts, and for what follows from a recorded answer; not for decisions.
    pub(crate) const fn shown(self) -> T {
        self.value
    }

    /// Returns the value; packets with any other value need a walk of their own.
    pub(crate) fn exact(self) -> T {
        self.is(self.value);
        self.value
    }

    pub(crate) fn is(self, value: T) -> bool {
        let is = self.value == value;
        self.note(value.number(), value.number(), is);
        is
    }

    /// Returns whether the value is between `first` and `last`, inclusive.
    pub(crate) fn between(self, first: T, last: T) -> bool {
        self.lies(first.number(), last.number())
    }

    pub(crate) fn lies(self, first: u128, last: u128) -> bool {
        let at = self.value.number();
        let lies = first <= at && at <= last;
        self.note(first, last, lies);
        lies
    }

    /// Returns whether `values` has the value.
    pub(crate) fn within(self, values: &Ranges) -> bool {
        let at = self.value.number();
        let found = values.around(at);
        if let Some((seen, field)) = self.of {
            let mut region = seen.region.borrow_mut();
            let now = region.of_mut(field);
            match (found, now.0.as_slice()) {
                // Most often, an earlier answer says more.
                (Some((first, last)), [(low, high)]) if first <= *low && *high <= last => {}
                (Some(_), _) => now.intersect(values),
                (None, _) if values.misses(now) => {}
                (None, _) => now.intersect(&values.complement()),
            }
        }
        found.is_some()
    }

    fn note(self, first: u128, last: u128, inside: bool) {
        let Some((seen, field)) = self.of else { return };
        let mut region = seen.region.borrow_mut();
        let now = region.of_mut(field);
        if let [(low, high)] = now.0.as_slice()
            && low == high
        {
            return;
        }
        if inside {
            now.keep(first, last);
        } else {
            now.remove(first, last);
        }
    }
}

/// A mark read from a packet. Questions about it are recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AskedMark<'p> {
    pub(super) of: SentMark,
    /// The mark that the packet was sent with, and where questions about it are recorded.
    pub(super) sent: Option<(&'p Seen, u32)>,
}

impl AskedMark<'_> {
    /// Returns the mark `value`, about which no questions are recorded.
    pub(crate) const fn of(value: u32) -> Self {
        Self {
            of: SentMark { value, kept: 0 },
            sent: None,
        }
    }

    /// Returns these bits; packets with other bits need a walk of their own.
    pub(crate) fn bits(self, bits: u32) -> u32 {
        if let Some((seen, sent)) = self.sent {
            seen.keep_marks(sent, bits & self.of.kept);
        }
        self.of.value & bits
    }

    /// Returns the mark; packets that were sent with any other mark need a walk of their own.
    pub(crate) fn exact(self) -> u32 {
        if let Some((seen, sent)) = self.sent {
            seen.keep_marks(sent, u32::MAX);
        }
        self.of.value
    }

    pub(crate) fn matches(self, mark: Mark) -> bool {
        mark.matches(self.bits(mark.mask))
    }
}

impl Asked<'_, IpAddr> {
    pub(crate) fn is_in(self, net: Cidr) -> bool {
        if net.family() != Family::of(self.value) {
            return false;
        }
        let (first, last) = ends(net);
        self.lies(first, last)
    }

    /// Returns whether the address is this one, of the same family.
    pub(crate) fn is_address(self, addr: IpAddr) -> bool {
        self.is_in(Cidr::host(addr))
    }

    /// Returns whether the address is between `first` and `last`, inclusive, and of the same family.
    pub(crate) fn is_between(self, first: IpAddr, last: IpAddr) -> bool {
        Family::of(first) == Family::of(self.value) && self.between(first, last)
    }

    pub(crate) fn is_loopback(self) -> bool {
        self.is_in(Family::of(self.value).loopback())
    }

    pub(crate) fn is_multicast(self) -> bool {
        self.is_in(match self.value {
            IpAddr::V4(_) => Cidr {
                addr: IpAddr::from([224, 0, 0, 0]),
                prefix: 4,
            },
            IpAddr::V6(_) => Cidr {
                addr: IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]),
                prefix: 8,
            },
        })
    }

    pub(crate) fn is_unspecified(self) -> bool {
        self.is_in(Cidr::host(match self.value {
            IpAddr::V4(_) => IpAddr::from([0, 0, 0, 0]),
            IpAddr::V6(_) => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
        }))
    }

    /// Returns whether the address is 255.255.255.255.
    pub(crate) fn is_broadcast(self) -> bool {
        self.is_in(Cidr::host(IpAddr::from([255, 255, 255, 255])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_keeps_the_values_that_share_it() {
        const VALUES: u128 = 5;
        let set = |bits: u128| Ranges::of(bit_numbers(bits).map(|at| (at, at)).collect());
        for (now, values) in
            (1..1 << VALUES).flat_map(|now| (0..1 << VALUES).map(move |values| (now, values)))
        {
            for at in bit_numbers(now) {
                let seen = Seen::new(Region::default());
                *seen.region.borrow_mut().of_mut(Field::Port) = set(now);
                let asked = Asked::new(u16::try_from(at).unwrap(), Some((&seen, Field::Port)));
                let found = asked.within(&set(values));
                assert_eq!(found, values & (1 << at) != 0);
                let share = if found { values } else { !values };
                assert_eq!(
                    seen.region().of(Field::Port),
                    &set(now & share),
                    "{now:b} {values:b} {at}"
                );
            }
        }
    }

    /// Returns the bits that are set.
    fn bit_numbers(bits: u128) -> impl Iterator<Item = u128> {
        (0..128).filter(move |at| bits & (1 << at) != 0)
    }
}
