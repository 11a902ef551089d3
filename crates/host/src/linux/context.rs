//! Shared context of all readers: the items to read, and access to the network namespace.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{env, thread};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use tokio::runtime;
use tokio::sync::{OnceCell, oneshot};
use tokio::time::timeout;

use super::cluster::{Cluster, Connection};
use super::iptables::BackendRules;
use super::proxy::Proxy;
use super::{NoNamespace, Options, nft};
use kpx_node::apply::StepError;
use kpx_node::evidence::{Gap, Item, Privilege};

/// Shared context of one collection.
#[derive(Debug)]
pub(crate) struct Context {
    /// Options of the collection.
    pub(super) options: Options,
    /// Folders that are searched for programs.
    pub(super) programs: Vec<PathBuf>,
    /// Connection to the API server.
    pub(super) cluster: Arc<Cluster>,
    /// The running kube-proxy.
    pub(super) proxy: Proxy,
    /// Whether complete iptables rules are read.
    pub(super) saves: bool,
    netns: Option<Result<Namespace, (ErrorKind, String)>>,
    iptables: OnceCell<BackendRules>,
    nft: OnceCell<Result<String, Gap>>,
}

/// A reader of one item; may block.
pub(super) type Reader = fn(Item, &Context) -> Result<String, Gap>;

/// An open network namespace.
#[derive(Debug)]
struct Namespace {
    name: String,
    file: File,
}

/// Time limit for rules, as a multiple of the one for other items.
const RULES: u32 = 6;

