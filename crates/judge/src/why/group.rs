//! Causes of many paths, joined where they are the same.

use super::blame::Blame;
use super::cause::{Cause, Degree, Failed};
use super::paths::PathTarget;
use crate::verdict::Client;
use kpx_node::evidence::Time;

/// A cause on one path of one port.
pub(super) struct Blamed {
    pub(super) port: String,
    /// If only some of the connections fail, their share, as text.
    pub(super) share: Option<String>,
    pub(super) by_design: bool,
    pub(super) client: Option<Client>,
    pub(super) to: Option<PathTarget>,
    /// The condition under which it breaks anything: `whether …`.
    pub(super) open: Option<String>,
    pub(super) blame: Blame,
}

impl Blamed {
    pub(super) fn of(port: &str, blame: Blame) -> Self {
        Self {
            port: port.to_owned(),
            share: None,
            by_design: false,
            client: None,
            to: None,
            open: None,
            blame,
        }
    }
}

/// A cause with all its paths.
pub(super) struct Group {
    pub(super) cause: Cause,
    pub(super) degree: Degree,
    pub(super) since: Option<Time>,
    /// The node on which it is, if that is another one.
    pub(super) there: Option<String>,
    pub(super) by_design: bool,
    pub(super) open: Option<String>,
    pub(super) failed: Vec<Failed>,
    pub(super) ports: Vec<String>,
    pub(super) from: Vec<Client>,
    pub(super) to: Vec<String>,
}

/// Joins the paths with the same cause.
pub(super) fn groups(blames: Vec<Blamed>) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for of in blames {
        let Blame {
            cause,
            degree,
            since,
            there,
        } = of.blame;
        let at = groups
            .iter_mut()
            .position(|group| group.there == there && group.cause.joins(&cause));
        let at = at.unwrap_or_else(|| {
            groups.push(Group {
                cause,
                degree,
                since,
                there,
                by_design: of.by_design,
                open: of.open.clone(),
                failed: Vec::new(),
                ports: Vec::new(),
                from: Vec::new(),
                to: Vec::new(),
            });
            groups.len() - 1
        });
        let group = &mut groups[at];
        // Possible failures are kept apart from certain ones.
        match (&of.open, &group.open) {
            (Some(_), None) => continue,
            (None, Some(_)) => {
                group.open = None;
                group.by_design = of.by_design;
                group.failed.clear();
                group.ports.clear();
                group.from.clear();
                group.to.clear();
            }
            _ => group.by_design &= of.by_design,
        }
        group.degree = group.degree.min(degree);
        add(&mut group.ports, Some(of.port));
        if let (Some(client), Some(to)) = (of.client, of.to) {
            group.failed.push(Failed {
                client,
                to,
                share: of.share,
            });
        }
        add(&mut group.from, of.client);
        add(&mut group.to, of.to.map(|to| to.to_string()));
    }
    groups
}

fn add<T: PartialEq>(list: &mut Vec<T>, value: Option<T>) {
    list.extend(value.filter(|value| !list.contains(value)));
}
