//! Whether the self-test must be made again. It loads all programs once more, and to have them verified takes most of the
//! time that an agent needs to start.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    os::{fd::AsFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
};

use super::{
    cgroup::{Cgroup, CgroupRoot},
    config::EnforcerConfig,
    error::EnforcerError,
    layout::{Pins, private_folder},
    link::PinnedLink,
    self_test::self_test,
    sys,
};
use crate::object::OBJECT;

/// Makes the self-test, unless this kernel has passed it with these programs since it was started, and no other program has
/// a say at the ancestor now.
pub(super) fn ensure(
    config: &EnforcerConfig,
    pins: &Pins,
    root: &CgroupRoot,
    ancestor: &Cgroup,
) -> Result<(), EnforcerError> {
    let mark = Mark::new(&config.run_dir);
    if mark.is_there() && is_alone(pins, ancestor) {
        tracing::debug!("this kernel has passed the self-test with these programs");
        return Ok(());
    }
    self_test(root, ancestor)?;
    private_folder(&config.run_dir)?;
    mark.leave();
    Ok(())
}

/// What is left behind by a self-test that was passed: a file in the folder for locks, where nobody else can write.
struct Mark {
    file: PathBuf,
    text: Option<String>,
}

impl Mark {
    fn new(run_dir: &Path) -> Self {
        let mut hasher = DefaultHasher::new();
        OBJECT.hash(&mut hasher);
        // Without a name for the time since the start of the kernel nothing is remembered.
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
        let text = boot.map(|boot| format!("{} {:016x}\n", boot.trim(), hasher.finish()));
        Self { file: run_dir.join("self-test"), text }
    }

    fn is_there(&self) -> bool {
        self.text.is_some() && fs::read_to_string(&self.file).ok() == self.text
    }

    fn leave(&self) {
        let Some(text) = &self.text else { return };
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let written =
            options.open(&self.file).and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes()));
        if let Err(error) = written {
            // The next start takes a little longer.
            tracing::debug!(file = %self.file.display(), %error, "cannot note that the self-test was passed");
        }
    }
}

/// Whether no program but that of our link is in force at the ancestor: another one might deny what ours grants.
fn is_alone(pins: &Pins, ancestor: &Cgroup) -> bool {
    let ours = PinnedLink::open(&pins.link()).ok().flatten().and_then(|link| link.info().ok()).map(|info| info.program);
    sys::effective_programs(ancestor.as_fd()).is_ok_and(|programs| programs.iter().all(|id| Some(*id) == ours))
}
