//! A cluster of the tests: an API server that keeps what is written, with the `DaemonSet` controller and kubelets behind it.
//!
//! ```text
//! let api = Api::new();
//! api.seed(&bundle, &["node1", "node2"]);                        // or `put` single objects
//! kpx --kubeconfig FILE …                                        // FILE holds api.kubeconfig()
//! api.with(|cluster| cluster.put(json!({"kind": "Service", …}))) // watches send the change
//! api.fault(Fault::forbidden("patch", "configmaps"))             // requests that fail
//! api.kubelet(MyNodes)                                           // runs the pods
//! ```
//!
//! It speaks plain HTTP: get, list, watch, create, update, patch (merge, and apply), delete with preconditions, pod logs,
//! commands in containers and their standard input, evictions within disruption budgets, and self-reviews of permissions.
//! Writes with a stale `resourceVersion` are conflicts. A deleted pod first ends and is then removed, and its DaemonSet
//! creates another. Unknown requests are refused: the server never makes up an answer.

mod answer;
mod controller;
mod copies;
mod fault;
mod job;
mod objects;
mod recording;
mod rest;
mod roles;
mod seed;
mod selector;
mod server;
mod stream;
mod watch;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use futures_util::stream::iter;
use serde_json::{Value, json};
use tokio::time::sleep;

pub(crate) use answer::{list, status};
pub(crate) use controller::{Exec, Fate, Kubelet, Pod, Pretend};
pub(crate) use copies::Copies;
pub(crate) use fault::{Fault, What};
pub(crate) use objects::Key;
pub(crate) use recording::{Recordings, Trouble, remove_times};
pub(crate) use seed::recorded as objects_of;
pub(crate) use server::{Request, Server, reply};

use controller::Task;
use objects::Objects;
use rest::Call;
use roles::Roles;

/// Everything behind the API server.
pub(crate) struct Cluster {
    objects: Objects,
    faults: Vec<Fault>,
    roles: Roles,
    /// Nodes that are down.
    vanished: BTreeSet<String>,
    /// Pods that their node has to end, by uid.
    ending: BTreeSet<String>,
    tasks: Vec<Task>,
    /// Why the API server refuses the pods of `Jobs`.
    refusal: Option<String>,
    /// The time that a second of a deadline takes; without it, no deadline passes.
    second: Option<Duration>,
    /// The pods whose standard input a client has held, by uid: their startup probe succeeds.
    held: BTreeSet<String>,
    /// Whether its streams cannot close one channel, as before 1.30.
    is_old: bool,
    kubelet: Arc<dyn Kubelet>,
    away: bool,
    /// Whether the server has not loaded its roles yet and forbids everything.
    starting: bool,
    /// How often all watches were cut.
    cuts: u64,
    /// The version at which the controllers had nothing to do.
    settled: u64,
}

impl Cluster {
    pub(crate) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&Key::new(resource, namespace, name))
    }

    /// Iterates over the objects of `resource` in all namespaces.
    pub(crate) fn list<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.list(resource, None)
    }

    /// Creates or replaces an object, which must have `kind` and a name.
    pub(crate) fn put(&mut self, object: Value) {
        self.objects.put(Key::of(&object), object);
    }

    /// Changes an existing object.
    pub(crate) fn edit(&mut self, key: &Key, change: impl FnOnce(&mut Value)) {
        assert!(self.objects.get(key).is_some(), "{key:?} is not there");
        self.objects.edit(key, change);
    }

    pub(crate) fn remove(&mut self, key: &Key) {
        self.objects.remove(key);
    }

    /// Shuts a node down: it runs no pods and is not ready.
    pub(crate) fn vanish(&mut self, node: &str) {
        self.vanished.insert(node.to_owned());
        self.edit(&Key::new("nodes", "", node), |node| {
            node["status"]["conditions"] = json!([{"type": "Ready", "status": "Unknown"}]);
        });
    }

    /// Starts a node that was shut down.
    pub(crate) fn reappear(&mut self, node: &str) {
        self.vanished.remove(node);
        self.edit(&Key::new("nodes", "", node), |node| {
            node["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
        });
    }

    /// Discards the history of the API server: watches with an older version must list again.
    pub(crate) fn forget(&mut self) {
        self.objects.horizon = self.objects.version;
    }

    /// Closes all watches, as a real server does from time to time.
    pub(crate) fn cut_watches(&mut self) {
        self.cuts += 1;
    }

    /// Makes the API server unreachable, or reachable again. While it is unreachable, every connection breaks.
    pub(crate) fn set_away(&mut self, away: bool) {
        self.away = away;
        self.cut_watches();
    }

    /// Puts the API server into the state just after its start, or ends that: before it has loaded its roles, it forbids
    /// everything, even self-reviews.
    pub(crate) fn set_starting(&mut self, starting: bool) {
        self.starting = starting;
        self.cut_watches();
    }

    /// From now on the API server refuses the pods of `Jobs`, with this message.
    pub(crate) fn refuse_pods(&mut self, message: &str) {
        self.refusal = Some(message.to_owned());
    }

    /// Sets the time that a second of the deadline of a Job takes, for `Jobs` created later.
    pub(crate) fn set_second(&mut self, second: Duration) {
        self.second = Some(second);
    }

    /// From now on its streams cannot close one channel, as before 1.30.
    pub(crate) fn grow_old(&mut self) {
        self.is_old = true;
    }

    fn forbids(&self, verb: &str, resource: &str) -> bool {
        let mut faults = self.faults.iter();
        faults.any(|fault| fault.forbids(verb, resource))
    }

    fn log_of(&self, key: &Key) -> String {
        let pod = self.pod(self.objects.get(key).unwrap());
        self.kubelet.log(&pod)
    }
}

