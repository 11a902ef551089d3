//! Lists of objects as the API server prints them.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::evidence::{Evidence, Gap, Item};

/// Parses the list in `item`.
pub fn list<T: DeserializeOwned>(evidence: &Evidence, item: Item) -> Result<Vec<T>, Gap> {
    let text = evidence.text(item)?;
    let list: List<T> = serde_json::from_str(text).map_err(|e| Gap::of_json(item, text, &e))?;
    if item == Item::Services && list.items.is_empty() {
        let why = "it has no Service, but each cluster has default/kubernetes: collect it again";
        return Err(Gap::Failed(item, why.to_owned()));
    }
    Ok(list.items)
}

/// Parses one document of YAML, an object or a list of objects; `None` if it is none.
pub fn yaml(text: &str) -> Option<serde_json::Value> {
    serde_yaml::from_str(text).ok()
}

/// Parses only the objects of the list in `item` that contain one of `names`.
pub fn list_naming<T: DeserializeOwned>(
    evidence: &Evidence,
    item: Item,
    names: &[&str],
) -> Result<Vec<T>, Gap> {
    #[derive(Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        items: Vec<&'a RawValue>,
    }
    let text = evidence.text(item)?;
    let failed = |e: serde_json::Error| Gap::of_json(item, text, &e);
    let list: Raw<'_> = serde_json::from_str(text).map_err(failed)?;
    let objects = list.items.into_iter().map(RawValue::get);
    let wanted = objects.filter(|text| names.iter().any(|name| text.contains(name)));
    wanted
        .map(|text| serde_json::from_str(text).map_err(failed))
        .collect()
}

/// Returns the parts of the list in `item` that kpx was not allowed to read, as kpx recorded them; empty for a list
/// that kpx did not write.
pub fn missing(evidence: &Evidence, item: Item) -> Result<Vec<String>, Gap> {
    #[derive(Deserialize)]
    struct Head {
        #[serde(default)]
        metadata: ListMetadata,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ListMetadata {
        missing: Vec<String>,
    }
    let text = evidence.text(item)?;
    let head: Head = serde_json::from_str(text).map_err(|e| Gap::of_json(item, text, &e))?;
    Ok(head.metadata.missing)
}

/// A list as printed by the API server or kubectl.
#[derive(Clone, Debug, Deserialize)]
pub struct List<T> {
    /// Objects of the list.
    pub items: Vec<T>,
}
