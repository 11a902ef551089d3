//! The outcome of `kpx top`: one interval.

use serde::Serialize;

use super::view::{BackendRow, Row};
use crate::render::{Page, Report};
use crate::report::CLEAN;
use crate::report::backend_status;
use crate::report::traffic_source::Source;
use kpx_node::backend::Mode;
use kpx_node::evidence::Time;
use kpx_node::net::Proto;
use kpx_node::words::number_of;

/// The traffic of Services in one interval.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub(crate) struct TopReport {
    pub(crate) at: Time,
    /// `null` if unknown.
    pub(crate) mode: Option<Mode>,
    /// The source of the numbers.
    pub(crate) source: Source,
    /// Length of the interval.
    pub(crate) seconds: f64,
    /// The part of one processor that kpx used in the interval.
    pub(crate) processor: f64,
    /// Number of service ports that are known.
    pub(crate) service_ports: usize,
    /// Connections that are translated, but to no Service.
    pub(crate) elsewhere: u64,
    /// The service ports with traffic, in the order asked for.
    pub(crate) services: Vec<Row>,
    /// Whether one Service was asked for.
    #[serde(skip)]
    pub(crate) named: bool,
    pub(crate) notes: Vec<String>,
}

/// Titles of the columns of a list of Services.
pub(crate) const SERVICE_COLUMNS: [&str; 7] = [
    "SERVICE",
    "NEW/S",
    "OPEN",
    "WAITING",
    "PKTS/S",
    "BYTES/S",
    "REFUSED/S",
];

/// Titles of the columns of a list of backends.
pub(crate) const BACKEND_COLUMNS: [&str; 9] = [
    "BACKEND", "NEW/S", "OPEN", "PKTS/S", "BYTES/S", "SHARE", "PROMISED", "", "POD",
];

/// Returns the cells of a Service.
pub(crate) fn service_cells(row: &Row) -> [String; 7] {
    let rates = row.rates;
    let name = match row.protocol {
        Proto::Tcp => row.service.to_string(),
        other => format!("{}/{other}", row.service),
    };
    [
        name,
        short(rates.new_per_second),
        rates.open.to_string(),
        rates
            .waiting
            .map_or("-".to_owned(), |count| count.to_string()),
        known(rates.packets_per_second),
        known(rates.bytes_per_second),
        known(row.refused_per_second),
    ]
}

/// Returns the cells of a backend.
pub(crate) fn backend_cells(row: &BackendRow) -> [String; 9] {
    let rates = row.rates;
    let percent =
        |ratio: Option<f64>| ratio.map_or("-".to_owned(), |share| format!("{:.1}%", share * 100.0));
    [
        row.backend.to_string(),
        short(rates.new_per_second),
        rates.open.to_string(),
        known(rates.packets_per_second),
        known(rates.bytes_per_second),
        percent(row.share),
        percent(row.promised),
        row.backend_status
            .map_or("?", backend_status::in_words)
            .to_owned(),
        row.pod.clone().unwrap_or_default(),
    ]
}

fn known(rate: Option<f64>) -> String {
    rate.map_or("-".to_owned(), short)
}

/// Returns a rate in at most six characters.
fn short(rate: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e4, "k")];
    let unit = units.iter().find(|(from, _)| rate >= *from);
    match unit {
        Some((1e4, letter)) => format!("{:.1}{letter}", rate / 1e3),
        Some((from, letter)) => format!("{:.1}{letter}", rate / from),
        None if rate == 0.0 => "0".to_owned(),
        None if rate < 100.0 => format!("{rate:.1}"),
        None => format!("{rate:.0}"),
    }
}

impl TopReport {
    /// Returns the line above the table.
    pub(crate) fn head(&self) -> String {
        let mode = self
            .mode
            .map_or("unknown".to_owned(), |mode| mode.to_string());
        format!(
            "{}  mode {mode}  {:.1} s  kpx: {:.1}% of a processor",
            self.at,
            self.seconds,
            self.processor * 100.0
        )
    }

    /// Returns the line below the table.
    pub(crate) fn foot(&self) -> String {
        let idle = self.service_ports.saturating_sub(self.services.len());
        let idle = number_of(idle, "service port");
        let elsewhere = number_of(self.elsewhere, "translated connection");
        format!("{idle} without traffic; {elsewhere} to no Service")
    }
}

impl Report for TopReport {
    const KIND: &'static str = "TopReport";

    fn page(&self, page: &mut Page) {
        page.line(&self.head());
        for note in &self.notes {
            page.para("note: ", note);
        }
        let ranks = [0, 0, 0, 2, 0, 0, 1];
        let columns: Vec<_> = SERVICE_COLUMNS.into_iter().zip(ranks).collect();
        let cells: Vec<_> = self
            .services
            .iter()
            .map(|row| service_cells(row).to_vec())
            .collect();
        page.grid(&columns, &cells);
        if self.named || page.style().wide {
            let ranks = [0, 0, 0, 0, 0, 0, 0, 0, 1];
            let columns: Vec<_> = BACKEND_COLUMNS.into_iter().zip(ranks).collect();
            for row in &self.services {
                page.line("");
                if self.services.len() > 1 {
                    page.line(&row.service.to_string());
                }
                let cells: Vec<_> = row
                    .backends
                    .iter()
                    .map(|backend| backend_cells(backend).to_vec())
                    .collect();
                page.grid(&columns, &cells);
            }
        }
        if !self.named {
            page.line(&self.foot());
        }
    }

    fn exit(&self) -> u8 {
        CLEAN
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn rates_are_short() {
        let of = [
            0.0, 0.04, 9.96, 99.94, 100.4, 9_999.0, 10_000.0, 1.25e6, 3e9,
        ];
        let texts = [
            "0", "0.0", "10.0", "99.9", "100", "9999", "10.0k", "1.2M", "3.0G",
        ];
        assert_eq!(of.map(short), texts);
    }
}