/// The cluster, and the threads that wait for changes.
struct World {
    cluster: Mutex<Cluster>,
    changes: tokio::sync::watch::Sender<()>,
}

impl World {
    /// Does `work`, and lets the controllers react.
    fn with<T>(self: &Arc<Self>, work: impl FnOnce(&mut Cluster) -> T) -> T {
        let mut cluster = self.cluster.lock().unwrap();
        let result = work(&mut cluster);
        cluster.sync();
        let kubelet = Arc::clone(&cluster.kubelet);
        for task in cluster.tasks.drain(..) {
            let (world, kubelet) = (Arc::clone(self), Arc::clone(&kubelet));
            thread::spawn(move || world.carry_out(task, &*kubelet));
        }
        drop(cluster);
        self.changes.send_replace(());
        result
    }

    fn carry_out(self: &Arc<Self>, task: Task, kubelet: &dyn Kubelet) {
        match task {
            Task::Start(pod) => {
                let fate = kubelet.start(&pod);
                self.with(|cluster| {
                    cluster.started(&pod, fate);
                    cluster.probes_startup(&pod, fate);
                });
            }
            Task::Stop(pod) => {
                kubelet.stop(&pod);
                let lingers = kubelet.lingers();
                if !lingers.is_zero() {
                    self.with(|cluster| cluster.ended(&pod));
                    thread::sleep(lingers);
                }
                self.with(|cluster| cluster.stopped(&pod));
            }
            Task::Deadline(job, after) => {
                thread::sleep(after);
                self.with(|cluster| cluster.expire(&job));
            }
            Task::Startup(pod, after) => {
                thread::sleep(after);
                self.with(|cluster| cluster.unheld(&pod));
            }
        }
    }

    async fn answer(self: Arc<Self>, request: Request) -> Response {
        if self.cluster.lock().unwrap().away {
            return broken("");
        }
        if request.path == "/version" {
            return reply(
                200,
                json!({"major": "1", "minor": "36", "gitVersion": "v1.36.2"}),
            );
        }
        let Some(call) = Call::of(&request) else {
            let (code, body) = status(404, "the server has no such path");
            return reply(code, body);
        };
        if self.cluster.lock().unwrap().starting {
            let message = "forbidden: User \"kpx\" cannot do that: RBAC: clusterrole.rbac.authorization.k8s.io not found";
            let (code, body) = status(403, message);
            return reply(code, body);
        }
        let mut lost = false;
        let calls = call.authorized();
        let refused = self.cluster.lock().unwrap().roles.refuse(&calls);
        if let Some(message) = refused {
            let (code, body) = status(403, &message);
            return reply(code, body);
        }
        // A created object has its name in the body.
        let name = request.body["metadata"]["name"].as_str();
        let named = calls.iter().map(|call| Call {
            name: call.name.clone().or_else(|| name.map(str::to_owned)),
            ..call.clone()
        });
        let named: Vec<Call> = named.collect();
        for what in self.strikes(&named) {
            match what {
                What::Status(code, message) => {
                    let (code, body) = status(code, message);
                    return reply(code, body);
                }
                What::Refused(message) => {
                    let (code, body) = status(403, message);
                    return reply(code, body);
                }
                What::Busy(after) => {
                    let text =
                        Value::String("Too many requests, please try again later.\n".to_owned());
                    let mut answer = reply(429, text);
                    answer.headers_mut().insert("retry-after", after.into());
                    return answer;
                }
                What::Broken => return broken(""),
                What::AnswerLost => lost = true,
                What::Slow(time) => sleep(time).await,
                What::Meanwhile(act) => self.with(|cluster| act(cluster)),
            }
        }
        if call.verb == "watch" {
            return self.watch(call, request.query);
        }
        if call.is_stream() {
            return self.connect(&call, request);
        }
        let (code, body) = self.with(|cluster| cluster.answer(&call, &request));
        if lost { broken("") } else { reply(code, body) }
    }

