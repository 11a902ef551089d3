//! The follower: updates the bridge when Services or endpoints change.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::{BridgeNode, ControllerError, Picture, has_bridge, keep_routes, remove_routes};
use kpx_judge::bridge;
use kpx_judge::plan::Served;
use kpx_node::action::Action;
use kpx_node::backend::Mode;
use kpx_node::backend::nftables::model::Table;
use kpx_node::words::number_of;

/// How often the addresses of kube-ipvs0 and the lease are checked.
const CHECK: Duration = Duration::from_secs(1);

/// Follows the cluster with the bridge, concurrently with other work: `select(work, follower.follow(…))`.
///
/// When the future of [`Follower::follow`] is dropped, the bridge of the last complete update stays.
#[derive(Debug)]
pub struct Follower<N> {
    node: N,
    picture: Picture,
    loaded: Vec<Table>,
    served: Served,
    /// Whether the live tables are known to be `loaded`.
    in_sync: bool,
    /// The number of times that another program deleted the bridge, which is then loaded again; `None` if the follower
    /// ends instead.
    gaps: Option<Rc<Cell<usize>>>,
}

impl<N: BridgeNode> Follower<N> {
    /// Replaces the bridge of `node` by the one for the cluster as it is now, serving as `mode`.
    pub async fn start(mut node: N, mode: Mode) -> Result<Self, ControllerError> {
        let picture = Picture::take(&mut node, mode).await?;
        let mut follower = Self {
            node,
            picture,
            loaded: Vec::new(),
            served: Served::default(),
            in_sync: false,
            gaps: None,
        };
        follower.update().await?;
        keep_routes(&mut follower.node, &follower.served).await?;
        Ok(follower)
    }

    /// Makes the follower load the bridge again if another program deletes it, and count that in `gaps`.
    #[must_use]
    pub fn that_stays(self, gaps: Rc<Cell<usize>>) -> Self {
        Self {
            gaps: Some(gaps),
            ..self
        }
    }

    /// Follows the cluster until the bridge is removed or `ends` is set. `notify` takes a line to print.
    pub async fn follow(&mut self, ends: &Cell<bool>, notify: &mut dyn FnMut(String)) {
        loop {
            let changed = self.node.change(CHECK).await;
            if ends.get() {
                return;
            }
            let goes_on = match changed {
                Some(Ok(())) => self.cluster_changed(notify).await,
                Some(Err(gap)) => {
                    notify(format!("{gap}; retrying"));
                    true
                }
                None => self.check(notify).await,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Checks the lease and the routes; returns whether the bridge still exists.
    async fn check(&mut self, notify: &mut dyn FnMut(String)) -> bool {
        if let Some(why) = self.node.keeper().error() {
            notify(format!(
                "cannot renew the lease of the bridge: {why}; retrying"
            ));
        }
        let is_lost = self.node.keeper().has_lost();
        if is_lost {
            // This process was suspended for longer than the lease, or nft could not run.
            notify("the lease of the bridge had expired: loading it again".to_owned());
            self.in_sync = false;
        }
        if is_lost || self.gaps.is_some() && has_bridge(&mut self.node).await == Ok(false) {
            return self.cluster_changed(notify).await;
        }
        match keep_routes(&mut self.node, &self.served).await {
            Ok(done) => done.into_iter().for_each(notify),
            Err(error) => notify(format!("cannot update kpx's routes: {}", error.in_full())),
        }
        true
    }

    /// Updates the bridge after a change of the cluster; returns whether it still exists.
    async fn cluster_changed(&mut self, notify: &mut dyn FnMut(String)) -> bool {
        match has_bridge(&mut self.node).await {
            Ok(true) => {}
            Ok(false) => {
                if let Some(gaps) = &self.gaps {
                    gaps.update(|count| count + 1);
                    self.in_sync = false;
                    let done = self.update().await;
                    let words = done
                        .map_or_else(|error| error.in_full(), |_| "it is loaded again".to_owned());
                    notify(format!(
                        "another program deleted the bridge, so new connections may have failed; {words}"
                    ));
                    return true;
                }
                notify("the bridge was removed: no longer following the cluster".to_owned());
                if let Err(error) = remove_routes(&mut self.node).await {
                    notify(format!("cannot remove kpx's routes: {}", error.in_full()));
                }
                return false;
            }
            Err(gap) => notify(format!(
                "cannot check whether the bridge still exists: {gap}"
            )),
        }
        match self.update().await {
            Ok(0) => {}
            Ok(lines) => notify(format!(
                "the cluster changed: {} for nft",
                number_of(lines, "line")
            )),
            Err(error) => notify(format!("{}; retrying at the next change", error.in_full())),
        }
        true
    }

    /// Brings the tables in line with the cluster; returns how many lines `nft` was given.
    async fn update(&mut self) -> Result<usize, ControllerError> {
        let lease = self.node.keeper().lease().clone();
        let (want, served) = self.picture.tables(&mut self.node, &lease)?;
        self.served = served;
        let input = if self.in_sync {
            let pairs = self.loaded.iter().zip(&want);
            pairs
                .map(|(have, want)| bridge::change(have, want))
                .collect()
        } else {
            bridge::text(&want)
        };
        let lines = input.lines().count();
        if lines > 0 {
            // Not in sync until nft has answered: this future may be dropped meanwhile.
            let incremental = std::mem::replace(&mut self.in_sync, false);
            let mut done = self.node.apply(&Action::Nft { input }).await;
            if done.is_err() && incremental {
                let input = bridge::text(&want);
                done = self.node.apply(&Action::Nft { input }).await;
            }
            done.map_err(ControllerError::Update)?;
        }
        self.loaded = want;
        self.in_sync = true;
        Ok(lines)
    }
}
