//! Pins that are not what they should be, and folders that are not where or what they should be.

use std::{
    fs::{self, Permissions},
    os::{
        fd::AsFd,
        unix::fs::{DirBuilderExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use devgate::executors::enforcer::{Limits, sys, uninstall};
use devgate_abi::{CgroupEntry, LAYOUT_VERSION, map};
use devgate_tests::{
    prelude::*,
    raw::{RawMap, Shape},
};

tests![
    a_wrong_map_is_refused_with_its_path_field_and_values,
    every_map_is_compared,
    what_is_no_map_of_ours_is_refused,
    folders_are_closed_to_others,
    pins_outside_a_bpf_file_system_are_refused,
    folders_of_others_are_refused,
];

/// What the map of cgroups must be.
fn of_cgroups() -> Shape {
    let value_size = size_of::<CgroupEntry>() as u32;
    Shape { kind: 1, key_size: 8, value_size, max_entries: Limits::default().cgroups, flags: 0 }
}

// Fault: agent/src/executors/enforcer/layout.rs
// - ("type", found.kind, self.kind),
// + ("type", self.kind, self.kind),
// Fault: agent/src/executors/enforcer/layout.rs
// - ("key size", found.key_size, self.key_size as u32),
// + ("key size", 0, 0),
// Fault: agent/src/executors/enforcer/layout.rs
// - ("value size", found.value_size, self.value_size as u32),
// + ("value size", 0, 0),
// Fault: agent/src/executors/enforcer/layout.rs
// - ("number of entries", found.max_entries, self.max_entries),
// + ("number of entries", 0, 0),
// Fault: agent/src/executors/enforcer/layout.rs
// - ("flags", found.flags, self.flags),
// + ("flags", 0, 0),
fn a_wrong_map_is_refused_with_its_path_field_and_values() -> TestResult {
    const LRU_HASH: u32 = 9;
    const NO_PREALLOCATION: u32 = 1;
    let scratch = Scratch::new("wrong")?;
    let config = scratch.config();
    let path = config.pin_root.join(format!("v{LAYOUT_VERSION}")).join(map::CGROUPS);
    fs::create_dir_all(path.parent().expect("it is in a folder"))?;
    let right = of_cgroups();
    let wrong = [
        (Shape { kind: LRU_HASH, ..right }, "type", LRU_HASH, right.kind),
        (Shape { key_size: 4, ..right }, "key size", 4, right.key_size),
        (Shape { value_size: 24, ..right }, "value size", 24, right.value_size),
        (Shape { max_entries: 5, ..right }, "number of entries", 5, right.max_entries),
        (Shape { flags: NO_PREALLOCATION, ..right }, "flags", NO_PREALLOCATION, right.flags),
    ];
    for (shape, field, found, expected) in wrong {
        sys::pin(RawMap::create(shape)?.as_fd(), &path)?;
        let error = KernelEnforcer::open(scratch.config()).map(drop).expect_err(field);
        assert!(
            matches!(&error, EnforcerError::WrongMap { path: at, field: which, found: is, expected: should }
                if (at, *which, *is, *should) == (&path, field, found, expected)),
            "{error:?}"
        );
        let text = error.to_string();
        for part in [&path.display().to_string(), &format!("{field} {found}"), &format!("expected {expected}")] {
            assert!(text.contains(part), "{text}");
        }
        fs::remove_file(&path)?;
    }
    assert!(!config.pin_root.join("link").exists(), "nothing was put in force");
    // What fits is used, with what is in it.
    let fitting = RawMap::create(right)?;
    sys::pin(fitting.as_fd(), &path)?;
    let mut enforcer = scratch.enforcer()?;
    let container = scratch.cgroup("container")?;
    enforcer.manage(&container, Policy::RECORD)?;
    let entry: CgroupEntry = fitting.get(&container.id())?.expect("the enforcer has written to it");
    assert_eq!(entry.policy, Policy::RECORD);
    Ok(())
}

// Fault: agent/src/executors/enforcer/layout.rs
// - for spec in specs {
// + for spec in specs.iter().skip(1) {
fn every_map_is_compared() -> TestResult {
    let scratch = Scratch::new("every")?;
    let config = scratch.config();
    let folder = config.pin_root.join(format!("v{LAYOUT_VERSION}"));
    fs::create_dir_all(&folder)?;
    let wrong = RawMap::create(Shape { kind: 2, key_size: 4, value_size: 12, max_entries: 3, flags: 0 })?;
    let names = [map::STATE, map::CGROUPS, map::CONTAINERS, map::RULES, map::EPOCH_SLOTS, map::EPOCHS, map::AUDIT];
    for name in names {
        sys::pin(wrong.as_fd(), &folder.join(name))?;
        let error = KernelEnforcer::open(scratch.config()).map(drop).expect_err(name);
        assert!(
            matches!(&error, EnforcerError::WrongMap { path, .. } if *path == folder.join(name)),
            "{name}: {error:?}"
        );
        fs::remove_file(folder.join(name))?;
    }
    scratch.enforcer()?;
    let pinned: Vec<bool> = names.map(|name| folder.join(name).exists()).into();
    assert_eq!(pinned, [true; 7], "there is no other map to compare");
    Ok(())
}

// Fault: agent/src/executors/enforcer/link.rs
// - Ok(info) if info.kind == CGROUP_LINK && matches!(info.attach_type, 0 | CGROUP_DEVICE) => Ok(Some(link)),
// + Ok(_) => Ok(Some(link)),
fn what_is_no_map_of_ours_is_refused() -> TestResult {
    let scratch = Scratch::new("other")?;
    let pin_root = scratch.config().pin_root;
    fs::create_dir_all(&pin_root)?;
    let link = pin_root.join("link");
    let program = sys::load_device_program(&sys::return_constant(1), "")?;
    sys::pin(program.as_fd(), &link)?;
    let error = KernelEnforcer::open(scratch.config()).map(drop).unwrap_err();
    assert!(matches!(&error, EnforcerError::NotOurLink(path) if *path == link), "{error:?}");
    assert!(link.exists(), "it is not ours to remove");
    fs::remove_file(&link)?;
    scratch.enforcer()?;
    Ok(())
}

// Fault: agent/src/executors/enforcer/layout.rs
// - match fs::DirBuilder::new().mode(0o700).create(path) {
// + match fs::DirBuilder::new().mode(0o755).create(path) {
// Fault: agent/src/executors/enforcer/layout.rs
// - if status.permissions().mode() & 0o077 != 0 {
// + if status.permissions().mode() & 0o007 == 0o007 {
// Fault: agent/src/executors/enforcer/guard.rs
// - private_folder(&config.run_dir)?;
// + std::fs::create_dir_all(&config.run_dir).unwrap();
fn folders_are_closed_to_others() -> TestResult {
    let scratch = Scratch::new("modes")?;
    let config = scratch.config();
    let deep_run_dir = config.run_dir.join("a/b");
    let folders = [
        config.pin_root.clone(),
        config.pin_root.join(format!("v{LAYOUT_VERSION}")),
        config.run_dir.join("a"),
        deep_run_dir.clone(),
    ];
    let modes = || -> anyhow::Result<Vec<u32>> {
        folders.iter().map(|folder| Ok(fs::metadata(folder)?.permissions().mode() & 0o7777)).collect()
    };
    let open = || scratch.enforcer_with(|config| config.run_dir.clone_from(&deep_run_dir));
    let _guard = EndGuard(EnforcerConfig { run_dir: deep_run_dir.clone(), ..scratch.config() });
    drop(open()?);
    assert_eq!(modes()?, [0o700; 4]);
    for folder in &folders {
        fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    }
    let _enforcer = open()?;
    // The folder above the configured one is not ours once it is there.
    assert_eq!(modes()?, [0o700, 0o700, 0o755, 0o700]);
    let lock = fs::metadata(deep_run_dir.join("guard.lock"))?;
    assert_eq!(lock.permissions().mode() & 0o7777, 0o600);
    Ok(())
}

/// Ends a guard of which the [`Scratch`] does not know.
struct EndGuard(EnforcerConfig);

impl Drop for EndGuard {
    fn drop(&mut self) {
        uninstall(&self.0).expect("no agent runs any more");
    }
}

// Fault: agent/src/executors/enforcer/layout.rs
// - Ok(_) => Err(EnforcerError::NotBpfFs(root.to_owned())),
// + Ok(_) => Ok(()),
fn pins_outside_a_bpf_file_system_are_refused() -> TestResult {
    let scratch = Scratch::new("nobpf")?;
    let folder = tempfile::Builder::new().prefix("devgate-test-nobpf").tempdir()?;
    let places: [PathBuf; 3] = [folder.path().to_owned(), folder.path().join("a/b"), Path::new("/proc/devgate").into()];
    for place in places {
        let config = EnforcerConfig { pin_root: place.clone(), ..scratch.config() };
        let error = KernelEnforcer::open(config).map(drop).unwrap_err();
        assert!(matches!(&error, EnforcerError::NotBpfFs(path) if *path == place), "{error:?}");
        assert!(error.to_string().contains("mount -t bpf"), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path())?.count(), 0, "nothing was made there");
    Ok(())
}

// Fault: agent/src/executors/enforcer/layout.rs
// - if !status.is_dir() || status.uid() != user {
// + if !status.is_dir() {
// Fault: agent/src/executors/enforcer/layout.rs
// - let status = fs::symlink_metadata(path).map_err(failed)?;
// + let status = fs::metadata(path).map_err(failed)?;
fn folders_of_others_are_refused() -> TestResult {
    let scratch = Scratch::new("others")?;
    let config = scratch.config();
    let foreign = config.run_dir.join("foreign");
    fs::DirBuilder::new().mode(0o700).create(&foreign)?;
    std::os::unix::fs::chown(&foreign, Some(65534), None)?;
    let elsewhere = config.run_dir.join("elsewhere");
    fs::DirBuilder::new().mode(0o700).create(&elsewhere)?;
    let link = config.run_dir.join("link");
    std::os::unix::fs::symlink(&elsewhere, &link)?;
    let file = config.run_dir.join("file");
    fs::write(&file, "")?;
    for place in [foreign, link, file] {
        let error = scratch.enforcer_with(|config| config.run_dir.clone_from(&place)).map(drop).unwrap_err();
        assert!(format!("{error:#}").contains(&place.display().to_string()), "{error:#}");
    }
    assert_eq!(fs::read_dir(&elsewhere)?.count(), 0);
    Ok(())
}
