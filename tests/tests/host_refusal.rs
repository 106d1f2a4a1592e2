//! On a kernel or with rights that do not suffice, nothing is enforced and nothing is left, and it is said what is missing.

use std::{
    os::fd::{AsFd, AsRawFd},
    ptr,
};

use devgate::{
    executors::enforcer::{CgroupRoot, LinkState, self_test, status, sys},
    object::OBJECT,
};
use devgate_abi::map;
use devgate_tests::{hindrance::command, prelude::*};
use rustix::{
    mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap},
    thread::CapabilitySet,
};

tests![
    b08_a_kernel_without_links_is_refused_once,
    b10_queries_have_attributes_of_full_size,
    b23_without_the_right_to_load_programs_nothing_is_open,
    the_self_test_passes_here,
    what_is_missing_is_named,
    the_object_has_no_log,
];

/// Lets a hindered agent try, where a container is revoked a device that its runtime allows. Returns what it said.
fn refused(name: &str, hindrances: &[Hindrance]) -> anyhow::Result<String> {
    let scratch = Scratch::new(name)?;
    let container = scratch.cgroup("container")?;
    let _runtime = deny_all(&container)?;
    let attempted = Agent::attempt(&scratch.config(), hindrances)?;
    assert!(!attempted.status.success(), "it enforces all the same");
    let status = status(&scratch.config())?;
    assert_eq!(status.link, LinkState::Absent);
    assert_eq!(status.guards.uevent_process, None);
    assert_eq!(sys::attached_programs(scratch.ancestor().as_fd())?, [0_u32; 0]);
    let cgroups: Vec<_> = std::fs::read_dir(scratch.ancestor().folder())?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.file_name())
        .collect();
    assert_eq!(cgroups, ["container"], "the cgroups of the self-test are gone");
    assert_eq!(scratch.prober(&container)?.open(FUSE, Access::READ), DENIED);
    Ok(attempted.said)
}

/// Linux before 5.7 has no links and before 5.6 no replacing: there the call fails like this. It is refused, without a
/// program that is attached in another way, and said in one line.
// Fault: agent/src/executors/enforcer/link.rs
// - let fd = sys::link_create(program, cgroup.as_fd()).map_err(EnforcerError::call("BPF_LINK_CREATE"))?;
// + sys::attach(program, cgroup.as_fd(), None).map_err(EnforcerError::call("BPF_PROG_ATTACH"))?;
// + let fd = sys::link_create(program, cgroup.as_fd()).map_err(EnforcerError::call("BPF_LINK_CREATE"))?;
// Fault: agent/src/executors/enforcer/self_test.rs
// - .map_err(step("link a device program (BPF_LINK_CREATE, Linux 5.7)"))?;
// + .inspect_err(|error| tracing::warn!(%error, "cannot link a device program"))
// + .map_err(step("link a device program (BPF_LINK_CREATE, Linux 5.7)"))?;
fn b08_a_kernel_without_links_is_refused_once() -> TestResult {
    let said = refused("b08", &[Hindrance::failing(command::LINK_CREATE, libc::EINVAL)])?;
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("link")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains("(BPF_LINK_CREATE, Linux 5.7): Invalid argument"), "{said}");
    // The same where the self-test has passed, as if the kernel had changed its mind.
    let scratch = Scratch::new("b08b")?;
    let mut enforcer = KernelEnforcer::open(scratch.config())?;
    let container = scratch.cgroup("container")?;
    let _full: Vec<Runtime> = (0..64).map(|_| allow_all(scratch.ancestor())).collect::<anyhow::Result<_>>()?;
    let error = format!("{:#}", anyhow::Error::from(enforcer.activate().unwrap_err()));
    assert!(error.contains("BPF_LINK_CREATE failed"), "{error}");
    assert_eq!(sys::attached_programs(scratch.ancestor().as_fd())?.len(), 64, "nothing was attached in another way");
    assert_eq!(status(&scratch.config())?.link, LinkState::Absent);
    assert_eq!(scratch.prober(&container)?.open(ABSENT, Access::READ), NO_DEVICE);
    Ok(())
}

