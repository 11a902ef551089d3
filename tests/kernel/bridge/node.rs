//! The bridge of a recorded node.

use std::path::Path;
use std::time::Duration;

use kpx_judge::bridge::{self, Lease};
use kpx_judge::diff;
use kpx_node::backend::Mode;
use kpx_node::evidence::{self, Evidence};
use kpx_node::net::Family;
use kpx_node::node::NodeSnapshot;

/// A lease that outlasts every test.
pub(crate) fn lease() -> Lease {
    Lease::of(Duration::from_secs(3600))
}

/// The recorded evidence `name` of a node in `mode`.
pub(crate) fn recorded(name: &str, mode: Mode) -> Evidence {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("testdata/nodes")
        .join(name);
    evidence::load(&path, &diff::needs(mode)).unwrap()
}

/// The text of the bridge for what was recorded as `name`.
pub(crate) fn bridge(name: &str, mode: Mode) -> String {
    let evidence = recorded(name, mode);
    let node = NodeSnapshot::new(&evidence);
    let state = node.desired(mode).unwrap();
    let marks = bridge::marks(&node, state).unwrap();
    bridge::text(&bridge::tables(state, &Family::BOTH, marks, &lease()).unwrap())
}
