//! Clients in pods, on nodes and outside, and their failed attempts.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::app::Tally;
use crate::lab::{BALANCER, EXTERNAL, Lab, NODES};
use crate::run::start;

pub(crate) struct Traffic {
    clients: Vec<(String, Child)>,
    folder: PathBuf,
    began: Instant,
}

/// The connections that failed.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) new: usize,
    pub(crate) failed: usize,
    /// Connections kept open that were cut.
    pub(crate) broken: usize,
    /// How many failures of each kind there are, by client, target and what was said; and when the first and last were.
    failures: BTreeMap<String, (usize, f64, f64)>,
    /// Other events in the cluster, if anything failed.
    pub(crate) circumstances: String,
}

/// A client: its name, the network it is in, and its targets.
pub(crate) type Place = (String, String, Vec<String>);

impl Traffic {
    /// Starts a client in a pod of each worker, on each worker, and outside.
    pub(crate) fn start(lab: &Lab) -> Self {
        let [web, sticky, edge, api] =
            ["web", "web-sticky", "edge", "api"].map(|name| lab.address(name));
        let mut places = Vec::new();
        let own = [
            format!("web=http={web}:80"),
            format!("web-datagrams=udp={web}:9001"),
            format!("api=http={api}:80"),
            format!("sticky=http={sticky}:80"),
            format!("edge-long=long={edge}:9000"),
        ];
        for (node, _) in &NODES[1..] {
            places.push((format!("pod-{node}"), lab.pod_network(node), own.to_vec()));
            places.push((
                format!("host-{node}"),
                Lab::node_network(node),
                own.to_vec(),
            ));
        }
        let mut outside = vec![
            format!("external=http={EXTERNAL}:80"),
            format!("balancer=http={BALANCER}:80"),
            format!("balancer-long=long={BALANCER}:9000"),
        ];
        for (node, address) in &NODES[1..] {
            outside.push(format!("nodeport-{node}=http={address}:30080"));
            outside.push(format!("local-{node}=http={address}:30081"));
            outside.push(format!("local-long-{node}=long={address}:30083"));
        }
        places.push(("outside".to_owned(), Lab::outside_network(), outside));
        Self::of(lab, places, Duration::from_millis(20))
    }

    /// Starts these clients, of which each opens a connection to each target `every` so often.
    pub(crate) fn of(lab: &Lab, places: Vec<Place>, every: Duration) -> Self {
        let folder = lab.folder.join("traffic");
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).unwrap();
        let (app, every) = (Lab::app(), every.as_millis().to_string());
        let clients = places.into_iter().map(|(place, network, targets)| {
            let out = folder.join(format!("{place}.json"));
            let inside = format!("--net={network}");
            let mut words = vec![
                "nsenter",
                &inside,
                &app,
                "client",
                out.to_str().unwrap(),
                &every,
            ];
            words.extend(targets.iter().map(String::as_str));
            let child = start(&words, &folder.join(format!("{place}.log")));
            (place, child)
        });
        let clients = clients.collect();
        Self {
            clients,
            folder,
            began: Instant::now(),
        }
    }

    pub(crate) fn stop(mut self) -> Report {
        for (_, client) in &self.clients {
            let pid = Pid::from_raw(client.id().cast_signed());
            kill(pid, Signal::SIGTERM).unwrap();
        }
        let mut report = Report::default();
        for (place, client) in &mut self.clients {
            let status = client.wait().unwrap();
            let said = fs::read_to_string(self.folder.join(format!("{place}.log"))).unwrap();
            assert!(status.success(), "the client {place}: {status}\n{said}");
            let text = fs::read_to_string(self.folder.join(format!("{place}.json"))).unwrap();
            let tally: Tally = serde_json::from_str(&text).unwrap();
            for (target, seen) in tally {
                assert!(seen.new > 0, "the client {place} tried nothing of {target}");
                report.new += seen.new;
                report.failed += seen.failed;
                report.broken += seen.broken;
                for (time, why) in seen.failures {
                    let key = format!("{place} to {target}: {why}");
                    let entry = report.failures.entry(key).or_insert((0, time, time));
                    *entry = (entry.0 + 1, entry.1.min(time), entry.2.max(time));
                }
            }
        }
        self.clients.clear();
        report
    }

    /// Runs for at least `time`, counted from its start.
    pub(crate) fn at_least(&self, time: Duration) {
        thread::sleep(time.saturating_sub(self.began.elapsed()));
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        for (_, client) in &mut self.clients {
            drop(client.kill());
            drop(client.wait());
        }
    }
}

impl Report {
    /// Nothing failed, and no connection was cut.
    pub(crate) fn unharmed(self) -> Self {
        assert!(self.new > 500, "too little was tried: {self}");
        assert!(
            self.failed == 0 && self.broken == 0,
            "{self}\n{}",
            self.details()
        );
        self
    }

    /// No new connection failed; pods were replaced, which cuts connections.
    pub(crate) fn all_new_ones_served(self) -> Self {
        assert!(self.new > 500, "too little was tried: {self}");
        assert!(self.failed == 0, "{self}\n{}", self.details());
        self
    }

    pub(crate) fn details(&self) -> String {
        let clock = |time: f64| {
            let seconds = time.rem_euclid(86_400.0);
            let (hours, rest) = (seconds.div_euclid(3600.0), seconds.rem_euclid(3600.0));
            format!(
                "{hours:02.0}:{:02.0}:{:06.3}",
                rest.div_euclid(60.0),
                rest.rem_euclid(60.0)
            )
        };
        let line = |(what, (count, first, last)): (&String, &(usize, f64, f64))| {
            format!(
                "  {count} times, {} to {}: {what}\n",
                clock(*first),
                clock(*last)
            )
        };
        let lines: String = self.failures.iter().map(line).collect();
        lines + &self.circumstances
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            new,
            failed,
            broken,
            ..
        } = self;
        write!(
            f,
            "{failed} of {new} new connections failed, {broken} open ones were cut"
        )
    }
}