/// Kernels 6.17 to 7.1 write 64 bytes, whatever length they were given. Ours has all of any kernel's, and this kernel
/// writes nothing behind what it is given.
// Fault: agent/src/executors/enforcer/sys.rs
// - let result = unsafe { libc::syscall(libc::SYS_bpf, command, buffer.as_mut_ptr(), ATTRIBUTE_LEN) };
// + let result = unsafe { libc::syscall(libc::SYS_bpf, command, buffer.as_mut_ptr(), size_of::<T>()) };
fn b10_queries_have_attributes_of_full_size() -> TestResult {
    // `union bpf_attr` of Linux 6.18 has 168 bytes.
    const FULL: u32 = 168;
    assert!(sys::ATTRIBUTE_LEN >= FULL as usize);
    let scratch = Scratch::new("b10")?;
    let short = Hindrance::failing_if_short(command::PROG_QUERY, FULL, libc::EFAULT);
    let attempted = Agent::attempt(&scratch.config(), &[short])?;
    assert!(attempted.status.success(), "a query had a short attribute: {}", attempted.said);
    let all = Agent::attempt(&scratch.config(), &[Hindrance::failing(command::PROG_QUERY, libc::EFAULT)])?;
    assert!(!all.status.success(), "the agent does query");

    // The attribute ends where a page begins that nobody may touch.
    let page = rustix::param::page_size();
    // SAFETY: a new mapping at a place of the kernel's choice overlaps nothing.
    let start =
        unsafe { mmap_anonymous(ptr::null_mut(), 2 * page, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?;
    // SAFETY: the second page is part of the mapping.
    unsafe { mprotect(start.wrapping_byte_add(page), page, MprotectFlags::empty()) }?;
    let attribute = start.wrapping_byte_add(page - sys::ATTRIBUTE_LEN);
    let word_at = |index: usize| attribute.cast::<u32>().wrapping_add(index);
    let mut ids = [0_u32; 64];
    let words = [scratch.ancestor().as_fd().as_raw_fd().cast_unsigned(), 6, 0, 0];
    for (index, word) in words.into_iter().enumerate() {
        // SAFETY: the words are the first of the attribute.
        unsafe { word_at(index).write(word) };
    }
    // SAFETY: the pointer is the third field, at a multiple of its size.
    unsafe { attribute.wrapping_byte_add(16).cast::<u64>().write(ids.as_mut_ptr().addr() as u64) };
    // SAFETY: the count is the field after it.
    unsafe { word_at(6).write(64) };
    // SAFETY: the attribute is valid, and the ids have room for as many as it says.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command::PROG_QUERY, attribute, sys::ATTRIBUTE_LEN) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the field is part of the attribute.
    let count = unsafe { word_at(6).read() };
    assert_eq!((count, ids[0] != 0), (1, true), "the agent's program is there");
    for index in 16..sys::ATTRIBUTE_LEN / 4 {
        // SAFETY: the words are part of the attribute.
        assert_eq!(unsafe { word_at(index).read() }, 0, "the kernel has written behind what it knows");
    }
    // SAFETY: nobody has a pointer into the mapping any more.
    unsafe { munmap(start, 2 * page) }?;
    Ok(())
}

/// The runtimes of the report went on without a filter.
// Fault: agent/src/executors/enforcer/tested.rs
// - self_test(root, ancestor)?;
// + let _ = self_test(root, ancestor);
// Fault: agent/src/executors/enforcer/self_test.rs
// - .map_err(step("load a device program (BPF_PROG_LOAD)"))?;
// + .map_err(step("go on"))?;
fn b23_without_the_right_to_load_programs_nothing_is_open() -> TestResult {
    let unprivileged = Hindrance::without(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN);
    for hindrance in [Hindrance::failing(command::PROG_LOAD, libc::EPERM), unprivileged] {
        let said = refused("b23", &[hindrance])?;
        let text = "cannot load a device program (BPF_PROG_LOAD): Operation not permitted";
        assert!(said.contains(text), "{hindrance:?}: {said}");
    }
    Ok(())
}

// Fault: agent/src/executors/enforcer/self_test.rs
// - let epoch = loaded.maps.epochs[1].load(Relaxed);
// + let epoch = 1;
fn the_self_test_passes_here() -> TestResult {
    let scratch = Scratch::new("selftest")?;
    self_test(&CgroupRoot::find()?, scratch.ancestor())?;
    assert_eq!(sys::attached_programs(scratch.ancestor().as_fd())?, [0_u32; 0]);
    let folders = std::fs::read_dir(scratch.ancestor().folder())?.flatten();
    assert_eq!(folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).count(), 0);
    Ok(())
}

// Fault: agent/src/executors/enforcer/self_test.rs
// - .map_err(step("run the socket filter (BPF_PROG_TEST_RUN)"))?;
// + .map_or((), drop);
fn what_is_missing_is_named() -> TestResult {
    let cases = [
        (Hindrance::without(CapabilitySet::MKNOD), "the self-test cannot make a device node: Operation not permitted"),
        (
            Hindrance::failing(command::PROG_ATTACH, libc::EINVAL),
            "the self-test cannot attach a device program (BPF_PROG_ATTACH): Invalid argument",
        ),
        (
            Hindrance::failing(command::PROG_TEST_RUN, libc::EINVAL),
            "the self-test cannot run the socket filter (BPF_PROG_TEST_RUN): Invalid argument",
        ),
        (Hindrance::failing(command::PROG_QUERY, libc::EPERM), "BPF_PROG_QUERY failed: Operation not permitted"),
    ];
    for (hindrance, text) in cases {
        let said = refused("missing", &[hindrance])?;
        assert!(said.contains(text), "{hindrance:?}: {said}");
    }
    Ok(())
}

/// What `aya-log` adds to an object with it: maps of these names, and texts.
// Fault: agent-ebpf/Cargo.toml
// - [features]
// + [features]
// + default = ["debug-log"]
#[expect(clippy::unnecessary_wraps, reason = "every test returns a result")]
fn the_object_has_no_log() -> TestResult {
    let has = |text: &str| OBJECT.windows(text.len()).any(|bytes| bytes == text.as_bytes());
    assert!(has(map::EPOCH_SLOTS), "names of maps are found in the object");
    for text in ["AYA_LOG", "aya_log", "prior {} verdict"] {
        assert!(!has(text), "{text} is in the object");
    }
    Ok(())
}
