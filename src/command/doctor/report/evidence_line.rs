//! Evidence: a rule that is too long for two lines keeps its decisive part.

use crate::render::{Page, dots};
use kpx_judge::check::Proof;

/// The words of a match that a rule repeats or that only describe it.
const COMMENT: &str = "-m comment --comment ";

/// Adds `proof` behind `lead`; a rule on at most two lines.
pub(super) fn seen(lead: &str, proof: &Proof, page: &mut Page) {
    let style = page.style();
    let text = proof.to_string();
    let room = usize::from(style.width).saturating_sub(length(lead));
    if style.wide || length(&text) <= room {
        return page.line(&format!("{lead}{text}"));
    }
    let text = match proof {
        Proof::Rule { .. } | Proof::Difference { .. } => {
            rule(proof, &text, 2 * room, dots(style.ascii))
        }
        Proof::Log(line) => message(line),
        _ => text,
    };
    page.para(lead, &text);
}

fn length(text: &str) -> usize {
    text.chars().count()
}

/// Returns a rule, or the difference of one: without its comment and, if that is still too long, without words before the
/// match that decides. Its chain and its target stay.
fn rule(proof: &Proof, text: &str, room: usize, dots: &str) -> String {
    if let Proof::Difference {
        family,
        object,
        have: Some(have),
        want: Some(want),
        ..
    } = proof
    {
        let (have, want) = (plain(have), plain(want));
        let (have, want) = apart(&have, &want, dots);
        let family = family.map_or_else(String::new, |family| format!("{family} "));
        let head = format!("{family}{object}: ");
        // Both values get the same room.
        let each = room.saturating_sub(length(&head) + ", not ".len()) / 2;
        let spare = |other: &str| each + each.saturating_sub(length(other));
        let (left, right) = (spare(&want), spare(&have));
        let (have, want) = (within(&have, left, dots), within(&want, right, dots));
        return cut(&format!("{head}{have}, not {want}"), room, dots);
    }
    within(&plain(text), room, dots)
}

/// Returns `rule` without its comment, and without modules that the protocol loads anyway.
fn plain(rule: &str) -> String {
    let mut rest = rule;
    let mut text = String::with_capacity(rule.len());
    while let Some((before, after)) = rest.split_once(COMMENT) {
        text.push_str(before);
        let after = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').map_or("", |(_, after)| after),
            None => after.split_once(' ').map_or("", |(_, after)| after),
        };
        rest = after.trim_start();
    }
    text.push_str(rest);
    for module in ["-m tcp ", "-m udp ", "-m sctp ", "-m set ", "-m addrtype "] {
        text = text.replace(module, "");
    }
    text.trim_end().to_owned()
}

/// Returns the words in which two values differ, with the word before.
fn apart(have: &str, want: &str, dots: &str) -> (String, String) {
    let (a, b): (Vec<&str>, Vec<&str>) = (have.split(' ').collect(), want.split(' ').collect());
    let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let start = same.saturating_sub(1);
    let ends = a[same..].iter().rev().zip(b[same..].iter().rev());
    let end = ends.take_while(|(a, b)| a == b).count();
    let part = |words: &[&str]| {
        let middle = words[start..words.len() - end].join(" ");
        let (before, after) = (
            if start > 0 { dots } else { "" },
            if end > 0 { dots } else { "" },
        );
        [before, &middle, after]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    };
    (part(&a), part(&b))
}

/// Returns `text` in `room` columns: words in the middle are omitted, first those before the last match and the target.
fn within(text: &str, room: usize, dots: &str) -> String {
    if length(text) <= room {
        return text.to_owned();
    }
    let words: Vec<&str> = text.split(' ').collect();
    // The chain, or the family, table and chain with the kind of the difference.
    let head = words.iter().position(|word| is_match(word)).unwrap_or(0);
    let from = |at: usize| {
        let (front, back) = (words[..head].join(" "), words[at..].join(" "));
        let short = [front.as_str(), dots, &back].join(" ");
        let short = short.trim_start();
        (length(short) <= room).then(|| short.to_owned())
    };
    let places = || head + 1..words.len();
    let whole = places().filter(|at| is_match(words[*at])).find_map(from);
    whole
        .or_else(|| places().find_map(from))
        .unwrap_or_else(|| cut(text, room, dots))
}

