//! The interfaces of engines and controllers: a clock, and a node that can be read and changed.

use std::time::Duration;

use kpx_node::apply::Apply;
use kpx_node::evidence::{Evidence, Item, Time};

/// A clock.
pub trait Clock {
    /// Returns the present time.
    fn now(&self) -> Time;
    /// Waits for `duration`.
    fn pause(&mut self, duration: Duration) -> impl Future<Output = ()>;
}

/// A node, to be read and changed.
pub trait Node: Apply + Clock {
    /// Reads `items`. An item that cannot be read is a gap.
    fn read(&mut self, items: &[Item]) -> impl Future<Output = Evidence>;
}
