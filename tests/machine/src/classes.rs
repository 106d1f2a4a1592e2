//! Classes of the devices that tests plug.

/// Serial adapters of FTDI, as `/dev/adapter`.
pub const ADAPTER: &str = "
apiVersion: devgate.dev/v1alpha1
kind: DeviceClass
metadata: { name: adapter }
spec:
  match: [ { subsystem: tty, properties: { ID_VENDOR_ID: '0403' } } ]
  allocation: { kind: All }
  path: /dev/adapter
";

/// The same devices and keyboards as they are on the bus, as `/dev/unit`.
pub const UNIT: &str = "
apiVersion: devgate.dev/v1alpha1
kind: DeviceClass
metadata: { name: unit }
spec:
  match:
  - { subsystem: usb, properties: { DEVTYPE: usb_device, ID_VENDOR_ID: '0403' } }
  - { subsystem: usb, properties: { DEVTYPE: usb_device, ID_VENDOR_ID: '0627' } }
  allocation: { kind: All }
  path: /dev/unit
";

/// The node by which programs make input devices, as `/dev/keys`.
pub const KEYS: &str = "
apiVersion: devgate.dev/v1alpha1
kind: DeviceClass
metadata: { name: keys }
spec:
  match: [ { devicePath: /dev/uinput } ]
  allocation: { kind: All }
  path: /dev/keys
";
