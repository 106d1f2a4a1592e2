//! Looks, before anything is enforced, whether this kernel does what enforcement relies on.

use std::{io, os::fd::AsFd, sync::atomic::Ordering::Relaxed};

use devgate_abi::{Access, CgroupEntry, DeviceNumber, LAYOUT_VERSION, Policy, Rule, RuleKey, pack_levels};

use super::{
    cgroup::{Cgroup, CgroupRoot},
    config::{Limits, Unguarded},
    error::EnforcerError,
    filters::Filter,
    load::{self, Loaded},
    probe::{Question, ask},
    scratch::{ScratchCgroup, ScratchNode},
    sys,
};

/// A number that no driver has.
const DEVICE: DeviceNumber = DeviceNumber::char(DeviceNumber::MAX_MAJOR, DeviceNumber::MAX_MINOR);

/// What the kernel cannot do.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// A step of the test could not be made.
    #[error("the self-test cannot {0}")]
    Step(&'static str, #[source] io::Error),
    /// A program has denied, and the access was possible all the same.
    #[error(
        "the kernel lets a device be opened that a cgroup device program denies; it needs CONFIG_CGROUP_BPF and cgroup v2"
    )]
    DenialIgnored,
    /// A grant did not open.
    #[error(
        "the kernel does not let an ancestor's program override a denial (bpf_set_retval, Linux 6.1); got error {0}"
    )]
    GrantIgnored(i32),
    /// A grant did not open, and other programs have the last word.
    #[error("programs that run after ours deny what it grants: {}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    DeniedAbove(Vec<Filter>),
    /// A removed device's grant opened.
    #[error("the socket filter did not void the grant of a removed device")]
    RemovalIgnored,
}

/// In a cgroup of its own, with maps of its own: a program like a runtime's denies a device; that alone does deny; a
/// grant opens it; the removal of the device makes the grant void.
pub fn self_test(root: &CgroupRoot, ancestor: &Cgroup) -> Result<(), EnforcerError> {
    let limits = Limits { cgroups: 2, rules: 2, devices: 2, audit_bytes: 1 << 16 };
    let step = |what| move |error| SelfTestError::Step(what, error);
    // The plainest of programs first: where none can be loaded, aya takes the kernel for an old one and says odd things.
    let runtime = sys::load_device_program(&sys::return_constant(0), "")
        .map_err(step("load a device program (BPF_PROG_LOAD)"))?;
    let mut loaded = load::load(&limits, None, Unguarded::Keep)?;

    let name = format!("devgate-self-test-{}", rustix::thread::gettid().as_raw_nonzero());
    let outer = ScratchCgroup::new(root, ancestor, &name)?;
    let inner = ScratchCgroup::new(root, &outer, "container")?;
    let node = ScratchNode::new(DEVICE).map_err(step("make a device node"))?;
    sys::attach(runtime.as_fd(), inner.as_fd(), None).map_err(step("attach a device program (BPF_PROG_ATTACH)"))?;
    let link = sys::link_create(loaded.programs.device.as_fd(), outer.as_fd())
        .map_err(step("link a device program (BPF_LINK_CREATE, Linux 5.7)"))?;

    // For nothing (`F_OK`), which an earlier agent's program that is linked to the ancestor denies nowhere: what it holds
    // for unclassified cgroups holds for those of this test too, and it has the last word.
    let answer = || {
        ask(inner.as_fd(), node.folder(), node.name(), Question::Access(libc::F_OK))
            .map_err(step("start a process in a cgroup (CLONE_INTO_CGROUP, Linux 5.7)"))
    };
    set_up(&mut loaded, &inner)?;
    if answer()? != libc::EPERM {
        return Err(SelfTestError::DenialIgnored.into());
    }
    grant(&mut loaded, &inner)?;
    match answer()? {
        0 => {}
        errno => {
            let program: sys::ProgramInfo =
                sys::info(loaded.programs.device.as_fd()).map_err(step("look at a device program"))?;
            let chain = sys::effective_programs(inner.as_fd()).map_err(step("list device programs"))?;
            let after: Vec<Filter> =
                chain.into_iter().skip_while(|&id| id != program.id).skip(1).filter_map(Filter::of).collect();
            if errno == libc::EPERM && !after.is_empty() {
                return Err(SelfTestError::DeniedAbove(after).into());
            }
            return Err(SelfTestError::GrantIgnored(errno).into());
        }
    }
    sys::test_run(loaded.programs.uevent.as_fd(), &removal_message(DEVICE))
        .map_err(step("run the socket filter (BPF_PROG_TEST_RUN)"))?;
    if answer()? != libc::EPERM {
        return Err(SelfTestError::RemovalIgnored.into());
    }
    drop(link);
    Ok(())
}

fn set_up(loaded: &mut Loaded, cgroup: &Cgroup) -> Result<(), EnforcerError> {
    let maps = &mut loaded.maps;
    maps.epoch_slots.set(DEVICE, 1)?;
    let state = maps.state();
    state.layout.store(u64::from(LAYOUT_VERSION), Relaxed);
    state.set_major(DEVICE, true);
    state.levels.store(pack_levels([cgroup.level()]).unwrap_or_default(), Relaxed);
    maps.containers[1].cgroup.store(cgroup.id(), Relaxed);
    state.set_slot(cgroup.id(), 1);
    let entry = CgroupEntry { slot: 1, policy: Policy::default(), level: cgroup.level(), reserved: 0 };
    maps.cgroups.set(cgroup.id(), entry).map(drop)
}

fn grant(loaded: &mut Loaded, cgroup: &Cgroup) -> Result<(), EnforcerError> {
    let epoch = loaded.maps.epochs[1].load(Relaxed);
    let rule = Rule { allow: Access::READ, epoch_slot: 1, epoch, ..Rule::default() };
    loaded.maps.rules.set(RuleKey { cgroup: cgroup.id(), device: DEVICE }, rule).map(drop)
}

/// The kernel's message about a removed device, behind the Ethernet header that `BPF_PROG_TEST_RUN` takes away.
fn removal_message(device: DeviceNumber) -> Vec<u8> {
    let path = "/devices/virtual/devgate/self-test";
    let subsystem = if device.is_block() { "block" } else { "devgate" };
    let fields = [
        format!("remove@{path}"),
        "ACTION=remove".to_owned(),
        format!("DEVPATH={path}"),
        format!("SUBSYSTEM={subsystem}"),
        format!("MAJOR={}", device.major()),
        format!("MINOR={}", device.minor()),
        "DEVNAME=self-test".to_owned(),
        "SEQNUM=1".to_owned(),
    ];
    let mut message = vec![0; 14];
    for field in fields {
        message.extend(field.as_bytes());
        message.push(0);
    }
    message
}
