//! Input of `--from` that is no bundle of kpx: support bundles of other tools, and pasted texts.

use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use color_eyre::eyre::eyre;

use super::failure::{Failure, Hint as _};
use super::identity;
use super::io::Io;
use super::session::{Session, unreadable};
use crate::cli::parser::Command;
use kpx_node::evidence::{self, BundleError, ITEMS};
use kpx_node::foreign::{self, Foreign, ForeignNode};
use kpx_node::words::listed;

/// The message for input without evidence.
const NOTHING: &str = "it has no file of a bundle, and no output of a command that kpx knows";

/// The most of standard input that is read.
const MOST: u64 = 1 << 30;

impl Session {
    /// Reads the input of `--from`, if it is not one bundle of kpx; names its kind on standard error.
    pub(in crate::command) fn opened(
        &self,
        io: &mut Io<'_>,
        command: &Command,
    ) -> Result<Option<Self>, Failure> {
        let paths = self.source.joined.as_slice();
        let is_own = match paths {
            [] => true,
            [one] => one != Path::new("-") && evidence::is_bundle(one),
            _ => false,
        };
        if is_own || !self.source.is_bundle() {
            return Ok(None);
        }
        let mut own = paths.iter().filter(|path| evidence::is_bundle(path));
        if let (Some(one), Some(other)) = (own.next(), own.next()) {
            return Err(Failure::usage(format!(
                "{} and {} are two recordings: --from may be repeated for the parts of one",
                one.display(),
                other.display()
            ))
            .with_hint("compare two recordings with `kpx diff ONE OTHER`"));
        }
        let mut joined: Option<Foreign> = None;
        for path in paths {
            let read = read(path, self, io)?;
            joined = Some(match joined {
                None => read,
                Some(before) => before.join(read),
            });
        }
        let Some(foreign) = joined else {
            return Ok(None);
        };
        let node = foreign.node(self.name()).ok_or_else(|| {
            unreadable(BundleError::NoNode {
                path: paths[0].clone(),
                node: self.name().unwrap_or_default().to_owned(),
                nodes: foreign.nodes.iter().map(|node| node.name.clone()).collect(),
            })
        })?;
        if !self.quiet {
            writeln!(io.err, "kpx: {}", foreign.summary(node))?;
        }
        let evidence = node.evidence.clone();
        let several = foreign.nodes.len() > 1;
        let several = several && !identity::reads_several(command);
        let named = self.name().or_else(|| {
            // Other nodes of the input have other names.
            Some(node.name.as_str()).filter(|name| several && !name.is_empty())
        });
        let mut session = self.named(named);
        session.source = session.source.of_foreign(Arc::new(foreign), evidence);
        Ok(Some(session))
    }
}

/// Reads one path.
fn read(path: &Path, session: &Session, io: &mut Io<'_>) -> Result<Foreign, Failure> {
    if path != Path::new("-") && evidence::is_bundle(path) {
        let evidence = evidence::load_node(path, session.name(), ITEMS).map_err(unreadable)?;
        let name = evidence
            .manifest()
            .and_then(|manifest| manifest.node.clone());
        return Ok(Foreign {
            what: "bundle of kpx".to_owned(),
            nodes: vec![ForeignNode {
                name: name.unwrap_or_default(),
                evidence,
                has: Vec::new(),
            }],
            unread: Vec::new(),
        });
    }
    let (name, others) = if path == Path::new("-") {
        if io.interactive {
            writeln!(io.err, "kpx: reading standard input; end it with Ctrl-D")?;
        }
        let mut bytes = Vec::new();
        (&mut *io.input).take(MOST + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MOST {
            let failure = Failure::from(eyre!("standard input is larger than 1 GiB"));
            return Err(failure.with_hint("write it to a file, and name that with --from"));
        }
        let others = evidence::others_of("standard input", bytes, &foreign::is_wanted);
        ("standard input".to_owned(), others.map_err(unreadable)?)
    } else {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let others = evidence::others(path, &foreign::is_wanted).map_err(unreadable)?;
        (name.into_owned(), others)
    };
    let failed = others.iter().filter_map(|file| {
        let why = file.content.as_ref().err()?;
        Some(format!("{} ({why})", file.path))
    });
    let mut failed: Vec<String> = failed.collect();
    let found = foreign::files(&name, others);
    found
        .map_err(|unread| {
            failed.extend(
                unread
                    .into_iter()
                    .filter(|reason| !failed.contains(reason))
                    .collect::<Vec<_>>(),
            );
            let is_of_windows = failed.iter().any(|failed| failed.ends_with(foreign::HNS));
            let failure = Failure::from(BundleError::NotOne {
                path: path.to_owned(),
                found: match failed.as_slice() {
                    [] => NOTHING.to_owned(),
                    failed => format!("{NOTHING}; not read: {}", listed(failed)),
                },
            });
            if is_of_windows {
                failure.unknown()
            } else {
                failure
            }
        })
        .hint("`kpx explain pastes` lists what is read; write a bundle with `kpx snapshot --file PATH`")
}
