//! `kpx migrate` on a fake node, interrupted at every point.

mod again;
mod bridged;
mod controllers;
mod drain_node;
mod entries;
mod gates;
mod loss;
mod machine;
pub(crate) mod one_node;
mod probes;
pub(crate) mod rollbacks;
mod rules;
pub(crate) mod screen;
mod texts;

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::FutureExt as _;
use kpx_judge::plan::Consent;
use kpx_migrate::engine::{Ended, Engine, Event, Limits, MigrationNode};
use kpx_migrate::journal::{self, Entry};
use kpx_migrate::migration::{Leg, Migration, Strategy};
use kpx_migrate::node::{Clock, Node};
use kpx_migrate::probes::{Target, Unanswered};
use kpx_node::action::Action;
use kpx_node::apply::{Apply, StepError};
use kpx_node::backend::Mode;
use kpx_node::cluster::Pod;
use kpx_node::cluster::edit::Fields;
use kpx_node::evidence::{Evidence, Gap, Item, Time};
use kpx_node::net::{Proto, Vantage};

use machine::{CONNECTIONS, Machine, differences};

/// A node, the journal on its disk, and the point at which kpx is killed.
#[derive(Clone, Debug)]
struct Place {
    machine: Machine,
    journal: String,
    /// The number of changes and entries after which kpx is killed.
    life: Option<usize>,
    /// The number of changes, entries and pauses after which a stop is requested.
    stop_at: Option<usize>,
    /// The number of entries that the disk has room for.
    room: Option<usize>,
    acts: usize,
    clock: i64,
    limits: Limits,
    /// The modes in which Services do not answer.
    silent: Vec<Mode>,
    /// The modes in which something else than an endpoint answers.
    misled: Vec<Mode>,
    /// The modes in which connections are not tracked.
    untracked: Vec<Mode>,
    /// The connections of probes, as `conntrack -L` prints them.
    tracked: String,
    /// Changes whose text contains this are refused; or `backup`, `guard` or `follow`, which then fails.
    refused: Option<&'static str>,
    /// How often a stage was planned again.
    again: usize,
    /// Whether there is a bundle of the node.
    backed_up: bool,
    /// Whether a guard was started.
    guarded: bool,
    /// Whether the cluster is followed with the bridge.
    followed: bool,
}

impl Place {
    fn new(machine: Machine, migration: &Migration) -> Self {
        let began = Entry::Began {
            kpx: "test".to_owned(),
            migration: Box::new(migration.clone()),
        };
        Self {
            machine,
            journal: line(&began),
            life: None,
            stop_at: None,
            room: None,
            acts: 0,
            clock: 0,
            limits: Limits {
                confirm: Duration::from_secs(30),
                drain: Duration::from_secs(60),
                accept_loss: false,
                configured: false,
                lease: Duration::from_secs(60),
            },
            silent: Vec::new(),
            misled: Vec::new(),
            untracked: Vec::new(),
            tracked: String::new(),
            refused: None,
            again: 0,
            backed_up: false,
            guarded: false,
            followed: false,
        }
    }

    /// Fails if `what` is refused.
    fn allow(&self, what: &str) -> Result<(), String> {
        if self.refused == Some(what) {
            return Err(format!("no {what} here"));
        }
        Ok(())
    }

    /// Counts one act; never returns if kpx is killed now.
    async fn live(&mut self) {
        self.acts += 1;
        match &mut self.life {
            None => {}
            Some(0) => std::future::pending().await,
            Some(left) => *left -= 1,
        }
    }

    /// Continues from the journal; `None` if kpx was killed.
    fn go_on(&mut self, rollback: bool) -> Option<Ended> {
        let mut state = journal::read(&self.journal).unwrap();
        // A follower died with the kpx that had it.
        self.followed = false;
        let mut again = 0;
        let mut on_event = |event: Event<'_>| match event {
            Event::Retries(_) => again += 1,
            Event::Begins(_, _, _, (number, of)) => assert!((1..=of).contains(&number)),
            _ => {}
        };
        let limits = self.limits;
        let mut engine = Engine {
            node: &mut *self,
            limits,
            on_event: &mut on_event,
        };
        let ended = async {
            if rollback {
                engine.roll_back(&mut state, false).await.unwrap();
            }
            Box::pin(engine.run(&mut state)).await
        }
        .now_or_never();
        self.again += again;
        ended
    }
}

fn line(entry: &Entry) -> String {
    serde_json::to_string(entry).unwrap() + "\n"
}

