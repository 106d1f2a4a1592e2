//! What the kernel answers.

use std::fmt;

/// 0 or an error number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Answer(pub i32);

/// The call succeeded.
pub const ALLOWED: Answer = Answer(0);
/// A device program denied.
pub const DENIED: Answer = Answer(libc::EPERM);
/// No device program denied, and no driver has the number.
pub const NO_DEVICE: Answer = Answer(libc::ENXIO);

/// Larger than any error number of Linux, so that what is above it can stand for devices.
const DEVICES: i32 = 140;

impl Answer {
    /// The device that was opened says that it is the one of this name.
    pub const fn of_device(name: u8) -> Self {
        Self(DEVICES + name as i32)
    }

    /// Whether no device program denied, whatever the driver said then.
    ///
    /// # Panics
    ///
    /// If the error is one that neither a program nor a driver gives, and so says nothing of them.
    pub fn is_allowed(self) -> bool {
        match self.0 {
            0 | libc::ENXIO | libc::ENODEV | libc::EBUSY => true,
            libc::EPERM => false,
            _ => panic!("{self:?} tells nothing of the device programs"),
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ALLOWED => f.write_str("allowed"),
            DENIED => f.write_str("denied (EPERM)"),
            NO_DEVICE => f.write_str("no device (ENXIO)"),
            Self(device) if device >= DEVICES => write!(f, "device {}", device - DEVICES),
            Self(errno) => write!(f, "{}", std::io::Error::from_raw_os_error(errno)),
        }
    }
}
