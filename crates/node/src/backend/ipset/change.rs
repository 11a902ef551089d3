//! Changes of sets as text for `ipset restore`, each with its undo.
//!
//! Rules that match a set never miss a member that is in both its old and its new state: additions come before deletions,
//! and a set that changes as a whole is filled under a name of kpx's own, and then swapped. All swaps come together at the
//! end. The next run deletes sets that a killed run left under such names.

use std::fmt::{Arguments, Write as _};

use super::{Member, Set, Sets};
use crate::action::Action;

/// The beginning of the names of kube-proxy's sets.
const KUBE: &str = "KUBE";
/// Its replacement with kpx's own names, which are not longer.
const ASIDE: &str = "KPX";
/// The same for the undo of an interrupted change that left a set under the other name.
const ASIDE_UNDO: &str = "KPXU";

/// Changes of several sets.
#[derive(Debug, Default)]
pub struct Edits {
    make: Text,
    undo: Text,
}

/// An input of `ipset restore`.
#[derive(Debug, Default)]
struct Text {
    body: String,
    /// Commands that must run together, after all slow ones.
    end: String,
}

impl Edits {
    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.make.body.is_empty() && self.make.end.is_empty()
    }

    /// Returns the change and its undo.
    pub fn actions(self) -> (Action, Action) {
        let [make, undo] = [self.make, self.undo].map(|text| Action::Ipset {
            input: text.body + &text.end,
        });
        (make, undo)
    }

    /// Deletes the set that a killed run of kpx left for the set `name`; returns whether there is one.
    pub fn clear(&mut self, have: &Sets<'_>, name: &str) -> bool {
        let left = [ASIDE, ASIDE_UNDO].map(|prefix| aside(name, prefix));
        let left: Vec<_> = left.iter().filter_map(|name| have.set(name)).collect();
        for set in &left {
            gone(&mut self.make.body, &set.name, set);
            fill(&mut self.undo.end, &set.name, set);
        }
        !left.is_empty()
    }

    /// Creates `want`, which is not there.
    pub fn create(&mut self, want: &Set<'_>) {
        fill(&mut self.make.body, &want.name, want);
        gone(&mut self.undo.end, &want.name, want);
    }

    /// Destroys `have`, which no rule matches any more.
    pub fn destroy(&mut self, have: &Set<'_>) {
        gone(&mut self.make.end, &have.name, have);
        fill(&mut self.undo.body, &have.name, have);
    }

    /// Adds `missing` to the set `name`, and then deletes `extra` from it.
    pub fn edit<'m>(
        &mut self,
        name: &str,
        missing: impl IntoIterator<Item = &'m Member<'m>>,
        extra: impl IntoIterator<Item = &'m Member<'m>>,
    ) {
        for member in missing {
            add(&mut self.make.body, name, member);
            delete(&mut self.undo.end, name, member);
        }
        for member in extra {
            delete(&mut self.make.body, name, member);
            add(&mut self.undo.body, name, member);
        }
    }

    /// Replaces `have`, which is of another type or family, and which no rule matches, by `want`.
    pub fn exchange(&mut self, have: &Set<'_>, want: &Set<'_>) {
        let name = &want.name;
        let [new, old] = [ASIDE, ASIDE_UNDO].map(|prefix| aside(name, prefix));
        fill(&mut self.make.body, &new, want);
        line(&mut self.make.end, format_args!("destroy {name}"));
        line(&mut self.make.end, format_args!("rename {new} {name}"));
        // The set may be either of the two by now.
        line(&mut self.undo.body, format_args!("rename {name} {old}"));
        fill(&mut self.undo.body, name, have);
        line(&mut self.undo.end, format_args!("destroy {old}"));
        gone(&mut self.undo.end, &new, want);
    }

    /// Replaces `have` by `want`, which is of the same type and family.
    pub fn replace(&mut self, have: &Set<'_>, want: &Set<'_>) {
        self.make.swap(ASIDE, want);
        self.undo.swap(ASIDE_UNDO, have);
        gone(&mut self.undo.end, &aside(&want.name, ASIDE), want);
    }
}

impl Text {
    fn swap(&mut self, prefix: &str, set: &Set<'_>) {
        let aside = aside(&set.name, prefix);
        fill(&mut self.body, &aside, set);
        line(&mut self.end, format_args!("swap {aside} {}", set.name));
        line(&mut self.end, format_args!("destroy {aside}"));
    }
}

