//! The objects that implement a Service in the mode in force.

use crate::render::Page;
use crate::view::service::form::{Does, Kind, Part};

/// Adds the objects; `None` if they are unknown.
pub(super) fn page(parts: Option<&[Part]>, page: &mut Page) {
    let parts = match parts {
        None => return page.line("objects unknown"),
        Some([]) => return page.line("no rule or virtual server leads to the Service"),
        Some(parts) => parts,
    };
    page.line("objects");
    for part in parts {
        let word = match part.kind {
            Kind::Rule | Kind::Chain => "",
            Kind::MapElement => "map ",
            Kind::SetElement | Kind::SetMembers => "set ",
            Kind::VirtualServer => "virtual server ",
            Kind::Address => "link ",
        };
        let to = part.does.as_ref().map(to);
        let to = to.filter(|to| !to.is_empty());
        let sides: Vec<&str> = [&part.serves, &to]
            .into_iter()
            .flatten()
            .map(String::as_str)
            .collect();
        let text = format!("{word}{}: {}", part.object, sides.join(" → "));
        page.hang("  ", "    ", &text);
    }
}

/// Returns where an object leads.
fn to(does: &Does) -> String {
    match does {
        Does::Chain(to) | Does::Rule(to) => to.clone(),
        Does::Rejects => "rejected".to_owned(),
        Does::Drops => "dropped".to_owned(),
        Does::Balances => "one of the endpoints".to_owned(),
        Does::BalancesLocally => "one of the endpoints on this node".to_owned(),
        Does::AppliesPolicy => "the external traffic policy decides".to_owned(),
        Does::ChecksSource => "the source ranges decide".to_owned(),
        Does::Translates => String::new(),
        Does::Stale => "an endpoint that is gone".to_owned(),
        Does::Schedules {
            scheduler,
            to,
            draining,
        } => {
            let draining = match draining.as_slice() {
                [] => String::new(),
                all => format!("; draining {}", all.join(", ")),
            };
            format!("{} ({scheduler}){draining}", to.join(", "))
        }
    }
}