impl Apply for Place {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        self.live().await;
        let text = action.to_string();
        assert!(self.backed_up, "there is no bundle yet: {text}");
        if self.refused.is_some_and(|refused| text.contains(refused)) {
            return Err(StepError::Refused("because".to_owned()));
        }
        let before = self.machine.has_bridge();
        let restarts = matches!(action, Action::RestartUnit { .. });
        assert!(
            !restarts || !before || self.followed,
            "nothing keeps the bridge up to date: {text}"
        );
        self.machine.change(action).map_err(StepError::Refused)?;
        // If kpx is killed right after it loaded the bridge, only the guard keeps it.
        let loaded = !before && self.machine.has_bridge();
        assert!(
            !loaded || self.guarded,
            "no guard was started before: {text}"
        );
        let removed = before && !self.machine.has_bridge();
        assert!(
            !removed || !self.followed,
            "a follower would load the bridge again: {text}"
        );
        Ok(())
    }
}

impl Clock for Place {
    fn now(&self) -> Time {
        Time {
            seconds: self.clock,
        }
    }

    async fn pause(&mut self, duration: Duration) {
        self.acts += 1;
        self.clock += i64::try_from(duration.as_secs()).unwrap();
    }
}

impl Node for Place {
    async fn read(&mut self, items: &[Item]) -> Evidence {
        self.machine.pass();
        let mut evidence = self.machine.tell().only(items);
        if items.contains(&Item::Conntrack) && !self.tracked.is_empty() {
            evidence.insert(Item::Conntrack, Ok(self.tracked.clone()));
        }
        evidence
    }
}

impl MigrationNode for Place {
    fn own_pods(&self) -> Result<Vec<String>, String> {
        Ok(Vec::new())
    }

    async fn probe(&mut self, targets: &[Target]) -> Vec<Result<SocketAddr, Unanswered>> {
        let [target] = targets else {
            panic!("{targets:?}");
        };
        let mode = self.machine.proxy.mode;
        if self.silent.contains(&mode) {
            return vec![Err(Unanswered::Silent("no answer".to_owned()))];
        }
        let by = if self.misled.contains(&mode) {
            ("10.0.2.77", 8443)
        } else {
            ("10.0.2.2", 6443)
        };
        let (ip, port) = (target.at.ip(), target.at.port());
        self.tracked = format!(
            "tcp 6 119 TIME_WAIT src=10.0.2.15 dst={ip} sport=40000 dport={port} \
             src={} dst=10.0.2.15 sport={} dport=40000 [ASSURED] mark=0 use=1\n",
            by.0, by.1
        );
        if self.untracked.contains(&mode) {
            self.tracked.clear();
        }
        vec![Ok("10.0.2.15:40000".parse().unwrap())]
    }

    async fn proxy_pods(&mut self, node: &str) -> Result<Vec<Pod>, Gap> {
        assert_eq!(node, "node1");
        Ok(self.machine.pods())
    }

    async fn last_line(&mut self, _: &str, container: &str) -> Option<String> {
        assert_eq!(container, "kube-proxy");
        Some("E1 \"Error running ProxyServer\" err=\"no such bit\"".to_owned())
    }

    async fn record(&mut self, entry: &Entry) -> Result<(), String> {
        self.live().await;
        if self.room == Some(0) {
            return Err("No space left on device (os error 28)".to_owned());
        }
        self.room = self.room.map(|left| left - 1);
        self.journal.push_str(&line(entry));
        // Every entry must be readable.
        journal::read(&self.journal).unwrap();
        Ok(())
    }

    async fn backup(&mut self) -> Result<(), String> {
        self.allow("backup")?;
        self.backed_up = true;
        Ok(())
    }

    async fn guard(&mut self, _: Mode) -> Result<(), String> {
        self.allow("guard")?;
        self.guarded = true;
        Ok(())
    }

    async fn follow(&mut self, _: Mode) -> Result<(), String> {
        self.allow("follow")?;
        // A follower loads the bridge first.
        if !self.machine.has_bridge() {
            let input = "table ip kpx-bridge {\n}\n".to_owned();
            self.machine.apply(&Action::Nft { input })?;
        }
        self.followed = true;
        Ok(())
    }

    async fn unfollow(&mut self) {
        self.followed = false;
    }

    fn bridge_notices(&mut self) -> Vec<String> {
        Vec::new()
    }

    fn is_to_stop(&self) -> bool {
        self.stop_at.is_some_and(|at| self.acts >= at)
    }
}

