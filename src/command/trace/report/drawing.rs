//! A trace as a picture of the connections.

use super::TraceReport;
use super::human::{alike, all, names, sentence, simulated};
use crate::render::Style;
use crate::render::scene::Scene;
use crate::report::picture::{self, Caption, Foot};
use crate::view::picture::Picture;
use kpx_judge::verdict::Fate;

/// Returns the picture as text.
pub(crate) fn picture(report: &TraceReport, style: Style) -> String {
    picture::text(&whole(report), &caption(report), style)
}

/// Returns the picture as a document of SVG.
pub(crate) fn svg(report: &TraceReport, _: Style) -> String {
    picture::scene(&whole(report), &caption(report)).svg()
}

/// Returns the picture as a drawing, without the texts around it.
pub(crate) fn drawing(report: &TraceReport) -> Scene {
    let caption = Caption {
        title: title(report),
        heads: Vec::new(),
        feet: Vec::new(),
    };
    picture::scene(&whole(report), &caption)
}

/// Returns the connections to all ports.
fn whole(report: &TraceReport) -> Picture {
    let mut whole = Picture {
        strands: ports(report)
            .flat_map(|port| port.picture.strands.clone())
            .collect(),
    };
    whole.worst_first();
    whole
}

fn ports(report: &TraceReport) -> impl Iterator<Item = &TraceReport> {
    std::iter::once(report).chain(&report.ports)
}

/// Returns the answers: the fate of connections from each group of clients, and the reason.
pub(crate) fn heads(report: &TraceReport) -> Vec<(Fate, String)> {
    let heads = ports(report).flat_map(|port| {
        alike(all(port)).into_iter().map(|group| {
            let text = format!("{}; from {}", sentence(port, group[0]), names(&group));
            (group[0].fate, text)
        })
    });
    heads.collect()
}

/// Returns the texts around the picture.
fn caption(report: &TraceReport) -> Caption {
    let notes = simulated(report).into_iter().chain(report.notes());
    Caption {
        title: title(report),
        heads: heads(report)
            .into_iter()
            .map(|(fate, text)| (fate.into(), text))
            .collect(),
        feet: notes.map(|note| Foot::Text("note", note)).collect(),
    }
}

/// Returns the name of the picture.
fn title(report: &TraceReport) -> String {
    let packet = &report.first.packet;
    let target = std::net::SocketAddr::new(packet.destination, packet.port);
    let to = report.service.as_ref().map_or_else(String::new, |service| {
        format!("{}/{}, ", service.namespace, service.name)
    });
    format!("Connections to {to}{target}/{}", packet.protocol)
}
