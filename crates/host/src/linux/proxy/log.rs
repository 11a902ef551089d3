//! Reads kube-proxy's log from the node's disk.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::Deserialize;

use crate::linux::context::gap;
use crate::root_path;
use kpx_node::evidence::{Gap, Item};

/// Maximum number of bytes, from the end of the log.
const MAX_LOG: u64 = 1 << 20;

/// Log files of a kube-proxy that runs as a systemd service or writes its own log.
const FILES: &[&str] = &["var/log/kube-proxy.log", "var/log/kube-proxy/current"];

/// Tolerance for a log that seems older than its process, in seconds: the kernel counts ticks.
const SLACK: u64 = 2;

/// Returns the end of the log below `root`, for a process that started at `since`, in seconds since the epoch, if
/// known: a log last written earlier belongs to another process.
pub(super) fn read(root: &Path, since: Option<u64>) -> Result<String, Gap> {
    let item = Item::ProxyLog;
    let pods = root.join("var/log/pods");
    let newest = match newest_of_pods(root, &pods) {
        Ok(newest) => newest,
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(gap(item, pods.display(), &e)),
    };
    let mut files = FILES.iter().map(|file| root.join(file));
    let newest = newest.filter(|path| is_of(path, since));
    let Some(path) = newest.or_else(|| files.find(|path| path.exists() && is_of(path, since)))
    else {
        let since = since.map_or("", |_| ", written since kube-proxy started");
        let why = format!(
            "neither {}/kube-system_kube-proxy-* nor {} exists{since}",
            pods.display(),
            FILES.join(" nor ")
        );
        return Err(Gap::Absent(item, why));
    };
    let text = tail(&path).map_err(|e| gap(item, path.display(), &e))?;
    let mut lines = String::with_capacity(text.len());
    for line in text.lines() {
        lines += &unwrapped(line);
        lines.push('\n');
    }
    Ok(lines)
}

fn is_of(path: &Path, since: Option<u64>) -> bool {
    let written = fs::metadata(path).and_then(|meta| meta.modified()).ok();
    let written = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    match (written, since) {
        (Some(written), Some(since)) => written.as_secs() + SLACK >= since,
        // Unknown times exclude nothing.
        _ => true,
    }
}

/// Returns the log that was written last, which belongs to the current run.
fn newest_of_pods(root: &Path, pods: &Path) -> io::Result<Option<PathBuf>> {
    let mut newest = None;
    for pod in fs::read_dir(pods)? {
        let pod = pod?;
        if !pod
            .file_name()
            .to_string_lossy()
            .starts_with("kube-system_kube-proxy-")
        {
            continue;
        }
        let container = pod.path().join("kube-proxy");
        let Ok(logs) = fs::read_dir(container) else {
            continue;
        };
        for log in logs.flatten() {
            // Docker's logs are links out of the folder.
            let inside = log.path();
            let inside = inside.strip_prefix(root).unwrap_or(&inside);
            let path = root_path::resolve(root, inside)?;
            let is_log = log.path().extension().is_some_and(|e| e == "log");
            if let (true, Ok(meta)) = (is_log, fs::metadata(&path)) {
                newest = newest.max(meta.modified().ok().map(|time| (time, path)));
            }
        }
    }
    Ok(newest.map(|(_, path)| path))
}

/// Returns the last lines of a file.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let start = length.saturating_sub(MAX_LOG);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(match text.split_once('\n') {
        Some((_, rest)) if start > 0 => rest.to_owned(),
        _ => text,
    })
}

/// Returns the line without the prefix of the container runtime.
fn unwrapped(line: &str) -> String {
    #[derive(Deserialize)]
    struct Docker {
        log: String,
    }
    let mut parts = line.splitn(4, ' ');
    if let (Some(time), Some("stdout" | "stderr"), Some("F" | "P"), Some(text)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
        && time.contains('T')
    {
        return text.to_owned();
    }
    match serde_json::from_str::<Docker>(line) {
        Ok(docker) => docker.log.trim_end_matches('\n').to_owned(),
        Err(_) => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_prefix_of_the_container_runtime_is_removed() {
        for (line, text) in [
            ("2026-11-20T12:00:00.1Z stderr F I1120 a b", "I1120 a b"),
            (r#"{"log":"I1120 a\n","stream":"stderr"}"#, "I1120 a"),
            (
                "I1120 12:00:00.1 1 server.go:1] a",
                "I1120 12:00:00.1 1 server.go:1] a",
            ),
        ] {
            assert_eq!(unwrapped(line), text);
        }
    }

    #[test]
    fn a_link_of_docker_is_followed_below_the_root_and_the_end_is_kept() {
        let root = tempfile::tempdir().unwrap();
        let folder = root
            .path()
            .join("var/log/pods/kube-system_kube-proxy-abc_uid/kube-proxy");
        fs::create_dir_all(&folder).unwrap();
        let store = root.path().join("var/lib/docker");
        fs::create_dir_all(&store).unwrap();
        let line = "x".repeat(99);
        let many = format!("{line}\n").repeat(20_000) + "the end\n";
        fs::write(store.join("1.log"), many).unwrap();
        symlink("/var/lib/docker/1.log", folder.join("0.log")).unwrap();
        let text = read(root.path(), Some(0)).unwrap();
        assert!(text.len() as u64 <= MAX_LOG && text.ends_with("\nthe end\n"));
        assert!(text.lines().next().is_some_and(|first| first == line));
    }

    #[test]
    fn a_missing_log_is_reported_with_its_paths() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(
            read(root.path(), None),
            Err(Gap::Absent(Item::ProxyLog, _))
        ));
    }

    #[test]
    fn the_log_of_an_earlier_process_is_ignored() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("var/log")).unwrap();
        fs::write(root.path().join(FILES[0]), "I1120 a\n").unwrap();
        let written = fs::metadata(root.path().join(FILES[0])).unwrap();
        let written = written.modified().unwrap().duration_since(UNIX_EPOCH);
        let written = written.unwrap().as_secs();
        for since in [None, Some(written), Some(written + SLACK)] {
            assert_eq!(read(root.path(), since), Ok("I1120 a\n".to_owned()));
        }
        let gap = read(root.path(), Some(written + SLACK + 1)).unwrap_err();
        assert!(
            gap.to_string().contains("since kube-proxy started"),
            "{gap}"
        );
    }
}
