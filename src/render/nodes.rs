//! Many things that go on, a line each: drawn over where there is a terminal, one below the other elsewhere.

use std::io::Write;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Lines on standard error, by their names.
#[derive(Debug)]
pub struct Lines {
    drawn: Option<MultiProgress>,
    bars: Vec<(String, ProgressBar)>,
}

impl Lines {
    /// Returns lines that are drawn over, on the process's standard error, or not.
    pub fn new(drawn: bool) -> Self {
        let target = ProgressDrawTarget::stderr;
        Self {
            drawn: drawn.then(|| MultiProgress::with_draw_target(target())),
            bars: Vec::new(),
        }
    }

    /// Says `text` of `name`; without a terminal, to `plain`.
    pub fn say(&mut self, name: &str, text: &str, plain: &mut dyn Write) {
        let Some(all) = &self.drawn else {
            // Nobody may be reading any more.
            writeln!(plain, "kpx: {name}: {text}").ok();
            return;
        };
        let known = self.bars.iter().find(|(of, _)| of == name);
        let bar = known.map_or_else(|| started(all, name), |(_, bar)| bar.clone());
        if known.is_none() {
            self.bars.push((name.to_owned(), bar.clone()));
        }
        bar.set_message(text.to_owned());
        bar.tick();
    }
}

/// Returns a new line of `all`, for `name`.
fn started(all: &MultiProgress, name: &str) -> ProgressBar {
    let bar = all.add(ProgressBar::new_spinner());
    let style = ProgressStyle::with_template("{prefix}: {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.set_prefix(name.to_owned());
    bar
}

impl Drop for Lines {
    fn drop(&mut self) {
        // The last of each stays to be read.
        for (_, bar) in &self.bars {
            bar.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_lines_follow_each_other() {
        let mut plain = Vec::new();
        let mut lines = Lines::new(false);
        lines.say("a", "begins", &mut plain);
        lines.say("b", "ends", &mut plain);
        assert_eq!(plain, b"kpx: a: begins\nkpx: b: ends\n");
    }
}