fn fields(mode: Mode) -> Fields {
    Fields {
        mode,
        scheduler: None,
        strict_arp: None,
    }
}

fn migration(from: Mode, to: Mode, strategy: Strategy) -> Migration {
    Migration {
        id: "test".to_owned(),
        began: Time { seconds: 0 },
        node: None,
        from,
        there: fields(to),
        back: fields(from),
        strategy,
        evict: Consent::default(),
        modules: Vec::new(),
        external: false,
        probes: vec![Target {
            name: "default/kubernetes:https".to_owned(),
            at: "10.96.0.1:443".parse().unwrap(),
            proto: Proto::Tcp,
            from: Vantage::Node,
            by_endpoint: true,
        }],
    }
}

pub(crate) fn directions() -> impl Iterator<Item = (Mode, Mode)> {
    let all = Mode::ALL.into_iter();
    all.flat_map(|from| Mode::ALL.into_iter().map(move |to| (from, to)))
        .filter(|(from, to)| from != to)
}

/// Into each mode and out of each but userspace.
pub(crate) const CIRCLE: [(Mode, Mode); 3] = [
    (Mode::Iptables, Mode::Ipvs),
    (Mode::Ipvs, Mode::Nftables),
    (Mode::Nftables, Mode::Iptables),
];

/// Services of every kind in both families, in a cluster that is small enough to be migrated hundreds of times.
const RECORDED: &str = "dual-iptables";
const SMALL: &str = "seed-iptables";

#[test]
fn every_migration_ends_complete_in_the_new_mode() {
    for (from, to) in directions() {
        for strategy in [Strategy::InPlace, Strategy::Bridge] {
            let machine = Machine::new(RECORDED, from);
            assert_eq!(machine.faults(from), Vec::<String>::new(), "{from}");
            let mut place = Place::new(machine, &migration(from, to, strategy));
            place.machine.proxy.slow = 3;
            let ended = place.go_on(false);
            assert_eq!(ended, Some(Ended::Migrated), "{from} to {to} {strategy}");
            assert_eq!(place.machine.proxy.mode, to);
            let faults = place.machine.faults(to);
            assert_eq!(faults, Vec::<String>::new(), "{from} to {to} {strategy}");
            assert!(!place.machine.has_bridge(), "{from} to {to} {strategy}");
        }
    }
}

/// Continues after a kill, with `kpx migrate resume` or `rollback`, to the end.
fn recover(mut place: Place, rollback: bool) -> (Place, Ended) {
    place.life = None;
    let ended = place.go_on(rollback);
    (place, ended.expect("kpx is not killed"))
}

#[test]
#[ignore = "takes long: make test-loops"]
fn on_a_full_disk_it_stops_before_the_next_change_and_goes_on_when_there_is_room() {
    let (from, to) = (Mode::Iptables, Mode::Nftables);
    let migration = migration(from, to, Strategy::usual(from, to));
    let machine = Machine::new(SMALL, from);
    for room in 0.. {
        let mut place = Place::new(machine.clone(), &migration);
        place.room = Some(room);
        match place.go_on(false) {
            Some(Ended::Stopped(why)) => assert!(why.contains("No space left"), "{why}"),
            ended => {
                assert_eq!(ended, Some(Ended::Migrated));
                assert!(room > 10, "{room}");
                return;
            }
        }
        if room == 0 {
            assert_eq!(place.machine.kernel, machine.kernel);
        }
        place.room = None;
        let (forth, ended) = recover(place.clone(), false);
        assert_eq!(ended, Ended::Migrated, "{room}");
        assert_eq!(forth.machine.faults(to), Vec::<String>::new(), "{room}");
        let (back, ended) = recover(place, true);
        assert!(matches!(ended, Ended::RolledBack(_)), "{room}: {ended:?}");
        assert_eq!(back.machine.faults(from), Vec::<String>::new(), "{room}");
    }
}

