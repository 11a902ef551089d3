//! kpx in a real cluster: real kubelets, a real API server with RBAC, real kube-proxy, and traffic that counts what fails.
//!
//! `make test-cluster KUBE_BIN=DIR` runs all of it. By hand, with `KUBE_BIN` set:
//!
//! ```text
//! lab up | down              make the cluster, end it
//! lab test [NAME…]           run the scenarios (all), in a cluster made anew; with KEEP=1 in the one that runs
//! lab list                   name the scenarios
//! lab on NODE COMMAND…       run as root on a node
//! lab laptop COMMAND…        run where the API is reached, as service account kube-system/kpx
//! lab traffic SECONDS        count what fails
//! lab ipvs                   move one node between all modes, on a kernel with `ip_vs`: by `tests/vm/run`
//! ```

#![expect(clippy::unwrap_used, reason = "a test that cannot set up should stop")]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it is a program of its own"
)]
#![expect(clippy::exit, reason = "it passes the status of another program on")]

mod app;
#[macro_use]
mod faults;
mod image;
mod ipvs;
mod lab;
#[macro_use]
mod more;
mod corners;
mod row;
mod run;
mod scenarios;
mod traffic;
mod ways;
mod why;

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{ExitCode, exit};
use std::thread;
use std::time::{Duration, Instant};

use lab::Lab;
use scenarios::{SCENARIOS, Scenario};
use traffic::Traffic;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let rest = words.get(1..).unwrap_or_default();
    match words.first().map_or("test", String::as_str) {
        "serve" => app::serve(),
        "idle" => app::idle(),
        "init" => app::init(rest),
        "client" => app::client(
            rest[0].clone().into(),
            Duration::from_millis(rest[1].parse().unwrap()),
            &rest[2..],
        ),
        "connect" => app::connect(rest[0].parse().unwrap(), rest[1].parse().unwrap()),
        "list" => {
            for Scenario { name, about, .. } in SCENARIOS {
                println!("{name:14} {about}");
            }
        }
        // cargo says so to every test program; what it would choose is none of ours.
        verb if verb.starts_with('-') => return test(&[]),
        "test" => return test(rest),
        verb => {
            let lab = match Lab::new() {
                Ok(lab) => lab,
                Err(why) => return cannot(&why),
            };
            let rest: Vec<&str> = rest.iter().map(String::as_str).collect();
            match (verb, rest.as_slice()) {
                ("up", []) => lab.up(),
                ("ipvs", []) => ipvs::run(&lab),
                ("down", []) => lab.down(),
                ("on", [node, command @ ..]) => status(lab.on(node, command)),
                ("laptop", command) => status(lab.laptop("kpx", command)),
                ("traffic", [seconds]) => {
                    let traffic = Traffic::start(&lab);
                    thread::sleep(Duration::from_secs(seconds.parse().unwrap()));
                    let report = traffic.stop();
                    print!("{report}\n{}", report.details());
                }
                _ => return cannot(&format!("no such use: {words:?}")),
            }
        }
    }
    ExitCode::SUCCESS
}

fn status(mut command: std::process::Command) {
    let status = command.status().unwrap();
    exit(status.code().unwrap_or(255));
}

fn cannot(why: &str) -> ExitCode {
    eprintln!("test-cluster did not run: {why}");
    ExitCode::from(2)
}

fn test(names: &[String]) -> ExitCode {
    let lab = match Lab::new() {
        Ok(lab) => lab,
        Err(why) => return cannot(&why),
    };
    let known = |name: &String| SCENARIOS.iter().any(|scenario| scenario.name == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        return cannot(&format!("there is no scenario {unknown}"));
    }
    let keep = env::var_os("KEEP").is_some();
    if !keep {
        let began = Instant::now();
        lab.up();
        println!(
            "up             ok    {:4} s  Kubernetes {}",
            began.elapsed().as_secs(),
            lab.version()
        );
    }
    let mut failed = 0;
    for scenario in SCENARIOS {
        if !names.is_empty() && !names.iter().any(|name| name == scenario.name) {
            continue;
        }
        let began = Instant::now();
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let said = (scenario.run)(&lab);
            scenarios::healthy(&lab, "iptables");
            said
        }));
        let took = began.elapsed().as_secs();
        let name = scenario.name;
        let Ok(said) = ran else {
            failed += 1;
            println!(
                "{name:14} FAILED {took:3} s; logs: {}",
                lab.keep_logs(name).display()
            );
            // The next one begins in a cluster as it should be.
            if !keep {
                lab.up();
            }
            continue;
        };
        println!("{name:14} ok    {took:4} s  {said}");
    }
    if !keep {
        lab.down();
    }
    if failed > 0 {
        eprintln!("{failed} scenarios failed");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