/// Folders of the system's tools; a user's `PATH` often lacks the `sbin` folders.
pub(super) const SYSTEM_PROGRAMS: &[&str] = &[
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

impl Context {
    /// Returns the context for `options`. If the namespace cannot be opened, each reader returns a gap.
    pub(super) fn new(options: &Options) -> Arc<Self> {
        Self::reading(&[], options)
    }

    /// Returns the context for reading `items`.
    pub(super) fn reading(items: &[Item], options: &Options) -> Arc<Self> {
        Self::over(&Connection::default(), items, options)
    }

    /// Returns the context for reading `items` with a connection to the API server that may be open.
    pub(crate) fn over(api: &Connection, items: &[Item], options: &Options) -> Arc<Self> {
        let path = env::var_os("PATH").unwrap_or_default();
        let own = env::split_paths(&path);
        let programs = own
            .chain(SYSTEM_PROGRAMS.iter().map(PathBuf::from))
            .filter(|dir| dir.is_absolute());
        Arc::new(Self {
            options: options.clone(),
            programs: programs.collect(),
            cluster: Arc::clone(&api.0),
            proxy: Proxy::default(),
            saves: items.iter().copied().any(Item::is_iptables),
            netns: options
                .netns
                .as_deref()
                .map(|name| Namespace::open(name, &options.root)),
            iptables: OnceCell::new(),
            nft: OnceCell::new(),
        })
    }

    /// Returns the relative `path` below the host's root.
    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.options.root.join(path)
    }

    /// Returns the rules of both iptables back ends; the first caller reads them.
    pub(super) async fn iptables(self: &Arc<Self>) -> &BackendRules {
        self.iptables.get_or_init(|| BackendRules::read(self)).await
    }

    /// Returns the nftables ruleset as JSON; the first caller reads it.
    pub(super) async fn nft(self: &Arc<Self>) -> &Result<String, Gap> {
        let read = async || nft::json(Item::Nft, self).await;
        self.nft.get_or_init(read).await
    }

    /// Runs `work` on a thread of its own in the network namespace, with the time limit of one read.
    ///
    /// Sockets, child processes, `/proc/thread-self/net` and `/proc/sys/net` of the thread belong to the namespace.
    /// `work` may block the thread. It is dropped at the time limit or when the caller gives up.
    pub(super) async fn inside<T, W>(self: &Arc<Self>, item: Item, work: W) -> Result<T, Gap>
    where
        T: Send + 'static,
        W: AsyncFnOnce(Arc<Self>) -> Result<T, Gap> + Send + 'static,
    {
        self.inside_as(item, "the read", work).await
    }

    /// Like [`Context::inside`]; an error at the time limit names `what`.
    pub(super) async fn inside_as<T, W>(
        self: &Arc<Self>,
        item: Item,
        what: &str,
        work: W,
    ) -> Result<T, Gap>
    where
        T: Send + 'static,
        W: AsyncFnOnce(Arc<Self>) -> Result<T, Gap> + Send + 'static,
    {
        let limit = self.limit(item);
        self.spawn(limit, item, what, Self::enter, work).await
    }

    /// Like [`Context::inside_as`], with a time limit of its own.
    pub(super) async fn inside_for<T, W>(
        self: &Arc<Self>,
        limit: Duration,
        item: Item,
        what: &str,
        work: W,
    ) -> Result<T, Gap>
    where
        T: Send + 'static,
        W: AsyncFnOnce(Arc<Self>) -> Result<T, Gap> + Send + 'static,
    {
        self.spawn(limit, item, what, Self::enter, work).await
    }

    /// Runs a blocking reader [inside](Context::inside) the network namespace.
    pub(super) async fn look(self: &Arc<Self>, item: Item, read: Reader) -> Result<String, Gap> {
        let work = async move |context: Arc<Self>| read(item, &context);
        self.inside(item, work).await
    }

    /// Runs a blocking reader on a thread of its own, outside the network namespace.
    pub(super) async fn look_apart(
        self: &Arc<Self>,
        item: Item,
        read: Reader,
    ) -> Result<String, Gap> {
        let work = async move |context: Arc<Self>| read(item, &context);
        let limit = self.limit(item);
        self.spawn(limit, item, "the read", |_, _| Ok(()), work)
            .await
    }

    async fn spawn<T, W>(
        self: &Arc<Self>,
        limit: Duration,
        item: Item,
        what: &str,
        enter: fn(&Self, Item) -> Result<(), Gap>,
        work: W,
    ) -> Result<T, Gap>
    where
        T: Send + 'static,
        W: AsyncFnOnce(Arc<Self>) -> Result<T, Gap> + Send + 'static,
    {
        let (mut sender, receiver) = oneshot::channel();
        let context = Arc::clone(self);
        let run = move || {
            let read = enter(&context, item).and_then(|()| {
                let runtime = runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(|e| Gap::Failed(item, format!("cannot start a reader: {e}")))?;
                runtime.block_on(async {
                    tokio::select! {
                        read = work(context) => read,
                        () = sender.closed() => Err(Gap::NotCollected(item)),
                    }
                })
            });
            // The caller may have given up.
            sender.send(read).ok();
        };
        thread::Builder::new()
            .name(format!("read {item}"))
            .spawn(run)
            .map_err(|e| Gap::Failed(item, format!("cannot start a reader: {e}")))?;
        match timeout(limit, receiver).await {
            Ok(Ok(read)) => read,
            Ok(Err(_)) => Err(Gap::Failed(item, "its reader stopped early".to_owned())),
            Err(_) => Err(self.late(item, what)),
        }
    }

    /// Returns the time limit for reading `item`.
    fn limit(&self, item: Item) -> Duration {
        match item {
            // Their size depends on the cluster: on a busy machine, iptables-save took more than 10 s for 88,000 rules.
            Item::Nft | Item::NftText => self.options.timeout * RULES,
            item if item.is_iptables() => self.options.timeout * RULES,
            _ => self.options.timeout,
        }
    }

    /// Returns the gap for `what` after the time limit.
    pub(super) fn late(&self, item: Item, what: &str) -> Gap {
        let limit = self.limit(item);
        Gap::Late(
            item,
            format!("{what} took longer than {limit:?}; increase --timeout"),
        )
    }

    /// Runs `work`, a change, on a thread of its own in the network namespace, without a time limit.
    pub(super) async fn change<T, W>(self: &Arc<Self>, work: W) -> Result<T, StepError>
    where
        T: Send + 'static,
        W: AsyncFnOnce(Arc<Self>) -> Result<T, StepError> + Send + 'static,
    {
        let (sender, receiver) = oneshot::channel();
        let context = Arc::clone(self);
        let run = move || {
            let entered = context.join().map_err(|(kind, why)| match kind {
                ErrorKind::PermissionDenied => StepError::Denied(why),
                _ => StepError::Refused(why),
            });
            let done = entered.and_then(|()| {
                let runtime = runtime::Builder::new_current_thread().enable_all().build();
                let runtime = runtime
                    .map_err(|e| StepError::Refused(format!("cannot start a writer: {e}")))?;
                runtime.block_on(work(context))
            });
            // The caller may have given up.
            sender.send(done).ok();
        };
        let started = thread::Builder::new().name("change".to_owned()).spawn(run);
        started.map_err(|e| StepError::Refused(format!("cannot start a writer: {e}")))?;
        receiver
            .await
            .unwrap_or_else(|_| Err(StepError::Refused("the writer stopped early".to_owned())))
    }

    /// Moves the current thread into the network namespace, to read `item`.
    fn enter(&self, item: Item) -> Result<(), Gap> {
        self.join().map_err(|(kind, why)| match kind {
            ErrorKind::PermissionDenied => Gap::Denied(item, why),
            _ => Gap::Failed(item, why),
        })
    }

    /// Moves the current thread into the network namespace.
    fn join(&self) -> Result<(), (ErrorKind, String)> {
        let netns = match &self.netns {
            None => return Ok(()),
            Some(netns) => netns.as_ref().map_err(Clone::clone)?,
        };
        let name = &netns.name;
        setns(&netns.file, CloneFlags::CLONE_NEWNET).map_err(|errno| {
            if errno == Errno::EPERM {
                let what = format!(
                    "cannot enter network namespace {name}: CAP_SYS_ADMIN is required; run kpx as root"
                );
                (ErrorKind::PermissionDenied, what)
            } else {
                let what = format!("cannot enter network namespace {name}: {errno}");
                (ErrorKind::Other, what)
            }
        })
    }
}

