//! The cluster's Lease: taken, renewed, and released.

use std::pin::pin;
use std::time::Duration;

use color_eyre::eyre::eyre;
use futures_util::future::{Either, select};

use crate::command::shared::failure::Failure;
use crate::command::shared::session::Session;
use kpx_host::{self as host, LiveCluster, clock};
use kpx_migrate::fleet::lease::{self, BEAT, Claim, HOLDS};
use kpx_node::action::{Action, KubeCommand};
use kpx_node::apply::{Apply as _, StepError};

/// The held Lease.
pub(super) struct Lock {
    live: LiveCluster,
    me: String,
}

/// Returns an identity that no other run of kpx has.
fn me() -> String {
    let host = host::host_name();
    let (pid, now) = (std::process::id(), clock::now());
    format!(
        "{}-{pid}-{}",
        host.unwrap_or_else(|| "kpx".to_owned()),
        now.seconds
    )
}

impl Lock {
    /// Takes the Lease. Fails if another holder renews it; waits for it to expire if it is not renewed.
    pub(super) async fn take(
        live: &LiveCluster,
        mut wait: impl FnMut(&str),
    ) -> Result<Self, Failure> {
        let mut lock = Self {
            live: live.clone(),
            me: me(),
        };
        let mut first: Option<(String, u64)> = None;
        loop {
            let found = lock.live.object(&lease::object()).await?;
            let now = clock::now();
            let command = match lease::claim(found.as_ref(), &lock.me, now) {
                Claim::Ours => return Ok(lock),
                Claim::Missing => lease::create(&lock.me, now),
                Claim::Free => lease::take(&found.unwrap_or_default(), &lock.me, now),
                Claim::Theirs { holder, renewed } => match &mut first {
                    None => {
                        wait(&holder);
                        first = Some((renewed, 0));
                        clock::pause(Duration::from_secs(1)).await;
                        continue;
                    }
                    Some((before, _)) if *before != renewed => return Err(held(&holder)),
                    // Measured by this machine's clock: the holder's clock may differ.
                    Some((_, waited)) if *waited < HOLDS => {
                        *waited += 1;
                        clock::pause(Duration::from_secs(1)).await;
                        continue;
                    }
                    Some(_) => lease::take(&found.unwrap_or_default(), &lock.me, now),
                },
            };
            match lock.act(command).await {
                Ok(()) => return Ok(lock),
                // Another process was faster.
                Err(StepError::Moved(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn act(&mut self, command: KubeCommand) -> Result<(), StepError> {
        self.live.apply(&Action::Kube { command }).await
    }

    /// Renews the Lease until that fails; returns why.
    pub(super) async fn keep(&mut self) -> String {
        let mut silent = 0;
        loop {
            clock::pause(Duration::from_secs(BEAT)).await;
            let renewed = self.renew().await;
            match renewed {
                Ok(None) => silent = 0,
                Ok(Some(lost)) => return lost.to_owned(),
                Err(error) => {
                    silent += BEAT;
                    if silent + BEAT >= HOLDS {
                        return format!("cannot renew the Lease: {error}");
                    }
                }
            }
        }
    }

    /// Returns how the Lease was lost, if it was.
    async fn renew(&mut self) -> Result<Option<&'static str>, StepError> {
        const TAKEN: &str = "another kpx took the Lease";
        let found = self.live.object(&lease::object()).await?;
        let now = clock::now();
        if found.is_none() {
            return Ok(Some("another program deleted the Lease"));
        }
        if lease::claim(found.as_ref(), &self.me, now) != Claim::Ours {
            return Ok(Some(TAKEN));
        }
        match self
            .act(lease::take(&found.unwrap_or_default(), &self.me, now))
            .await
        {
            Err(StepError::Moved(_)) => Ok(Some(TAKEN)),
            done => done.map(|()| None),
        }
    }

    /// Releases the Lease. If that fails, it expires.
    pub(super) async fn release(mut self) {
        if let Ok(Some(found)) = self.live.object(&lease::object()).await
            && lease::claim(Some(&found), &self.me, clock::now()) == Claim::Ours
        {
            self.act(lease::release(&found)).await.ok();
        }
    }
}

/// Refuses a migration of this node alone while another kpx migrates the cluster's nodes. Returns a note if the cluster cannot be
/// asked.
pub(super) async fn refuse_beside_another(session: &Session) -> Result<Option<String>, Failure> {
    let unasked = |why: &str| {
        Ok(Some(format!(
            "whether another kpx is migrating this cluster's nodes is unknown: {why}"
        )))
    };
    if session.host.no_api {
        return unasked("not asked: --no-api");
    }
    let (live, object, limit) = (
        LiveCluster::new(&session.host),
        lease::object(),
        session.host.timeout,
    );
    let asked = pin!(live.object(&object));
    let found = match select(asked, pin!(clock::pause(limit))).await {
        Either::Left((Ok(found), _)) => found,
        Either::Left((Err(error), _)) => return unasked(&error.to_string()),
        Either::Right(_) => {
            return unasked(&format!(
                "no answer from the API server in {} s",
                limit.as_secs()
            ));
        }
    };
    // No holder has an empty identity.
    match lease::claim(found.as_ref(), "", clock::now()) {
        Claim::Theirs { holder, .. } => Err(held(&holder)),
        Claim::Missing | Claim::Free | Claim::Ours => Ok(None),
    }
}

fn held(holder: &str) -> Failure {
    Failure::from(eyre!(
        "another kpx is migrating this cluster: {holder} holds the Lease kube-system/kpx-migrate"
    ))
    .with_hint("`kpx migrate status --all-nodes` shows its state")
}