#[ignore = "takes minutes: make test-loops"]
#[test]
fn killed_anywhere_it_ends_complete_in_the_new_mode_or_the_old() {
    for (from, to) in directions() {
        let machine = Machine::new(SMALL, from);
        let before = machine.kernel.clone();
        let config = machine.files.clone();
        let mut points = 0;
        for life in 0.. {
            let mut place = Place::new(
                machine.clone(),
                &migration(from, to, Strategy::usual(from, to)),
            );
            place.life = Some(life);
            let killed = place.go_on(false).is_none();
            points = life;
            let (forth, ended) = recover(place.clone(), false);
            assert_eq!(ended, Ended::Migrated, "{from} to {to}, killed at {life}");
            assert_eq!(forth.machine.proxy.mode, to);
            assert_eq!(forth.machine.configured(), to);
            assert_eq!(
                forth.machine.faults(to),
                Vec::<String>::new(),
                "{from} to {to}, killed at {life}"
            );
            let (back, ended) = recover(place, true);
            assert!(
                matches!(ended, Ended::RolledBack(_)),
                "{from} to {to}, killed at {life}: {ended:?}"
            );
            assert_eq!(back.machine.proxy.mode, from);
            assert_eq!(
                back.machine.files, config,
                "{from} to {to}, killed at {life}"
            );
            assert_eq!(
                back.machine.faults(from),
                Vec::<String>::new(),
                "{from} to {to}, killed at {life}"
            );
            let differences = differences(&before, &back.machine.kernel);
            assert_eq!(
                differences,
                Vec::<String>::new(),
                "{from} to {to}, killed at {life}"
            );
            if !killed {
                break;
            }
        }
        assert!(
            points > 15,
            "{from} to {to}: killed at {points} points only"
        );
    }
}

/// Returns a node in mode `from` that migrates to mode `to`.
fn bound(from: Mode, to: Mode) -> Place {
    let strategy = Strategy::usual(from, to);
    Place::new(Machine::new(SMALL, from), &migration(from, to, strategy))
}

#[track_caller]
fn is_back(place: &Place, before: &Machine, mode: Mode) {
    assert_eq!(place.machine.proxy.mode, mode);
    assert_eq!(place.machine.files, before.files);
    assert_eq!(place.machine.faults(mode), Vec::<String>::new());
    let differences = differences(&before.kernel, &place.machine.kernel);
    assert_eq!(differences, Vec::<String>::new());
}

/// Runs from the beginning until a stop is requested after `at` acts.
fn stopped(place: &Place, at: usize) -> (Place, Ended) {
    let mut place = place.clone();
    place.stop_at = Some(at);
    let ended = place.go_on(false).expect("kpx is not killed");
    place.stop_at = None;
    (place, ended)
}

fn asked() -> Ended {
    Ended::Stopped("stopped on request".to_owned())
}

#[test]
#[ignore = "takes long: make test-loops"]
fn a_request_to_stop_ends_the_step_and_the_rest_can_be_resumed_or_rolled_back() {
    requests_to_stop_end_the_step(&CIRCLE[1..2]);
}

pub(crate) fn requests_to_stop_end_the_step(directions: &[(Mode, Mode)]) {
    for &(from, to) in directions {
        let mut place = bound(from, to);
        place.machine.proxy.slow = 2;
        let before = place.machine.clone();
        for at in 0.. {
            let (mut forth, ended) = stopped(&place, at);
            if ended == Ended::Migrated {
                // The last acts are the entries for the end of the last stage and of the migration.
                assert!(at > 15 && forth.acts <= at + 2, "{at} of {}", forth.acts);
                break;
            }
            assert_eq!(ended, asked(), "{from} to {to}, asked after {at}");
            // Only two more entries are written: the end of the current stage, and the stop.
            assert!(forth.acts <= at + 2, "{from} to {to}, asked after {at}");
            let last = forth.journal.lines().last().unwrap();
            assert!(last.contains("stopped on request"), "{last}");
            if at % 3 > 0 {
                continue;
            }
            let mut back = forth.clone();
            assert_eq!(forth.go_on(false), Some(Ended::Migrated));
            assert_eq!(forth.machine.faults(to), Vec::<String>::new());
            let ended = back.go_on(true);
            assert!(
                matches!(ended, Some(Ended::RolledBack(_))),
                "{from} to {to}, asked after {at}: {ended:?}"
            );
            is_back(&back, &before, from);
        }
    }
}