/// Returns the name of kpx's own for the set `name`.
fn aside(name: &str, prefix: &str) -> String {
    name.replacen(KUBE, prefix, 1)
}

/// Creates `set` as `name`, with its members.
fn fill(text: &mut String, name: &str, set: &Set<'_>) {
    create(text, name, set);
    for member in &set.members {
        add(text, name, member);
    }
}

/// Destroys the set `name`, with the options of `set`; it is created first, since destroying a missing set is an error.
fn gone(text: &mut String, name: &str, set: &Set<'_>) {
    create(text, name, set);
    line(text, format_args!("destroy {name}"));
}

fn create(text: &mut String, name: &str, set: &Set<'_>) {
    line(
        text,
        format_args!("create {name} {} {} -exist", set.kind, set.options),
    );
}

fn add(text: &mut String, name: &str, member: &Member<'_>) {
    let element = &member.element;
    match member.options.as_ref() {
        "" => line(text, format_args!("add {name} {element} -exist")),
        options => line(text, format_args!("add {name} {element} {options} -exist")),
    }
}

fn delete(text: &mut String, name: &str, member: &Member<'_>) {
    line(text, format_args!("del {name} {} -exist", member.element));
}

fn line(text: &mut String, what: Arguments<'_>) {
    writeln!(text, "{what}").expect("writing to a String does not fail");
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    const HAVE: &str = "\
create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 4 bucketsize 12 initval 0x1
add KUBE-CLUSTER-IP 10.96.0.1,tcp:443
";
    const WANT: &str = "\
create KUBE-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536
add KUBE-CLUSTER-IP 10.96.0.2,tcp:80
";

    fn text(action: Action) -> String {
        let Action::Ipset { input } = action else {
            panic!("{action}");
        };
        input
    }

    #[test]
    fn a_set_is_filled_aside_and_swapped_and_back_whatever_was_done_of_it() {
        let (have, want) = (parse(HAVE).unwrap(), parse(WANT).unwrap());
        let mut edits = Edits::default();
        edits.replace(&have.sets[0], &want.sets[0]);
        let (make, undo) = edits.actions();
        assert_eq!(
            text(make),
            "create KPX-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536 -exist\n\
             add KPX-CLUSTER-IP 10.96.0.2,tcp:80 -exist\n\
             swap KPX-CLUSTER-IP KUBE-CLUSTER-IP\n\
             destroy KPX-CLUSTER-IP\n"
        );
        assert_eq!(
            text(undo),
            "create KPXU-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 4 bucketsize 12 initval 0x1 -exist\n\
             add KPXU-CLUSTER-IP 10.96.0.1,tcp:443 -exist\n\
             swap KPXU-CLUSTER-IP KUBE-CLUSTER-IP\n\
             destroy KPXU-CLUSTER-IP\n\
             create KPX-CLUSTER-IP hash:ip,port family inet hashsize 1024 maxelem 65536 -exist\n\
             destroy KPX-CLUSTER-IP\n"
        );
    }

    #[test]
    fn a_set_is_never_emptier_than_before_or_after() {
        let (have, want) = (parse(HAVE).unwrap(), parse(WANT).unwrap());
        let mut edits = Edits::default();
        let (old, new) = (&have.sets[0], &want.sets[0]);
        edits.edit(&old.name, &new.members, &old.members);
        let (make, undo) = edits.actions();
        assert_eq!(
            text(make),
            "add KUBE-CLUSTER-IP 10.96.0.2,tcp:80 -exist\ndel KUBE-CLUSTER-IP 10.96.0.1,tcp:443 -exist\n"
        );
        assert_eq!(
            text(undo),
            "add KUBE-CLUSTER-IP 10.96.0.1,tcp:443 -exist\ndel KUBE-CLUSTER-IP 10.96.0.2,tcp:80 -exist\n"
        );
    }

    #[test]
    fn names_of_its_own_are_found_again_and_fit_the_kernel() {
        let long = "KUBE-6-LOAD-BALANCER-SOURCE-CID";
        for prefix in [ASIDE, ASIDE_UNDO] {
            let name = aside(long, prefix);
            // IPSET_MAXNAMELEN is 32, NUL included.
            assert!(name.len() <= 31 && name != long, "{name}");
            let saved = format!("create {name} hash:ip family inet hashsize 64 maxelem 9\n");
            let mut edits = Edits::default();
            assert!(edits.clear(&parse(&saved).unwrap(), long));
            let text = text(edits.actions().0);
            assert!(text.ends_with(&format!("destroy {name}\n")), "{text}");
        }
    }
}
