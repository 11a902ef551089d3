//! The controller of `Jobs`: each gets one pod, and both are deleted at the end.

use serde_json::{Value, json};

use super::Cluster;
use super::answer::{Answered, missing, status};
use super::controller::{Task, key};
use super::objects::Key;

/// The label of a pod with the name of its Job.
const LABEL: &str = "batch.kubernetes.io/job-name";

impl Cluster {
    pub(super) fn sync_jobs(&mut self) {
        let jobs: Vec<Value> = self.objects.list("jobs", None).cloned().collect();
        for job in &jobs {
            self.sync_job(job);
        }
    }

    fn sync_job(&mut self, job: &Value) {
        let at = Key::of(job);
        if condition(job).is_some() {
            if job["spec"]["ttlSecondsAfterFinished"] == 0 {
                self.remove_job(job);
            }
            return;
        }
        if job["status"].is_null() {
            self.objects
                .edit(&at, |job| job["status"] = json!({"active": 0}));
            self.begin(job, &at);
            return;
        }
        let pods = self.pods_of_job(job);
        if job["status"]["active"] == 1 && pods.is_empty() {
            // A pod that is deleted counts as failed.
            self.finish(&at, "Failed", "BackoffLimitExceeded");
        }
        for pod in pods {
            let (kind, reason) = match pod["status"]["phase"].as_str() {
                Some("Succeeded") => ("Complete", "CompletionsReached"),
                Some("Failed") => ("Failed", "BackoffLimitExceeded"),
                _ => continue,
            };
            self.finish(&at, kind, reason);
        }
    }

    /// Creates the pod of a new Job.
    fn begin(&mut self, job: &Value, at: &Key) {
        let seconds = job["spec"]["activeDeadlineSeconds"].as_u64();
        if let (Some(seconds), Some(second)) = (seconds, self.second) {
            let after = second * u32::try_from(seconds).unwrap_or(u32::MAX);
            self.tasks.push(Task::Deadline(job.clone(), after));
        }
        let name = format!("{}-{}", at.name, self.objects.ending());
        if let Some(why) = self.refusal.clone() {
            let message = format!("Error creating: pods \"{name}\" is forbidden: {why}");
            let event = json!({
                "apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "FailedCreate", "message": message,
                "involvedObject": {
                    "apiVersion": "batch/v1", "kind": "Job", "namespace": at.namespace, "name": at.name,
                    "uid": job["metadata"]["uid"],
                },
            });
            let name = format!("{}.{}", at.name, self.objects.ending());
            let event_key = Key::new("events", &at.namespace, &name);
            self.objects.put(event_key, event);
            return;
        }
        let mut pod = job["spec"]["template"].clone();
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"]["labels"][LABEL] = json!(at.name);
        pod["metadata"]["ownerReferences"] = json!([{
            "apiVersion": "batch/v1", "kind": "Job", "controller": true,
            "name": at.name, "uid": job["metadata"]["uid"],
        }]);
        assert!(pod["spec"]["nodeName"].is_string(), "there is no scheduler");
        self.objects
            .put(Key::new("pods", &at.namespace, &name), pod);
        self.objects
            .edit(at, |job| job["status"] = json!({"active": 1}));
    }

    fn finish(&mut self, at: &Key, kind: &str, reason: &str) {
        self.objects.edit(at, |job| {
            job["status"] =
                json!({"conditions": [{"type": kind, "status": "True", "reason": reason}]});
        });
        // Its time to live may be over at once.
        if let Some(job) = self.objects.get(at).cloned() {
            self.sync_job(&job);
        }
    }

    /// Ends a Job whose deadline has passed.
    pub(super) fn expire(&mut self, job: &Value) {
        let at = Key::of(job);
        let now = self.objects.get(&at).cloned();
        let Some(now) = now.filter(|now| now["metadata"]["uid"] == job["metadata"]["uid"]) else {
            return;
        };
        if condition(&now).is_none() {
            for pod in self.pods_of_job(job) {
                self.end(&pod);
            }
            self.finish(&at, "Failed", "DeadlineExceeded");
        }
    }

    fn pods_of_job(&self, job: &Value) -> Vec<Value> {
        let uid = &job["metadata"]["uid"];
        let ours = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["uid"] == *uid;
        let pods = self.objects.list("pods", None).filter(ours);
        pods.cloned().collect()
    }

    /// Removes a Job and ends its pods.
    fn remove_job(&mut self, job: &Value) {
        self.objects.remove(&Key::of(job));
        for pod in self.pods_of_job(job) {
            self.end(&pod);
        }
    }

    /// Deletes a Job as a request asks. Without a policy, its pods stay: the default of batch/v1.
    pub(super) fn delete_job(&mut self, at: &Key, options: &Value) -> Answered {
        let Some(job) = self.objects.get(at).cloned() else {
            return missing(at);
        };
        let pods = self.pods_of_job(&job);
        let policy = options["propagationPolicy"].as_str().unwrap_or("Orphan");
        if !matches!(policy, "Orphan" | "Background") {
            return status(405, "the fake server does not do that");
        }
        let answer = self.delete(at, options);
        if answer.0 != 200 {
            return answer;
        }
        for pod in &pods {
            if policy == "Background" {
                self.end(pod);
            } else {
                self.objects.edit(&key(pod), |pod| {
                    pod["metadata"]["ownerReferences"] = json!([]);
                });
            }
        }
        answer
    }

    /// Kills the containers of the pods whose name begins with `start`; their objects stay.
    pub(crate) fn kill(&mut self, start: &str) {
        let pods: Vec<Value> = self.objects.list("pods", None).cloned().collect();
        for pod in pods.iter().filter(|pod| key(pod).name.starts_with(start)) {
            self.exited(pod, 137);
        }
    }

    /// Ends the container of a pod with this exit status; its object stays.
    pub(super) fn exited(&mut self, pod: &Value, code: u8) {
        let uid = &pod["metadata"]["uid"];
        self.objects.edit(&key(pod), |pod| {
            let runs = pod["status"]["phase"] == "Running";
            if pod["metadata"]["uid"] == *uid && runs {
                let status = &mut pod["status"];
                status["phase"] = json!(if code == 0 { "Succeeded" } else { "Failed" });
                status["conditions"] = json!([{"type": "Ready", "status": "False"}]);
                status["containerStatuses"][0]["ready"] = json!(false);
                status["containerStatuses"][0]["state"] = json!({"terminated": {"exitCode": code}});
            }
        });
    }
}

/// Returns the condition in which a Job has ended.
fn condition(job: &Value) -> Option<&Value> {
    let conditions = job["status"]["conditions"].as_array()?;
    conditions
        .iter()
        .find(|condition| condition["type"] == "Complete" || condition["type"] == "Failed")
}
