//! Migration folders and their journals.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use kpx_node::evidence::files;

/// Folder of all migrations, relative to the host's root.
const FOLDER: &str = "var/lib/kpx/migrate";

/// Name of the journal in a migration's folder.
const JOURNAL: &str = "journal.jsonl";

/// Name of the file in a migration's folder that has a line for each time that a guard loaded the bridge again.
const GAPS: &str = "bridge-gaps";

/// Journals of a node's migrations.
#[derive(Clone, Debug)]
pub struct Journals {
    pub(super) folder: PathBuf,
}

/// A journal that is open for appending.
#[derive(Debug)]
pub struct Journal {
    file: File,
    /// The migration's folder.
    folder: PathBuf,
}

impl Journals {
    /// Returns the journals of the host whose root is `root`.
    pub fn below(root: &Path) -> Self {
        Self {
            folder: root.join(FOLDER),
        }
    }

    /// Returns the folder of migration `id`.
    pub fn folder(&self, id: &str) -> PathBuf {
        self.folder.join(id)
    }

    /// Returns the IDs of all migrations, oldest first.
    pub fn all(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
        let names: Vec<_> = names.collect::<io::Result<_>>()?;
        let mut names: Vec<_> = names.into_iter().flatten().collect();
        names.sort();
        Ok(names)
    }

    /// Returns the text of the journal of migration `id`; empty if it does not exist.
    pub fn read(&self, id: &str) -> io::Result<String> {
        match fs::read_to_string(self.folder(id).join(JOURNAL)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(String::new()),
            read => read,
        }
    }

    /// Creates the folder of migration `id` with an empty journal. Only the owner may read it.
    pub fn create(&self, id: &str) -> io::Result<Journal> {
        let folder = self.folder(id);
        files::private_folder()
            .recursive(true)
            .create(&self.folder)?;
        files::private_folder().create(&folder)?;
        let path = folder.join(JOURNAL);
        let file = files::private_file().append(true).open(path)?;
        file.sync_all()?;
        // The new directory entries must survive a crash as well.
        for folder in folder.ancestors().take(1 + FOLDER.split('/').count()) {
            files::sync_folder(folder)?;
        }
        let folder = self.folder(id);
        Ok(Journal { file, folder })
    }

    /// Removes the folder of migration `id` with all its contents.
    pub fn remove(&self, id: &str) -> io::Result<()> {
        fs::remove_dir_all(self.folder(id))
    }

    /// Opens the journal of migration `id` for appending, without an incomplete last line.
    pub fn open(&self, id: &str) -> io::Result<Journal> {
        let path = self.folder(id).join(JOURNAL);
        let text = fs::read(&path)?;
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        let file = OpenOptions::new().append(true).open(path)?;
        if whole < text.len() {
            file.set_len(u64::try_from(whole).map_err(io::Error::other)?)?;
            file.sync_all()?;
        }
        let folder = self.folder(id);
        Ok(Journal { file, folder })
    }

    /// Counts that another program deleted the bridge of migration `id` while only its guard ran.
    pub fn add_gap(&self, id: &str) -> io::Result<()> {
        let path = self.folder(id).join(GAPS);
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(b"deleted\n")
    }
}

impl Journal {
    /// Returns how often another program deleted the bridge while only its guard ran, since the last call.
    pub fn take_gaps(&mut self) -> io::Result<usize> {
        let path = self.folder.join(GAPS);
        match fs::read_to_string(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(0),
            Err(e) => Err(e),
            Ok(text) => {
                fs::remove_file(path)?;
                Ok(text.lines().count())
            }
        }
    }

    /// Appends `line`. When it returns, the line is on disk; after an error, the journal is as before.
    pub fn add(&mut self, line: &str) -> io::Result<()> {
        let whole = self.file.metadata()?.len();
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        let written = written.and_then(|()| self.file.sync_all());
        if written.is_err() {
            // If a line does not fit on the disk, a part of it may be written.
            self.file.set_len(whole).ok();
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_lines_are_read_again_and_an_incomplete_one_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let journals = Journals::below(root.path());
        assert_eq!(journals.all().unwrap(), Vec::<String>::new());
        let mut journal = journals.create("b").unwrap();
        journals.create("a").unwrap();
        assert_eq!(journals.all().unwrap(), ["a", "b"]);
        journal.add("{}").unwrap();
        journal.file.write_all(b"{\"torn").unwrap();
        let mut journal = journals.open("b").unwrap();
        journal.add("[]").unwrap();
        assert_eq!(journals.read("b").unwrap(), "{}\n[]\n");
        assert_eq!(journal.take_gaps().unwrap(), 0);
        journals.add_gap("b").unwrap();
        journals.add_gap("b").unwrap();
        assert_eq!(journal.take_gaps().unwrap(), 2);
        assert_eq!(journal.take_gaps().unwrap(), 0);
        assert_eq!(journals.read("c").unwrap(), "");
        assert_eq!(
            journals.create("b").unwrap_err().kind(),
            ErrorKind::AlreadyExists
        );
    }
}
