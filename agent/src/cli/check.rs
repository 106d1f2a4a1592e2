//! `devgate check`: says what is wrong in files of classes, as the agent would.

use std::io::{self, Write};
use std::path::PathBuf;

use crate::sources::device_class::{ClassFile, ClassSet, read, read_all};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Files of DeviceClasses, or folders of such files (*.yaml and *.yml).
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl Arguments {
    /// Fails if there is anything to put right.
    pub(super) fn run(self) -> anyhow::Result<()> {
        let mut classes = ClassSet::default();
        for path in &self.files {
            if path.is_dir() {
                match read_all(path) {
                    Ok(files) => files.into_iter().for_each(|(path, file)| classes.update(&path, Some(file))),
                    Err(error) => classes.update(path, Some(ClassFile::unreadable(&error))),
                }
            } else {
                let absent = || ClassFile::unreadable(&io::ErrorKind::NotFound.into());
                classes.update(path, Some(read(path).unwrap_or_else(absent)));
            }
        }
        let problems = classes.problems();
        let mut out = io::stdout().lock();
        for problem in &problems {
            writeln!(out, "{problem}")?;
        }
        match problems.len() {
            0 => Ok(()),
            1 => anyhow::bail!("1 problem"),
            count => anyhow::bail!("{count} problems"),
        }
    }
}
