//! What the checks with findings mean.

use std::collections::BTreeSet;

use super::{Section, linked, prose, typed};
use crate::command::explain::report::Explanation;
use crate::render::markup::Markup;
use kpx_judge::check::{self, Reach};

pub(super) fn section<'s>(ids: impl Iterator<Item = &'s str>) -> Section<'s> {
    let ids: BTreeSet<&str> = ids.collect();
    Section::new("checks", "Checks", Some(ids.len()), move |markup| {
        if ids.is_empty() {
            markup.leaf("p", &[], "No check has findings.");
        }
        for check in check::all().filter(|check| ids.contains(check.id)) {
            explained(markup, &Explanation::new(check, &Reach::default()));
        }
    })
}

/// Returns the address of the explanation of the check `id` on the page.
pub(super) fn address(id: &str) -> String {
    format!("#check-{id}")
}

fn explained(markup: &mut Markup, of: &Explanation) {
    let id = format!("check-{}", of.id);
    markup.element("details", &[("id", id.as_str())], |markup| {
        markup.leaf("summary", &[], &format!("{} {}", of.id, of.name));
        markup.element("dl", &[("class", "facts")], |markup| {
            for (name, text) in [
                ("healthy", format!("{}.", of.title)),
                ("symptom", of.symptom.to_owned()),
                ("mechanism", of.why.to_owned()),
                ("verify", of.verify.to_owned()),
                ("fix", of.fix.clone()),
            ] {
                markup.leaf("dt", &[], name);
                markup.element("dd", &[], |markup| prose(markup, &text));
            }
            for incident in of.incidents {
                markup.leaf("dt", &[], "seen in");
                markup.element("dd", &[], |markup| linked(markup, incident));
            }
        });
        if !of.commands.is_empty() {
            typed(markup, "Commands that show it", &of.commands.join("\n"));
        }
    });
}
