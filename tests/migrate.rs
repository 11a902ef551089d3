//! `kpx migrate`: the journey, on a node that remembers, cut short at every point.

mod machine;
mod rules;

use std::time::Duration;

use futures_util::FutureExt as _;
use kpx::action::Action;
use kpx::apply::{Apply, StepError};
use kpx::backend::Mode;
use kpx::cluster::edit::Fields;
use kpx::evidence::{Evidence, Item, Time};
use kpx::migrate::engine::{Ended, Engine, Event, Limits, Site};
use kpx::migrate::journal::{self, Entry};
use kpx::migrate::journey::{Journey, Strategy};
use kpx::migrate::probes::Target;

use machine::{Machine, differences};

/// A node, and a journal on its disk; and how long kpx lives.
#[derive(Clone, Debug)]
struct Place {
    machine: Machine,
    journal: String,
    /// After how many changes and entries it is killed.
    life: Option<usize>,
    clock: i64,
}

impl Place {
    fn new(machine: Machine, journey: &Journey) -> Self {
        let began = Entry::Began {
            kpx: "test".to_owned(),
            journey: Box::new(journey.clone()),
        };
        Self {
            machine,
            journal: line(&began),
            life: None,
            clock: 0,
        }
    }

    /// Lives on a little, or is killed.
    async fn live(&mut self) {
        match &mut self.life {
            None => {}
            Some(0) => std::future::pending().await,
            Some(left) => *left -= 1,
        }
    }

    /// Goes on with the journal; `None` if kpx was killed.
    fn go_on(&mut self, rollback: bool) -> Option<Ended> {
        let mut state = journal::read(&self.journal).unwrap();
        let mut tell = |_: Event<'_>| {};
        let mut engine = Engine {
            site: self,
            limits: Limits {
                confirm: Duration::from_secs(30),
                drain: Duration::from_secs(60),
                accept_loss: false,
                configured: true,
            },
            tell: &mut tell,
        };
        async {
            if rollback {
                engine.turn(&mut state, "asked for").await.unwrap();
            }
            engine.run(&mut state).await
        }
        .now_or_never()
    }
}

fn line(entry: &Entry) -> String {
    serde_json::to_string(entry).unwrap() + "\n"
}

impl Apply for Place {
    async fn apply(&mut self, action: &Action) -> Result<(), StepError> {
        self.live().await;
        self.machine.apply(action).map_err(StepError::Refused)
    }
}

impl Site for Place {
    async fn read(&mut self, items: &[Item]) -> Evidence {
        self.machine.pass();
        self.machine.tell().only(items)
    }

    fn name(&self) -> Option<String> {
        Some("node1".to_owned())
    }

    async fn probe(&mut self, _: &Target) -> Result<(), String> {
        Ok(())
    }

    async fn record(&mut self, entry: &Entry) -> Result<(), String> {
        self.live().await;
        self.journal.push_str(&line(entry));
        // What was written must be read again as it was.
        journal::read(&self.journal).unwrap();
        Ok(())
    }

    async fn backup(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn now(&self) -> Time {
        Time {
            seconds: self.clock,
        }
    }

    async fn pause(&mut self, duration: Duration) {
        self.clock += i64::try_from(duration.as_secs()).unwrap();
    }
}

fn fields(mode: Mode) -> Fields {
    Fields {
        mode,
        scheduler: None,
        strict_arp: None,
    }
}

fn journey(from: Mode, to: Mode, strategy: Strategy) -> Journey {
    Journey {
        id: "test".to_owned(),
        began: Time { seconds: 0 },
        node: None,
        from,
        there: fields(to),
        back: fields(from),
        strategy,
        modules: Vec::new(),
        elsewhere: false,
        probes: Vec::new(),
    }
}

fn directions() -> impl Iterator<Item = (Mode, Mode)> {
    let all = Mode::ALL.into_iter();
    all.flat_map(|from| Mode::ALL.into_iter().map(move |to| (from, to)))
        .filter(|(from, to)| from != to)
}

/// Services of every kind in both families, and a cluster that is small enough to be moved hundreds of times.
const RECORDED: &str = "dual-iptables";
const SMALL: &str = "seed-iptables";

#[test]
fn every_direction_ends_whole_in_the_new_mode() {
    for (from, to) in directions() {
        for strategy in [Strategy::InPlace, Strategy::Bridge] {
            let machine = Machine::new(RECORDED, from);
            assert_eq!(machine.faults(from), Vec::<String>::new(), "{from}");
            let mut place = Place::new(machine, &journey(from, to, strategy));
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

/// Goes on after a kill: `kpx migrate resume` or `rollback`, until nobody kills it any more.
fn recover(mut place: Place, rollback: bool) -> (Place, Ended) {
    place.life = None;
    let ended = place.go_on(rollback);
    (place, ended.expect("nobody kills it"))
}

#[test]
fn killed_anywhere_it_ends_whole_in_the_new_mode_or_the_old() {
    for (from, to) in directions() {
        let machine = Machine::new(SMALL, from);
        let before = machine.kernel.clone();
        let config = machine.files.clone();
        let mut points = 0;
        for life in 0.. {
            let mut place = Place::new(
                machine.clone(),
                &journey(from, to, Strategy::usual(from, to)),
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
