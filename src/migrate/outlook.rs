//! What a node says of a move before it begins, in short: what stands in the way, and what it costs.

use serde::{Deserialize, Serialize};

/// What a node says of a move.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Outlook {
    /// What stands in the way: `ID: what was found`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<String>,
    /// How many established connections break for sure.
    pub breaks: usize,
    /// How many pods are evicted.
    pub evicts: usize,
    /// What is expected to be lost, in words.
    pub loss: String,
    /// What of the way could not be told.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// What a look at one of many nodes came to.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sight {
    /// What it says.
    Seen(Outlook),
    /// There is nothing to do there.
    Already,
    /// It could not be looked at, or cannot be moved; and why.
    Failed(String),
}

/// A node that was looked at.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Looked {
    /// Its name.
    pub node: String,
    /// What that came to.
    #[serde(flatten)]
    pub sight: Sight,
}

impl Outlook {
    /// Returns what keeps the node from being moved; `accept_loss` tells whether connections may break.
    pub fn objection(&self, accept_loss: bool) -> Option<String> {
        if !self.blockers.is_empty() {
            return Some(self.blockers.join("; "));
        }
        if !self.unknown.is_empty() {
            return Some(format!("not known: {}", self.unknown.join("; ")));
        }
        (self.breaks > 0 && !accept_loss).then(|| {
            format!(
                "{} established connections would break (--accept-loss goes on all the same)",
                self.breaks
            )
        })
    }
}

impl Looked {
    /// Returns what keeps the node from being moved; `accept_loss` tells whether connections may break.
    pub fn objection(&self, accept_loss: bool) -> Option<String> {
        match &self.sight {
            Sight::Seen(outlook) => outlook.objection(accept_loss),
            Sight::Already => None,
            Sight::Failed(why) => Some(why.clone()),
        }
    }

    /// Returns what is expected there, in words.
    pub fn in_words(&self) -> String {
        match &self.sight {
            Sight::Seen(outlook) => {
                let blockers = outlook.blockers.iter();
                let unknown = outlook
                    .unknown
                    .iter()
                    .map(|why| format!("not known: {why}"));
                let parts = blockers
                    .map(|of| format!("in the way: {of}"))
                    .chain(unknown);
                let mut parts: Vec<String> = parts.collect();
                parts.push(outlook.loss.clone());
                parts.join("; ")
            }
            Sight::Already => "there is nothing to do".to_owned(),
            Sight::Failed(why) => format!("cannot be told: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_the_way_keeps_a_node_and_so_do_connections_that_nobody_gave_up() {
        let mut outlook = Outlook {
            loss: "all 3".to_owned(),
            ..Outlook::default()
        };
        assert_eq!(outlook.objection(false), None);
        outlook.breaks = 3;
        assert!(outlook.objection(false).is_some());
        assert_eq!(outlook.objection(true), None);
        outlook.unknown.push("how".to_owned());
        let unknown = Some("not known: how".to_owned());
        assert_eq!(outlook.objection(true), unknown);
        outlook.unknown.clear();
        outlook.blockers.push("KM01: no ip_vs".to_owned());
        let blocked = Some("KM01: no ip_vs".to_owned());
        assert_eq!(outlook.objection(true), blocked);
        let looked = |sight| Looked {
            node: "n1".to_owned(),
            sight,
        };
        assert_eq!(
            looked(Sight::Seen(outlook)).in_words(),
            "in the way: KM01: no ip_vs; all 3"
        );
        assert!(
            looked(Sight::Failed("x".to_owned()))
                .objection(true)
                .is_some()
        );
        assert_eq!(looked(Sight::Already).objection(false), None);
    }
}