/// Returns whether `word` begins a match or target of a rule.
fn is_match(word: &str) -> bool {
    let is_flag = word.starts_with('-') && word.len() > 1 && word != "-A";
    is_flag
        || matches!(
            word,
            "ip" | "ip6" | "meta" | "ct" | "iifname" | "oifname" | "!"
        )
}

/// Returns a line of a log without the header of klog: severity, date, time, process and place.
fn message(line: &str) -> String {
    match line.split_once("] ") {
        Some((head, rest)) if head.contains(".go:") => {
            let source = head.split_once(": ").map(|(source, _)| source);
            source.map_or(rest.to_owned(), |source| format!("{source}: {rest}"))
        }
        _ => line.to_owned(),
    }
}

fn cut(text: &str, room: usize, dots: &str) -> String {
    if length(text) <= room {
        return text.to_owned();
    }
    let keep = room.saturating_sub(length(dots));
    let kept: String = text.chars().take(keep).collect();
    format!("{}{dots}", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::net::Family;

    fn rule_of(text: &str, room: usize) -> String {
        let proof = Proof::Rule {
            family: Family::V4,
            table: "filter".to_owned(),
            rule: text.to_owned(),
        };
        rule(&proof, &proof.to_string(), room, "…")
    }

    #[test]
    fn a_long_rule_keeps_its_chain_its_last_match_and_its_target() {
        let long = "-A FORWARD -i eth0 -o cni0 -s 192.0.2.0/24 -d 10.244.0.0/16 -p tcp -m comment --comment \"block the \
                    office network\" -m tcp --dport 8080 -j DROP";
        assert_eq!(
            rule_of(long, 72),
            "IPv4 filter -A FORWARD … -d 10.244.0.0/16 -p tcp --dport 8080 -j DROP"
        );
        assert_eq!(
            rule_of(long, 50),
            "IPv4 filter -A FORWARD … --dport 8080 -j DROP"
        );
        assert_eq!(
            rule_of("-A FORWARD -m comment --comment short -j DROP", 40),
            "IPv4 filter -A FORWARD -j DROP"
        );
    }

    #[test]
    fn a_difference_keeps_the_words_that_differ() {
        let rule_with = |probability: &str, target: &str| {
            Some(format!(
                "-m comment --comment \"shop/web:http -> 10.244.1.7:8080\" -m statistic --mode random --probability \
                 {probability} -j {target}"
            ))
        };
        let proof = Proof::Difference {
            action: "differs",
            family: Some(Family::V4),
            object: "nat KUBE-SVC-AAAAAAAAAAAAAAAA".to_owned(),
            have: rule_with("0.90000000009", "KUBE-SEP-AAAAAAAAAAAAAAAA"),
            want: rule_with("0.33333333349", "KUBE-SEP-AAAAAAAAAAAAAAAA"),
        };
        let text = rule(&proof, &proof.to_string(), 200, "…");
        assert_eq!(
            text,
            "IPv4 nat KUBE-SVC-AAAAAAAAAAAAAAAA: … --probability 0.90000000009 …, not … --probability 0.33333333349 …"
        );
        assert!(length(&rule(&proof, &proof.to_string(), 72, "…")) <= 72);
    }

    #[test]
    fn a_log_line_keeps_its_message() {
        let line = "kube-proxy.log: E1120 12:20:54.835169     141 run.go:72] \"command failed\" err=\"no ip_vs\"";
        assert_eq!(
            message(line),
            "kube-proxy.log: \"command failed\" err=\"no ip_vs\""
        );
        assert_eq!(
            message("a line [x] of another log"),
            "a line [x] of another log"
        );
    }
}
