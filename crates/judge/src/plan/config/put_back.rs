//! Restores the configuration as it was before kpx wrote it.

use serde_json::Value;

use super::{ConfigSource, Place, Unwritable};
use kpx_node::action::{Action, Field, KubeCommand, Object, Plan, Resource, Undo};
use kpx_node::cluster::edit::{self, Fields};

/// An action of kpx and its undo, both from the journal.
pub type Written<'w> = (&'w Action, &'w Action);

/// A text before and after a change by kpx.
struct Change<'w> {
    /// Text before the change; `None` if the file did not exist.
    before: Option<&'w str>,
    after: &'w str,
}

impl ConfigSource {
    /// Returns the plan that restores the configuration as it was before the actions `ours`, newest first.
    ///
    /// A text that is still as kpx wrote it is restored exactly. In a text changed by others since, only the mode is
    /// restored and `fields` are set. kpx's annotation is removed or restored as well.
    pub fn put_back(&self, fields: &Fields, ours: &[Written<'_>]) -> Result<Plan, Unwritable> {
        let mut plan = Plan::default();
        let changes: Vec<_> = ours.iter().filter_map(|one| self.change(*one)).collect();
        let same = |text: Option<&str>| text.unwrap_or_default() == self.text;
        let new = if let Some(ours) = changes.iter().find(|change| same(Some(change.after))) {
            ours.before.map(str::to_owned)
        } else if changes.iter().any(|change| same(change.before)) {
            Some(self.text.clone())
        } else if let Some(newest) = changes.first() {
            plan.notes.push(format!(
                "{} was changed after kpx wrote it: only the mode is restored, other changes are kept",
                self.place
            ));
            Some(self.former(newest.before.unwrap_or_default(), fields)?)
        } else {
            Some(self.text_with(fields)?)
        };
        self.write_back(new, ours, &mut plan);
        Ok(plan)
    }

    /// Adds the step that writes `new`, or removes the file if it is `None`.
    fn write_back(&self, new: Option<String>, ours: &[Written<'_>], plan: &mut Plan) {
        let title = format!("restore {}", self.place);
        match &self.place {
            Place::ConfigMap { name, key, .. } => {
                let object = Object::of_system(Resource::ConfigMap, name);
                let text = |text: &str| Some(Value::from(text));
                let new = new.unwrap_or_default();
                let mut changes = Vec::new();
                if new != self.text {
                    changes.push(Field::new(&["data", key], text(&self.text), text(&new)));
                }
                changes.extend(self.annotation_back(ours));
                if changes.is_empty() {
                    return;
                }
                let undo = KubeCommand::set_back(&object, &changes);
                let command = KubeCommand::Set {
                    object,
                    fields: changes,
                };
                let undo = Undo::Do(Action::Kube { command: undo });
                plan.push(title, Action::Kube { command }, undo);
            }
            Place::File(path) | Place::Arguments(path) | Place::Addition { path, .. } => {
                let gone = matches!(self.place, Place::Addition { there: false, .. });
                let write = |text: &str| Action::WriteFile {
                    path: path.clone(),
                    text: text.to_owned(),
                };
                let remove = || Action::RemoveFile { path: path.clone() };
                let action = match new {
                    Some(new) if new == self.text => return,
                    None if gone => return,
                    Some(new) => write(&new),
                    None => remove(),
                };
                let undo = if gone { remove() } else { write(&self.text) };
                plan.push(title, action, Undo::Do(undo));
            }
            Place::Elsewhere { .. } => {}
        }
    }

    /// Returns the current text, including changes by others, with the mode of `before`.
    fn former(&self, before: &str, fields: &Fields) -> Result<String, Unwritable> {
        match &self.place {
            Place::ConfigMap { .. } | Place::File(_) => {
                let done = edit::put_back(&self.text, before, fields);
                done.map_err(|error| Unwritable::Text {
                    place: self.place.to_string(),
                    error,
                })
            }
            _ => self.text_with(fields),
        }
    }

    /// Returns the change that `ours` made to the text of this place.
    fn change<'w>(&self, ours: Written<'w>) -> Option<Change<'w>> {
        match (&self.place, ours) {
            (Place::ConfigMap { name, key, .. }, (action, _)) => {
                let field = field(action, name, &["data", key])?;
                Some(Change {
                    before: field.from.as_ref().and_then(Value::as_str),
                    after: field.to.as_ref().and_then(Value::as_str)?,
                })
            }
            (
                Place::File(of) | Place::Arguments(of) | Place::Addition { path: of, .. },
                (Action::WriteFile { path, text }, undo),
            ) if path == of => Some(Change {
                before: match undo {
                    Action::WriteFile { text, .. } => Some(text),
                    _ => None,
                },
                after: text,
            }),
            _ => None,
        }
    }

    /// Returns the field that restores kpx's annotation, if it is still as one of `ours` wrote it.
    fn annotation_back(&self, ours: &[Written<'_>]) -> Option<Field> {
        let Place::ConfigMap {
            name,
            key,
            annotations,
        } = &self.place
        else {
            return None;
        };
        let kept = format!("kpx.dev/previous-{key}");
        let now = Value::from(annotations.get(&kept)?.as_str());
        let path = ["metadata", "annotations", &kept];
        let fields = ours
            .iter()
            .filter_map(|(action, _)| field(action, name, &path));
        let ours = fields
            .into_iter()
            .find(|field| field.to.as_ref() == Some(&now));
        ours.map(Field::back)
    }
}

/// Returns the field at `path` that `action` sets in the ConfigMap `name`.
fn field<'a>(action: &'a Action, name: &str, path: &[&str]) -> Option<&'a Field> {
    let Action::Kube {
        command: KubeCommand::Set { object, fields },
    } = action
    else {
        return None;
    };
    let ours = object.resource == Resource::ConfigMap && object.name == name;
    let mut fields = fields.iter().filter(|_| ours);
    fields.find(|field| field.path == path)
}
