//! What `minikube logs` prints: logs and outputs of commands, each below a title `==> NAME <==`.

use super::reader::{ProxyLog, Reader};
use super::split;
use crate::evidence::Item;

/// Returns the name in a title.
fn title(line: &str) -> Option<&str> {
    line.trim_end().strip_prefix("==> ")?.strip_suffix(" <==")
}

/// Returns whether `text` is the output of `minikube logs`; `tail` has titles of the same form, over other things.
pub(super) fn is_of(text: &str) -> bool {
    let mut titles = text.lines().filter_map(title);
    titles.any(|title| title == "describe nodes" || title.starts_with("kube-proxy ["))
}

impl Reader {
    /// Reads `text`, which `minikube logs` printed. Logs of other components are not read: their lines may look like evidence.
    pub(super) fn minikube(&mut self, text: &str) {
        let mut parts: Vec<(&str, String)> = Vec::new();
        for line in text.lines() {
            if let Some(title) = title(line) {
                parts.push((title, String::new()));
            } else if let Some((_, part)) = parts.last_mut() {
                part.push_str(line);
                part.push('\n');
            }
        }
        for (title, part) in parts {
            match title {
                "describe nodes" => {
                    for section in split::sections(&part) {
                        self.section(section);
                    }
                }
                "dmesg" => {
                    let draft = self.nodes.entry(String::new()).or_default();
                    draft.put(Item::KernelLog, (part, None));
                }
                // Of several, the running one comes first.
                _ if title.starts_with("kube-proxy [") && self.logs.is_empty() => {
                    self.logs.push(ProxyLog {
                        node: None,
                        pod: "kube-proxy".to_owned(),
                        text: part,
                        is_cut: false,
                    });
                }
                _ => {}
            }
        }
    }
}
