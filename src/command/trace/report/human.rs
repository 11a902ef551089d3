//! A trace as a page: the verdict, the hops and the notes.

use std::cmp::Reverse;
use std::iter;
use std::net::SocketAddr;

use super::steps::{Step, branch, effect, ending, for_whom, percent, place, share, steps};
use super::{HopRow, OutcomeRow, SourceTrace, TraceReport};
use super::{live, onward};
use crate::render::{Page, Tone, wrap};
use kpx_judge::trace::Verdict;
use kpx_judge::verdict::Fate;
use kpx_node::backend::Mode;
use kpx_node::words::listed;

/// Outcomes listed before the rest is counted.
pub(super) const MOST_SHOWN: usize = 10;

/// Columns before the text of a hop: its number and its hook.
const INDENT: usize = 17;

/// Columns for a packet counter, at the right.
const COUNTER: usize = 9;

pub(super) fn page(report: &TraceReport, page: &mut Page) {
    if let Some(text) = overall(report) {
        let fate = report.first.fate;
        headline(page, &fate.name().to_ascii_uppercase(), tone(fate), &text);
        page.line("");
    }
    of_port(report, page);
    for port in &report.ports {
        page.line("");
        of_port(port, page);
    }
}

/// Returns what happens to the connections of each source to each port, if that is not the same for all.
fn overall(report: &TraceReport) -> Option<String> {
    let ports = iter::once(report).chain(&report.ports);
    let traces = ports.flat_map(|port| all(port).iter().map(move |trace| (port, trace)));
    let mut groups: Vec<(Fate, String, Vec<&str>)> = Vec::new();
    for (port, trace) in traces {
        let to = match report.ports.as_slice() {
            [] => String::new(),
            _ => format!(" to {}", destination(port, trace)),
        };
        let mut known = groups.iter_mut();
        match known.find(|(fate, of, _)| *fate == trace.fate && *of == to) {
            Some((.., from)) => from.push(&trace.sender),
            None => groups.push((trace.fate, to, vec![&trace.sender])),
        }
    }
    groups.sort_by_key(|(fate, ..)| Reverse(*fate));
    let is_mixed = groups.iter().any(|(fate, ..)| *fate != groups[0].0);
    let texts = groups
        .iter()
        .map(|(fate, to, from)| format!("{fate} from {}{to}", listed(from)));
    is_mixed.then(|| texts.collect::<Vec<_>>().join("; "))
}

/// Adds the traces from all sources to one port.
fn of_port(report: &TraceReport, page: &mut Page) {
    let all = all(report);
    let groups = alike(all);
    for (at, group) in groups.iter().enumerate() {
        if at > 0 {
            page.line("");
        }
        let trace = group[0];
        let word = trace.fate.name().to_ascii_uppercase();
        headline(page, &word, tone(trace.fate), &sentence(report, trace));
        page.para("  from ", &names(group));
    }
    if let Some(text) = simulated(report) {
        page.line("");
        page.para("", &text);
    }
    // The steps of the packet that was seen are listed beside the steps of the kernel.
    let seen = report
        .live
        .as_ref()
        .is_some_and(|live| live.packet.is_some());
    for group in groups.iter().filter(|_| !seen) {
        let trace = group[0];
        page.line("");
        if all.len() > 1 {
            page.para("", &format!("Path from {}:", trace.from));
        }
        hops(page, trace);
        onward::page(page, trace);
    }
    if let Some(live) = &report.live {
        live::page(live, page);
    }
    for (at, note) in report.notes().iter().enumerate() {
        if at == 0 {
            page.line("");
        }
        page.para("! ", note);
    }
    if let Some(probe) = &report.probe {
        page.line("");
        page.para("Probe: ", &probe.message);
    }
}

/// Adds the command to run next.
pub(super) fn next(report: &TraceReport, page: &mut Page) {
    let mut all = iter::once(report).chain(&report.ports);
    if let Some(next) = all.find_map(|report| report.next.as_ref()) {
        page.line("");
        page.next(next);
    }
}

