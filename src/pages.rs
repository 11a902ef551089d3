//! Pages of `docs/` that the program contains: `kpx explain` prints them without a network.

use crate::provider::{INDEX, PROVIDERS};

/// A page.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// The word that names it.
    pub(crate) word: &'static str,
    /// Its subject.
    pub(crate) subject: &'static str,
    /// Its path in the repository.
    pub(crate) path: String,
    /// Its text, in Markdown.
    pub(crate) text: &'static str,
}

/// Pages about kube-proxy and kpx: the word, which is also the file name, the subject, and the text.
const TOPICS: [(&str, &str, &str); 7] = [
    (
        "modes",
        "How each mode of kube-proxy works",
        include_str!("../docs/modes.md"),
    ),
    (
        "schedulers",
        "Schedulers of mode ipvs",
        include_str!("../docs/schedulers.md"),
    ),
    (
        "affinity",
        "Session affinity in each mode",
        include_str!("../docs/affinity.md"),
    ),
    (
        "chains",
        "Chains of kube-proxy in each mode",
        include_str!("../docs/chains.md"),
    ),
    (
        "pastes",
        "Pasted texts and support bundles that --from reads",
        include_str!("../docs/pastes.md"),
    ),
    (
        "config",
        "The configuration file",
        include_str!("../docs/config.md"),
    ),
    (
        "mcp",
        "Questions from editors and assistants, by MCP",
        include_str!("../docs/mcp.md"),
    ),
];

/// Returns every page: topics, the list of providers, and each provider.
pub(crate) fn all() -> impl Iterator<Item = Page> {
    let topics = TOPICS.iter().map(|(word, subject, text)| Page {
        word,
        subject,
        path: format!("docs/{word}.md"),
        text,
    });
    let index = Page {
        word: "providers",
        subject: "The list of providers",
        path: "docs/migrate/README.md".to_owned(),
        text: INDEX,
    };
    let providers = PROVIDERS.iter().map(|provider| Page {
        word: provider.id,
        subject: provider.name,
        path: provider.page(),
        text: provider.text,
    });
    topics.chain([index]).chain(providers)
}

/// Returns the page that `word` names.
pub(crate) fn named(word: &str) -> Option<Page> {
    all().find(|page| page.word == word)
}
