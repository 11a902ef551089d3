//! What becomes of kube-proxy's pod: whether its container ends again and again.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use super::Pod;
use crate::evidence::Time;

/// How often a container may end before it counts as a crash loop, whatever the kubelet calls it: between two ends it runs
/// for a moment, and looks well.
const ENDS: u32 = 2;

/// Why the kubelet waits before it starts a container again.
const BACK_OFF: &str = "CrashLoopBackOff";

/// A container that ends again and again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CrashLoop {
    /// The pod.
    pub pod: String,
    /// The container.
    pub container: String,
    /// Its last exit status, where it is told.
    pub exit: Option<i32>,
    /// How often it was restarted since it was first looked at, or since the pod is there.
    pub restarts: u32,
    /// Whether the kubelet says so, and waits before it restarts it again.
    pub backs_off: bool,
    /// The last line that it logged before it ended.
    pub last_line: Option<String>,
}

impl Display for CrashLoop {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let times = match self.restarts {
            0 => String::new(),
            1 => ", restarted once".to_owned(),
            count => format!(", restarted {count} times"),
        };
        let waits = if self.backs_off {
            format!(", {BACK_OFF}")
        } else {
            String::new()
        };
        write!(f, "crash loop: container {} ended", self.container)?;
        if let Some(exit) = self.exit {
            write!(f, " with exit status {exit}")?;
        }
        write!(f, " (pod {}{times}{waits})", self.pod)?;
        match &self.last_line {
            None => f.write_str("; its log cannot be read"),
            Some(line) => write!(f, "; its log ends: {line}"),
        }
    }
}

/// Counts the restarts of containers from look to look.
#[derive(Clone, Debug, Default)]
pub struct Restarts {
    /// How often each container, by its pod's unique id, had been restarted before.
    before: BTreeMap<(String, String), u32>,
}

impl Restarts {
    /// Returns the crash loop that one of `pods`, which are kube-proxy's of one node, is in.
    ///
    /// Of a pod that was made after `since`, when the kube-proxy before it started, every restart counts; of another one
    /// those since the first look.
    pub fn crash_loop(&mut self, pods: &[Pod], since: Option<Time>) -> Option<CrashLoop> {
        let mut found = None;
        for pod in pods {
            if pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let created = pod.metadata.creation_timestamp.as_deref();
            let created: Option<Time> = created.and_then(|at| at.parse().ok());
            let is_new = created.zip(since).is_some_and(|(at, since)| at > since);
            for container in &pod.status.container_statuses {
                let key = (pod.metadata.uid.clone(), container.name.clone());
                let first = if is_new { 0 } else { container.restart_count };
                let before = *self.before.entry(key).or_insert(first);
                let restarts = container.restart_count.saturating_sub(before);
                let ends = [&container.state, &container.last_state];
                let ended = ends.iter().find_map(|state| state.terminated.as_ref());
                let waiting = container.state.waiting.as_ref();
                let waits = waiting.is_some_and(|of| of.reason.as_deref() == Some(BACK_OFF));
                // One that has ended and is not restarted yet has ended once more.
                let ended_now = u32::from(container.state.terminated.is_some());
                if waits || ended.is_some() && restarts + ended_now >= ENDS {
                    found = found.or(Some(CrashLoop {
                        pod: pod.metadata.name.clone(),
                        container: container.name.clone(),
                        exit: ended.map(|of| of.exit_code),
                        restarts,
                        backs_off: waits,
                        last_line: None,
                    }));
                }
            }
        }
        found
    }
}

/// Returns the last line of a log that says something.
pub fn last_line(log: &str) -> Option<String> {
    let mut lines = log.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, created: &str, status: &serde_json::Value) -> Vec<Pod> {
        let pod = json!({
            "metadata": {"name": "kube-proxy-x", "uid": uid, "creationTimestamp": created},
            "status": {"containerStatuses": [status]},
        });
        vec![serde_json::from_value(pod).unwrap()]
    }

    fn running(restarts: u32) -> serde_json::Value {
        json!({"name": "kube-proxy", "restartCount": restarts, "state": {"running": {}},
            "lastState": {"terminated": {"exitCode": 1}}})
    }

    const SINCE: Time = Time {
        seconds: 1_795_180_000,
    };
    const OLD: &str = "2026-01-01T00:00:00Z";
    const NEW: &str = "2027-01-01T00:00:00Z";

    #[test]
    fn a_container_that_runs_for_a_moment_between_two_ends_is_in_a_crash_loop() {
        let mut looks = Restarts::default();
        let first = json!({"name": "kube-proxy", "restartCount": 0, "state": {"terminated": {"exitCode": 1}}});
        assert_eq!(looks.crash_loop(&pod("a", NEW, &first), Some(SINCE)), None);
        assert_eq!(
            looks.crash_loop(&pod("a", NEW, &running(1)), Some(SINCE)),
            None
        );
        let mut found = looks
            .crash_loop(&pod("a", NEW, &running(2)), Some(SINCE))
            .unwrap();
        found.last_line = last_line("a\nE1 no such bit\n\n");
        assert_eq!(
            found.to_string(),
            "crash loop: container kube-proxy ended with exit status 1 (pod kube-proxy-x, restarted 2 times); \
             its log ends: E1 no such bit"
        );
        // Seen for the first time when it has crashed twice: the pod is a new one, so these ends are its own.
        let late = Restarts::default().crash_loop(&pod("a", NEW, &running(2)), Some(SINCE));
        assert!(late.is_some());
    }

    #[test]
    fn what_the_kubelet_calls_a_crash_loop_is_one_and_old_restarts_are_none() {
        let mut looks = Restarts::default();
        assert_eq!(
            looks.crash_loop(&pod("a", OLD, &running(7)), Some(SINCE)),
            None
        );
        assert_eq!(
            looks.crash_loop(&pod("a", OLD, &running(8)), Some(SINCE)),
            None
        );
        let waits = json!({"name": "kube-proxy", "restartCount": 8,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 255}}});
        let found = looks
            .crash_loop(&pod("a", OLD, &waits), Some(SINCE))
            .unwrap();
        assert_eq!((found.exit, found.restarts), (Some(255), 1));
        let pulls = json!({"name": "kube-proxy", "restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}});
        assert_eq!(looks.crash_loop(&pod("b", NEW, &pulls), Some(SINCE)), None);
    }
}