#[test]
fn the_log_of_kube_proxy_is_a_gate_and_a_missing_log_is_reported() {
    let notes = |place: &Place| journal::read(&place.journal).unwrap().notes.join("\n");
    let at_start = "I1 server_linux.go:1] \"Using ipvs Proxier\"\n";
    for (log, why) in [
        (at_start.to_owned(), ""),
        (
            at_start.replace("ipvs", "iptables"),
            "log: kube-proxy logged mode iptables, not ipvs",
        ),
        (
            format!("{at_start}I1 \"IPVS scheduler not specified, use rr by default\"\n"),
            "log: kube-proxy logged scheduler rr, not lc",
        ),
    ] {
        let mut migration = migration(Mode::Iptables, Mode::Ipvs, Strategy::InPlace);
        migration.there.scheduler = Some("lc".to_owned());
        let mut place = Place::new(Machine::new(SMALL, Mode::Iptables), &migration);
        place.machine.log = Some(log);
        let ended = place.go_on(false);
        if why.is_empty() {
            assert_eq!(
                (ended, notes(&place)),
                (Some(Ended::Migrated), String::new())
            );
            continue;
        }
        // The rollback finds the same log.
        let Some(Ended::Stopped(_) | Ended::RolledBack(_)) = ended else {
            panic!("{ended:?}");
        };
        assert!(place.journal.contains(why), "{}", place.journal);
    }
    for (log, why) in [
        (None, "was not collected"),
        (Some("I1 nothing of it\n"), "does not name its mode"),
    ] {
        let mut place = bound(Mode::Iptables, Mode::Ipvs);
        place.machine.log = log.map(str::to_owned);
        assert_eq!(place.go_on(false), Some(Ended::Migrated));
        let notes = notes(&place);
        assert!(
            notes.contains("gate log was skipped: ") && notes.contains(why),
            "{notes}"
        );
    }
}

/// A connection through the virtual server of the API server's Service.
const OPEN: &str = "TCP 0A600001 1000 0A600001 01BB 0AF40101 01BB ESTABLISHED 900\n";

#[test]
fn a_request_to_stop_ends_a_drain() {
    let mut place = bound(Mode::Ipvs, Mode::Nftables);
    place.machine.connections = OPEN.to_owned();
    let (place, ended) = (0..99)
        .map(|at| stopped(&place, at))
        .find(|(place, _)| place.clock == 5)
        .unwrap();
    assert_eq!(ended, asked());
    assert!(place.journal.lines().nth_back(1).unwrap().contains("drain"));
}

#[test]
fn connections_that_began_while_kpx_was_down_are_drained() {
    let place = bound(Mode::Ipvs, Mode::Nftables);
    let drained = |(place, _): &(Place, Ended)| {
        let state = journal::read(&place.journal).unwrap();
        state.is_drained() && !state.begun
    };
    let (mut place, ended) = (0..99).map(|at| stopped(&place, at)).find(drained).unwrap();
    assert_eq!(ended, asked());
    // The guard found mode ipvs complete and removed the bridge.
    let input = "delete table ip kpx-bridge\ndelete table ip6 kpx-bridge\n".to_owned();
    place.machine.apply(&Action::Nft { input }).unwrap();
    place.machine.connections = OPEN.to_owned();
    let (waits, ended) = stopped(&place, place.acts + 3);
    assert_eq!(ended, asked());
    assert!(waits.machine.has_bridge() && waits.clock > 0);
    assert_eq!(waits.machine.configured(), Mode::Ipvs);
    place.machine.connections = CONNECTIONS.to_owned();
    assert_eq!(place.go_on(false), Some(Ended::Migrated));
}

#[test]
#[ignore = "takes long: make test-loops"]
fn connections_of_virtual_servers_are_drained() {
    for to in [Mode::Iptables, Mode::Nftables] {
        // Before the configuration changes, open connections stop the migration.
        let mut place = bound(Mode::Ipvs, to);
        let before = place.machine.clone();
        place.machine.connections = OPEN.to_owned();
        let Some(Ended::RolledBack(why)) = place.go_on(false) else {
            panic!("{to}");
        };
        assert!(why.contains("after 60 s: 1 connection through"), "{why}");
        is_back(&place, &before, Mode::Ipvs);
        // With --accept-loss, they are lost.
        let mut place = bound(Mode::Ipvs, to);
        place.machine.connections = OPEN.to_owned();
        place.limits.accept_loss = true;
        assert_eq!(place.go_on(false), Some(Ended::Migrated));
        let observed = journal::read(&place.journal).unwrap().observed;
        assert_eq!((observed.connections, observed.failed_probes), (1, 0));
        assert!(place.clock >= 60, "they have their time: {}", place.clock);
    }
    // After the change, their virtual servers stay until they end.
    let migration = migration(Mode::Ipvs, Mode::Iptables, Strategy::InPlace);
    let mut place = Place::new(Machine::new(SMALL, Mode::Ipvs), &migration);
    place.machine.connections = OPEN.to_owned();
    let Some(Ended::Stopped(why)) = place.go_on(false) else {
        panic!();
    };
    assert!(why.contains("1 connection through"), "{why}");
    assert_eq!(place.machine.proxy.mode, Mode::Iptables);
    let left = place.machine.faults(Mode::Iptables).join(" ");
    assert!(
        left.contains("VirtualServers") && !left.contains("Chains"),
        "{left}"
    );
    place.machine.connections = CONNECTIONS.to_owned();
    assert_eq!(place.go_on(false), Some(Ended::Migrated));
    assert_eq!(place.machine.faults(Mode::Iptables), Vec::<String>::new());
    // A rollback after the end also drains: mode ipvs has served new connections.
    for from in [Mode::Iptables, Mode::Nftables] {
        let mut place = bound(from, Mode::Ipvs);
        let before = place.machine.clone();
        assert_eq!(place.go_on(false), Some(Ended::Migrated));
        let there = place.machine.clone();
        place.machine.connections = OPEN.to_owned();
        let Some(Ended::Stopped(why)) = place.go_on(true) else {
            panic!("{from}");
        };
        assert!(why.contains("after 60 s: 1 connection through"), "{why}");
        assert!(place.machine.has_bridge());
        assert_eq!(place.machine.proxy.mode, Mode::Ipvs);
        assert_eq!(place.machine.files, there.files);
        place.machine.connections = CONNECTIONS.to_owned();
        assert!(matches!(place.go_on(false), Some(Ended::RolledBack(_))));
        is_back(&place, &before, from);
    }
}

