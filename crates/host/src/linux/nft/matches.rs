//! Matches of a rule, as `nft` prints them: one for each compared field, and one for an interval.

use super::expr::{Expr, Payload, prefix, range};
use super::headers::{Header, Layer};
use super::rule::Writer;
use super::types::{Order, Type, flag_list, named, number, value};
use crate::linux::nf_tables::wire::{Octets, Odd, put};

/// A comparison, of which the next one may be the other half.
#[derive(Debug)]
pub(super) struct Previous {
    pub(super) statement: usize,
    op: Op,
    left: String,
    right: Octets,
}

/// The comparison of a register.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Op {
    Equal,
    NotEqual,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

/// The value that a register is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Right {
    Value(Octets),
    Range(Octets, Octets),
    Set(usize),
}

impl Op {
    const fn symbol(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Greater => ">",
            Self::AtLeast => ">=",
        }
    }

    const fn is_equality(self) -> bool {
        matches!(self, Self::Equal | Self::NotEqual)
    }
}

impl Writer<'_> {
    /// Reduces a masked payload to the field that the mask selects; returns the number of bits after it.
    pub(super) fn trim(&self, payload: &mut Payload, mask: Octets) -> Result<Option<u32>, Odd> {
        let Some(header) = self.scope.known(payload.layer)? else {
            return Ok(None);
        };
        let bits = u32::try_from(mask.length * 8).unwrap_or(0);
        let mask = number(mask.get(), Order::Big)?;
        if mask == 0 || bits != payload.bits {
            return Ok(None);
        }
        let behind = mask.trailing_zeros();
        let end = behind + (mask >> behind).trailing_ones();
        let before = bits - end;
        let mut at = payload.offset + before;
        let (mut rest, mut length) = (payload.bits, 0);
        for field in header.fields() {
            if field.offset != at {
                continue;
            }
            if field.bits > rest {
                return Ok(None);
            }
            rest -= field.bits;
            at += field.bits;
            length += field.bits;
            if rest == 0 {
                return Ok(None);
            }
            if behind + length == end {
                *payload = Payload::new(payload.layer, payload.offset + before, length);
                return Ok(Some(behind));
            }
        }
        Ok(None)
    }

    /// Adds a match.
    pub(super) fn relation(&mut self, left: Expr, op: Op, right: Right) -> Result<(), Odd> {
        match left {
            Expr::Payload(payload) => self.field(payload, op, right),
            mut left => {
                self.settle(&mut left, false)?;
                self.value_relation(&left, op, right)
            }
        }
    }

    /// A match of a part of a packet.
    fn field(&mut self, payload: Payload, op: Op, right: Right) -> Result<(), Odd> {
        match right {
            Right::Value(value) if op.is_equality() => {
                let length = u32::try_from(value.length * 8).unwrap_or(0);
                if length != payload.bits {
                    return Err(format!("{} bits are compared with {length}", payload.bits));
                }
                let number = number(value.get(), Order::Big)?;
                self.expand(payload, op, number)
            }
            right => {
                let mut payload = payload;
                if let Right::Set(set) = right
                    && op.is_equality()
                {
                    self.icmp_types(&payload, set);
                }
                self.scope.complete(&mut payload)?;
                let implied = self.scope.implied(&payload);
                self.hide(implied);
                self.compare(&Expr::Payload(payload), op, right)
            }
        }
    }

    /// A match of a part of a packet with `number`, once for each field in it.
    fn expand(&mut self, mut rest: Payload, op: Op, number: u128) -> Result<(), Odd> {
        let header = self.scope.known(rest.layer)?;
        self.previous = None;
        for field in header.map_or(&[][..], Header::fields) {
            if field.offset != rest.offset || !self.scope.may_have(field) {
                continue;
            }
            let header = header.ok_or("a field without a header")?;
            let bits = field.bits.min(rest.bits);
            rest.offset += bits;
            rest.bits -= bits;
            let part = number.checked_shr(rest.bits).unwrap_or(0) & ones(bits);
            let piece = Payload {
                layer: rest.layer,
                offset: field.offset,
                bits: field.bits,
                field: Some((header, field)),
                names_next: header.names_next(field),
            };
            self.piece(piece, op, part, (bits < field.bits).then_some(bits))?;
            if rest.bits == 0 {
                return Ok(());
            }
        }
        let raw = Payload::new(rest.layer, rest.offset, rest.bits);
        self.piece(raw, op, number & ones(rest.bits), None)
    }

    fn piece(
        &mut self,
        piece: Payload,
        op: Op,
        number: u128,
        first_bits: Option<u32>,
    ) -> Result<(), Odd> {
        let is_whole = op == Op::Equal && first_bits.is_none();
        if is_whole {
            self.scope.field_is(&piece, number)?;
        }
        let implied = self.scope.implied(&piece);
        self.hide(implied);
        let start = self.open(op.symbol());
        let left = Expr::Payload(piece);
        left.print(&mut self.text, left.kind(&[]), &[], self.links)?;
        self.text.push_str(", \"right\": ");
        match first_bits {
            None => named(&mut self.text, piece.kind(), number, self.links)?,
            Some(bits) => {
                let number = number << (piece.bits - bits);
                prefix(&mut self.text, piece.kind(), number, bits, self.links)?;
            }
        }
        self.text.push_str("}}");
        let statement = self.push(start);
        if is_whole {
            self.scope.need_field(&piece, number, statement);
        }
        Ok(())
    }

    /// Begins a match; returns the start of its text.
    fn open(&mut self, symbol: &str) -> usize {
        let start = self.text.len();
        put!(
            &mut self.text,
            "{{\"match\": {{\"op\": \"{symbol}\", \"left\": "
        );
        start
    }

    /// A match of anything but a part of a packet.
    fn value_relation(&mut self, left: &Expr, op: Op, right: Right) -> Result<(), Odd> {
        let sets = self.all_sets();
        if let Expr::Bits {
            left: inner,
            op: "&",
            right: mask,
        } = left
            && self.masked(inner, *mask, op, right)?
        {
            return Ok(());
        }
        let (_, order) = left.kind(sets);
        self.compare(left, op, right)?;
        let Right::Value(value) = right else {
            return Ok(());
        };
        if op != Op::Equal {
            return Ok(());
        }
        let statement = self.last();
        match left {
            Expr::Meta(key) if !key.kind.is_string() => {
                let number = number(value.get(), order)?;
                self.scope.meta_is(key, number)?;
                let replaced = self.scope.need_meta(key, number, statement);
                self.hide(replaced);
            }
            Expr::Ct { key, kind, .. } if !kind.is_string() => {
                let number = number(value.get(), order)?;
                self.scope.ct_is(key, number)?;
                let replaced = self.scope.need_ct(key, number, statement);
                self.hide(replaced);
            }
            _ => {}
        }
        Ok(())
    }

    /// A match of masked bits in a form of its own; returns whether there is one.
    fn masked(&mut self, inner: &Expr, mask: Octets, op: Op, right: Right) -> Result<bool, Odd> {
        let sets = self.all_sets();
        let (kind, order) = inner.kind(sets);
        let bits = u32::try_from(mask.length * 8).unwrap_or(0);
        let mask_number = number(mask.get(), order)?;
        if let (Right::Value(value), true, true) = (right, op.is_equality(), kind.is_flags()) {
            let value = number(value.get(), order)?;
            if value == 0 {
                let start = self.open(if op == Op::Equal { "!" } else { "in" });
                inner.print(&mut self.text, (kind, order), sets, self.links)?;
                self.text.push_str(", \"right\": ");
                flag_list(&mut self.text, kind, mask_number, self.links)?;
                self.text.push_str("}}");
                self.push(start);
                self.previous = None;
                return Ok(true);
            }
            if value == mask_number && value.is_power_of_two() {
                return Ok(false);
            }
            let start = self.open(op.symbol());
            self.text.push_str("{\"&\": [");
            inner.print(&mut self.text, (kind, order), sets, self.links)?;
            self.text.push_str(", ");
            flag_list(&mut self.text, kind, mask_number, self.links)?;
            self.text.push_str("]}, \"right\": ");
            flag_list(&mut self.text, kind, value, self.links)?;
            self.text.push_str("}}");
            self.push(start);
            self.previous = None;
            return Ok(true);
        }
        let is_prefix = mask_number == 0
            || mask_number.trailing_zeros()
                + (mask_number >> mask_number.trailing_zeros()).trailing_ones()
                == bits;
        match right {
            Right::Value(value) if kind.has_prefixes() && is_prefix => {
                let start = self.open(op.symbol());
                inner.print(&mut self.text, (kind, order), sets, self.links)?;
                self.text.push_str(", \"right\": ");
                let value = number(value.get(), order)?;
                prefix(
                    &mut self.text,
                    kind,
                    value,
                    mask_number.count_ones(),
                    self.links,
                )?;
                self.text.push_str("}}");
                self.push(start);
                self.previous = None;
                return Ok(true);
            }
            _ => {}
        }
        let Expr::Payload(payload) = inner else {
            return Ok(false);
        };
        let mut payload = *payload;
        let Some(behind) = self.trim(&mut payload, mask)? else {
            return Ok(false);
        };
        match right {
            Right::Value(value) if op.is_equality() => {
                let number = number(value.get(), Order::Big)? >> behind;
                self.expand(payload, op, number)?;
                Ok(true)
            }
            _ => Err("a part of a field is compared".to_owned()),
        }
    }

    /// Adds a match as it is, or together with the one before as a range.
    fn compare(&mut self, left: &Expr, op: Op, right: Right) -> Result<(), Odd> {
        let sets = self.all_sets();
        let typed = left.kind(sets);
        let mut of_left = String::new();
        left.print(&mut of_left, typed, sets, self.links)?;
        let other = self
            .previous
            .take_if(|comparison| comparison.left == of_left);
        let (op, right) = match (other, right) {
            (Some(of), Right::Value(last)) if of.op == Op::AtLeast && op == Op::AtMost => {
                self.hide(Some(of.statement));
                (Op::Equal, Right::Range(of.right, last))
            }
            (Some(of), Right::Value(last)) if of.op == Op::Less && op == Op::Greater => {
                self.hide(Some(of.statement));
                (Op::NotEqual, Right::Range(of.right, last))
            }
            (_, right) => (op, right),
        };
        let start = self.open(op.symbol());
        self.text.push_str(&of_left);
        self.text.push_str(", \"right\": ");
        self.right(left, typed, right)?;
        self.text.push_str("}}");
        let statement = self.push(start);
        self.previous = match right {
            Right::Value(right) => Some(Previous {
                statement,
                op,
                left: of_left,
                right,
            }),
            _ => None,
        };
        Ok(())
    }

    fn right(
        &mut self,
        left: &Expr,
        (kind, order): (Type, Order),
        right: Right,
    ) -> Result<(), Odd> {
        let sets = self.all_sets();
        match right {
            Right::Set(set) => sets[set].print_reference(&mut self.text),
            Right::Range(first, last) => {
                range(&mut self.text, (kind, order), first, last, self.links)?;
            }
            Right::Value(of) => {
                let bits = left.bits(sets);
                let length = u32::try_from(of.length * 8).unwrap_or(0);
                match left {
                    Expr::Payload(_) => {
                        let number = number(of.get(), order)?;
                        named(&mut self.text, kind, number, self.links)?;
                    }
                    Expr::Concat(_) => return Err("a concatenation is compared".to_owned()),
                    _ if bits == length || kind.is_string() && length < bits => {
                        value(&mut self.text, kind, order, of, self.links)?;
                    }
                    _ if length < bits && order == Order::Big => {
                        let number = number(of.get(), order)?
                            .checked_shl(bits - length)
                            .unwrap_or(0);
                        prefix(&mut self.text, kind, number, length, self.links)?;
                    }
                    _ => return Err(format!("{bits} bits are compared with {length}")),
                }
            }
        }
        Ok(())
    }

    /// Notes the type of ICMP messages in a list of types.
    fn icmp_types(&mut self, payload: &Payload, set: usize) {
        let set = &self.all_sets()[set];
        if payload.layer == Layer::Transport && payload.bits == 8 && set.is_anonymous() {
            self.scope.icmp_first(payload, set.first);
        }
    }
}

/// Returns a number of `bits` bits, all 1.
fn ones(bits: u32) -> u128 {
    1u128.checked_shl(bits).map_or(u128::MAX, |above| above - 1)
}
