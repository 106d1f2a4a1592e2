//! The few `bpf(2)` calls that aya has no safe form of: cgroup links that can be pinned, updated and looked at, queries,
//! and programs made of plain instructions.
//!
//! Each attribute is passed in a zeroed buffer that is larger than any kernel's `union bpf_attr`: some kernels wrote
//! results past the end of a short one (6.17 to 7.1, `revision` of `BPF_PROG_QUERY`), and every kernel takes a longer one
//! whose rest is zero (`bpf_check_uarg_tail_zero` in `kernel/bpf/syscall.c`, 4.5).

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use devgate_abi::Plain;

/// Length in bytes of the buffer for an attribute; the longest of Linux 6.18 has 168.
pub const ATTRIBUTE_LEN: usize = 256;

const MAP_GET_NEXT_KEY: u32 = 4;
const PROG_LOAD: u32 = 5;
const OBJ_PIN: u32 = 6;
const OBJ_GET: u32 = 7;
const PROG_ATTACH: u32 = 8;
const PROG_DETACH: u32 = 9;
const PROG_TEST_RUN: u32 = 10;
const PROG_GET_FD_BY_ID: u32 = 13;
const OBJ_GET_INFO_BY_FD: u32 = 15;
const PROG_QUERY: u32 = 16;
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;
const ENABLE_STATS: u32 = 32;
const LINK_DETACH: u32 = 34;

const PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
const QUERY_EFFECTIVE: u32 = 1;
const ATTACH_MULTI: u32 = 2;
const ATTACH_REPLACE: u32 = 4;
/// `CGROUP_MAX_PROGS` is 64 for each cgroup; a chain of ancestors can have more.
const QUERY_MAX: usize = 64 * 32;

macro_rules! attribute {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Default)]
        struct $name { $($field: $type,)* }

        // SAFETY: repr(C) and of integers; the fields below leave no padding.
        unsafe impl Plain for $name {}
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())*);
    };
}

attribute!(ObjectAttribute { path: u64, fd: u32, flags: u32, path_fd: u32, reserved: u32 });
attribute!(ElementAttribute { map_fd: u32, reserved: u32, key: u64, value: u64, flags: u64 });
attribute!(AttachAttribute { target_fd: u32, program_fd: u32, attach_type: u32, flags: u32, replace_fd: u32 });
attribute!(LinkAttribute { program_fd: u32, target_fd: u32, attach_type: u32, flags: u32 });
attribute!(UpdateAttribute { link_fd: u32, program_fd: u32, flags: u32, old_program_fd: u32 });
attribute!(InfoAttribute { fd: u32, len: u32, info: u64 });
attribute!(
    /// `struct { … } query`
    QueryAttribute {
        target_fd: u32, attach_type: u32, query_flags: u32, attach_flags: u32, ids: u64, count: u32, reserved: u32,
        program_attach_flags: u64, link_ids: u64, link_attach_flags: u64, revision: u64,
    }
);
attribute!(TestAttribute {
    program_fd: u32,
    result: u32,
    input_len: u32,
    output_len: u32,
    input: u64,
    output: u64,
    repeat: u32,
    duration: u32,
});
attribute!(LoadAttribute {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_len: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    attach_type: u32,
});

/// One call. What the kernel writes into the attribute comes back in it.
fn bpf<T: Plain + Copy>(command: u32, attribute: &mut T) -> io::Result<RawFd> {
    const { assert!(size_of::<T>() <= ATTRIBUTE_LEN && align_of::<T>() <= 8) };
    let mut buffer = [0_u64; ATTRIBUTE_LEN / 8];
    // SAFETY: the buffer is aligned for and at least as long as the attribute.
    unsafe { buffer.as_mut_ptr().cast::<T>().write(*attribute) };
    // SAFETY: the kernel reads and writes only the buffer and what the attribute points to, which the callers keep alive.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, buffer.as_mut_ptr(), ATTRIBUTE_LEN) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above, and every pattern of bits is valid for a plain type.
    *attribute = unsafe { buffer.as_ptr().cast::<T>().read() };
    Ok(result as RawFd)
}

fn bpf_fd<T: Plain + Copy>(command: u32, attribute: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attribute)?;
    // SAFETY: the command answers with a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Pins a program, map or link. Fails with `EEXIST` if the path is taken (Linux 4.4).
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attribute = ObjectAttribute { path: path.as_ptr() as u64, fd: number(object), ..Default::default() };
    bpf(OBJ_PIN, &mut attribute).map(drop)
}

/// Opens what is pinned at a path (Linux 4.4).
pub fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    bpf_fd(OBJ_GET, &mut ObjectAttribute { path: path.as_ptr() as u64, ..Default::default() })
}

