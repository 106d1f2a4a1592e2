//! The maps. Their sizes are defaults: the agent sets those of its configuration before it loads the object.

use core::sync::atomic::AtomicU64;

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, HashMap, ProgramArray, RingBuf},
    macros::btf_map,
};
use devgate_abi::{CgroupEntry, ContainerSlot, DeviceNumber, Record, Rule, RuleKey, RulePlace, State};

const MAPPED: usize = BPF_F_MMAPABLE as usize;

#[btf_map]
pub(crate) static STATE: Array<State, 1, MAPPED> = Array::new();

#[btf_map]
pub(crate) static CGROUPS: HashMap<u64, CgroupEntry, 16384> = HashMap::new();

#[btf_map]
pub(crate) static CONTAINERS: Array<ContainerSlot, 16385, MAPPED> = Array::new();

#[btf_map]
pub(crate) static RULES: HashMap<RuleKey, Rule, 65536> = HashMap::new();

#[btf_map]
pub(crate) static RULE_PLACES: Array<RulePlace, 131_072, MAPPED> = Array::new();

#[btf_map]
pub(crate) static EPOCH_SLOTS: HashMap<DeviceNumber, u32, 16384> = HashMap::new();

#[btf_map]
pub(crate) static EPOCHS: Array<AtomicU64, 16385, MAPPED> = Array::new();

#[btf_map]
pub(crate) static AUDIT: RingBuf<Record, 1_048_576> = RingBuf::new();

#[btf_map]
pub(crate) static GUARDED: ProgramArray<1> = ProgramArray::new();
