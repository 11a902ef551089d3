//! Putting the configuration back as it was before kpx wrote it.

use serde_json::Value;

use super::{Place, Store, Unwritable};
use crate::action::{Action, Field, KubeCommand, Object, Resource};
use crate::cluster::edit::{self, Fields};
use crate::plan::{Plan, Undo};

/// What kpx wrote, and what takes it back, as the journal has both.
pub type Written<'w> = (&'w Action, &'w Action);

/// A text before kpx changed it, and after.
struct Change<'w> {
    /// `None` where there was no file.
    before: Option<&'w str>,
    after: &'w str,
}

impl Store {
    /// Returns the plan that puts back what was there before kpx wrote `ours`, the newest first.
    ///
    /// Where the text is still what kpx wrote, it becomes what it was, to the letter. Where somebody else changed it since,
    /// the mode becomes what it was, and `fields` are set. kpx's annotation goes, or becomes what it was.
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
                "{} was changed by somebody else since kpx wrote it: the mode is put back, and the rest stays",
                self.place
            ));
            Some(self.former(newest.before.unwrap_or_default(), fields)?)
        } else {
            Some(self.text_with(fields)?)
        };
        self.write_back(new, ours, &mut plan);
        Ok(plan)
    }

    /// Adds the step that writes `new`, or removes the file where it is `None`.
    fn write_back(&self, new: Option<String>, ours: &[Written<'_>], plan: &mut Plan) {
        let title = format!("put back {}", self.place);
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

    /// Returns the text as others left it, with the mode of `before`.
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

    /// Returns what `ours` did to the text of this place.
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

    /// Returns what puts kpx's annotation back, where it is still what one of `ours` made it.
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
