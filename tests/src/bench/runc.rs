//! Device programs as runc makes them: straight-line code, one block for each rule, sorted by number; the first rule
//! that matches ends it.

use devgate::executors::enforcer::sys::Instruction;
use devgate_abi::{Access, DeviceKind, DeviceNumber};

// Opcodes of `include/uapi/linux/bpf.h`.
const LOAD_WORD: u64 = 0x61;
const MOV32: u64 = 0xbc;
const MOV32_CONSTANT: u64 = 0xb4;
const AND32_CONSTANT: u64 = 0x54;
const SHIFT_RIGHT32_CONSTANT: u64 = 0x74;
const JUMP_UNEQUAL: u64 = 0x5d;
const JUMP_UNEQUAL_CONSTANT: u64 = 0x55;
const EXIT: u64 = 0x95;

// The registers that hold the request.
const KIND: u64 = 2;
const ACCESS: u64 = 3;
const MAJOR: u64 = 4;
const MINOR: u64 = 5;

/// Allows `access` to the devices and denies everything else.
pub(super) fn program(devices: &[DeviceNumber], access: Access) -> Vec<Instruction> {
    let mut sorted = devices.to_vec();
    sorted.sort_by_key(|device| (device.major(), device.minor(), device.kind().map(|kind| kind as u16)));
    let mut code = vec![
        instruction(LOAD_WORD, KIND, 1, 0, 0),
        instruction(AND32_CONSTANT, KIND, 0, 0, 0xffff),
        instruction(LOAD_WORD, ACCESS, 1, 0, 0),
        instruction(SHIFT_RIGHT32_CONSTANT, ACCESS, 0, 0, 16),
        instruction(LOAD_WORD, MAJOR, 1, 4, 0),
        instruction(LOAD_WORD, MINOR, 1, 8, 0),
    ];
    for device in sorted {
        let kind = device.kind().unwrap_or(DeviceKind::Char) as u32;
        code.extend([
            instruction(JUMP_UNEQUAL_CONSTANT, KIND, 0, 7, kind),
            instruction(MOV32, 1, ACCESS, 0, 0),
            instruction(AND32_CONSTANT, 1, 0, 0, access.bits()),
            instruction(JUMP_UNEQUAL, 1, ACCESS, 4, 0),
            instruction(JUMP_UNEQUAL_CONSTANT, MAJOR, 0, 3, device.major()),
            instruction(JUMP_UNEQUAL_CONSTANT, MINOR, 0, 2, device.minor()),
            instruction(MOV32_CONSTANT, 0, 0, 0, 1),
            instruction(EXIT, 0, 0, 0, 0),
        ]);
    }
    code.extend([instruction(MOV32_CONSTANT, 0, 0, 0, 0), instruction(EXIT, 0, 0, 0, 0)]);
    code
}

fn instruction(code: u64, to: u64, from: u64, offset: u64, constant: u32) -> Instruction {
    code | to << 8 | from << 12 | offset << 16 | u64::from(constant) << 32
}