/// Links a device program to a cgroup (Linux 5.7). Links are always of the `MULTI` kind.
pub fn link_create(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    bpf_fd(
        LINK_CREATE,
        &mut LinkAttribute {
            program_fd: number(program),
            target_fd: number(cgroup),
            attach_type: ATTACH_CGROUP_DEVICE,
            flags: 0,
        },
    )
}

/// Puts another program into a link, in one step (Linux 5.7). `ENOLINK` if its cgroup is gone.
pub fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    bpf(LINK_UPDATE, &mut UpdateAttribute { link_fd: number(link), program_fd: number(program), ..Default::default() })
        .map(drop)
}

/// Detaches a link for good, whoever else holds it (Linux 5.9).
pub fn link_detach(link: BorrowedFd<'_>) -> io::Result<()> {
    bpf(LINK_DETACH, &mut number(link)).map(drop)
}

/// Attaches a program to a cgroup directly, as runtimes do, beside others or in the place of one (Linux 4.15, 5.6).
pub fn attach(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>, replaced: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut attribute = AttachAttribute {
        target_fd: number(cgroup),
        program_fd: number(program),
        attach_type: ATTACH_CGROUP_DEVICE,
        flags: ATTACH_MULTI | if replaced.is_some() { ATTACH_REPLACE } else { 0 },
        replace_fd: replaced.map_or(0, number),
    };
    bpf(PROG_ATTACH, &mut attribute).map(drop)
}

/// Detaches a directly attached program (Linux 4.15).
pub fn detach(program: BorrowedFd<'_>, cgroup: BorrowedFd<'_>) -> io::Result<()> {
    let mut attribute = AttachAttribute {
        target_fd: number(cgroup),
        program_fd: number(program),
        attach_type: ATTACH_CGROUP_DEVICE,
        ..Default::default()
    };
    bpf(PROG_DETACH, &mut attribute).map(drop)
}

/// The ids of the device programs that run for tasks in a cgroup, in the order in which they run: those of the cgroup
/// itself first, those of the root last (Linux 4.15; needs `CAP_NET_ADMIN`).
pub fn effective_programs(cgroup: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    query(cgroup, QUERY_EFFECTIVE)
}

/// The ids of the device programs that are attached to the cgroup itself.
pub fn attached_programs(cgroup: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    query(cgroup, 0)
}

fn query(cgroup: BorrowedFd<'_>, flags: u32) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; QUERY_MAX];
    let mut attribute = QueryAttribute {
        target_fd: number(cgroup),
        attach_type: ATTACH_CGROUP_DEVICE,
        query_flags: flags,
        ids: ids.as_mut_ptr() as u64,
        count: QUERY_MAX as u32,
        ..Default::default()
    };
    bpf(PROG_QUERY, &mut attribute)?;
    ids.truncate(attribute.count as usize);
    Ok(ids)
}

/// Opens a program by its id (Linux 4.13; needs `CAP_SYS_ADMIN`).
pub fn program_by_id(id: u32) -> io::Result<OwnedFd> {
    bpf_fd(PROG_GET_FD_BY_ID, &mut id.to_owned())
}

/// The beginning of `struct bpf_prog_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramInfo {
    /// `BPF_PROG_TYPE_*`
    pub kind: u32,
    /// Id, unique until the next boot.
    pub id: u32,
    /// Hash of the instructions.
    pub tag: [u8; 8],
    lengths: [u32; 2],
    images: [u64; 2],
    /// When it was loaded, in nanoseconds of `CLOCK_BOOTTIME`.
    pub load_time: u64,
    /// Who loaded it.
    pub uid: u32,
    /// How many maps it uses.
    pub map_count: u32,
    map_ids: u64,
    name: [u8; 16],
    rest: [u64; 14],
    /// Time it ran while statistics were on, in nanoseconds.
    pub run_time: u64,
    /// How often it ran while statistics were on.
    pub run_count: u64,
    recursion_misses: u64,
    /// How many instructions the verifier looked at before it took the program (Linux 5.16).
    pub verified_instructions: u32,
    attach_object: [u32; 3],
}

// SAFETY: repr(C) integers, each at a multiple of its size, so without padding.
unsafe impl Plain for ProgramInfo {}
const _: () = assert!(std::mem::offset_of!(ProgramInfo, run_time) == 192);

impl ProgramInfo {
    /// The program's name; empty for programs of runc and crun.
    pub fn name(&self) -> String {
        until_zero(&self.name)
    }
}

