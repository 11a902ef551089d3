//! Evidence: the unmodified text of each item, or the reason why it is missing.

pub mod bpf;
mod bundle;
pub mod by_tool;
pub mod files;
mod gap;
pub mod ipvs;
// Lines of the kernel's log.
mod item;
mod kernel;
pub mod kernel_log;
pub mod pod_networks;
pub mod processes;
pub mod proxy_log;
mod store;
mod text;
mod time;
pub mod traced;
mod tracked;

pub use bundle::{
    BundleError, Limits, MANIFEST, Manifest, NODES, NodesWriter, Other, Recorded, SaveError,
    UNKNOWN_TIME, Visit, each_node, is_archive, is_bundle, load, load_file, load_node, load_within,
    others, others_of, save, write_to,
};
pub use by_tool::ByTool;
pub use gap::{Forbidden, Gap};
pub use item::{IPTABLES, ITEMS, Item, Privilege, join};
pub use kernel::{Kernel, NotAKernel};
pub use store::Evidence;
pub use time::{NotATime, Time};
pub use tracked::{Phase, Tracked};