/// Returns an error if the network namespace in `options` cannot be entered, with the names of existing ones.
pub(super) fn check_netns(options: &Options) -> Result<(), NoNamespace> {
    let Some(name) = options.netns.as_deref() else {
        return Ok(());
    };
    let Err((_, why)) = Namespace::open(name, &options.root) else {
        return Ok(());
    };
    let entries = fs::read_dir(options.root.join("run/netns"));
    let entries = entries.into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    Err(NoNamespace { why, names })
}

impl Namespace {
    /// Opens the namespace `name`: a path, or a name that `ip netns` lists.
    fn open(name: &str, root: &Path) -> Result<Self, (ErrorKind, String)> {
        let paths = if name.contains('/') {
            vec![PathBuf::from(name)]
        } else {
            let below = |dir: &str| root.join(dir).join(name);
            vec![below("run/netns"), below("var/run/netns")]
        };
        let mut failure = None;
        for path in paths {
            match File::open(&path) {
                Ok(file) => {
                    return Ok(Self {
                        name: name.to_owned(),
                        file,
                    });
                }
                Err(e) => failure.get_or_insert((
                    e.kind(),
                    format!("cannot open network namespace {}: {e}", path.display()),
                )),
            };
        }
        Err(failure.unwrap_or((
            ErrorKind::NotFound,
            format!("network namespace {name} does not exist"),
        )))
    }
}

/// Returns the gap for a denied read of `item`.
pub(super) fn denied(item: Item, what: &str) -> Gap {
    let allowed = match item.privilege() {
        Privilege::NetAdmin => "CAP_NET_ADMIN is required; run kpx as root",
        Privilege::None | Privilege::Root => "run kpx as root",
        Privilege::Api => "the API server denies it",
    };
    Gap::Denied(item, format!("{what}; {allowed}"))
}

/// Returns the gap for `error` while reading `what` of `item`.
pub(super) fn gap(item: Item, what: impl std::fmt::Display, error: &io::Error) -> Gap {
    match error.kind() {
        ErrorKind::NotFound => Gap::Absent(item, format!("{what} does not exist")),
        ErrorKind::PermissionDenied => denied(item, &format!("{what}: {error}")),
        _ => Gap::Failed(item, format!("cannot read {what}: {error}")),
    }
}
