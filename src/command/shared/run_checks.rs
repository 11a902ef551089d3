//! Runs checks on a separate thread.
//!
//! A check is a plain function, which cannot be interrupted. If one takes too long, its thread is abandoned, and another
//! thread continues with the next check.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use color_eyre::eyre::WrapErr as _;

use super::beside::Others;
use super::failure::Failure;
use super::session::Session;
use crate::view::head;
use crate::view::head::Head;
use kpx_host::clock;
use kpx_judge::check::{self, Check, Facts, Outcome, Question, Unknown};
use kpx_judge::verdict::Tally;
use kpx_judge::why;
use kpx_node::evidence::{Evidence, Item, Time};
use kpx_node::node::NodeSnapshot;

/// The input of the checks.
pub(in crate::command) struct Case {
    pub(in crate::command) evidence: Evidence,
    /// The name of the node, if given.
    pub(in crate::command) name: Option<String>,
    pub(in crate::command) now: Option<Time>,
    pub(in crate::command) question: Question,
    /// Whether the verdict on all Services is asked for.
    pub(in crate::command) judges: bool,
    /// The states of other nodes, to which connections are followed.
    pub(in crate::command) others: Option<Arc<Others>>,
}

/// The result.
pub(in crate::command) struct Examined {
    /// The outcome of each check, in their order.
    pub(in crate::command) outcomes: Vec<(&'static Check, Outcome)>,
    pub(in crate::command) head: Head,
}

impl Case {
    /// Returns the time after which kube-proxy has programmed a change of the cluster.
    pub(in crate::command) fn settles_after(&self) -> Duration {
        let node = NodeSnapshot::new(&self.evidence).called(self.name.as_deref());
        Facts::new(&node, self.now).settles_after()
    }
}

/// A thread that runs checks one after the other.
struct Worker {
    outcomes: Receiver<Outcome>,
    head: Receiver<Head>,
}

/// The time limit of a check in multiples of `--timeout`; reading iptables rules has the same limit.
const LONGER: u32 = 6;

/// Reads `items` of the node of `session`, and runs `checks` on them, to answer `question`; `judges` is whether the verdict on all
/// Services is asked for, too.
pub(in crate::command) async fn examine(
    session: &Session,
    items: BTreeSet<Item>,
    checks: &[&'static Check],
    question: impl Into<Question>,
    judges: bool,
) -> Result<(Arc<Case>, Examined), Failure> {
    let items: Vec<_> = items.into_iter().collect();
    let evidence = session.gather(&items).await?;
    let named = session.name_in(&evidence);
    let named = named.or_else(|| evidence.manifest()?.node.as_deref());
    let now = match session.source.bundle() {
        Some(_) => NodeSnapshot::new(&evidence).taken(),
        None => Some(clock::now()),
    };
    let case = Arc::new(Case {
        name: named.map(str::to_owned),
        evidence,
        now,
        question: question.into(),
        judges,
        others: session.others.clone(),
    });
    let examined = each(&case, checks, session.host.timeout * LONGER)
        .wrap_err("cannot start a thread for the checks")?;
    Ok((case, examined))
}

/// Reads the node of `session` with the items that every check needs, and `more`; returns the outcome of each check, with
/// consequences below their causes. The caller judges the Services itself.
pub(in crate::command) async fn examine_with(
    session: &Session,
    more: impl IntoIterator<Item = Item>,
) -> Result<(Arc<Case>, Vec<(&'static Check, Outcome)>), Failure> {
    let checks = check::beside_the_verdict();
    let mut items: BTreeSet<Item> = check::needs(&checks);
    items.extend(more);
    let (case, examined) = examine(session, items, &checks, None, false).await?;
    let mut outcomes = examined.outcomes;
    check::fold(&mut outcomes);
    Ok((case, outcomes))
}

/// Runs `checks`, each for at most `limit`.
fn each(case: &Arc<Case>, checks: &[&'static Check], limit: Duration) -> io::Result<Examined> {
    // Threads do not share parsed evidence, so many checks may each wait for the same parser that never ends. Therefore
    // the limit is halved with every check that exceeds it, down to a minimum: all of them take about twice the limit.
    let mut limit_now = limit;
    let least = limit / 60;
    let mut outcomes = Vec::new();
    let mut worker = Worker::start(case, checks, &outcomes)?;
    for (at, &check) in checks.iter().enumerate() {
        let outcome = match worker.outcomes.recv_timeout(limit_now) {
            Ok(outcome) => outcome,
            Err(error) => {
                worker = Worker::start(case, &checks[at + 1..], &outcomes)?;
                Outcome::Unknown(match error {
                    RecvTimeoutError::Timeout => {
                        let late = Unknown::Late(limit_now);
                        limit_now = (limit_now / 2).max(least);
                        late
                    }
                    RecvTimeoutError::Disconnected => Unknown::Panicked,
                })
            }
        };
        outcomes.push((check, outcome));
    }
    // Without an answer, every part of the head is unknown.
    let head = worker.head.recv_timeout(limit_now).unwrap_or_default();
    Ok(Examined { outcomes, head })
}

impl Worker {
    /// Starts a thread for `checks`; `done` are the outcomes of those before them.
    fn start(
        case: &Arc<Case>,
        checks: &[&'static Check],
        done: &[(&'static Check, Outcome)],
    ) -> io::Result<Self> {
        let (case, checks, mut done) = (Arc::clone(case), checks.to_vec(), done.to_vec());
        let (tell, outcomes) = mpsc::channel();
        let (tell_head, head) = mpsc::channel();
        let work = move || {
            let across = case.others.as_deref().map(Others::across);
            // A check decides nothing from partial data.
            let evidence = case.evidence.without_parts();
            let node = NodeSnapshot::new(&evidence).called(case.name.as_deref());
            let facts = Facts::new(&node, case.now)
                .before(case.question)
                .beside(across)
                .explained_by(why::rest);
            thread::scope(|scope| {
                // Data that only later checks need.
                scope.spawn(|| {
                    node.parse_rules();
                    facts.index_owners();
                });
                for check in checks {
                    if check::explains(check) {
                        facts.hear(std::mem::take(&mut done));
                    }
                    let outcome = check::run(check, &facts);
                    done.push((check, outcome.clone()));
                    // The receiver of an abandoned thread is gone.
                    if tell.send(outcome).is_err() {
                        return;
                    }
                }
                let mut head = Head::of(&facts);
                if case.judges {
                    head.unseen = why::lacking(&node);
                    head.unseen.extend(why::unseen_balancers(&node));
                }
                match facts.question {
                    Question::Now if case.judges => {
                        head.services = head::tally(&facts).or_else(|| of_parts(&case));
                    }
                    Question::Switch(to) if case.judges => head.outlook = head::outlook(&facts, to),
                    _ => {}
                }
                drop(tell_head.send(head));
            });
        };
        // The stack size of a main thread.
        let stack = 8 << 20;
        let thread = thread::Builder::new().name("checks".to_owned());
        thread.stack_size(stack).spawn(work)?;
        Ok(Self { outcomes, head })
    }
}

/// Returns the verdict on all Services from evidence with missing parts, as of a pasted text; `why` gives the same one.
fn of_parts(case: &Case) -> Option<Tally> {
    let evidence = case.evidence.with_parts();
    let node = NodeSnapshot::new(&evidence).called(case.name.as_deref());
    let across = case.others.as_deref().map(Others::across);
    head::tally(&Facts::new(&node, case.now).beside(across))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kpx_node::evidence::Gap;

    /// Returns a check with the function `run`.
    fn made_up(id: &'static str, run: fn(&Facts<'_>) -> check::Verdict) -> &'static Check {
        Box::leak(Box::new(Check::made_up(id, run)))
    }

    #[test]
    fn a_check_that_panics_or_never_ends_is_unknown_and_the_others_go_on() {
        let mut evidence = Evidence::default();
        evidence.insert(Item::KernelRelease, Ok("6.1.0\n".to_owned()));
        let case = Arc::new(Case {
            evidence,
            name: Some("node1".to_owned()),
            now: None,
            question: Question::Now,
            judges: false,
            others: None,
        });
        let reads = |facts: &Facts<'_>| facts.node.kernel_release().map(|_| Vec::new());
        let checks = [
            made_up("ZZ01", reads),
            // Without a backtrace, which takes seconds to print.
            made_up("ZZ02", |_| std::panic::resume_unwind(Box::new("made up"))),
            made_up("ZZ03", |_| {
                loop {
                    thread::park();
                }
            }),
            made_up("ZZ04", reads),
            made_up("ZZ05", |_| {
                loop {
                    thread::park();
                }
            }),
            made_up("ZZ06", |_| Err(Gap::NotCollected(Item::Sysctl))),
        ];
        let limit = Duration::from_secs(2);
        let examined = each(&case, &checks, limit).unwrap();
        let outcomes: Vec<_> = examined
            .outcomes
            .iter()
            .map(|(check, outcome)| match outcome {
                Outcome::Unknown(why) => format!("{} {why}", check.id),
                other => format!("{} {other:?}", check.id),
            })
            .collect();
        assert_eq!(
            outcomes,
            [
                "ZZ01 Pass",
                "ZZ02 the check panicked: this is a bug in kpx",
                "ZZ03 the check took longer than 2s and was aborted; a longer --timeout allows more",
                "ZZ04 Pass",
                "ZZ05 the check took longer than 1s and was aborted; a longer --timeout allows more",
                "ZZ06 node/sysctl.txt was not collected",
            ]
        );
        let node = examined.head.node;
        assert_eq!(node.kernel.as_deref(), Some("6.1.0"));
        assert_eq!(node.name.as_deref(), Some("node1"));
    }
}
