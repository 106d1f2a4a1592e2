use crate::{DeviceNumber, Plain};

/// Length of the task name in a record (`TASK_COMM_LEN`).
pub const COMM_LEN: usize = 16;

/// What was done with the verdict of the programs below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// Left as it was.
    Keep = 0,
    /// Changed from denied to allowed.
    Grant = 1,
    /// Changed from allowed to denied, or denied once more.
    Deny = 2,
}

impl Action {
    /// The action that a record's number stands for.
    pub const fn from_raw(raw: u8) -> Option<Self> {
        Some(match raw {
            0 => Self::Keep,
            1 => Self::Grant,
            2 => Self::Deny,
            _ => return None,
        })
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $text:literal;)*) => {
        /// Why a verdict is as it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Reason {
            $($(#[$doc])* $name = $number,)*
        }

        impl Reason {
            /// Every reason, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The reason that a record's number stands for.
            pub const fn from_raw(raw: u16) -> Option<Self> {
                Some(match raw {
                    $($number => Self::$name,)*
                    _ => return None,
                })
            }

            /// The name that the audit log shows.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// One of the standard devices; nothing is ever decided about them.
    Standard = 1, "Standard";
    /// The task is in no managed cgroup.
    Unmanaged = 2, "Unmanaged";
    /// No rule names the device: the verdict of the runtime stands.
    Runtime = 3, "Runtime";
    /// A rule allows what the runtime allowed already.
    Agreed = 4, "Agreed";
    /// The runtime denied, and the rule does not allow all that was asked.
    NotCovered = 5, "NotCovered";
    /// The runtime denied in a cgroup below the container's, and the rule is for the container's own.
    OutOfScope = 6, "OutOfScope";
    /// The grant has ended, and the verdict of the runtime stands.
    Expired = 7, "Expired";
    /// The rule overrode the runtime's denial.
    Granted = 16, "Granted";
    /// The device that the rule was made for is gone, and its number may belong to another.
    StaleEpoch = 32, "StaleEpoch";
    /// The rule denies the access.
    DeniedByRule = 33, "DeniedByRule";
    /// The container may open nothing but what its rules permit.
    OtherDevice = 34, "OtherDevice";
    /// The cgroup has not been classified yet.
    Unclassified = 35, "Unclassified";
    /// The device can be unplugged and no guard process lives that would see it.
    Unguarded = 36, "Unguarded";
}

/// Bits of [`Record::flags`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct RecordFlags(pub u8);

impl RecordFlags {
    /// The container is audited only: `action` says what would have been done, `verdict` what came of it.
    pub const AUDIT_ONLY: Self = Self(1);

    /// Whether all of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }
}

/// One decision, as the kernel program writes it to the ring buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Record {
    /// [`LAYOUT_VERSION`](crate::LAYOUT_VERSION).
    pub version: u16,
    /// Length of the record in bytes; a reader skips what it does not know.
    pub length: u16,
    /// [`Reason`].
    pub reason: u16,
    /// [`Action`].
    pub action: u8,
    /// More about it.
    pub flags: RecordFlags,
    /// When, in nanoseconds of `CLOCK_BOOTTIME`.
    pub time: u64,
    /// Id of the task's own cgroup.
    pub cgroup: u64,
    /// Id of the managed cgroup that it was judged by: its own or one above; 0 if there is none.
    pub container: u64,
    /// The rule that was looked at; 0 if there is none.
    pub rule_id: u64,
    /// Counts the records of the container, from 0.
    pub sequence: u64,
    /// The generation of the rule.
    pub generation: u32,
    /// What was asked for: [`Access`](crate::Access) bits.
    pub access: u32,
    /// The device.
    pub device: DeviceNumber,
    /// The verdict of the programs that ran before: 0 or a negative error number.
    pub prior: i32,
    /// The verdict that this program left: 0 or a negative error number.
    pub verdict: i32,
    /// Process id (thread group id) in the initial pid namespace.
    pub pid: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// User id in the initial user namespace.
    pub uid: u32,
    /// Group id in the initial user namespace.
    pub gid: u32,
    /// Name of the thread, filled up with zeros.
    pub comm: [u8; COMM_LEN],
}

// SAFETY: repr(C), 3 * 2 + 2 + 5 * 8 + 2 * 4 + 8 + 6 * 4 + 16 bytes without padding, integers only.
unsafe impl Plain for Record {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        assert_eq!((size_of::<Record>(), align_of::<Record>()), (104, 8));
    }

    #[test]
    fn reasons_and_actions_survive_the_way_through_a_record() {
        for &reason in Reason::ALL {
            assert_eq!(Reason::from_raw(reason as u16), Some(reason));
        }
        for action in [Action::Keep, Action::Grant, Action::Deny] {
            assert_eq!(Action::from_raw(action as u8), Some(action));
        }
        assert_eq!(Reason::from_raw(0), None);
        assert_eq!(Action::from_raw(3), None);
    }
}
