//! Whose state a report is about: one line above each page, and an object in JSON.

use serde::Serialize;

use kpx_node::backend::Mode;
use kpx_node::evidence::Time;
use kpx_node::words::number_of;

/// Whose state a report is about, from where, of when, and in which mode.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Origin {
    /// Name of the Node; unset if it is unknown, and for several nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether the node itself was read, or a recording of it.
    pub source: OriginSource,
    /// When the recording was made, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// The mode of kube-proxy, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Why the bundle is incomplete, if it is: the rest of it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<String>,
}

/// The evidence of a run.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OriginSource {
    /// The node, now.
    #[default]
    #[serde(rename = "live")]
    Machine,
    /// A recording.
    Recording,
    /// Pasted text: outputs of commands.
    Text,
}

impl Origin {
    /// Returns it as a line: `node1, recording of 20 Nov 2026 12:44 UTC, ipvs`.
    pub(crate) fn line(&self) -> String {
        let name = match (&self.node, self.source) {
            (Some(name), _) => name,
            (None, OriginSource::Machine) => "this node",
            (None, OriginSource::Recording | OriginSource::Text) => "unknown node",
        };
        let mut text = format!("{name}, {}", self.when());
        // On a live node, an unread mode is omitted; a text rarely shows it.
        match (self.mode, self.source) {
            (Some(mode), _) => text.extend([", ", mode.name()]),
            (None, OriginSource::Machine | OriginSource::Text) => {}
            (None, OriginSource::Recording) => text.push_str(", mode unknown"),
        }
        text
    }

    fn when(&self) -> String {
        match (self.source, self.time) {
            (OriginSource::Machine, _) => "now".to_owned(),
            (OriginSource::Recording, Some(time)) => format!("recording of {}", time.as_said()),
            (OriginSource::Recording, None) => "recording, time unknown".to_owned(),
            (OriginSource::Text, _) => "pasted text".to_owned(),
        }
    }
}

/// Returns the line of a report on the nodes of `origins`: their common part.
pub(crate) fn line_of_several(origins: &[Origin]) -> Option<String> {
    let first = origins.first()?;
    let mut text = format!("{}, ", number_of(origins.len(), "node"));
    let times = || origins.iter().filter_map(|origin| origin.time);
    let (from, to) = (times().min(), times().max());
    match (from.map(Time::as_said), to.map(Time::as_said)) {
        (Some(from), Some(to)) if from != to => {
            text.extend(["recordings of ", &from, " to ", &to]);
        }
        _ => text.push_str(&first.when()),
    }
    if let Some(mode) = first.mode
        && origins.iter().all(|origin| origin.mode == Some(mode))
    {
        text.extend([", ", mode.name()]);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(time: &str, mode: Option<Mode>) -> Origin {
        Origin {
            node: Some("node1".to_owned()),
            source: OriginSource::Recording,
            time: Some(time.parse().unwrap()),
            mode,
            incomplete: None,
        }
    }

    #[test]
    fn one_line_says_whose_state_it_is() {
        let recorded = recorded("2026-11-20T12:44:31Z", Some(Mode::Ipvs));
        assert_eq!(
            recorded.line(),
            "node1, recording of 20 Nov 2026 12:44 UTC, ipvs"
        );
        let live = Origin {
            source: OriginSource::Machine,
            time: None,
            ..recorded
        };
        assert_eq!(live.line(), "node1, now, ipvs");
        let unknown = Origin {
            source: OriginSource::Recording,
            ..Origin::default()
        };
        assert_eq!(
            unknown.line(),
            "unknown node, recording, time unknown, mode unknown"
        );
        let pasted = Origin {
            source: OriginSource::Text,
            ..Origin::default()
        };
        assert_eq!(pasted.line(), "unknown node, pasted text");
    }

    #[test]
    fn the_line_of_several_nodes_has_what_they_have_in_common() {
        let early = recorded("2026-11-20T12:44:31Z", Some(Mode::Ipvs));
        let late = recorded("2026-11-20T14:00:02Z", Some(Mode::Nftables));
        let same = recorded("2026-11-20T12:44:59Z", Some(Mode::Ipvs));
        assert_eq!(
            line_of_several(&[early.clone(), same]).unwrap(),
            "2 nodes, recording of 20 Nov 2026 12:44 UTC, ipvs"
        );
        assert_eq!(
            line_of_several(&[late, early]).unwrap(),
            "2 nodes, recordings of 20 Nov 2026 12:44 UTC to 20 Nov 2026 14:00 UTC"
        );
        assert_eq!(line_of_several(&[]), None);
    }
}
