//! Why a Service does not work: its name, addresses, rules, endpoints, policies and connections, seen from one node.
//!
//! [`crate::verdict`] judges the connections to every address of the Service from every kind of client. The cause of a failure
//! is the object whose repair, in a simulation, makes the connections work; it is typed, and has an owner and a fix.

mod answer;
mod balancer;
mod blame;
mod brief;
mod candidates;
mod cause;
mod endpoints;
mod explain;
mod findings;
mod fix;
mod gaps;
mod group;
mod look;
mod merge;
mod obstacle;
mod path_cause;
mod paths;
mod plain;
mod resolver;
mod rest;
mod scope;
mod search;
mod sentence;
mod stale;
mod target;
mod there;
mod unserved;

pub use answer::{Answer, Beside, Broken, lacking, unseen_balancers};
pub use cause::{Cause, Degree, Idle};
pub use endpoints::{EndpointRow, Lack};
pub use findings::Related;
pub use look::{Look, Unanswered, needs};
pub use merge::{Merged, OnNodes, merge};
pub use paths::Path;
pub use resolver::node_resolver;
pub use rest::rest;
pub use scope::touched;
pub use target::{Asked, NotATarget};
