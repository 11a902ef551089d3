//! A plan as it is written.

use kpx_node::action::Plan;

/// A plan in the making.
#[derive(Default)]
pub(super) struct Draft {
    pub(super) plan: Plan,
}
