//! A small HTTP server for metrics and probes.
//!
//! It has a thread of its own, so that it also answers while a command computes or waits for the machine.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

/// Most connections at a time; others wait.
const CONNECTIONS: usize = 32;

/// The time limit of a connection. Each has one request.
const LIMIT: Duration = Duration::from_secs(10);

/// The time that open connections get at the end.
const END: Duration = Duration::from_secs(1);

/// The pause after a connection could not be accepted, for example without a free file descriptor.
const PAUSE: Duration = Duration::from_millis(100);

/// An answer to a GET request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HttpAnswer {
    /// The status code.
    pub status: StatusCode,
    /// The type of the text.
    pub content_type: &'static str,
    /// The text.
    pub text: String,
}

impl HttpAnswer {
    /// Returns a plain text.
    pub fn text(status: StatusCode, text: impl Into<String>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            text: text.into(),
        }
    }

    /// Returns the answer for a path that does not exist.
    pub fn not_found() -> Self {
        Self::text(StatusCode::NOT_FOUND, "not found\n")
    }
}

/// A running server; it ends when it is dropped.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Listens at `address`, and answers GET and HEAD requests with the result of `answer` for their path: an
    /// [`HttpAnswer`], or a response with headers of its own.
    ///
    /// # Errors
    ///
    /// The address is in use or does not belong to this machine, or no thread can be started.
    pub fn start<A: Into<Response<String>> + 'static>(
        address: SocketAddr,
        answer: impl Fn(&str) -> A + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::serve(TcpListener::bind(address)?, answer)
    }

    /// Answers like [`HttpServer::start`] what comes to `listener`.
    ///
    /// # Errors
    ///
    /// There can be no further thread.
    pub fn serve<A: Into<Response<String>> + 'static>(
        listener: TcpListener,
        answer: impl Fn(&str) -> A + Send + Sync + 'static,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let serve = move || {
            let free = Arc::new(Semaphore::new(CONNECTIONS));
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, &free, Arc::new(answer)) => {}
                    // The sender is dropped to end this, or sends.
                    _ = stopped => {}
                }
                let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
                // The others are cut.
                timeout(END, free.acquire_many(all)).await.ok();
            });
        };
        let thread = thread::Builder::new()
            .name("http".to_owned())
            .spawn(serve)?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Returns the address with the port, which the system has chosen if 0 was given.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been printed.
            thread.join().ok();
        }
    }
}

/// Accepts connections, each on a task of its own.
async fn accept<F, A>(listener: TcpListener, free: &Arc<Semaphore>, answer: Arc<F>)
where
    F: Fn(&str) -> A + Send + Sync + 'static,
    A: Into<Response<String>> + 'static,
{
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    // The semaphore is never closed.
    while let Ok(permit) = Arc::clone(free).acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let answer = Arc::clone(&answer);
        tokio::spawn(async move {
            let service = service_fn(async |request: Request<_>| {
                Ok::<_, Infallible>(respond(&request, answer.as_ref()))
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            // A client that has left, or is too slow, gets no answer.
            drop(timeout(LIMIT, connection).await);
            drop(permit);
        });
    }
}

fn respond<A: Into<Response<String>>, B>(
    request: &Request<B>,
    answer: &dyn Fn(&str) -> A,
) -> Response<String> {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return answer(request.uri().path()).into();
    }
    let refused = HttpAnswer::text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
    let mut response = Response::from(refused);
    let headers = response.headers_mut();
    headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}

impl From<HttpAnswer> for Response<String> {
    fn from(answer: HttpAnswer) -> Self {
        let mut response = Self::new(answer.text);
        *response.status_mut() = answer.status;
        let kind = HeaderValue::from_static(answer.content_type);
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use super::*;

    fn start() -> HttpServer {
        let answer = |path: &str| match path {
            "/healthz" => HttpAnswer::text(StatusCode::SERVICE_UNAVAILABLE, "stale\n"),
            "/metrics" => HttpAnswer::text(StatusCode::OK, "up 1\n"),
            _ => HttpAnswer::not_found(),
        };
        HttpServer::start("127.0.0.1:0".parse().unwrap(), answer).unwrap()
    }

    fn ask(address: SocketAddr, line: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "{line} HTTP/1.1\r\nHost: node\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn each_path_has_its_status_and_text() {
        let server = start();
        let ask = |line| ask(server.address(), line);
        let of = ask("GET /metrics?x=1");
        assert!(of.starts_with("HTTP/1.1 200 OK\r\n"), "{of}");
        assert!(of.ends_with("\r\n\r\nup 1\n"), "{of}");
        let of = ask("GET /healthz");
        assert!(
            of.starts_with("HTTP/1.1 503 ") && of.ends_with("stale\n"),
            "{of}"
        );
        let of = ask("HEAD /metrics");
        assert!(
            of.contains("content-length: 5") && of.ends_with("\r\n\r\n"),
            "{of}"
        );
        assert!(ask("GET /").starts_with("HTTP/1.1 404 "));
        assert!(ask("POST /metrics").starts_with("HTTP/1.1 405 "));
    }

    #[test]
    fn a_silent_client_keeps_nobody_waiting_and_the_end_frees_the_address() {
        let server = start();
        let address = server.address();
        let silent = TcpStream::connect(address).unwrap();
        assert!(ask(address, "GET /metrics").ends_with("up 1\n"));
        drop(server);
        drop(silent);
        assert!(TcpStream::connect(address).is_err());
    }

    #[test]
    fn a_taken_address_is_an_error() {
        let server = start();
        let again = HttpServer::start(server.address(), |_| HttpAnswer::not_found());
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
