//! DV: the link kube-ipvs0.

use super::facts::MODE;
use super::{Check, Facts, Finding, Proof, Severity, Verdict, When};
use crate::backend::Mode;
use crate::backend::ipvs::model::DUMMY;
use crate::evidence::{Gap, Item};

pub(super) const CHECKS: &[Check] = &[Check {
    id: "DV01",
    name: "dummy-link",
    severity: Severity::Error,
    when: When::Now,
    title: "The link kube-ipvs0 is there in ipvs mode",
    symptom: "No Service answers on this node: connections to Service addresses time out or leave by the default route.",
    why: "IPVS sees a packet only if the kernel takes its destination for local. So in ipvs mode every Service address \
          is put on a dummy link, kube-ipvs0. Without the link, virtual servers are there but packets pass them by.",
    verify: "The link must be there and of kind dummy. State DOWN and flag NOARP are right for it.",
    commands: &[
        "ip -d link show kube-ipvs0",
        "ip -br addr show dev kube-ipvs0",
    ],
    fix: "Restart kube-proxy on this node: it makes the link at its first sync. If it does not, see whether the kernel \
          can make one at all (`modprobe dummy`).",
    incidents: &[
        "cloudnativelabs/kube-router#425: the same with kube-dummy-if, seen as \"No route to host\"",
    ],
    needs: &[MODE, &[Item::Links, Item::Addresses, Item::Services]],
    caused_by: &["KM15", "KM01"],
    run: link,
}];

fn link(facts: &Facts<'_>) -> Verdict {
    let mode = facts.mode()?;
    if mode != Mode::Ipvs {
        return Err(Gap::NotApplicable(format!(
            "the mode is {mode}, which does not use {DUMMY}"
        )));
    }
    if facts.node.services().is_ok_and(Vec::is_empty) {
        return Err(Gap::NotApplicable("there are no Services".to_owned()));
    }
    let seen = |state: &str| {
        [Proof::Link {
            link: DUMMY.to_owned(),
            state: state.to_owned(),
        }]
    };
    let missing = Finding::new(
        Severity::Error,
        DUMMY,
        "the link that carries Service addresses in ipvs mode does not exist",
    )
    .seen(seen("missing"));
    let links = match facts.node.links() {
        Ok(links) => links,
        // The list of addresses has the same links, without their kinds.
        Err(gap) => {
            let addresses = facts.node.addresses().map_err(|_| gap)?;
            let there = addresses.all.iter().any(|address| address.link == DUMMY);
            return Ok(if there { Vec::new() } else { vec![missing] });
        }
    };
    Ok(match links.all.iter().find(|link| link.name == DUMMY) {
        None => vec![missing],
        Some(link) if !link.kind.is_empty() && link.kind != "dummy" => vec![
            Finding::new(
                Severity::Error,
                DUMMY,
                "a link of another kind has the name that kube-proxy's dummy link needs",
            )
            .seen(seen(&format!("kind {}", link.kind)))
            .mend("Find out who made the link and rename or delete it, then restart kube-proxy."),
        ],
        Some(_) => Vec::new(),
    })
}
