//! Detection of a crash loop of kube-proxy's pod.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

use super::Pod;
use crate::evidence::Time;

/// Number of times that a container ends before it counts as a crash loop, even if the kubelet does not call it one
/// yet: between two crashes the container briefly runs and looks healthy.
const ENDS: u32 = 2;

/// The kubelet's reason for delaying a restart.
const BACK_OFF: &str = "CrashLoopBackOff";

/// A container that crashes repeatedly.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CrashLoop {
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
    /// Last exit status, if known.
    pub exit: Option<i32>,
    /// Restarts since the first observation, or since the pod was created.
    pub restarts: u32,
    /// Whether the kubelet reports `CrashLoopBackOff`.
    pub backs_off: bool,
    /// Last line of the crashed container's log.
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

/// Counts container restarts between observations.
#[derive(Clone, Debug, Default)]
pub struct Restarts {
    /// First observed restart count of each container, by pod UID and container name.
    before: BTreeMap<(String, String), u32>,
}

impl Restarts {
    /// Returns the crash loop of one of `pods`, the kube-proxy pods of one node.
    ///
    /// In a pod created after `since`, the start time of the previous kube-proxy, every restart counts; in an older
    /// pod, only the restarts since the first observation.
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
                let waits =
                    waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some(BACK_OFF));
                // A container that has ended but is not restarted yet counts as one more end.
                let ended_now = u32::from(container.state.terminated.is_some());
                if waits || ended.is_some() && restarts + ended_now >= ENDS {
                    found = found.or(Some(CrashLoop {
                        pod: pod.metadata.name.clone(),
                        container: container.name.clone(),
                        exit: ended.map(|ended| ended.exit_code),
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

impl Pod {
    /// Returns with what a container has ended that does not start again: the last line of its termination message, without the head of
    /// klog.
    pub fn last_error(&self) -> Option<&str> {
        let mut waiting = self.status.container_statuses.iter().filter(|container| {
            let waiting = container.state.waiting.as_ref();
            waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some(BACK_OFF))
        });
        let ended = waiting.find_map(|container| container.last_state.terminated.as_ref())?;
        let mut lines = ended.message.as_deref()?.lines().map(str::trim);
        let last = lines.rfind(|line| !line.is_empty())?;
        Some(last.split_once("] ").map_or(last, |(_, text)| text))
    }
}

/// Returns the last line of a log that is not empty; of a value of klog that has lines of its own, its head with the first of them.
pub fn last_line(log: &str) -> Option<String> {
    let lines = || log.lines().map(str::trim).filter(|line| !line.is_empty());
    let last = lines().next_back()?;
    if last != ">" && !last.starts_with("> ") {
        return Some(last.to_owned());
    }
    let all: Vec<&str> = lines().collect();
    let head = all.iter().rposition(|line| line.ends_with("=<"))?;
    let value = all[head + 1..].first()?;
    Some(format!("{}{value}", all[head].trim_end_matches('<')))
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
    fn a_container_that_runs_briefly_between_two_ends_is_in_a_crash_loop() {
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
        let several = "I1 x\nE1 server.go:1] \"Failed\" err=<\n\tnft: Operation not permitted\n\tadd table\n >\n";
        let words = "E1 server.go:1] \"Failed\" err=nft: Operation not permitted";
        assert_eq!(last_line(several).as_deref(), Some(words));
        found.last_line = last_line("a\nE1 no such bit\n\n");
        assert_eq!(
            found.to_string(),
            "crash loop: container kube-proxy ended with exit status 1 (pod kube-proxy-x, restarted 2 times); \
             its log ends: E1 no such bit"
        );
        // First observed after two crashes: the pod is new, so all restarts count.
        let late = Restarts::default().crash_loop(&pod("a", NEW, &running(2)), Some(SINCE));
        assert!(late.is_some());
    }

    #[test]
    fn a_back_off_counts_and_old_restarts_do_not() {
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
