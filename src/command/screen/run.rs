//! Reads the data of the screen, until a key or a signal ends it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};

use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::draw::Look;
use super::state::{Ask, Judged, NodeLine, State, Table, Topic};
use crate::cli::parser::Command;
use crate::command::doctor::examine::{Asked, examine_node};
use crate::command::explain::run as explain;
use crate::command::reconcile::plan as reconcile;
use crate::command::shared::beside::{Others, in_whole_bundle};
use crate::command::shared::display::{Display, interrupts};
use crate::command::shared::failure::Failure;
use crate::command::shared::identity;
use crate::command::shared::io::Io;
use crate::command::shared::session::Session;
use crate::command::show::run as show;
use crate::command::top::run::{self as traffic, Left};
use crate::command::why::report as why_report;
use crate::command::why::run as why;
use crate::render::{Page, Report, Style};
use crate::report::CLEAN;
use kpx_host::clock;
use kpx_judge::{check, diff};
use kpx_node::backend::Mode;
use kpx_node::cluster::{self, Node};
use kpx_node::evidence::{self, Item};

/// How often the screen looks for typed keys.
const TICK: Duration = Duration::from_millis(50);

/// A node that was read.
struct Reading {
    /// The session that reads it.
    session: Session,
    /// The same with the evidence in memory: every page is about one state.
    read: Session,
}

/// The screen and what ends it.
struct Screen {
    display: Display,
    signals: clock::Interrupts,
    state: State,
    look: Look,
    /// The keys that were typed while something was read.
    ahead: VecDeque<KeyEvent>,
    /// The states of all nodes of a bundle, once a node was judged.
    others: Option<Arc<Others>>,
}

pub(in crate::command) async fn run(session: &Session, io: &mut Io<'_>) -> Result<u8, Failure> {
    let session = session.silent();
    identity::refuse_no_node(&session).await?;
    let names = nodes_of_bundle(&session);
    let mut screen = Screen {
        display: Display::open()?,
        signals: clock::Interrupts::listen(),
        state: State::default(),
        look: Look(session.style),
        ahead: VecDeque::new(),
        others: None,
    };
    let mut reading = None;
    if names.is_empty() {
        let node = Box::pin(load(session.clone()));
        let begun = screen.waits("reading the node", node).await?;
        let Some(begun) = begun else {
            return Ok(CLEAN);
        };
        // Without a first reading there is nothing to show: the error is the same as of any command.
        let (begun, table) = begun?;
        screen.state.show_table(table);
        reading = Some(begun);
    } else {
        "a bundle of all nodes".clone_into(&mut screen.state.table.head);
        screen.state.show_nodes(names);
    }
    let done = Box::pin(screen.serve(&session, io, &mut reading)).await;
    if let Some(Reading { session, .. }) = reading {
        // A pod that cannot be deleted ends with kpx.
        session.close().await.ok();
    }
    done.map(|()| CLEAN)
}

impl Screen {
    /// Answers keys until one ends the screen.
    async fn serve(
        &mut self,
        first: &Session,
        io: &mut Io<'_>,
        reading: &mut Option<Reading>,
    ) -> Result<(), Failure> {
        loop {
            let Some(ask) = self.ask(first).await? else {
                return Ok(());
            };
            let answered = match ask {
                Ask::End => return Ok(()),
                Ask::Nodes => {
                    let names = self.waits("reading the nodes", nodes(first)).await?;
                    match names {
                        None => return Ok(()),
                        Some(names) => names.map(|names| self.state.show_nodes(names)),
                    }
                }
                Ask::Read => match reading {
                    None => Ok(()),
                    Some(Reading { session, .. }) => {
                        let again = Box::pin(load(session.clone()));
                        match self.waits("reading the node again", again).await? {
                            None => return Ok(()),
                            Some(again) => again.map(|(again, table)| {
                                self.state.show_table(table);
                                *reading = Some(again);
                            }),
                        }
                    }
                },
                Ask::Open(name) => {
                    // The states of all nodes serve as the other nodes' states, and are read once.
                    let others = reading.as_ref();
                    let others = others.and_then(|reading| reading.session.others.clone());
                    let first = first.beside(others.or_else(|| self.others.clone()));
                    let opened = async { load(open(&first, &name).await?).await };
                    let reads = format!("reading {name}");
                    match self.waits(&reads, Box::pin(opened)).await? {
                        None => return Ok(()),
                        Some(Err(failure)) => Err(failure),
                        Some(Ok((opened, table))) => {
                            self.state.show_table(table);
                            if let Some(before) = reading.replace(opened) {
                                before.session.close().await.ok();
                            }
                            Ok(())
                        }
                    }
                }
                Ask::Traffic if first.source.is_bundle() => Err(Failure::usage(
                    "traffic needs a live node, and this is a recording",
                )),
                Ask::Traffic => match reading {
                    None => Ok(()),
                    Some(Reading { session, .. }) => {
                        "reading the traffic …".clone_into(&mut self.state.message);
                        self.draw()?;
                        match Box::pin(traffic::page(session, io, &mut self.display)).await {
                            Ok(Left::End) => return Ok(()),
                            Ok(Left::Back) => {
                                self.state.message.clear();
                                Ok(())
                            }
                            Err(failure) => Err(failure),
                        }
                    }
                },
                Ask::Show(topic) => match reading {
                    None => Ok(()),
                    Some(Reading { read, .. }) => {
                        let (width, read) = (self.width()?, read.clone());
                        let style = Style {
                            width,
                            ..read.style
                        };
                        let asked = topic.clone();
                        let page = async move { page(&read, &asked, style).await };
                        match self.waits("computing", Box::pin(page)).await? {
                            None => return Ok(()),
                            Some(text) => {
                                text.map(|text| self.state.show_page(topic, &text, width))
                            }
                        }
                    }
                },
            };
            if let Err(failure) = answered {
                self.state.message = failure.to_string();
            }
        }
    }

