//! Reads the files of the folder.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::file::ClassFile;

/// More is no list of classes that somebody wrote.
const MAX_BYTES: u64 = 1 << 20;

/// Whether a file of this name is one of classes. What begins with a dot belongs to editors.
pub(super) fn is_class_file(name: &OsStr) -> bool {
    let path = Path::new(name);
    let extension = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    extension && !name.as_encoded_bytes().starts_with(b".")
}

/// All files of classes in a folder; none if there is no folder.
pub fn read_all(folder: &Path) -> io::Result<Vec<(PathBuf, ClassFile)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absence(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        if is_class_file(&entry.file_name()) {
            let path = folder.join(entry.file_name());
            files.extend(read(&path).map(|file| (path, file)));
        }
    }
    Ok(files)
}

/// One file; `None` if it is not there.
pub fn read(path: &Path) -> Option<ClassFile> {
    match bytes(path) {
        Ok(bytes) => Some(ClassFile::read(&bytes)),
        Err(error) if is_absence(&error) => None,
        Err(error) => Some(ClassFile::unreadable(&error)),
    }
}

/// The bytes of a file of classes, which is a plain one of limited size.
fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe of that name would otherwise be waited for.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no plain file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    Ok(bytes)
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
