//! The recording that questions are about: the dump as a bundle of kpx, redacted or not.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use kpx_host::OwnRun;
use kpx_judge::redact::{Named, Redactor};
use kpx_node::evidence::{self, BundleError, Evidence, ITEMS};

/// The longest time for one command, in which it may read all nodes of a cluster.
pub(super) const LIMIT: Duration = Duration::from_secs(300);

/// The time for which the recording of a live node answers questions.
const FRESH: Duration = Duration::from_secs(30);

/// The source of the recording: the options that name it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Origin {
    /// A dump: all of its nodes.
    Dump(Vec<String>),
    /// Live nodes: one, or all.
    Nodes(Vec<String>),
}

/// A bundle of kpx that was made for the server, and ends with it.
pub(super) struct Recording {
    pub(super) origin: Origin,
    /// The bundle, the only file in the folder.
    pub(super) path: PathBuf,
    /// The nodes of a bundle of several.
    pub(super) nodes: Vec<String>,
    made: Instant,
    _folder: TempDir,
}

impl Recording {
    /// Records `origin`, with `options` of `kpx snapshot`. The error is kpx's message.
    pub(super) async fn make(origin: Origin, options: &[String]) -> Result<Self, String> {
        match &origin {
            Origin::Nodes(words) => {
                let words = [words, options].concat();
                Self::record(origin, &words).await
            }
            Origin::Dump(words) => {
                let one = [words, options].concat();
                let all = [&one[..], &["--all-nodes".to_owned()]].concat();
                // Only reading tells whether the dump has one node or several.
                match Self::record(origin.clone(), &all).await {
                    Ok(several) if several.nodes.len() > 1 => Ok(several),
                    Ok(_) => Self::record(origin, &one).await,
                    Err(of_all) => Self::record(origin, &one).await.map_err(|of_one| {
                        if of_one.contains("--all-nodes") {
                            of_all
                        } else {
                            of_one
                        }
                    }),
                }
            }
        }
    }

    async fn record(origin: Origin, words: &[String]) -> Result<Self, String> {
        let failed =
            |error: std::io::Error| format!("kpx: cannot record the node\n  because {error}\n");
        let folder = tempfile::tempdir().map_err(failed)?;
        let arguments = [&["snapshot".to_owned(), "--output=json".to_owned()], words].concat();
        let run = OwnRun {
            arguments,
            folder: Some(folder.path().to_owned()),
            from: None,
        };
        let output = run.output(LIMIT).await.map_err(failed)?;
        let written = fs::read_dir(folder.path()).map_err(failed)?.next();
        let Some(written) = written.transpose().map_err(failed)? else {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        };
        let path = written.path();
        let nodes = match evidence::load_node(&path, None, &[]) {
            Err(BundleError::AllNodes { nodes, .. }) => nodes,
            _ => Vec::new(),
        };
        Ok(Self {
            origin,
            path,
            nodes,
            made: Instant::now(),
            _folder: folder,
        })
    }

    /// Returns whether it is of `origin`, and new enough to answer.
    pub(super) fn is_of(&self, origin: &Origin) -> bool {
        let is_fresh = matches!(origin, Origin::Dump(_)) || self.made.elapsed() < FRESH;
        self.origin == *origin && is_fresh
    }

    /// Returns the name that `word` of a question has in this redacted recording: it may be a name of an earlier answer, or the
    /// original. The error says that it is both.
    pub(super) fn meant(
        &self,
        node: Option<&str>,
        redactor: &mut Redactor,
        word: &str,
        named: Named,
    ) -> Result<String, String> {
        let replaced = redactor.question(word, named);
        if replaced == word {
            return Ok(replaced);
        }
        let node = node.or(self.nodes.first().map(String::as_str));
        // A recording that cannot be read is reported by the command.
        let evidence = evidence::load_node(&self.path, node, ITEMS).unwrap_or_default();
        match (occurs(&evidence, word), occurs(&evidence, &replaced)) {
            (true, true) => Err(format!(
                "kpx: {word} is ambiguous: the redacted recording uses it for another name\n  hint: name the Service, or use the \
                 name or address of an earlier answer\n"
            )),
            (false, true) => Ok(replaced),
            // An unknown address may be inside a known network; an unknown name is better reported as it was typed.
            (false, false) if is_address(word) => Ok(replaced),
            (true | false, false) => Ok(word.to_owned()),
        }
    }
}

/// Returns the names in `word`: all but numbers of ports.
fn names(word: &str) -> impl Iterator<Item = &str> {
    let parts = if is_address(word) {
        let address = word.rsplit_once(':').map_or(word, |(before, _)| before);
        let whole = word.parse::<std::net::IpAddr>().is_ok();
        let address = if whole { word } else { address };
        vec![address.trim_matches(['[', ']'])]
    } else {
        word.split(['/', ':', '.']).collect()
    };
    let fixed = ["svc", "service", "services", "cluster", "local"];
    parts
        .into_iter()
        .filter(move |part| !fixed.contains(part) && !part.bytes().all(|b| b.is_ascii_digit()))
}

fn is_address(word: &str) -> bool {
    word.parse::<std::net::IpAddr>().is_ok() || word.parse::<std::net::SocketAddr>().is_ok()
}

/// Returns whether `evidence` has every name in `word`.
fn occurs(evidence: &Evidence, word: &str) -> bool {
    names(word).all(|name| {
        let mut texts = evidence.iter().filter_map(|(_, read)| read.ok());
        texts.any(|text| has(text, name))
    })
}

/// Returns whether `text` has `name`, and not as a part of a longer one.
fn has(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let mut from = 0;
    while let Some(at) = text[from..].find(name) {
        let (start, end) = (from + at, from + at + name.len());
        let before = text[..start].chars().next_back();
        let after = text[end..].chars().next();
        if !before.is_some_and(is_part) && !after.is_some_and(is_part) {
            return true;
        }
        from = end;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_whole() {
        assert!(has("a 10.0.0.1:80 b", "10.0.0.1"));
        assert!(!has("a 10.0.0.12 110.0.0.1 10.0.0.1.2", "10.0.0.1"));
        assert!(has("web-0 \"web\"", "web"));
        assert!(!has("web-0", "web"));
        let parts = |word| names(word).collect::<Vec<_>>();
        assert_eq!(parts("shop/web:80"), ["shop", "web"]);
        assert_eq!(
            parts("web.shop.svc.cluster.local:http"),
            ["web", "shop", "http"]
        );
        assert_eq!(parts("[fd00::1]:80"), ["fd00::1"]);
        assert_eq!(parts("10.0.0.1"), ["10.0.0.1"]);
    }
}