/// Returns the traces of all sources.
pub(crate) fn all(report: &TraceReport) -> &[SourceTrace] {
    if report.sources.is_empty() {
        std::slice::from_ref(&report.first)
    } else {
        &report.sources
    }
}

/// Returns the names of the sources in `group`.
pub(super) fn names(group: &[&SourceTrace]) -> String {
    let from: Vec<_> = group.iter().map(|trace| trace.from.as_str()).collect();
    from.join(", ")
}

/// Returns the sentence that says which rules were assumed, if they are not the live ones.
pub(super) fn simulated(report: &TraceReport) -> Option<String> {
    let mode = report.mode.map_or("another", Mode::name);
    report.assumed.then(|| format!("Simulated: the rules that kube-proxy would write in mode {mode}, with the live rules of other software."))
}

/// Adds a sentence behind a word in colour.
fn headline(page: &mut Page, word: &str, tone: Tone, text: &str) {
    let width = usize::from(page.style().width);
    let lead = word.len() + 2;
    for (at, line) in wrap(text, width.saturating_sub(lead)).iter().enumerate() {
        if at == 0 {
            let word = page.paint(tone, word);
            page.line(&format!("{word}: {line}"));
        } else {
            page.line(&format!("{:lead$}{line}", ""));
        }
    }
}

pub(super) use crate::report::fate::tone;

/// Groups sources whose packets have the same outcomes.
pub(super) fn alike(all: &[SourceTrace]) -> Vec<Vec<&SourceTrace>> {
    let mut groups: Vec<Vec<&SourceTrace>> = Vec::new();
    for trace in all {
        let same = |group: &&mut Vec<&SourceTrace>| {
            (
                &group[0].outcomes,
                &group[0].fault,
                group[0].packet.destination,
            ) == (&trace.outcomes, &trace.fault, trace.packet.destination)
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(trace),
            None => groups.push(vec![trace]),
        }
    }
    groups
}

/// Returns the Service port behind the target: `NAMESPACE/NAME:PORT`.
fn name(report: &TraceReport) -> Option<String> {
    let service = report.service.as_ref()?;
    let port = if service.port.is_empty() {
        String::new()
    } else {
        format!(":{}", service.port)
    };
    Some(format!("{}/{}{port}", service.namespace, service.name))
}

/// Returns the Service port with its address, or the address.
fn destination(report: &TraceReport, trace: &SourceTrace) -> String {
    let packet = &trace.packet;
    let target = format!(
        "{}/{}",
        SocketAddr::new(packet.destination, packet.port),
        packet.protocol
    );
    match name(report) {
        Some(name) => format!("{name} ({target})"),
        None => target,
    }
}

/// The answer in one sentence.
pub(super) fn sentence(report: &TraceReport, trace: &SourceTrace) -> String {
    let name = name(report);
    let service = destination(report, trace);
    // The Service's name is not repeated if the reason begins with it.
    let because = |reason: &str| match name.as_ref().and_then(|name| reason.strip_prefix(name)) {
        Some(rest) => format!("{service}{rest}"),
        None => format!("{service}: {reason}"),
    };
    match (trace.fate, &trace.fault) {
        (Fate::Works, _) => format!("{service} {}", reaches(trace)),
        (Fate::Partly, _) => format!("{service}: {}", parts(trace)),
        (_, Some(fault)) => because(fault),
        (_, None) => because("some ways of the packet depend on unknown conditions"),
    }
}

/// Returns where packets that work go: `reaches one of 3 backends, 33.3% each; its source IP is kept`.
fn reaches(trace: &SourceTrace) -> String {
    let outcomes = &trace.outcomes;
    let ends = ends(trace);
    let kept = match (
        outcomes.iter().all(|o| o.masquerade),
        outcomes.iter().any(|o| o.masquerade),
    ) {
        (true, _) => "its source IP is replaced (SNAT)",
        (false, true) => "its source IP is replaced for some backends (SNAT)",
        (false, false) => "its source IP is kept",
    };
    let to = match ends.as_slice() {
        [(end, _)] => end.clone(),
        all => format!("one of {} backends{}", all.len(), shares(all)),
    };
    format!("reaches {to}; {kept}")
}

