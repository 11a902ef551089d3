//! Command lines as users type them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::profile;

/// Runs `line` in a shell, with the programs of `bin` first on its PATH. Its files below /etc and /var are below `root`.
#[expect(clippy::disallowed_methods, reason = "a shell runs what users type")]
pub(crate) fn shell(
    line: &str,
    bin: &Path,
    work: &Path,
    root: &Path,
    variables: &[(&str, &str)],
) -> Output {
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    for word in &mut words {
        if let Some(path) = word.strip_prefix('/')
            && (path.starts_with("etc/") || path.starts_with("var/"))
        {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            path.to_str().unwrap().clone_into(word);
        }
    }
    Command::new("/bin/sh")
        .args(["-ec", &words.join(" ")])
        .current_dir(work)
        .env_clear()
        .envs(profile())
        .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
        .envs(variables.iter().copied())
        .output()
        .unwrap()
}