    /// Returns the faults that apply to `calls`.
    fn strikes(&self, calls: &[Call]) -> Vec<What> {
        let mut cluster = self.cluster.lock().unwrap();
        let faults = cluster.faults.iter_mut();
        faults
            .filter_map(|fault| {
                let strikes = calls.iter().any(|call| fault.strikes(call));
                strikes.then(|| fault.what.clone())
            })
            .collect()
    }
}

/// An answer whose connection breaks behind `sent`.
pub(crate) fn broken(sent: &str) -> Response {
    let gone = Err(std::io::Error::other("the connection breaks"));
    let sent = Some(sent.to_owned()).filter(|sent| !sent.is_empty());
    Response::new(Body::from_stream(iter(
        sent.map(Ok).into_iter().chain([gone]),
    )))
}

/// The API server of a cluster.
pub(crate) struct Api {
    server: Server,
    world: Arc<World>,
}

impl Api {
    /// Starts a server without objects on the loopback interface.
    pub(crate) fn new() -> Self {
        Self::at(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    /// Starts a server without objects at `listener`, in the network namespace of the listener.
    pub(crate) fn at(listener: TcpListener) -> Self {
        let world = Arc::new(World {
            cluster: Mutex::new(Cluster {
                objects: Objects::default(),
                faults: Vec::new(),
                roles: Roles::default(),
                vanished: BTreeSet::new(),
                ending: BTreeSet::new(),
                tasks: Vec::new(),
                refusal: None,
                second: None,
                held: BTreeSet::new(),
                is_old: false,
                kubelet: Arc::new(Pretend),
                away: false,
                starting: false,
                cuts: 0,
                settled: 0,
            }),
            changes: tokio::sync::watch::Sender::new(()),
        });
        let behind = Arc::clone(&world);
        let server = Server::start(listener, move |request| {
            Box::pin(Arc::clone(&behind).answer(request))
        });
        Self { server, world }
    }

    /// Limits requests to the permissions of the roles in `manifest`, in addition to the roles that were bound before.
    pub(crate) fn bind(&self, manifest: &str) {
        self.world.cluster.lock().unwrap().roles.bind(manifest);
    }

    /// Returns the requests that no role allows, and the permissions that no request used.
    pub(crate) fn authorized(&self) -> (Vec<String>, BTreeSet<String>) {
        let cluster = self.world.cluster.lock().unwrap();
        (cluster.roles.denied().to_vec(), cluster.roles.unused())
    }

    /// Reads or changes the cluster. A kubelet's `log` must not call this.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Cluster) -> T) -> T {
        self.world.with(work)
    }

    /// Replaces the kubelet.
    pub(crate) fn kubelet(&self, kubelet: impl Kubelet + 'static) {
        self.world.cluster.lock().unwrap().kubelet = Arc::new(kubelet);
    }

    /// Adds a fault.
    pub(crate) fn fault(&self, fault: Fault) {
        self.world.cluster.lock().unwrap().faults.push(fault);
    }

    /// Removes all faults.
    pub(crate) fn heal(&self) {
        self.world.cluster.lock().unwrap().faults.clear();
    }

    /// Returns every request so far.
    pub(crate) fn asked(&self) -> Vec<Request> {
        self.server.asked()
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    /// Returns the text of a kubeconfig for this server.
    pub(crate) fn kubeconfig(&self) -> String {
        kubeconfig(&self.url(), "")
    }
}

/// Returns the text of a kubeconfig for the server at `url`, with `more` contexts or clusters.
pub(crate) fn kubeconfig(url: &str, more: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
         clusters:\n- name: c\n  cluster: {{server: \"{url}\"}}\n\
         contexts:\n- name: here\n  context: {{cluster: c, user: u}}\n{more}\n\
         users:\n- name: u\n  user: {{token: abc}}\n"
    )
}