    /// Waits for a key with a request; `None` at a signal. Meanwhile it judges the nodes to choose from.
    async fn ask(&mut self, first: &Session) -> Result<Option<Ask>, Failure> {
        self.draw()?;
        loop {
            let typed = self.display.typed()?;
            let is_changed = typed.is_changed || !self.ahead.is_empty();
            self.ahead.extend(typed.keys);
            while let Some(key) = self.ahead.pop_front() {
                if let Some(ask) = self.state.press(key) {
                    return Ok(Some(ask));
                }
            }
            if is_changed {
                self.draw()?;
                // A page is written for one width.
                let width = self.width()?;
                if let Some(shown) = self.state.shown.as_ref().filter(|page| page.width != width) {
                    return Ok(Some(Ask::Show(shown.topic.clone())));
                }
            }
            // Other nodes of a cluster are read when they are opened.
            let unjudged = self.state.unjudged().filter(|_| first.source.is_bundle());
            let pause = if let Some(name) = &unjudged {
                let judged = self.judged(first, name).await;
                self.state
                    .judge(name, &judged.map_err(|failure| failure.to_string()));
                self.draw()?;
                Duration::ZERO
            } else {
                TICK
            };
            let signal = pin!(self.signals.next());
            if let Either::Left(_) = select(signal, pin!(clock::pause(pause))).await {
                return Ok(None);
            }
        }
    }

    /// Returns the verdict on the node `name` of a bundle.
    async fn judged(&mut self, first: &Session, name: &str) -> Result<Judged, Failure> {
        let named = first.anew(name).beside(self.others.clone());
        let session = in_whole_bundle(&named).await;
        self.others.clone_from(&session.others);
        let report = examine_node(&session, &Asked::everything(&session)?).await?;
        let mode = session.origin().and_then(|origin| origin.mode);
        let services = report.head.services.as_ref();
        Ok(Judged::new(mode, services, report.summary.errors))
    }

