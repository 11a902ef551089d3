//! The Services with the fate of connections from each kind of client: failing ones come first.

use super::services::Row;
use kpx_judge::verdict::{Brief, Client, Fate, Standing};
use kpx_node::net::Proto;
use kpx_node::owner::PortName;

/// The kinds of clients that have a column, with its title.
pub(crate) const CLIENTS: [(&str, &[Client]); 5] = [
    ("PODS", &[Client::Pod, Client::Single]),
    ("ITSELF", &[Client::Itself]),
    ("HOST", &[Client::Host]),
    ("NODES", &[Client::Elsewhere]),
    ("OUTSIDE", &[Client::Outside]),
];

/// A Service port.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) service: PortName,
    pub(crate) protocol: Proto,
    /// The place in the list: failing ones come first.
    rank: u8,
    /// The fate of connections; `None` if another proxy serves the Service.
    pub(crate) end: Option<End>,
    /// The same for each of [`CLIENTS`]; `None` for one without a way to the Service.
    pub(crate) clients: [Option<End>; CLIENTS.len()],
    /// Ready endpoints, of how many; `None` if unknown.
    pub(crate) ready: (Option<usize>, Option<usize>),
    /// Why the worst connections fail or are not known, or who serves the Service instead of kube-proxy.
    pub(crate) reason: String,
}

/// The fate of connections from one kind of client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// This.
    Fate(Fate),
    /// The Service's own settings exclude the client, and all others are served.
    ByDesign,
}

impl From<Fate> for End {
    fn from(fate: Fate) -> Self {
        Self::Fate(fate)
    }
}

impl End {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Fate(fate) => fate.name(),
            Self::ByDesign => "by design",
        }
    }
}

impl Line {
    fn of(row: &Row) -> Self {
        let standing = row.fate.map(|_| row.surveyed.standing());
        let (rank, end) = match standing {
            Some(Standing::Fails) => (0, Some(End::Fate(row.surveyed.fate()))),
            Some(Standing::NoEndpoints) => (1, Some(End::Fate(Fate::Refused))),
            Some(Standing::Unknown) if row.surveyed.is_behind_balancer() => {
                (3, Some(End::Fate(Fate::Unknown)))
            }
            Some(Standing::Restricted) => (4, Some(End::ByDesign)),
            Some(Standing::Works) => (5, Some(End::Fate(Fate::Works))),
            _ if row.left_to.is_some() => (6, None),
            _ => (2, Some(End::Fate(Fate::Unknown))),
        };
        Self {
            service: row.service.clone(),
            protocol: row.protocol,
            rank,
            end,
            clients: CLIENTS.map(|(_, kinds)| {
                let all = row.connections.iter();
                let all = all.filter(|connection| kinds.contains(&connection.client));
                let kept: Vec<Fate> = all
                    .clone()
                    .filter(|connection| !connection.by_design)
                    .map(|connection| connection.fate)
                    .collect();
                let end = match (kept.as_slice(), all.count()) {
                    ([], 0) => None,
                    ([], _) => Some(End::ByDesign),
                    (_, _) => Some(End::Fate(Fate::of_all(kept))),
                };
                let is_open = kinds.contains(&Client::Outside) && row.surveyed.has_hidden_balancer;
                match end {
                    None | Some(End::Fate(Fate::Works)) if is_open && row.left_to.is_none() => {
                        Some(End::Fate(Fate::Unknown))
                    }
                    end => end,
                }
            }),
            ready: (row.endpoints.ready, row.endpoints.total),
            reason: reason(row).unwrap_or_default(),
        }
    }

    /// Returns its name, with a protocol that is not the usual one.
    pub(crate) fn name(&self) -> String {
        match self.protocol {
            Proto::Tcp => self.service.to_string(),
            protocol => format!("{}/{protocol}", self.service),
        }
    }

    /// Returns whether the name or the fate of connections contains `text`, in any case.
    pub(crate) fn has(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let ends = self.clients.iter().chain([&self.end]).flatten();
        let names = ends.map(|end| end.name().to_owned());
        let mut all = names.chain([self.target().to_lowercase()]);
        all.any(|name| name.contains(&text))
    }

    /// Returns the name for `kpx why`.
    pub(crate) fn target(&self) -> String {
        self.service.to_string()
    }
}

/// Returns the summary of a row: the cause, or else the reason of its worst connections.
fn reason(row: &Row) -> Option<String> {
    if let Some(who) = &row.left_to {
        return Some(format!("served by {who}"));
    }
    if let Some(cause) = &row.cause {
        return Some(cause.clone());
    }
    let (kept_out, others): (Vec<&Brief>, Vec<_>) =
        row.surveyed.cells.iter().partition(|cell| cell.by_design);
    let said = |cell: &Brief| cell.fault.as_ref().map(ToString::to_string);
    let bad = others.into_iter().filter(|cell| cell.fate != Fate::Works);
    let worst = bad.max_by_key(|cell| cell.fate);
    let worst = worst.and_then(|cell| said(cell).or_else(|| cell.doubt.clone()));
    let by_design = || {
        let reason = kept_out.into_iter().find_map(said)?;
        Some(format!("by design: {reason}"))
    };
    worst
        .or_else(|| row.surveyed.beyond.clone())
        .or_else(by_design)
}

/// Returns the lines of `rows` in this order: failing, unknown, unknown only because of a load balancer, restricted by design,
/// working.
pub(crate) fn lines(rows: &[Row]) -> Vec<Line> {
    let mut lines: Vec<Line> = rows.iter().map(Line::of).collect();
    lines.sort_by_key(|line| line.rank);
    lines
}