/// Returns where the packets that work end, in words, and which share of these does: the ways to one backend count as one.
fn ends(trace: &SourceTrace) -> Vec<(String, f64)> {
    let mut ends: Vec<(String, f64)> = Vec::new();
    // Packets beyond a limit are dropped, and not part of the answer.
    let ends_early = |row: &&OutcomeRow| matches!(row.verdict, Verdict::Drop | Verdict::Reject);
    let works = trace.outcomes.iter().filter(|outcome| !ends_early(outcome));
    let whole: f64 = works.clone().map(|work| work.probability).sum();
    for outcome in works {
        let end = match &outcome.backend {
            Some(backend) => SocketAddr::new(backend.address, backend.port).to_string(),
            None if outcome.verdict == Verdict::Local => "a program on the node".to_owned(),
            None => "its destination".to_owned(),
        };
        match ends.iter_mut().find(|(of, _)| *of == end) {
            Some((_, share)) => *share += outcome.probability / whole,
            None => ends.push((end, outcome.probability / whole)),
        }
    }
    ends
}

/// Returns the share of packets of each of several backends: `, 25% each`.
fn shares(ends: &[(String, f64)]) -> String {
    let shares = || ends.iter().map(|(_, share)| *share);
    let (least, most) = (shares().fold(1.0, f64::min), shares().fold(0.0, f64::max));
    if most - least < 1e-3 {
        format!(", {} each", percent(most))
    } else {
        format!(", {} to {}", percent(least), percent(most))
    }
}

/// Returns the share of packets of each fate, with a reason: `50% work, 50% lost (…)`.
fn parts(trace: &SourceTrace) -> String {
    let mut told: Vec<(Fate, Option<&str>, f64)> = Vec::new();
    for outcome in &trace.outcomes {
        let fault = outcome.fault.as_deref();
        match told
            .iter_mut()
            .find(|(fate, of, _)| (*fate, *of) == (outcome.fate, fault))
        {
            Some((.., share)) => *share += outcome.probability,
            None => told.push((outcome.fate, fault, outcome.probability)),
        }
    }
    told.sort_by_key(|(fate, ..)| *fate);
    let parts = told.iter().map(|(fate, fault, share)| {
        let why = fault.map_or_else(String::new, |fault| format!(" ({fault})"));
        let word = match fate {
            Fate::Works => "work",
            fate => fate.name(),
        };
        format!("{} {word}{why}", percent(*share))
    });
    let parts: Vec<String> = parts.collect();
    // A fault of tracked connections belongs to no outcome of the packet.
    if let Some(fault) = &trace.fault
        && trace
            .outcomes
            .iter()
            .all(|outcome| outcome.fate == Fate::Works)
    {
        return fault.clone();
    }
    parts.join(", ")
}

fn hops(page: &mut Page, trace: &SourceTrace) {
    let style = page.style();
    let arrow = if style.ascii { "->" } else { "→" };
    let steps = steps(trace, style.wide);
    let counted = |step: &Step<'_>| match step {
        Step::Hop(hop) | Step::Branch(hop) => hop.packets.is_some(),
    };
    let counters = steps.iter().any(counted);
    if counters {
        let width = usize::from(style.width);
        page.line(&format!(
            "{:>3} {:<12} {:<rest$}{:>COUNTER$}",
            "#",
            "hook",
            "rule and effect",
            "packets",
            rest = width.saturating_sub(INDENT + COUNTER)
        ));
    }
    let mut number = 0;
    let mut last_hook = None;
    for step in &steps {
        let (Step::Hop(hop) | Step::Branch(hop)) = step;
        number += 1;
        let hook = if last_hook == Some(hop.hook) {
            ""
        } else {
            hop.hook.name()
        };
        last_hook = Some(hop.hook);
        let lead = format!("{number:>3} {hook:<12} ");
        match step {
            Step::Hop(hop) => one(page, &lead, hop, trace, counters, arrow),
            Step::Branch(hop) => {
                let (place, text) = branch(hop, trace);
                line(page, &lead, &place, &text, None, counters);
                endings(page, trace);
            }
        }
    }
    if trace.outcomes.len() == 1 && trace.verdict == Verdict::Deliver {
        endings(page, trace);
    }
}

