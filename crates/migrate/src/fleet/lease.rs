//! The Lease that keeps a second kpx from migrating the same cluster.
//!
//! Its holder renews it while it runs. A Lease that is not renewed for its whole duration is free.

use serde_json::{Value, json};

use super::state::NAME;
use kpx_node::action::{Field, KubeCommand, OURS, Object, Resource};
use kpx_node::evidence::Time;

/// The duration of the Lease, in seconds.
pub const HOLDS: u64 = 30;

/// How often it is renewed, in seconds.
pub const BEAT: u64 = 10;

/// The holder of the Lease.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Claim {
    /// There is no Lease yet.
    Missing,
    /// No one: it was released, or expired long ago.
    Free,
    /// This process.
    Ours,
    /// Another process.
    Theirs {
        /// Its identity.
        holder: String,
        /// When it renewed the Lease last, as written there.
        renewed: String,
    },
}

/// Returns the Lease.
pub fn object() -> Object {
    Object::of_system(Resource::Lease, NAME)
}

/// Returns who holds `lease`, from the point of view of the process called `me`.
pub fn claim(lease: Option<&Value>, me: &str, now: Time) -> Claim {
    let Some(lease) = lease else {
        return Claim::Missing;
    };
    let word = |key: &str| lease["spec"][key].as_str().unwrap_or_default();
    let (holder, renewed) = (word("holderIdentity"), word("renewTime"));
    // Clocks differ, but not by this much.
    let long = i64::try_from(HOLDS * 20).unwrap_or(i64::MAX);
    let old = renewed
        .parse()
        .map_or(true, |at: Time| now.seconds - at.seconds > long);
    if holder == me {
        Claim::Ours
    } else if holder.is_empty() || old {
        Claim::Free
    } else {
        Claim::Theirs {
            holder: holder.to_owned(),
            renewed: renewed.to_owned(),
        }
    }
}

/// Returns the command that creates the Lease, held by `me`.
pub fn create(me: &str, now: Time) -> KubeCommand {
    let body = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": NAME, "namespace": "kube-system", "labels": {(OURS.0): OURS.1}},
        "spec": {
            "holderIdentity": me,
            "leaseDurationSeconds": HOLDS,
            "acquireTime": micro(now),
            "renewTime": micro(now),
        },
    });
    KubeCommand::Create {
        object: object(),
        body,
    }
}

/// Returns the command that takes or renews `lease` for `me`; it fails if the Lease has changed.
pub fn take(lease: &Value, me: &str, now: Time) -> KubeCommand {
    set(lease, Some(me), Some(&micro(now)))
}

/// Returns the command that releases `lease`.
pub fn release(lease: &Value) -> KubeCommand {
    set(lease, None, None)
}

fn set(lease: &Value, holder: Option<&str>, renewed: Option<&str>) -> KubeCommand {
    let field = |key: &str, to: Option<&str>| {
        let from = lease["spec"].get(key).filter(|value| !value.is_null());
        Field::new(&["spec", key], from.cloned(), to.map(Value::from))
    };
    KubeCommand::Set {
        object: object(),
        fields: vec![field("holderIdentity", holder), field("renewTime", renewed)],
    }
}

/// Returns `time` as a `MicroTime`.
fn micro(time: Time) -> String {
    time.to_string().replace('Z', ".000000Z")
}
