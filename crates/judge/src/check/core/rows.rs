//! Parts that rows of several groups share.

use super::running::REPLACEMENT;
use crate::check::drift::DRIFT;
use crate::check::{Example, Text};
use kpx_node::evidence::Item;
use kpx_node::node::desired::NEEDS;

/// The items that every check reads that compares the kernel with the cluster's objects.
pub(in crate::check) const DRIFT_NEEDS: &[&[Item]] = &[NEEDS, DRIFT, REPLACEMENT];

/// The fix of most differences between the kernel and the cluster's objects.
pub(in crate::check) const RESTART: Text = Text::with(
    "Run {} again in half a minute, because a change may be in progress. If the finding stays, restart kube-proxy on this \
     node: it rewrites everything when it starts.",
    &[Example::kpx(&["doctor"])],
);
