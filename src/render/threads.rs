//! Names of threads in texts, as `kubernetes/kubernetes#136786`, and their addresses.

/// Returns the parts of `text`, each with the address of the thread that it names, if any.
pub(crate) fn threads(text: &str) -> Vec<(&str, Option<String>)> {
    let mut parts = Vec::new();
    let mut rest = text;
    let ends = |c: char| !(c.is_ascii_alphanumeric() || "/#-_.".contains(c));
    for word in text.split(ends) {
        let word = word.trim_end_matches('.');
        let Some(address) = address(word) else {
            continue;
        };
        let Some((before, after)) = rest.split_once(word) else {
            continue;
        };
        if !before.is_empty() {
            parts.push((before, None));
        }
        parts.push((word, Some(address)));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push((rest, None));
    }
    parts
}

/// Returns the address of the thread with this name.
fn address(name: &str) -> Option<String> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if let Some(number) = name.strip_prefix("KEP-").filter(|number| is_number(number)) {
        return Some(format!("https://kep.k8s.io/{number}"));
    }
    let (repository, number) = name.split_once('#')?;
    let (owner, of) = repository.split_once('/')?;
    let is_whole = !owner.is_empty() && !of.is_empty() && !of.contains('/') && is_number(number);
    // GitHub leads from the address of an issue to the pull request with its number.
    is_whole.then(|| format!("https://github.com/{repository}/issues/{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_a_repository_has_an_address_and_other_text_none() {
        let text = "KEP-5495, kubernetes/kubernetes#136786: seen in a/b/c#1, #7 and e/f#12.";
        let parts = threads(text);
        let whole: String = parts.iter().map(|(part, _)| *part).collect();
        assert_eq!(whole, text);
        let linked: Vec<_> = parts.iter().filter(|(_, to)| to.is_some()).collect();
        let to = |at: usize| linked[at].1.as_deref().unwrap();
        assert_eq!(linked.len(), 3, "{linked:?}");
        assert_eq!(to(0), "https://kep.k8s.io/5495");
        assert_eq!(
            (linked[1].0, to(1)),
            (
                "kubernetes/kubernetes#136786",
                "https://github.com/kubernetes/kubernetes/issues/136786"
            )
        );
        assert_eq!(linked[2].0, "e/f#12");
        assert_eq!(
            threads("seen after upgrades"),
            [("seen after upgrades", None)]
        );
    }
}
