//! Rules: expressions of `nf_tables` become matches and statements as `nft -j` prints them.

use std::ops::Range;

use super::expr::Expr;
use super::matches::Previous;
use super::scope::Scope;
use super::sets::{Set, Sets};
use super::types::LinkNames;
use crate::linux::netlink::attributes;
use crate::linux::nf_tables::wire::{Odd, expression};

/// Writes the rules of a table.
pub(super) struct Writer<'t> {
    pub(super) sets: &'t Sets,
    pub(super) links: &'t mut dyn LinkNames,
    pub(super) scope: Scope,
    registers: [Option<Expr>; 16],
    /// Text of all statements.
    pub(super) text: String,
    statements: Vec<Statement>,
    pub(super) previous: Option<Previous>,
}

#[derive(Debug)]
struct Statement {
    text: Range<usize>,
    is_printed: bool,
}

impl<'t> Writer<'t> {
    pub(super) fn new(family: u8, sets: &'t Sets, links: &'t mut dyn LinkNames) -> Self {
        Self {
            sets,
            links,
            scope: Scope::new(family),
            registers: [const { None }; 16],
            text: String::new(),
            statements: Vec::new(),
            previous: None,
        }
    }

    /// Appends the list of statements of a rule with the list `expressions`, with `key` before it if there are any.
    pub(super) fn write(
        &mut self,
        to: &mut String,
        key: &str,
        expressions: &[u8],
    ) -> Result<(), Odd> {
        self.scope = Scope::new(self.scope.family);
        self.registers = [const { None }; 16];
        self.text.clear();
        self.statements.clear();
        self.previous = None;
        for element in attributes(expressions) {
            let (_, element) = element?;
            let (name, data) = expression(element)?;
            self.expression(name, data)?;
        }
        let mut separator = key;
        for statement in self
            .statements
            .iter()
            .filter(|statement| statement.is_printed)
        {
            to.push_str(separator);
            to.push_str(&self.text[statement.text.clone()]);
            separator = ", ";
        }
        if separator != key {
            to.push(']');
        }
        Ok(())
    }

    pub(super) fn all_sets(&self) -> &'t [Set] {
        &self.sets.all
    }

    /// Returns what is in the register `at`.
    pub(super) fn loaded(&self, at: usize) -> Result<Expr, Odd> {
        let loaded = self.registers.get(at).cloned().flatten();
        loaded.ok_or_else(|| "a register is empty".to_owned())
    }

    pub(super) fn load(&mut self, at: usize, expr: Expr) -> Result<(), Odd> {
        let slot = self
            .registers
            .get_mut(at)
            .ok_or("a register does not exist")?;
        *slot = Some(expr);
        Ok(())
    }

    /// Returns the contents of the registers from `at`, which have `bits` together.
    pub(super) fn loaded_bits(&self, at: usize, bits: u32) -> Result<Expr, Odd> {
        let sets = self.all_sets();
        let first = self.loaded(at)?;
        let length = first.bits(sets);
        if length == bits || length == 0 {
            return Ok(first);
        }
        let (mut parts, mut used) = (Vec::new(), 0);
        while used < bits {
            let part = self.loaded(at + used as usize / 32)?;
            let length = part.bits(sets);
            if length == 0 {
                return Err("a part of a concatenation has no size".to_owned());
            }
            used += length.next_multiple_of(32);
            parts.push(part);
        }
        if used != bits || parts.len() == 1 {
            return Err("a concatenation has another size than its parts".to_owned());
        }
        Ok(Expr::Concat(parts))
    }

    /// Adds the statement whose text begins at `start`; returns its number.
    pub(super) fn push(&mut self, start: usize) -> usize {
        self.statements.push(Statement {
            text: start..self.text.len(),
            is_printed: true,
        });
        self.statements.len() - 1
    }

    /// Adds a statement that has an effect, and is no match.
    pub(super) fn push_effect(&mut self, start: usize) {
        self.push(start);
        self.previous = None;
        self.scope.keep_all();
    }

    /// Adds a map of verdicts, which is no effect to `nft`.
    pub(super) fn push_map(&mut self, start: usize) {
        self.push(start);
        self.previous = None;
    }

    /// Returns the number of the last statement.
    pub(super) fn last(&self) -> usize {
        self.statements.len().saturating_sub(1)
    }

    /// Leaves a statement out.
    pub(super) fn hide(&mut self, statement: Option<usize>) {
        let Some(statement) = statement else {
            return;
        };
        self.statements[statement].is_printed = false;
        if self
            .previous
            .as_ref()
            .is_some_and(|comparison| comparison.statement == statement)
        {
            self.previous = None;
        }
    }

    /// Finds fields, and omits matches that they imply. `is_within`: whether it is part of a concatenation or a set's
    /// element.
    pub(super) fn settle(&mut self, expr: &mut Expr, is_within: bool) -> Result<(), Odd> {
        match expr {
            Expr::Payload(payload) => {
                self.scope.complete(payload)?;
                let implied = self.scope.implied(payload);
                self.hide(implied);
            }
            Expr::Swapped(arg) => self.settle(arg, is_within)?,
            Expr::Bits { left, op, right } => {
                self.settle(left, is_within)?;
                if let (Expr::Payload(payload), "&", true) = (&mut **left, *op, is_within) {
                    let mut payload = *payload;
                    if self.trim(&mut payload, *right)?.is_some() {
                        let mut trimmed = Expr::Payload(payload);
                        self.settle(&mut trimmed, is_within)?;
                        *expr = trimmed;
                    }
                }
            }
            Expr::Concat(parts) => {
                for part in parts {
                    self.settle(part, true)?;
                }
            }
            Expr::Map { key, map } => {
                if let Expr::Bits {
                    left,
                    op: "&",
                    right,
                } = &mut **key
                    && let Expr::Payload(payload) = **left
                {
                    let (mut payload, mask) = (payload, *right);
                    match self.trim(&mut payload, mask)? {
                        Some(_) if self.all_sets()[*map].is_anonymous() => {
                            return Err("a part of a field is looked up".to_owned());
                        }
                        Some(_) => **key = Expr::Payload(payload),
                        None => {}
                    }
                }
                self.settle(key, is_within)?;
            }
            Expr::Hash { of: Some(of), .. } => self.settle(of, is_within)?,
            Expr::Ct { key, kind, .. } => *kind = self.ct_kind(key)?,
            _ => {}
        }
        Ok(())
    }
}
