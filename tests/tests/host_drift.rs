//! What somebody takes away or puts in the place of ours is noticed, named and put right.

use std::{fs, os::fd::AsFd, path::Path};

use devgate::executors::enforcer::{CgroupRoot, Drift, LinkState, status, sys};
use devgate_abi::{LAYOUT_VERSION, map};
use devgate_tests::{prelude::*, raw};
use rustix::process::{Pid, Signal, kill_process};

tests![
    b09_what_is_attached_is_looked_at_after_each_attachment,
    a_lost_pin_of_the_link_is_made_again,
    a_detached_link_is_made_again,
    another_program_in_the_link_is_replaced,
    an_ancestor_that_is_made_again_is_linked_again,
    the_pin_of_each_map_is_made_again,
    folders_of_pins_are_made_again,
    a_dead_guard_is_replaced,
];

/// An enforcer with a container that it denies what the runtime allows, and grants what the runtime denies.
struct Scene {
    enforcer: KernelEnforcer,
    _runtime: Runtime,
    container: TestCgroup,
    scratch: Scratch,
}

/// What the container is denied though the runtime allows it, in a cgroup without a program of a runtime.
const REVOKED: DeviceNumber = absent(1);

impl Scene {
    fn new(name: &str) -> anyhow::Result<Self> {
        let scratch = Scratch::new(name)?;
        let mut enforcer = scratch.enforcer()?;
        let container = scratch.cgroup("container")?;
        let list = [RuntimeRule { kind: DeviceKind::Char, major: Some(4095), minor: Some(1), access: Access::ALL }];
        let runtime = attach(&container, &runc_program(&list, false))?;
        set_up(&mut enforcer, &container)?;
        Ok(Self { scratch, enforcer, container, _runtime: runtime })
    }

    /// The answers for the granted and the revoked device.
    fn verdicts(&self) -> anyhow::Result<[Answer; 2]> {
        let mut prober = self.scratch.prober(&self.container)?;
        Ok([prober.open(FUSE, Access::READ), prober.open(REVOKED, Access::READ)])
    }

    /// Checks, and expects to find one thing. Afterwards all is as it was.
    fn expect(&mut self, drift: Drift) -> TestResult {
        self.expect_all(&[drift])
    }

    fn expect_all(&mut self, drifts: &[Drift]) -> TestResult {
        assert_eq!(self.enforcer.check()?, drifts);
        assert_eq!(self.enforcer.check()?, [], "it has been put right");
        assert_eq!(self.verdicts()?, IN_FORCE);
        let status = status(&self.scratch.config())?;
        assert!(matches!(status.link, LinkState::Attached { configured: true, .. }), "{status:?}");
        assert!(status.guards.uevent_process.is_some());
        assert_eq!(sys::attached_programs(self.scratch.ancestor().as_fd())?.len(), 1);
        Ok(())
    }
}

fn set_up(enforcer: &mut KernelEnforcer, container: &TestCgroup) -> TestResult {
    enforcer.manage(container, Policy::default())?;
    enforcer.give(container, FUSE, &granting(Access::READ))?;
    Ok(enforcer.revoke(container.id(), REVOKED, Revocation::Deny)?)
}

/// [`Scene::verdicts`] while ours is in force, and while it is not.
const IN_FORCE: [Answer; 2] = [ALLOWED, DENIED];
const NOT_IN_FORCE: [Answer; 2] = [DENIED, NO_DEVICE];

