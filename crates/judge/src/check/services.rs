//! SV: connections to Services as a whole.

use crate::check::core::PATH;
use crate::check::drift::DRIFT;
use crate::check::{Because, Check, Example, Severity, Text, When};
use crate::trace;

pub(super) const CHECKS: &[Check] = &[Check {
    id: "SV01",
    name: "unexplained-failure",
    severity: Severity::Error,
    when: When::Now,
    title: "No Service fails for a reason that only `kpx why` finds",
    symptom: "Connections to a Service fail, although every other check passes.",
    why: "Most faults break what a check looks at: a rule, a module, a setting. Some lie between them: an EndpointSlice without \
          the names of its nodes, an address that two Services have, a reply that leaves with the wrong source. `kpx why` finds \
          these by following the connections and by trying repairs; this check asks it about each Service that fails and that no \
          error of another check names.",
    verify: "Ask for the connections of the Service: the cause is named with its owner.",
    commands: &[
        Example::kpx(&["why", "NAMESPACE/SERVICE"]).with(&["NAMESPACE/SERVICE"]),
        Example::kpx(&["show", "services"]),
    ],
    fix: Text::with(
        "Do what {} says.",
        &[Example::kpx(&["why", "NAMESPACE/SERVICE"]).with(&["NAMESPACE/SERVICE"])],
    ),
    incidents: &[],
    needs: &[PATH, trace::NOTES_NEEDS, DRIFT],
    // Each of these checks names the object, but not that Services fail because of it.
    caused_by: &[
        Because::Same("CN07"),
        Because::Same("IR16"),
        Because::Same("SY01"),
    ],
    run: |facts| facts.unexplained(),
}];

/// Returns whether `check` asks for the causes of Services that fail, after all other checks.
pub(super) fn explains(check: &Check) -> bool {
    CHECKS.iter().any(|own_check| own_check.id == check.id)
}
