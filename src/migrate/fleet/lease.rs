//! The Lease that keeps a second kpx away from the same cluster.
//!
//! Whoever holds it renews it again and again. One that is not renewed for its whole time is free: its holder is gone.

use serde_json::{Value, json};

use super::state::NAME;
use crate::action::{Field, KubeCommand, OURS, Object, Resource};
use crate::evidence::Time;

/// How long a Lease holds that is not renewed, in seconds.
pub const HOLDS: u64 = 30;

/// How often it is renewed, in seconds.
pub const BEAT: u64 = 10;

/// Whose Lease it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Claim {
    /// Nobody's, and there is none yet.
    Unmade,
    /// Nobody's: it was given back, or its time was over long ago.
    Free,
    /// Ours.
    Ours,
    /// Somebody else's, who renewed it last at the time told.
    Theirs {
        /// Who.
        holder: String,
        /// When, as it is written there.
        renewed: String,
    },
}

/// Returns the Lease.
pub fn object() -> Object {
    Object::of_system(Resource::Lease, NAME)
}

/// Returns whose `lease` is, for the one called `me`.
pub fn claim(lease: Option<&Value>, me: &str, now: Time) -> Claim {
    let Some(lease) = lease else {
        return Claim::Unmade;
    };
    let word = |key: &str| lease["spec"][key].as_str().unwrap_or_default();
    let (holder, renewed) = (word("holderIdentity"), word("renewTime"));
    // Clocks differ. What was not renewed for so long is nobody's whatever they show.
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

/// Returns the command that makes the Lease, held by `me`.
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

/// Returns the command that takes `lease`, or renews it, for `me`; as long as it is as it was read.
pub fn take(lease: &Value, me: &str, now: Time) -> KubeCommand {
    set(lease, Some(me), Some(&micro(now)))
}

/// Returns the command that gives `lease` back.
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
