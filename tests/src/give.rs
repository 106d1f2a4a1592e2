//! Grants in few words.

use devgate::executors::enforcer::{Cgroup, Enforcer, EnforcerError, Grant, GrantOutcome, Scope};
use devgate_abi::{Access, DeviceNumber};

/// A grant for the exact cgroup, of a device that stays, without end.
pub fn granting(access: Access) -> Grant {
    Grant { access, scope: Scope::Exact, hotplug: false, expires_at: None, rule_id: 1, generation: 1 }
}

/// Grants as a test makes them, to which it is all the same what the device was a moment ago.
pub trait Give: Enforcer {
    /// Reads the epoch and grants.
    fn give(&mut self, cgroup: &Cgroup, device: DeviceNumber, grant: &Grant) -> Result<GrantOutcome, EnforcerError> {
        let epoch = self.epoch(device)?;
        self.grant(cgroup, device, epoch, grant)
    }
}

impl<T: Enforcer + ?Sized> Give for T {}