/// The beginning of `struct bpf_link_info` with the part for cgroup links.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkInfo {
    /// `BPF_LINK_TYPE_*`; 3 for cgroups.
    pub kind: u32,
    /// Id, unique until the next boot.
    pub id: u32,
    /// The program that is linked.
    pub program: u32,
    reserved: u32,
    /// The cgroup; 0 if it is gone or the link was detached.
    pub cgroup: u64,
    /// `BPF_CGROUP_DEVICE` is 6.
    pub attach_type: u32,
    reserved_2: u32,
}

// SAFETY: as above.
unsafe impl Plain for LinkInfo {}

/// The beginning of `struct bpf_map_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MapInfo {
    /// `BPF_MAP_TYPE_*`
    pub kind: u32,
    /// Id, unique until the next boot.
    pub id: u32,
    /// Bytes of a key.
    pub key_size: u32,
    /// Bytes of a value.
    pub value_size: u32,
    /// How many entries there can be.
    pub max_entries: u32,
    /// `BPF_F_*`
    pub flags: u32,
    name: [u8; 16],
}

// SAFETY: as above.
unsafe impl Plain for MapInfo {}

impl MapInfo {
    /// The map's name.
    pub fn name(&self) -> String {
        until_zero(&self.name)
    }
}

fn until_zero(name: &[u8]) -> String {
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// What the kernel says of a program, link or map (Linux 4.13). The caller chooses the type that fits the object.
pub fn info<T: Plain + Default>(object: BorrowedFd<'_>) -> io::Result<T> {
    // The kernel writes at most `len` bytes; kernels with a shorter structure leave the rest zero.
    let mut info = T::default();
    let mut attribute =
        InfoAttribute { fd: number(object), len: size_of::<T>() as u32, info: (&raw mut info).addr() as u64 };
    bpf(OBJ_GET_INFO_BY_FD, &mut attribute)?;
    Ok(info)
}

/// How many keys a map has (Linux 3.19), for a map that nobody else changes meanwhile.
pub fn count_keys(map: BorrowedFd<'_>, key_size: u32) -> io::Result<u32> {
    let mut key = vec![0_u8; key_size as usize];
    let mut next = vec![0_u8; key_size as usize];
    let mut count = 0;
    loop {
        let mut attribute = ElementAttribute {
            map_fd: number(map),
            // Without a key the first one is asked for.
            key: if count == 0 { 0 } else { key.as_ptr() as u64 },
            value: next.as_mut_ptr() as u64,
            ..Default::default()
        };
        match bpf(MAP_GET_NEXT_KEY, &mut attribute) {
            Ok(_) => count += 1,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(count),
            Err(error) => return Err(error),
        }
        std::mem::swap(&mut key, &mut next);
    }
}

/// One eBPF instruction in the kernel's encoding.
pub type Instruction = u64;

/// `r0 = value; exit`
pub fn return_constant(value: i32) -> [Instruction; 2] {
    [0xb7 | (u64::from(value.cast_unsigned()) << 32), 0x95]
}

/// Loads a device program of plain instructions (Linux 4.15). `attach_type` is sent as 0, as runtimes do.
pub fn load_device_program(instructions: &[Instruction], name: &str) -> io::Result<OwnedFd> {
    load(instructions, name, 0)
}

/// Loads a device program that may call `bpf_get_retval` and `bpf_set_retval` (Linux 6.1).
pub fn load_overriding_program(instructions: &[Instruction], name: &str) -> io::Result<OwnedFd> {
    load(instructions, name, ATTACH_CGROUP_DEVICE)
}

fn load(instructions: &[Instruction], name: &str, attach_type: u32) -> io::Result<OwnedFd> {
    let mut field = [0; 16];
    let len = name.len().min(15);
    field[..len].copy_from_slice(&name.as_bytes()[..len]);
    let license = c"Apache-2.0";
    let mut attribute = LoadAttribute {
        kind: PROG_TYPE_CGROUP_DEVICE,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        name: field,
        attach_type,
        ..Default::default()
    };
    bpf_fd(PROG_LOAD, &mut attribute)
}

/// Runs a program on the bytes of a packet and returns its result (Linux 4.12).
pub fn test_run(program: BorrowedFd<'_>, packet: &[u8]) -> io::Result<u32> {
    let mut attribute = TestAttribute {
        program_fd: number(program),
        input_len: packet.len() as u32,
        input: packet.as_ptr() as u64,
        repeat: 1,
        ..Default::default()
    };
    bpf(PROG_TEST_RUN, &mut attribute)?;
    Ok(attribute.result)
}

/// Has the kernel count how often and how long programs run, until the descriptor is closed (Linux 5.8).
pub fn enable_statistics() -> io::Result<OwnedFd> {
    bpf_fd(ENABLE_STATS, &mut 0_u32)
}
