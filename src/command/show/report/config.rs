//! kube-proxy's version, mode and settings.

use crate::render::Page;
use crate::view::config::{Config, Origin};
use kpx_node::backend::Mode;
use kpx_node::evidence::Gap;

pub(super) fn page(config: &Config, page: &mut Page) {
    let version = match &config.version {
        Ok(of) => format!("{} (from {})", of.version, of.source),
        Err(gap) => format!("? ({gap})"),
    };
    page.para("version     ", &version);
    let known = |found: &Result<Mode, Gap>| match found {
        Ok(mode) => mode.to_string(),
        Err(gap) => format!("? ({gap})"),
    };
    let mode = &config.mode;
    page.para("configured  ", &known(&mode.configured));
    page.para("reported    ", &known(&mode.reported));
    for observed in &mode.observed {
        let names = observed.serving.iter().flatten().map(|mode| mode.name());
        let names: Vec<&str> = names.collect();
        let names = match names.as_slice() {
            [] if observed.serving.is_none() => "?".to_owned(),
            [] => "no mode dispatches packets to Services".to_owned(),
            [one] => (*one).to_owned(),
            several => format!("{} conflict", several.join(" and ")),
        };
        page.para("observed    ", &format!("{}: {names}", observed.family));
    }
    for left in &mode.leftovers {
        let family = left.family.map(|family| format!("{family} "));
        let family = family.unwrap_or_default();
        let count = left.names.len();
        let what = left.kind.words(count);
        let text = format!("leftovers   of mode {}: {count} {family}{what}", left.mode);
        page.line(&text);
    }
    settings(config, page);
}

fn settings(config: &Config, page: &mut Page) {
    if config.settings.is_empty() {
        return;
    }
    page.line("");
    let settings = config.settings.iter();
    let shown = settings.filter(|setting| !setting.value.is_empty() || page.style().wide);
    let cells = shown.map(|setting| {
        let from = match setting.from {
            Origin::Config => "config",
            Origin::Flag => "flag",
            Origin::Running => "/configz",
            Origin::Default => "default",
        };
        let from = match &setting.in_file {
            Some(value) => format!("{from}; the file has {value}"),
            None => from.to_owned(),
        };
        let value = if setting.value.is_empty() {
            "-"
        } else {
            &setting.value
        };
        vec![setting.name.to_owned(), value.to_owned(), from]
    });
    let cells: Vec<_> = cells.collect();
    page.grid(&[("SETTING", 0), ("VALUE", 0), ("SOURCE", 0)], &cells);
}
