//! The origin of the state that a command reads: noted at the first read, and printed above its page.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use super::session::Session;
use crate::render::{Origin, OriginSource};
use kpx_judge::check::Facts;
use kpx_node::evidence::{Evidence, Item};
use kpx_node::node::NodeSnapshot;

/// The items that show whose state it is. They are read from a recording; of a live node, they count if the command reads
/// them.
pub(super) const NEEDS: &[Item] = &[
    Item::Host,
    Item::Addresses,
    Item::Processes,
    Item::ProxyConfig,
    Item::ProxyMode,
    Item::Nodes,
    Item::ConfigMaps,
    Item::Healthz,
];

/// The items without which the name in kube-proxy's configuration is believed: they show whether it is another Node's.
const PROOF: [Item; 2] = [Item::Nodes, Item::Addresses];

/// The origin as far as it is known, and whether its name is proved. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Noted(Arc<Mutex<(Option<Origin>, bool)>>);

impl Noted {
    /// Returns what is known; `None` if no node was read.
    pub(super) fn get(&self) -> Option<Origin> {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.0.clone()
    }

    fn is_proved(&self) -> bool {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.1
    }

    fn set(&self, origin: Origin, is_proved: bool) {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *noted = (Some(origin), noted.1 || is_proved);
    }
}

impl Session {
    /// Returns whose state was read; `None` if no node was read.
    pub(in crate::command) fn origin(&self) -> Option<Origin> {
        self.noted.get()
    }

    /// Notes the node of `evidence`, if it is not known yet.
    pub(super) fn note(&self, evidence: &Evidence) {
        let is_recording = self.source.is_bundle();
        let known = self.origin();
        // All of a recording is read at once.
        if is_recording && known.is_some() {
            return;
        }
        let known = known.unwrap_or_default();
        let is_proved = PROOF.iter().all(|item| evidence.text(*item).is_ok());
        let is_news = is_proved && !self.noted.is_proved();
        if known.node.is_some() && known.mode.is_some() && !is_news {
            return;
        }
        let manifest = evidence.manifest();
        let named = self.name_in(evidence);
        let named = named.or_else(|| manifest?.node.as_deref());
        let snapshot = NodeSnapshot::new(evidence).called(named);
        // A parser that panics leaves it unknown; the checks report it.
        let read = catch_unwind(AssertUnwindSafe(|| {
            let facts = Facts::new(&snapshot, None);
            let time = is_recording.then(|| snapshot.taken()).flatten();
            (facts.node_name(), facts.current().ok(), time)
        }));
        let (node, mode, time) = read.unwrap_or_default();
        let node = if is_news {
            node.or(known.node)
        } else {
            known.node.or(node)
        };
        let origin = Origin {
            node,
            source: if self.source.is_text() {
                OriginSource::Text
            } else if is_recording {
                OriginSource::Recording
            } else {
                OriginSource::Machine
            },
            time: known.time.or(time),
            mode: known.mode.or(mode),
            incomplete: evidence.cut().map(str::to_owned),
        };
        self.noted.set(origin, is_proved);
    }
}