#[test]
fn the_configuration_may_be_changed_externally() {
    for (from, to) in directions() {
        let mut migration = migration(from, to, Strategy::usual(from, to));
        migration.external = true;
        let machine = Machine::new(SMALL, from);
        let before = machine.clone();
        let mut place = Place::new(machine, &migration);
        assert_eq!(place.go_on(false), Some(Ended::Prepared));
        assert_eq!(place.machine.files, before.files);
        // It has not been changed externally yet.
        place.limits.configured = true;
        let mut early = place.clone();
        assert!(
            matches!(early.go_on(false), Some(Ended::Stopped(_))),
            "{from} to {to}"
        );
        assert_eq!(early.machine.proxy.mode, from);
        // The external change is never made, or it is made.
        let mut never = place.clone();
        assert!(
            matches!(never.go_on(true), Some(Ended::RolledBack(_))),
            "{from} to {to}"
        );
        is_back(&never, &before, from);
        place.machine.restart_as(to);
        assert_eq!(place.go_on(false), Some(Ended::Migrated), "{from} to {to}");
        assert_eq!(place.machine.faults(to), Vec::<String>::new());
    }
}

#[test]
fn a_kube_proxy_already_in_the_new_mode_leaves_no_leftovers() {
    for (from, to) in directions() {
        let mut migration = migration(from, to, Strategy::InPlace);
        migration.external = true;
        let mut machine = Machine::new(SMALL, from);
        machine.restart_as(to);
        machine.pass();
        let mut place = Place::new(machine, &migration);
        assert_eq!(place.go_on(false), Some(Ended::Prepared), "{from} to {to}");
        place.machine.restart_as(to);
        place.limits.configured = true;
        assert_eq!(place.go_on(false), Some(Ended::Migrated), "{from} to {to}");
        assert_eq!(
            place.machine.faults(to),
            Vec::<String>::new(),
            "{from} to {to}"
        );
    }
}

#[test]
fn an_incomplete_line_is_ignored_and_a_broken_one_is_an_error() {
    let mut place = bound(Mode::Iptables, Mode::Nftables);
    place.life = Some(9);
    assert_eq!(place.go_on(false), None);
    let whole = place.journal.clone();
    let state = journal::read(&whole).unwrap();
    place.journal.push_str("{\"entry\":\"sta");
    let torn = journal::read(&place.journal).unwrap();
    assert!(torn.torn && !state.torn);
    assert_eq!((torn.done, torn.begun), (state.done, state.begun));
    place.journal.push('\n');
    let broken = journal::read(&place.journal).unwrap_err().to_string();
    assert!(
        broken.starts_with(&format!(
            "line {} of the journal is broken",
            whole.lines().count() + 1
        )),
        "{broken}"
    );
    let ended = Entry::Ended {
        at: Time { seconds: 9 },
        leg: Leg::There,
    };
    for more in [whole.clone(), line(&ended)] {
        assert!(journal::read(&format!("{whole}{more}")).is_err(), "{more}");
    }
    assert!(journal::read("").is_err());
}