/// A kernel that appends where it was asked to replace, played by somebody who attaches our program once more.
// Fault: agent/src/executors/enforcer/link.rs
// - if ours == 1 && self.info()?.program == info.id {
// + if ours >= 1 {
// Fault: agent/src/executors/enforcer/link.rs
// - sys::link_update(self.fd.as_fd(), program).map_err(EnforcerError::call("BPF_LINK_UPDATE"))?;
// + sys::attach(program, cgroup.as_fd(), None).map_err(EnforcerError::call("BPF_PROG_ATTACH"))?;
fn b09_what_is_attached_is_looked_at_after_each_attachment() -> TestResult {
    let mut scene = Scene::new("b09")?;
    let ancestor = CgroupRoot::find()?.cgroup(scene.scratch.ancestor().path())?;
    let [ours] = sys::attached_programs(ancestor.as_fd())?[..] else { panic!("ours is attached once") };
    let twice = Runtime::of(&ancestor, sys::program_by_id(ours)?)?;
    assert_eq!(sys::attached_programs(ancestor.as_fd())?, [ours; 2]);
    put_into_link(&scene, 1)?;
    let error = scene.enforcer.check().unwrap_err().to_string();
    assert!(error.contains("verifying the link"), "{error}");
    drop(twice);
    assert_eq!(scene.enforcer.check()?, [], "the update itself had been made");
    // Each time the program is another one, and the one before is gone.
    let mut seen = vec![ours];
    for _ in 0..3 {
        drop(scene.enforcer);
        scene.enforcer = scene.scratch.enforcer()?;
        let attached = sys::attached_programs(ancestor.as_fd())?;
        assert!(attached.len() == 1 && !seen.contains(&attached[0]), "{attached:?} after {seen:?}");
        seen.extend(attached);
    }
    assert_eq!(scene.verdicts()?, IN_FORCE);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel/repair.rs
// - if !link.is_pinned()? {
// + if false {
// Fault: agent/src/executors/enforcer/drift_watch.rs
// - let gone = inotify::WatchFlags::DELETE | inotify::WatchFlags::MOVED_FROM | inotify::WatchFlags::DELETE_SELF;
// + let gone = inotify::WatchFlags::MOVED_FROM | inotify::WatchFlags::DELETE_SELF;
fn a_lost_pin_of_the_link_is_made_again() -> TestResult {
    let mut scene = Scene::new("pin")?;
    let pin = scene.scratch.config().pin_root.join("link");
    let watch = scene.enforcer.watch()?.expect("the kernel can be watched");
    assert!(!is_readable(watch.files()));
    fs::remove_file(&pin)?;
    wait_readable("the lost pin is noticed", watch.files());
    assert_eq!(scene.verdicts()?, IN_FORCE, "the agent itself holds the link");
    scene.expect(Drift::PinLost)?;
    watch.clear()?;
    assert!(!is_readable(watch.files()));
    // Something else in its place is no pin of ours.
    fs::rename(&pin, pin.with_file_name("link_old"))?;
    wait_readable("the moved pin is noticed", watch.files());
    scene.expect(Drift::PinLost)?;
    fs::remove_file(pin.with_file_name("link_old"))?;
    // The pin is one that holds: the agent may go.
    let Scene { enforcer, container, scratch, _runtime } = scene;
    drop(enforcer);
    let mut prober = scratch.prober(&container)?;
    assert_eq!([prober.open(FUSE, Access::READ), prober.open(REVOKED, Access::READ)], IN_FORCE);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel/repair.rs
// - if replaced || info.cgroup != present.id() {
// + if replaced {
fn a_detached_link_is_made_again() -> TestResult {
    let mut scene = Scene::new("detach")?;
    sys::link_detach(sys::pinned(&scene.scratch.config().pin_root.join("link"))?.as_fd())?;
    assert_eq!(scene.verdicts()?, NOT_IN_FORCE);
    assert!(matches!(status(&scene.scratch.config())?.link, LinkState::Detached { .. }));
    scene.expect(Drift::LinkDetached)
}

// Fault: agent/src/executors/enforcer/kernel/repair.rs
// - if info.program != self.program_id {
// + if false {
fn another_program_in_the_link_is_replaced() -> TestResult {
    let mut scene = Scene::new("replace")?;
    let program = put_into_link(&scene, 1)?;
    assert_eq!(scene.verdicts()?, NOT_IN_FORCE);
    scene.expect(Drift::ProgramReplaced(program))?;
    let program = put_into_link(&scene, 0)?;
    assert_eq!(scene.verdicts()?, [DENIED; 2]);
    scene.expect(Drift::ProgramReplaced(program))
}

/// Puts a program that gives the same answer to all into our link. Returns its id.
fn put_into_link(scene: &Scene, answer: i32) -> anyhow::Result<u32> {
    let link = sys::pinned(&scene.scratch.config().pin_root.join("link"))?;
    let program = sys::load_overriding_program(&sys::return_constant(answer), "")?;
    sys::link_update(link.as_fd(), program.as_fd())?;
    Ok(sys::info::<sys::ProgramInfo>(program.as_fd())?.id)
}

// Fault: agent/src/executors/enforcer/kernel/repair.rs
// - let replaced = present.id() != self.ancestor.id();
// + let replaced = false;
// Fault: agent/src/executors/enforcer/kernel.rs
// - let parent = self.ancestor.path().parent().map(|parent| self.root.folder(parent));
// + let parent: Option<std::path::PathBuf> = None;
fn an_ancestor_that_is_made_again_is_linked_again() -> TestResult {
    let scratch = Scratch::new("ancestor")?;
    let path = scratch.ancestor().path().join("kubepods");
    let mut kubepods = scratch.cgroup("kubepods")?;
    let mut enforcer = scratch.enforcer_with(|config| config.ancestor.clone_from(&path))?;
    for round in 0..2 {
        let watch = enforcer.watch()?.expect("the kernel can be watched");
        assert!(!is_readable(watch.files()));
        kubepods.remove()?;
        wait_readable("the lost ancestor is noticed", watch.files());
        assert_eq!(enforcer.check()?, [Drift::AncestorGone(path.clone())]);
        assert_eq!(enforcer.check()?, [Drift::AncestorGone(path.clone())], "as long as it is so");
        kubepods = scratch.cgroup("kubepods")?;
        assert_eq!(enforcer.check()?, [Drift::AncestorReplaced(path.clone())]);
        assert_eq!(enforcer.check()?, []);
        assert_eq!(sys::attached_programs(kubepods.as_fd())?.len(), 1);
        let container = kubepods.child("container")?;
        let _runtime = deny_all(&container)?;
        set_up(&mut enforcer, &container)?;
        let mut prober = scratch.prober(&container)?;
        assert_eq!(prober.open(FUSE, Access::READ), ALLOWED, "round {round}");
        // A drift watch of before the change sees the new folder too: its parent is the same.
        drop(prober);
    }
    Ok(())
}

/// All maps that are pinned.
const MAPS: [&str; 8] = [
    map::STATE,
    map::CGROUPS,
    map::CONTAINERS,
    map::RULES,
    map::RULE_PLACES,
    map::EPOCH_SLOTS,
    map::EPOCHS,
    map::AUDIT,
];

// Fault: agent/src/executors/enforcer/kernel/repair.rs
// - sys::pin(map, &path).map_err(EnforcerError::call("BPF_OBJ_PIN"))?;
// + let _ = map;
fn the_pin_of_each_map_is_made_again() -> TestResult {
    let mut scene = Scene::new("maps")?;
    let folder = scene.scratch.config().pin_root.join(format!("v{LAYOUT_VERSION}"));
    for name in MAPS {
        let watch = scene.enforcer.watch()?.expect("the kernel can be watched");
        let before = map_id(&folder.join(name))?;
        fs::remove_file(folder.join(name))?;
        wait_readable("the lost pin is noticed", watch.files());
        scene.expect(Drift::MapPinLost(name))?;
        assert_eq!(map_id(&folder.join(name))?, before, "{name}");
    }
    // Another map under that name is as good as none.
    let shape = raw::Shape { kind: 1, key_size: 8, value_size: 16, max_entries: 4096, flags: 0 };
    let ours = map_id(&folder.join(map::CGROUPS))?;
    fs::remove_file(folder.join(map::CGROUPS))?;
    sys::pin(raw::RawMap::create(shape)?.as_fd(), &folder.join(map::CGROUPS))?;
    scene.expect(Drift::MapPinLost(map::CGROUPS))?;
    assert_eq!(map_id(&folder.join(map::CGROUPS))?, ours);
    // The next agent finds all that was there.
    drop(scene.enforcer);
    scene.enforcer = scene.scratch.enforcer()?;
    assert_eq!(scene.verdicts()?, IN_FORCE);
    assert_eq!(scene.enforcer.read_back()?.rules.len(), 2);
    Ok(())
}

fn map_id(path: &Path) -> anyhow::Result<u32> {
    Ok(sys::info::<sys::MapInfo>(sys::pinned(path)?.as_fd())?.id)
}

/// Everything that is pinned goes at once, and the folders with it.
// Fault: agent/src/executors/enforcer/kernel/repair.rs
// - self.pins.restore()?;
// + let _ = &self.pins;
fn folders_of_pins_are_made_again() -> TestResult {
    let mut scene = Scene::new("folders")?;
    let config = scene.scratch.config();
    fs::remove_dir_all(&config.pin_root)?;
    let mut expected: Vec<Drift> = MAPS.map(Drift::MapPinLost).into();
    expected.push(Drift::PinLost);
    scene.expect_all(&expected)?;
    // The new folder has the lock that the old one had.
    let second = KernelEnforcer::open(config.clone()).map(drop);
    assert!(matches!(second, Err(EnforcerError::AlreadyRunning(_))), "{second:?}");
    drop(scene.enforcer);
    scene.enforcer = scene.scratch.enforcer()?;
    assert_eq!(scene.verdicts()?, IN_FORCE);
    Ok(())
}

// Fault: agent/src/executors/enforcer/kernel/repair.rs
// - let guard_died = !self.guard.is_alive();
// + let guard_died = false;
// Fault: agent/src/executors/enforcer/kernel/repair.rs
// - drifts.push(Drift::GuardDied);
// + tracing::warn!("the guard died");
fn a_dead_guard_is_replaced() -> TestResult {
    let mut scene = Scene::new("dead")?;
    let config = scene.scratch.config();
    for _ in 0..2 {
        let guard = status(&config)?.guards.uevent_process.expect("a guard lives");
        let watch = scene.enforcer.watch()?.expect("the kernel can be watched");
        assert!(!is_readable(watch.guard()));
        kill_process(Pid::from_raw(guard).expect("it is no zero"), Signal::KILL)?;
        wait_readable("the guard's end is noticed", watch.guard());
        assert_eq!(status(&config)?.guards.uevent_process, None);
        scene.expect(Drift::GuardDied)?;
        assert_ne!(status(&config)?.guards.uevent_process, Some(guard));
    }
    Ok(())
}
