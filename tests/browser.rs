//! The page of `kpx report` in Chromium: its requests, its width, and its use by keyboard and screen reader.
//!
//! `make test-report` runs these tests; the screenshots are in `target/report`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use crate::report::{hostile, written};
use crate::support::{broken, kpx, root};

/// How long the browser may take for an answer.
const LIMIT: Duration = Duration::from_secs(60);

/// A browser without a window, and a page in it.
struct Browser {
    process: Child,
    socket: WebSocketStream<TcpStream>,
    session: Option<String>,
    sent: u64,
    /// The events since the last look at them.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Browser {
    #[expect(clippy::disallowed_methods, reason = "a browser is not a tool of kpx")]
    async fn start() -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut process = Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
            ])
            .args(["--remote-debugging-port=0", "about:blank"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("chromium starts: Debian has it in the package chromium");
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let url = lines.find_map(|line| Some(line.split_once("listening on ")?.1.to_owned()));
        let url = url.expect("chromium names its address");
        // It blocks if its later lines are not read.
        std::thread::spawn(move || lines.for_each(drop));
        let address = url.split('/').nth(2).unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let (socket, _) = tokio_tungstenite::client_async(url.as_str(), stream)
            .await
            .unwrap();
        let mut browser = Self {
            process,
            socket,
            session: None,
            sent: 0,
            events: Vec::new(),
            _profile: profile,
        };
        let target = browser
            .call("Target.createTarget", json!({"url": "about:blank"}))
            .await;
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", target).await;
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for part in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            browser.call(&format!("{part}.enable"), json!({})).await;
        }
        browser
    }

    /// Calls a method of the protocol of the developer tools, and returns its result.
    async fn call(&mut self, method: &str, params: Value) -> Value {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        self.socket
            .send(Message::text(message.to_string()))
            .await
            .unwrap();
        loop {
            let answer = self.next().await;
            if answer["id"] == self.sent {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
            self.events.push(answer);
        }
    }

    async fn next(&mut self) -> Value {
        let message = tokio::time::timeout(LIMIT, self.socket.next()).await;
        let message = message.expect("chromium answers in time").unwrap().unwrap();
        serde_json::from_str(message.to_text().unwrap()).unwrap()
    }

    /// Opens `page` in a window of this width with this colour scheme, and fails if it loads or reports anything.
    async fn open(&mut self, page: &Path, width: u32, scheme: &str) {
        let window =
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", window)
            .await;
        self.media("screen", scheme).await;
        self.events.clear();
        let url = format!("file://{}", page.display());
        self.call("Page.navigate", json!({"url": url})).await;
        while !self
            .events
            .iter()
            .any(|event| event["method"] == "Page.loadEventFired")
        {
            let event = self.next().await;
            self.events.push(event);
        }
        // The style sheet and the script of the page have run now.
        self.value("1").await;
        let mut requests = 0;
        for event in &self.events {
            match event["method"].as_str().unwrap_or_default() {
                "Network.requestWillBeSent" => {
                    assert_eq!(event["params"]["request"]["url"], url);
                    requests += 1;
                }
                // Refused by the policy of the page, an error of the script, or a warning.
                "Log.entryAdded" | "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" => {
                    panic!("{}: {event:#}", page.display());
                }
                _ => {}
            }
        }
        assert_eq!(requests, 1, "{}", page.display());
    }

    async fn media(&mut self, media: &str, scheme: &str) {
        let feature = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        let media = json!({"media": media, "features": feature});
        self.call("Emulation.setEmulatedMedia", media).await;
    }

    /// Returns the value of an expression in the page.
    async fn value(&mut self, expression: &str) -> Value {
        let expression = json!({"expression": expression, "returnByValue": true});
        let result = self.call("Runtime.evaluate", expression).await;
        assert!(result.get("exceptionDetails").is_none(), "{result:#}");
        result["result"]["value"].clone()
    }

    async fn key(&mut self, key: &str) {
        for kind in ["rawKeyDown", "keyUp"] {
            let code = if key == "Tab" { 9 } else { 13 };
            let event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Writes a picture of the whole page.
    async fn shoot(&mut self, name: &str) {
        let shot = json!({"format": "png", "captureBeyondViewport": true, "clip": {
            "x": 0, "y": 0, "scale": 1,
            "width": self.value("innerWidth").await,
            "height": self.value("Math.min(document.documentElement.scrollHeight, 16000)").await,
        }});
        let shot = self.call("Page.captureScreenshot", shot).await;
        let k8s_openapi::ByteString(png) = serde_json::from_value(shot["data"].clone()).unwrap();
        let folder = root().join("target/report");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(format!("{name}.png")), png).unwrap();
    }
}

/// Returns the luminance of the page's background: 0 to 255 for each of three colours.
const PAPER: &str = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number).reduce((a, b) => a + b)";

/// Writes the report of a node without a problem to a file, and returns the path.
async fn healthy(folder: &TempDir) -> PathBuf {
    let on = |old: &str| old.replace("ip_forward = 0", "ip_forward = 1");
    let node = broken("seed-iptables", &[("node/sysctl.txt", &on)]);
    let path = folder.path().join("healthy.html");
    let from = node.path().to_str().unwrap();
    let target = [
        "--trace",
        "default/nginx-svc",
        "--file",
        path.to_str().unwrap(),
    ];
    let ran = kpx(&[&["--from", from, "report"], &target[..]].concat()).await;
    assert_eq!(
        ran.out,
        format!("wrote {}: healthy\n", path.display()),
        "{ran}"
    );
    path
}

