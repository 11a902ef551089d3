//! The size of an answer.

use std::collections::BTreeMap;

use serde_json::Value;

/// The longest answer, in bytes of JSON: some 20,000 tokens of a language model.
pub(super) const MOST: usize = 64 << 10;

/// Shortens the longest lists in `value` until an answer has at most `most` bytes; returns which lists were cut, in words. The error is
/// the size of a value that has nothing to cut.
pub(super) fn cut(value: &mut Value, most: usize) -> Result<Vec<String>, usize> {
    let mut totals: BTreeMap<String, usize> = BTreeMap::new();
    loop {
        let size = size_in_answer(value);
        if size <= most {
            break;
        }
        let mut longest = (0, String::new());
        find(value, "", &mut longest);
        let (_, path) = longest;
        let Some(Value::Array(list)) = value.pointer_mut(&path) else {
            return Err(size);
        };
        if list.len() < 2 {
            return Err(size);
        }
        totals.entry(path).or_insert(list.len());
        list.truncate(list.len() / 2);
    }
    let cut = totals.into_iter().filter_map(|(path, total)| {
        // A list inside a list that was cut later may be gone.
        let kept = value.pointer(&path)?.as_array()?.len();
        Some(format!("{} has {kept} of {total} entries", &path[1..]))
    });
    Ok(cut.collect())
}

/// Returns the size of `value` in an answer, in bytes: once as a text and once as a value.
fn size_in_answer(value: &Value) -> usize {
    let text = Value::String(value.to_string());
    size_of(value) + size_of(&text)
}

/// Returns the size of `value` as JSON without blanks, in bytes.
fn size_of(value: &Value) -> usize {
    value.to_string().len()
}

/// Finds the list with the most bytes that has two entries or more; returns the size of `value`.
fn find(value: &Value, path: &str, longest: &mut (usize, String)) -> usize {
    match value {
        Value::Array(list) => {
            let sizes = list
                .iter()
                .enumerate()
                .map(|(at, entry)| find(entry, &format!("{path}/{at}"), longest) + 1);
            let size = sizes.sum::<usize>() + 1;
            if list.len() > 1 && size > longest.0 {
                *longest = (size, path.to_owned());
            }
            size
        }
        Value::Object(fields) => {
            let sizes = fields.iter().map(|(name, of)| {
                let name = name.replace('~', "~0").replace('/', "~1");
                name.len() + 4 + find(of, &format!("{path}/{name}"), longest)
            });
            sizes.sum::<usize>() + 1
        }
        other => size_of(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_longest_list_is_cut_and_named() {
        let rows: Vec<_> = (0..100).map(|n| json!({ "row": n })).collect();
        let mut value = json!({ "kind": "X", "few": [1, 2], "rows": rows });
        let cuts = cut(&mut value, 1300).unwrap();
        assert_eq!(cuts, ["rows has 50 of 100 entries"]);
        assert_eq!(value["rows"].as_array().unwrap().len(), 50);
        assert_eq!(value["few"], json!([1, 2]));
        assert!(size_in_answer(&value) <= 1300, "{value}");
        assert_eq!(cut(&mut value, 1300), Ok(Vec::new()));
    }

    #[test]
    fn a_value_without_lists_is_not_cut() {
        let mut value = json!({ "text": "x".repeat(100) });
        assert_eq!(cut(&mut value, 50), Err(228));
    }
}
