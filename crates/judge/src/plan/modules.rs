//! Loading kernel modules, now and at boot.

use std::path::PathBuf;

use thiserror::Error;

use kpx_node::action::{Action, Plan, Undo};
use kpx_node::backend::Mode;
use kpx_node::node::modules::Modules;
use kpx_node::words::number_of;

/// The file that loads modules at boot, relative to the host's root.
pub const AT_BOOT: &str = "/etc/modules-load.d/kpx.conf";

/// Modules that the kernel can unload although their objects are in use, with the objects lost.
const HOLDERS: &[(&str, &str)] = &[
    (
        "dummy",
        "unloading it would delete all dummy links; unused it is harmless",
    ),
    (
        "nf_tables",
        "unloading it would delete all tables; unused it is harmless",
    ),
];

/// Returns whether the module `name` is kept loaded by an undo, because its objects may be in use.
pub fn stays(name: &str) -> bool {
    HOLDERS.iter().any(|(holder, _)| *holder == name)
}

/// Plans to load those of `names` and their dependencies that are not loaded.
pub fn load_modules(modules: &Modules<'_>, mode: Mode, names: &[String]) -> Plan {
    let mut plan = Plan::default();
    let why = |name: &String| HOLDERS.iter().find(|(holder, _)| holder == name);
    let order = modules.to_load(names);
    // Modules that stay loaded come last, so that a failed step leaves as few as possible.
    let (holders, others): (Vec<String>, _) =
        order.into_iter().partition(|order| why(order).is_some());
    if !others.is_empty() {
        let mut back = others.clone();
        back.reverse();
        let modules = number_of(others.len(), "module");
        plan.push(
            format!("load {modules} for mode {mode}"),
            Action::LoadModules { names: others },
            Undo::Do(Action::UnloadModules { names: back }),
        );
    }
    for name in holders {
        let why = why(&name).map_or("", |(_, why)| why);
        plan.push(
            format!("load the module {name}"),
            Action::LoadModules { names: vec![name] },
            Undo::never(why),
        );
    }
    plan
}

/// The file was not written by kpx.
#[derive(Debug, Error)]
#[error("{AT_BOOT} was not written by kpx: its first line does not contain {MARK:?}")]
pub struct NotOurs;

/// Mark in the first line of the file.
const MARK: &str = "by kpx preflight --persist";

/// Adds a step to `plan` that loads `names` at every boot. `before` is the current text of the file.
pub fn name_at_boot(
    plan: &mut Plan,
    mode: Mode,
    names: &[String],
    before: Option<&str>,
) -> Result<(), NotOurs> {
    let first = before.map(|text| text.lines().next().unwrap_or(""));
    if first.is_some_and(|line| !line.contains(MARK)) {
        return Err(NotOurs);
    }
    let mut text = format!("# For kube-proxy's mode {mode}, {MARK}\n");
    for name in names {
        text.push_str(name);
        text.push('\n');
    }
    if before == Some(text.as_str()) {
        return Ok(());
    }
    let path = PathBuf::from(AT_BOOT);
    let undo = match before {
        None => Action::RemoveFile { path: path.clone() },
        Some(before) => Action::WriteFile {
            path: path.clone(),
            text: before.to_owned(),
        },
    };
    plan.push(
        format!("list {} in {AT_BOOT}", number_of(names.len(), "module")),
        Action::WriteFile { path, text },
        Undo::Do(undo),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::evidence::{Evidence, Item};
    use kpx_node::node::modules;

    #[test]
    fn modules_that_lose_objects_stay_loaded() {
        assert!(stays("dummy") && stays("nf_tables"));
        assert!(!stays("ip_vs"));
    }

    fn evidence() -> Evidence {
        let mut evidence = Evidence::default();
        let mut add = |item, text: &str| evidence.insert(item, Ok(text.to_owned()));
        add(Item::Modules, "nf_defrag_ipv4 16384 0 -\n");
        add(Item::ModulesBuiltin, "kernel/lib/libcrc32c.ko\n");
        add(
            Item::ModulesDep,
            "net/ip_vs.ko: net/nf_conntrack.ko net/nf_defrag_ipv4.ko lib/libcrc32c.ko\n\
             net/nf_conntrack.ko: net/nf_defrag_ipv4.ko lib/libcrc32c.ko\n\
             net/nf_defrag_ipv4.ko:\n\
             net/ip_vs_rr.ko: net/ip_vs.ko net/nf_conntrack.ko net/nf_defrag_ipv4.ko lib/libcrc32c.ko\n\
             net/dummy.ko:\n",
        );
        evidence
    }

    #[test]
    fn modules_are_loaded_in_order_and_unloaded_in_reverse() {
        let evidence = evidence();
        let modules = modules::parse(&evidence).unwrap();
        let names = ["dummy", "ip_vs_rr", "ip_vs", "missing"].map(str::to_owned);
        let plan = load_modules(&modules, Mode::Ipvs, &names);
        let shown: Vec<_> = plan
            .steps
            .iter()
            .map(|step| (step.action.to_string(), step.undo.to_string()))
            .collect();
        assert_eq!(
            shown[0],
            (
                "modprobe -a nf_conntrack ip_vs ip_vs_rr".to_owned(),
                "rmmod ip_vs_rr ip_vs nf_conntrack".to_owned()
            )
        );
        assert_eq!(shown[1].0, "modprobe -a dummy");
        assert!(matches!(plan.steps[1].undo, Undo::Never(_)));
        assert_eq!(shown.len(), 2);
    }

    #[test]
    fn the_file_is_written_once_and_restored() {
        let names = ["ip_vs".to_owned()];
        let mut plan = Plan::default();
        let before = "# For kube-proxy's mode nftables, by kpx preflight --persist\nnf_tables\n";
        name_at_boot(&mut plan, Mode::Ipvs, &names, Some(before)).unwrap();
        let Undo::Do(Action::WriteFile { text, .. }) = &plan.steps[0].undo else {
            panic!("{:?}", plan.steps);
        };
        assert_eq!(text, before);
        let Action::WriteFile { text, .. } = plan.steps[0].action.clone() else {
            panic!("{:?}", plan.steps);
        };
        assert!(text.ends_with("\nip_vs\n"), "{text}");
        name_at_boot(&mut plan, Mode::Ipvs, &names, Some(&text)).unwrap();
        assert_eq!(plan.steps.len(), 1, "the module is already in the file");
    }

    #[test]
    fn a_file_of_another_author_is_not_changed() {
        let mut plan = Plan::default();
        let names = ["ip_vs".to_owned()];
        let refused = name_at_boot(&mut plan, Mode::Ipvs, &names, Some("wireguard\n"));
        assert!(refused.is_err() && plan.steps.is_empty());
    }
}
