//! Background work on a thread of its own, independent of the async runtime.

use std::{io, thread};

use tokio::runtime;
use tokio::sync::oneshot;

/// A background thread, which ends when this is dropped or the process ends.
#[derive(Debug)]
pub struct Aside {
    _until: oneshot::Receiver<()>,
}

impl Aside {
    /// Starts `work` on a thread with the name `name`.
    pub fn start<W>(name: &str, work: W) -> io::Result<Self>
    where
        W: AsyncFnOnce() + Send + 'static,
    {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (mut until, receiver) = oneshot::channel::<()>();
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = work() => {}
                    () = until.closed() => {}
                }
            });
        };
        thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { _until: receiver })
    }
}
