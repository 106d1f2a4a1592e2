//! Device programs such as runtimes attach to the cgroups of their containers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use devgate::executors::enforcer::{Cgroup, sys};
use devgate_abi::{Access, DeviceKind};
use sys::Instruction;

/// A program that is attached to a cgroup directly, in the way of runtimes (`BPF_F_ALLOW_MULTI`, without a link); it is
/// detached with the value.
#[derive(Debug)]
pub struct Runtime {
    program: OwnedFd,
    cgroup: OwnedFd,
}

/// Attaches a program that denies every device.
pub fn deny_all(cgroup: &Cgroup) -> Result<Runtime> {
    attach(cgroup, &sys::return_constant(0))
}

/// Attaches a program that allows every device, as a runtime does for a privileged container.
pub fn allow_all(cgroup: &Cgroup) -> Result<Runtime> {
    attach(cgroup, &sys::return_constant(1))
}

/// Attaches a program without a name, as those of runc and crun have none.
pub fn attach(cgroup: &Cgroup, instructions: &[Instruction]) -> Result<Runtime> {
    let program = sys::load_device_program(instructions, "").context("cannot load a runtime's program")?;
    Runtime::of(cgroup, program)
}

impl Runtime {
    /// Attaches a program that has been loaded.
    pub fn of(cgroup: &Cgroup, program: OwnedFd) -> Result<Self> {
        sys::attach(program.as_fd(), cgroup.as_fd(), None).context("cannot attach a runtime's program")?;
        Ok(Self { program, cgroup: cgroup.as_fd().try_clone_to_owned()? })
    }

    /// Puts another program in the place of this one in one step (`BPF_F_REPLACE`), as runtimes do at an update.
    pub fn replace(&mut self, instructions: &[Instruction]) -> Result<()> {
        let fresh = sys::load_device_program(instructions, "").context("cannot load a runtime's program")?;
        sys::attach(fresh.as_fd(), self.cgroup.as_fd(), Some(self.program.as_fd()))
            .context("cannot replace a runtime's program")?;
        self.program = fresh;
        Ok(())
    }
}

impl AsFd for Runtime {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // Fails if the cgroup has gone, which took the program along, or if a test has detached it.
        let _ = sys::detach(self.program.as_fd(), self.cgroup.as_fd());
    }
}

/// One entry of a runtime's list; `None` stands for every major or minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeRule {
    /// Block or character.
    pub kind: DeviceKind,
    /// Major number.
    pub major: Option<u32>,
    /// Minor number.
    pub minor: Option<u32>,
    /// The request must be within these accesses.
    pub access: Access,
}

/// A program such as runc makes it: the rules one after the other, the first that matches answers with the opposite of
/// `default`, else `default`.
///
/// The loads and comparisons are in the order of runc's, so that it costs what runc's costs.
pub fn runc_program(rules: &[RuntimeRule], default: bool) -> Vec<Instruction> {
    let mut program = vec![
        // r2 = kind, r3 = access, r4 = major, r5 = minor
        load_word(2, 0),
        and(2, 0xffff),
        load_word(3, 0),
        shift_right(3, 16),
        load_word(4, 4),
        load_word(5, 8),
    ];
    for rule in rules {
        program.extend(block(rule, !default));
    }
    program.extend(sys::return_constant(i32::from(default)));
    program
}

fn block(rule: &RuntimeRule, answer: bool) -> Vec<Instruction> {
    /// Comes to stand where the distance to the next block belongs.
    const NEXT: i16 = 0;
    let mut block = vec![unless_equal(2, rule.kind as u32, NEXT)];
    if rule.access != Access::ALL {
        block.extend([copy(1, 3), and(1, rule.access.bits()), unless_same(1, 3, NEXT)]);
    }
    block.extend(rule.major.map(|major| unless_equal(4, major, NEXT)));
    block.extend(rule.minor.map(|minor| unless_equal(5, minor, NEXT)));
    block.extend(sys::return_constant(i32::from(answer)));
    let length = block.len();
    for (place, instruction) in block.iter_mut().enumerate() {
        if matches!(*instruction & 0xff, JUMP_UNLESS_EQUAL | JUMP_UNLESS_SAME) {
            *instruction |= ((length - place - 1) as u64) << 16;
        }
    }
    block
}

// Opcodes of Documentation/bpf/standardization/instruction-set.rst.
const LOAD_WORD: u64 = 0x61;
const AND: u64 = 0x54;
const SHIFT_RIGHT: u64 = 0x74;
const COPY: u64 = 0xbc;
const JUMP_UNLESS_EQUAL: u64 = 0x55;
const JUMP_UNLESS_SAME: u64 = 0x5d;

fn instruction(opcode: u64, to: u64, from: u64, offset: i16, value: u32) -> Instruction {
    opcode | to << 8 | from << 12 | u64::from(offset.cast_unsigned()) << 16 | u64::from(value) << 32
}

/// `to = *(u32 *)(r1 + offset)`, of the program's argument.
fn load_word(to: u64, offset: i16) -> Instruction {
    instruction(LOAD_WORD, to, 1, offset, 0)
}

fn and(to: u64, value: u32) -> Instruction {
    instruction(AND, to, 0, 0, value)
}

fn shift_right(to: u64, by: u32) -> Instruction {
    instruction(SHIFT_RIGHT, to, 0, 0, by)
}

fn copy(to: u64, from: u64) -> Instruction {
    instruction(COPY, to, from, 0, 0)
}

fn unless_equal(register: u64, value: u32, offset: i16) -> Instruction {
    instruction(JUMP_UNLESS_EQUAL, register, 0, offset, value)
}

fn unless_same(left: u64, right: u64, offset: i16) -> Instruction {
    instruction(JUMP_UNLESS_SAME, left, right, offset, 0)
}