    /// Returns the result of `work`; `None` if a key or a signal ends the screen meanwhile.
    async fn waits<T>(
        &mut self,
        what: &str,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, Failure> {
        self.state.message = format!("{what} …");
        self.draw()?;
        let mut work = pin!(work);
        loop {
            let signal = Box::pin(self.signals.next());
            let pause = Box::pin(clock::pause(TICK));
            match select(work.as_mut(), select(signal, pause)).await {
                Either::Left((done, _)) => {
                    self.state.message.clear();
                    return Ok(Some(done));
                }
                Either::Right((Either::Left(_), _)) => return Ok(None),
                Either::Right((Either::Right(_), _)) => {}
            }
            let typed = self.display.typed()?;
            let ends = |key: &KeyEvent| interrupts(*key) || key.code == KeyCode::Char('q');
            if typed.keys.iter().any(ends) {
                return Ok(None);
            }
            self.ahead.extend(typed.keys);
            if typed.is_changed {
                self.draw()?;
            }
        }
    }

    fn draw(&mut self) -> Result<(), Failure> {
        let (state, look) = (&mut self.state, self.look);
        Ok(self.display.draw(|frame| look.draw(state, frame))?)
    }

    fn width(&self) -> Result<u16, Failure> {
        Ok(self.display.width()?)
    }
}

/// Reads the node of `session`.
async fn load(session: Session) -> Result<(Reading, Table), Failure> {
    let session = in_whole_bundle(&session).await;
    let evidence = session.gather(&needs()).await?;
    let read = session.in_memory(evidence);
    let services = show::services(&read).await?;
    let head = session
        .origin()
        .map_or_else(String::new, |origin| origin.line());
    let hint = hint_of_text(&read);
    let hint = hint.filter(|_| services.services().is_empty());
    let gaps = services.gaps().iter().map(|gap| format!("unknown: {gap}"));
    let notes = services.notes().iter().map(|note| format!("note: {note}"));
    let table = Table::new(
        head,
        services.services(),
        hint.into_iter().chain(gaps).chain(notes).collect(),
        services.tally().map(|tally| tally.to_string()),
    );
    Ok((Reading { session, read }, table))
}

/// Returns how to see what a pasted text has, if it is one.
fn hint_of_text(session: &Session) -> Option<String> {
    const VIEWS: [(Item, &str, &str); 5] = [
        (Item::Ipvs, "ipvs", "virtual servers"),
        (Item::IpvsSave, "ipvs", "virtual servers"),
        (Item::Iptables4, "chains", "chains"),
        (Item::Nft, "chains", "chains"),
        (Item::Addresses, "addresses", "addresses"),
    ];
    let shown = session
        .source
        .is_text()
        .then(|| session.source.evidence())??;
    let has = |item: Item| shown.with_all_parts().text(item).is_ok();
    let (_, view, what) = VIEWS.into_iter().find(|(item, ..)| has(*item))?;
    let command = identity::next_command(session, ["show", view]);
    Some(format!(
        "this text has no Services; `{command}` lists its {what}"
    ))
}

/// Returns the items that all pages read.
fn needs() -> Vec<Item> {
    let modes = [Mode::Iptables, Mode::Ipvs, Mode::Nftables];
    let mut items: BTreeSet<Item> = modes.into_iter().flat_map(diff::needs).collect();
    items.extend(check::needs(&check::asked(None)));
    items.extend(kpx_judge::why::needs());
    items.extend(show::services_need());
    items.extend(reconcile::NEEDS);
    items.into_iter().collect()
}

/// Returns the nodes of a bundle of all nodes; none for anything else.
fn nodes_of_bundle(session: &Session) -> Vec<NodeLine> {
    let Some(path) = session
        .source
        .bundle()
        .filter(|_| session.is_of_all_nodes())
    else {
        return Vec::new();
    };
    let mut nodes = Vec::new();
    let read = evidence::each_node(path, &[], &mut |_, name, read| {
        nodes.push(NodeLine {
            name: name.to_owned(),
            unread: read.err(),
            judged: None,
        });
        ControlFlow::Continue(())
    });
    // A broken bundle is reported when one of its nodes is opened.
    read.ok();
    nodes
}

/// Returns the nodes that can be opened.
async fn nodes(session: &Session) -> Result<Vec<NodeLine>, Failure> {
    if session.source.is_bundle() {
        return Ok(nodes_of_bundle(&session.named(None)));
    }
    let evidence = session.gather(&[Item::Nodes]).await?;
    let nodes: Vec<Node> = cluster::list(&evidence, Item::Nodes)?;
    let line = |node: Node| NodeLine {
        name: node.metadata.name,
        unread: None,
        judged: None,
    };
    Ok(nodes.into_iter().map(line).collect())
}

/// Returns the session for the node `name`.
async fn open(session: &Session, name: &str) -> Result<Session, Failure> {
    let named = session.anew(name);
    if named.source.is_bundle() {
        return Ok(named);
    }
    let remote = identity::locate(&named, &Command::Screen).await?;
    Ok(remote.unwrap_or(named))
}

/// Returns the text of a page.
async fn page(session: &Session, topic: &Topic, style: Style) -> Result<String, Failure> {
    match topic {
        Topic::Picture(target) => {
            let report = why::of(session, target).await?;
            Ok(why_report::picture(&report, style))
        }
        Topic::Explain(target) => {
            let report = why::of(session, target).await?;
            let mut page = Page::new(style);
            report.page(&mut page);
            let ids: BTreeSet<&str> = report
                .answer
                .findings
                .iter()
                .map(|finding| finding.id)
                .collect();
            for id in ids {
                for explanation in explain::each(session, id) {
                    page.line("");
                    explanation.page(&mut page);
                }
            }
            Ok(page.into_text())
        }
        Topic::Plan => {
            // The page scrolls, and has no option that shows more.
            let mut plan = Page::new(Style {
                wide: true,
                ..style
            });
            reconcile::proposed(session).await?.page(&mut plan);
            let mut page = Page::new(style);
            page.append(&plan);
            let asked = Asked::everything(session)?;
            let report = examine_node(session, &asked).await?;
            report.beside_the_plan(&mut page);
            page.line("");
            page.para(
                "",
                "Nothing is changed from this screen. On the node, `kpx reconcile --apply` carries the plan out, and asks first.",
            );
            Ok(page.into_text())
        }
    }
}