/// Writes the report of a recording to a file, and returns the path.
async fn file(folder: &TempDir, name: &str) -> PathBuf {
    let path = folder.path().join(format!("{name}.html"));
    fs::write(&path, written(name, &[]).await).unwrap();
    path
}

#[tokio::test]
#[ignore = "needs chromium: make test-report"]
async fn every_width_and_scheme_shows_the_page_without_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start().await;
    for name in [
        "healthy",
        "full-iptables",
        "ir16-foreign-drops",
        "faults-iptables",
    ] {
        let page = match name {
            "healthy" => healthy(&folder).await,
            name => file(&folder, name).await,
        };
        for width in [1280, 390] {
            for scheme in ["light", "dark"] {
                browser.open(&page, width, scheme).await;
                let what = format!("{name}-{width}-{scheme}");
                let over =
                    "document.documentElement.scrollWidth - document.documentElement.clientWidth";
                assert_eq!(browser.value(over).await, 0, "{what} scrolls to the side");
                let paper = browser.value(PAPER).await.as_u64().unwrap();
                assert_eq!(paper > 600, scheme == "light", "{what}: {paper}");
                browser.shoot(&what).await;
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs chromium: make test-report"]
async fn the_keyboard_reaches_the_summary_and_the_filter() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start().await;
    let page = file(&folder, "full-iptables").await;
    browser.open(&page, 1280, "light").await;
    browser.key("Tab").await;
    let focus = "[document.activeElement.className, document.activeElement.getBoundingClientRect().left >= 0]";
    assert_eq!(browser.value(focus).await, json!(["skip", true]));
    browser.key("Enter").await;
    assert_eq!(browser.value("document.activeElement.id").await, "main");
    let rows = "[...document.querySelectorAll('#services tbody tr')].filter((row) => row.offsetHeight > 0).length";
    let all = browser.value(rows).await.as_u64().unwrap();
    assert!(all > 5, "{all} rows");
    browser
        .value("document.getElementById('filter').focus()")
        .await;
    browser
        .call("Input.insertText", json!({"text": "Cart"}))
        .await;
    let some = browser.value(rows).await.as_u64().unwrap();
    assert!(some > 0 && some < all, "{some} of {all} rows");
    let status = browser
        .value("document.getElementById('shown').textContent")
        .await;
    assert_eq!(status, format!("{some} of {all}"));
}

#[tokio::test]
#[ignore = "needs chromium: make test-report"]
async fn a_screen_reader_finds_landmarks_headings_tables_and_named_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start().await;
    let page = file(&folder, "ir16-foreign-drops").await;
    browser.open(&page, 1280, "light").await;
    let tree = browser.call("Accessibility.getFullAXTree", json!({})).await;
    let nodes = tree["nodes"].as_array().unwrap();
    let named = |role: &str| -> Vec<&str> {
        let all = nodes
            .iter()
            .filter(|node| node["ignored"] == false && node["role"]["value"] == role);
        all.map(|node| node["name"]["value"].as_str().unwrap_or_default())
            .collect()
    };
    for landmark in ["main", "navigation", "banner", "contentinfo"] {
        assert_eq!(named(landmark).len(), 1, "{landmark}");
    }
    let regions = named("region");
    for section in [
        "Summary",
        "Findings",
        "Drift",
        "Services",
        "Traces",
        "Plan of a repair",
        "Time line",
    ] {
        assert!(regions.contains(&section), "{section}: {regions:?}");
    }
    let pictures = [named("image"), named("img")].concat();
    assert!(
        pictures
            .iter()
            .any(|name| name.starts_with("Path of a packet to default/redis-master")),
        "{pictures:?}"
    );
    assert!(
        named("columnheader").contains(&"SERVICE"),
        "{:?}",
        named("columnheader")
    );
    assert!(
        named("rowheader").contains(&"default/nginx-svc"),
        "{:?}",
        named("rowheader")
    );
    for link in [named("link"), named("searchbox"), regions].concat() {
        assert!(!link.is_empty());
    }
}

#[tokio::test]
#[ignore = "needs chromium: make test-report"]
async fn paper_is_white_and_has_the_details() {
    let folder = tempfile::tempdir().unwrap();
    let mut browser = Browser::start().await;
    let page = file(&folder, "ir16-foreign-drops").await;
    browser.open(&page, 1280, "dark").await;
    let hidden = "[...document.querySelectorAll('details > :not(summary)')].filter((part) => !part.checkVisibility()).length";
    assert!(browser.value(hidden).await.as_u64().unwrap() > 0);
    browser.media("print", "dark").await;
    assert_eq!(browser.value(PAPER).await, 765);
    // Without the script: the style sheet alone opens the details.
    assert_eq!(browser.value(hidden).await, 0);
    let pdf = browser
        .call("Page.printToPDF", json!({"printBackground": true}))
        .await;
    let k8s_openapi::ByteString(pdf) = serde_json::from_value(pdf["data"].clone()).unwrap();
    assert!(
        pdf.starts_with(b"%PDF") && pdf.len() > 20_000,
        "{} bytes",
        pdf.len()
    );
}

#[tokio::test]
#[ignore = "needs chromium: make test-report"]
async fn hostile_names_are_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hostile.html");
    fs::write(&path, hostile().await).unwrap();
    let mut browser = Browser::start().await;
    browser.open(&path, 1280, "light").await;
    let parts = "[document.scripts.length, document.images.length, document.querySelectorAll('iframe,object,embed,b').length, typeof pwned]";
    assert_eq!(browser.value(parts).await, json!([1, 0, 0, "undefined"]));
    let shown = browser
        .value("document.body.textContent.includes('<script>pwned=1</script>')")
        .await;
    assert_eq!(shown, true);
}