/// Adds a hop.
fn one(
    page: &mut Page,
    lead: &str,
    hop: &HopRow,
    trace: &SourceTrace,
    counters: bool,
    arrow: &str,
) {
    let wide = page.style().wide;
    let mut text = effect(hop, arrow);
    if let Some(passing) = hop.outcomes.as_ref().filter(|_| !wide) {
        text.extend([" ", &for_whom(passing, trace)]);
    }
    if let Some(owner) = hop.owner.as_ref().filter(|_| hop.foreign || wide) {
        text.extend([" (", owner, ")"]);
    }
    line(page, lead, &place(hop), &text, hop.packets, counters);
    if wide && !hop.rule.is_empty() {
        page.line(&format!("{:INDENT$}{}", "", hop.rule));
    }
}

/// Adds one hop's place, effect and counter: on one line if that fits, else on several.
fn line(
    page: &mut Page,
    lead: &str,
    place: &str,
    text: &str,
    packets: Option<u64>,
    counters: bool,
) {
    let width = usize::from(page.style().width);
    let room = width
        .saturating_sub(INDENT + if counters { COUNTER } else { 0 })
        .max(20);
    let length = |text: &str| text.chars().count();
    let mut lines = if length(place) + 1 + length(text) <= room {
        vec![format!("{place} {text}")]
    } else {
        let mut lines = wrap(place, room);
        let more = wrap(text, width.saturating_sub(INDENT + 2).max(20));
        lines.extend(more.into_iter().map(|line| format!("  {line}")));
        lines
    };
    if let (Some(packets), Some(first)) = (packets, lines.first_mut()) {
        let pad = room.saturating_sub(length(first));
        *first = format!("{first}{:pad$}{:>COUNTER$}", "", short(packets));
    }
    for (at, line) in lines.iter().enumerate() {
        if at == 0 {
            page.line(format!("{lead}{line}").trim_end());
        } else {
            page.line(&format!("{:INDENT$}{line}", ""));
        }
    }
}

/// A count in at most eight columns.
fn short(count: u64) -> String {
    match count {
        0..=9_999_999 => count.to_string(),
        10_000_000..=9_999_999_999 => format!("{}M", count / 1_000_000),
        _ => format!("{}G", count / 1_000_000_000),
    }
}

/// Adds the outcomes, one a line.
fn endings(page: &mut Page, trace: &SourceTrace) {
    let style = page.style();
    let most = if style.wide || style.verbose > 0 {
        usize::MAX
    } else {
        MOST_SHOWN
    };
    for outcome in trace.outcomes.iter().take(most) {
        let share = share(outcome);
        let lead = format!("{:INDENT$}{share:>6}  ", "");
        let width = usize::from(style.width).saturating_sub(INDENT + 8).max(20);
        for (at, line) in wrap(&ending(outcome, trace), width).iter().enumerate() {
            if at == 0 {
                page.line(&format!("{lead}{line}"));
            } else {
                page.line(&format!("{:1$}{line}", "", INDENT + 8));
            }
        }
        for when in &outcome.when {
            page.para(&format!("{:1$}if ", "", INDENT + 8), when);
        }
    }
    if trace.outcomes.len() > most {
        page.line(&format!(
            "{:INDENT$}        and {} more; -v shows all",
            "",
            trace.outcomes.len() - most
        ));
    }
}
