//! Names similar to a mistyped one.

/// The number of names returned.
const MOST: usize = 3;

/// Returns the `names` most similar to `asked`, the most similar first.
pub(crate) fn nearest(asked: &str, names: impl IntoIterator<Item = String>) -> Vec<String> {
    let low = asked.to_lowercase();
    let allowed = |text: &str| (text.chars().count() / 4).clamp(1, 4);
    let mut found: Vec<(usize, String)> = names
        .into_iter()
        .filter_map(|name| {
            let other = name.to_lowercase();
            // A name without its namespace, or a part of a name, counts as one wrong letter.
            let part = low.len() > 2 && other.contains(&low);
            let bare = other
                .split_once('/')
                .map_or(other.as_str(), |(_, name)| name);
            let asked = low.split_once('/').map_or(low.as_str(), |(_, name)| name);
            let whole = Some(distance(&low, &other)).filter(|&away| away <= allowed(&low));
            let name_alone = Some(distance(asked, bare)).filter(|&away| away <= allowed(asked));
            let away = whole
                .into_iter()
                .chain(name_alone.map(|away| away + 1))
                .chain(part.then_some(1))
                .min()?;
            Some((away, name))
        })
        .collect();
    found.sort();
    found.dedup();
    found.truncate(MOST);
    found.into_iter().map(|(_, name)| name).collect()
}

/// Returns the number of letters to insert, delete or replace.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(x != *y);
            row.push(replaced.min(last[j + 1] + 1).min(row[j] + 1));
        }
        last = row;
    }
    last[b.len()]
}

/// Returns `did you mean A or B?`; `None` without similar names.
pub(crate) fn meant(near: &[String]) -> Option<String> {
    (!near.is_empty()).then(|| format!("did you mean {}?", near.join(" or ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_names_are_found() {
        let names =
            || ["default/nginx-svc", "default/redis", "kube-system/kube-dns"].map(str::to_owned);
        assert_eq!(nearest("default/ngnix-svc", names()), ["default/nginx-svc"]);
        assert_eq!(nearest("nginx-svc", names()), ["default/nginx-svc"]);
        assert_eq!(
            nearest("kube-sytem/kube-dns", names()),
            ["kube-system/kube-dns"]
        );
        assert_eq!(nearest("other/kube-dns", names()), ["kube-system/kube-dns"]);
        assert!(nearest("something/else", names()).is_empty());
    }
}
