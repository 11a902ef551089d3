//! The text of one item, shared by all copies of the evidence, with its parsed form.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::Gap;

/// The text of one item.
pub(super) struct Text {
    text: String,
    /// The parsed form. The nodes of a cluster share the cluster's objects, so these are parsed once.
    parsed: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
}

impl Text {
    pub(super) const fn new(text: String) -> Self {
        Self {
            text,
            parsed: Mutex::new(None),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the result of `parse`, which runs once per text and type.
    pub(super) fn parsed<T: Any + Send + Sync>(
        &self,
        parse: impl FnOnce() -> Result<T, Gap>,
    ) -> Result<Arc<T>, Gap> {
        // A parser that panicked has stored nothing.
        let mut kept = self.parsed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = &*kept
            && let Ok(value) = Arc::clone(value).downcast()
        {
            return Ok(value);
        }
        let value = Arc::new(parse()?);
        *kept = Some(Arc::<T>::clone(&value));
        Ok(value)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::evidence::{Evidence, Item};

    #[test]
    fn copies_of_a_text_are_parsed_once() {
        let mut evidence = Evidence::default();
        evidence.insert(Item::Sysctl, Ok("5".to_owned()));
        let copy = evidence.clone();
        let runs = Cell::new(0);
        let parse = || {
            runs.set(runs.get() + 1);
            Ok(5_u8)
        };
        let first = evidence.parsed(Item::Sysctl, parse).unwrap();
        let second = copy.parsed(Item::Sysctl, parse).unwrap();
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!(runs.get(), 1);
        // Another type of the same text, and a text that is missing, are parsed each time.
        let other = copy.parsed(Item::Sysctl, || Ok("five")).unwrap();
        assert_eq!(*other, "five");
        let gap = copy.parsed::<u8>(Item::Nft, || Err(Gap::NotCollected(Item::Nft)));
        assert_eq!(gap.unwrap_err(), Gap::NotCollected(Item::Nft));
    }
}
