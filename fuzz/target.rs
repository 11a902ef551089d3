//! Runs the target that the variable `KPX_TARGET` names. With `KPX_SEEDS=FOLDER` it writes the answers of this network
//! namespace's kernel as seeds of the targets that decode them, and with neither it prints the names of all targets.

#![no_main]

mod kernel;

use std::env;
use std::process::exit;
use std::sync::OnceLock;

use kpx::fuzzing::TARGETS;
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<fn(&[u8])> = OnceLock::new();

fuzz_target!(
    init: {
        if let Ok(folder) = env::var("KPX_SEEDS") {
            kernel::seeds(folder.as_ref());
            exit(0);
        }
        let Ok(wanted) = env::var("KPX_TARGET") else {
            TARGETS.iter().for_each(|(name, _)| println!("{name}"));
            exit(0);
        };
        let found = TARGETS.iter().find(|(name, _)| *name == wanted);
        let (_, run) = found.unwrap_or_else(|| panic!("there is no target {wanted}"));
        TARGET.set(*run).expect("it is set once");
    },
    |data: &[u8]| (TARGET.get().expect("init has set it"))(data)
);
