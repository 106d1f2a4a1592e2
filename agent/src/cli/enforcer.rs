//! `devgate enforcer`: shows and removes what is in the kernel, without the agent.

use std::{
    fmt::Write as _,
    io::{self, Write},
    path::PathBuf,
};

use clap::{Args, Subcommand};

use crate::executors::enforcer::{EnforcerConfig, LinkState, Status, Unguarded, status, uninstall};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Shows the link, the guards and how full the maps are. The exit status is 1 if nothing is enforced.
    Status {
        #[command(flatten)]
        place: Place,
        /// Prints one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Removes the link, the maps and the guard process. Containers keep what their runtime allows.
    Uninstall {
        #[command(flatten)]
        place: Place,
    },
}

/// Where the enforcement is.
#[derive(Debug, Args)]
struct Place {
    /// Folder of the pins on a bpf file system.
    #[arg(long, env = "DEVGATE_PIN_ROOT", default_value = "/sys/fs/bpf/devgate")]
    pin_root: PathBuf,
    /// Folder of the guard's lock.
    #[arg(long, env = "DEVGATE_RUN_DIR", default_value = "/run/devgate")]
    run_dir: PathBuf,
    /// Where the cgroup v2 hierarchy is mounted [default: /sys/fs/cgroup or /sys/fs/cgroup/unified].
    #[arg(long, env = "DEVGATE_CGROUP_ROOT")]
    cgroup_root: Option<PathBuf>,
    /// The cgroup above all containers, as a path from the hierarchy's root.
    #[arg(long, env = "DEVGATE_ANCESTOR", default_value = "/")]
    ancestor: PathBuf,
}

impl Place {
    fn config(self) -> EnforcerConfig {
        EnforcerConfig {
            pin_root: self.pin_root,
            run_dir: self.run_dir,
            cgroup_root: self.cgroup_root,
            ancestor: self.ancestor,
            ..EnforcerConfig::default()
        }
    }
}

impl Arguments {
    pub(super) fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Status { place, json } => show(&place.config(), json),
            Command::Uninstall { place } => {
                let removed = uninstall(&place.config())?;
                let mut out = io::stdout().lock();
                for path in &removed {
                    writeln!(out, "removed {}", path.display())?;
                }
                if removed.is_empty() {
                    writeln!(out, "nothing was installed")?;
                }
                Ok(())
            }
        }
    }
}

fn show(config: &EnforcerConfig, json: bool) -> anyhow::Result<()> {
    let status = status(config)?;
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, &status)?;
        writeln!(out)?;
    } else {
        out.write_all(describe(&status).as_bytes())?;
    }
    match status.link {
        LinkState::Attached { configured: true, .. } => Ok(()),
        LinkState::Attached { configured: false, .. } => {
            anyhow::bail!("the link is not to the cgroup that is asked about")
        }
        LinkState::Absent | LinkState::Detached { .. } => anyhow::bail!("nothing is enforced"),
    }
}

fn describe(status: &Status) -> String {
    let link = match status.link {
        LinkState::Absent => "absent".to_owned(),
        LinkState::Detached { program } => format!("detached (program {program})"),
        LinkState::Attached { program, cgroup, .. } => format!("attached (program {program}, cgroup {cgroup})"),
    };
    let guards = &status.guards;
    let uevent = match guards.uevent_process {
        Some(pid) => format!("alive (process {pid}, {} numbers voided)", guards.uevent_advances),
        None => "none".to_owned(),
    };
    let device_del = if guards.device_del {
        format!("active ({} numbers voided)", guards.device_del_advances)
    } else {
        "none (the kernel has no function tracer, or it was not installed)".to_owned()
    };
    let unguarded = match guards.unguarded {
        Unguarded::Keep => "what was granted stays granted",
        Unguarded::Deny => "devices that can be unplugged are denied",
    };
    let mut text = format!(
        "kernel:              {}\nlayout:              v{}\nlink:                {link}\n\
         uevent guard:        {uevent}\ndevice_del guard:    {device_del}\nwithout a guard:     {unguarded}\n",
        status.kernel, status.layout
    );
    for (what, usage) in
        [("managed cgroups", status.cgroups), ("rules", status.rules), ("device numbers", status.devices)]
    {
        let usage = usage.map_or_else(|| "none".to_owned(), |usage| format!("{} of {}", usage.used, usage.limit));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:21}{usage}", format!("{what}:"));
    }
    text
}
