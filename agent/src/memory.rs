//! What the agent remembers over restarts, on the disk.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use devgate_core::Memory;

/// What is remembered cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}; see `stateDir`")]
pub struct MemoryError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Reads what an earlier run wrote. What is missing or damaged is nothing: it is learnt anew, and a damaged file is
/// warned of.
pub fn load(folder: &Path) -> Memory {
    let path = folder.join("memory");
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Memory::default(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "what was remembered cannot be read and is learnt anew");
            return Memory::default();
        }
    };
    Memory::from_text(&text).unwrap_or_else(|problem| {
        tracing::warn!(path = %path.display(), %problem, "what was remembered is damaged and is learnt anew");
        Memory::default()
    })
}

/// Writes, so that a crash at any moment leaves the old or the new text.
pub fn store(folder: &Path, memory: &Memory) -> Result<(), MemoryError> {
    let path = folder.join("memory");
    let failed = |source| MemoryError { path: path.clone(), source };
    match DirBuilder::new().recursive(true).mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    let fresh = folder.join("memory.new");
    let write = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(memory.to_text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use devgate_core::DeviceId;

    use super::*;

    // Fault: agent/src/memory.rs
    // - Memory::from_text(&text).unwrap_or_else(|problem| {
    // + Memory::from_text(&text).map_or_else(|_| panic!(), |memory| memory); Memory::from_text(&text).unwrap_or_else(|problem| {
    #[test]
    fn b85_a_file_that_is_cut_off_or_garbled_anywhere_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory { ambiguous: ["usb-0403-6001-a1"].iter().filter_map(|id| DeviceId::parse(id)).collect() };
        assert_eq!(memory.ambiguous.len(), 1);
        store(folder.path(), &memory).unwrap();
        assert_eq!(load(folder.path()), memory);
        let path = folder.path().join("memory");
        let text = fs::read(&path).unwrap();
        for at in 0..text.len() {
            fs::write(&path, &text[..at]).unwrap();
            assert_eq!(load(folder.path()), Memory::default(), "cut at {at}");
            let mut garbled = text.clone();
            garbled[at] ^= 0x20;
            fs::write(&path, garbled).unwrap();
            assert_eq!(load(folder.path()), Memory::default(), "garbled at {at}");
        }
    }

    // Power is cut while it is written.
    // Fault: agent/src/memory.rs
    // - let fresh = folder.join("memory.new");
    // + let fresh = path.clone();
    #[test]
    fn b34_what_was_half_written_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory");
        store(folder.path(), &Memory::default()).unwrap();
        let inode = || fs::metadata(&path).unwrap().ino();
        let before = inode();
        fs::write(folder.path().join("memory.new"), "devgate-mem").unwrap();
        assert_eq!(load(folder.path()), Memory::default());
        store(folder.path(), &Memory::default()).unwrap();
        assert_ne!(inode(), before, "it is never written in place");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn nobody_else_can_read_it() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("state/devgate");
        store(&folder, &Memory::default()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join("memory"))), (0o700, 0o600));
    }
}
