//! USB devices that are plugged in and out.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::{machine::Machine, qemu};

/// A device to plug in.
#[derive(Clone, Debug)]
pub struct Usb {
    driver: &'static str,
    /// A serial line needs something at its other end.
    line: bool,
    properties: Value,
}

/// A device that is plugged in.
#[derive(Debug, PartialEq, Eq)]
pub struct Plugged {
    id: String,
    port: String,
}

/// The ports that are taken.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    taken: Vec<String>,
}

impl Usb {
    /// A serial adapter of FTDI, 0403:6001, with this serial number.
    pub fn serial(number: &str) -> Self {
        Self { driver: "usb-serial", line: true, properties: json!({ "serial": number }) }
    }

    /// A keyboard, which is a HID device.
    pub fn keyboard() -> Self {
        Self { driver: "usb-kbd", line: false, properties: json!({}) }
    }

    /// A hub with eight ports, for [`Machine::plug_into`].
    pub fn hub() -> Self {
        Self { driver: "usb-hub", line: false, properties: json!({}) }
    }
}

impl Machine {
    /// Plugs a device into the first free port.
    pub fn plug(&mut self, usb: &Usb) -> Result<Plugged> {
        let mut ports = (1..=8).map(|port| port.to_string());
        let port = ports.find(|port| !self.plugged.taken.contains(port)).context("every port is taken")?;
        self.plug_at(usb, port)
    }

    /// Plugs a device into a port of a hub; the first is 1.
    pub fn plug_into(&mut self, hub: &Plugged, port: u32, usb: &Usb) -> Result<Plugged> {
        self.plug_at(usb, format!("{}.{port}", hub.port))
    }

    fn plug_at(&mut self, usb: &Usb, port: String) -> Result<Plugged> {
        let id = format!("usb{}", self.next_id());
        let mut arguments = usb.properties.clone();
        arguments["driver"] = usb.driver.into();
        arguments["id"] = id.clone().into();
        arguments["bus"] = format!("{}.0", qemu::USB).into();
        arguments["port"] = port.clone().into();
        if usb.line {
            let line = format!("{id}-line");
            let backend = json!({ "id": line, "backend": { "type": "ringbuf", "data": {} } });
            self.running.monitor.execute("chardev-add", &backend)?;
            arguments["chardev"] = line.into();
        }
        self.running.monitor.execute("device_add", &arguments)?;
        self.plugged.taken.push(port.clone());
        Ok(Plugged { id, port })
    }

    /// Pulls a device out.
    pub fn unplug(&mut self, plugged: Plugged) -> Result<()> {
        let Plugged { id, port } = plugged;
        self.running.monitor.execute("device_del", &json!({ "id": id }))?;
        self.plugged.taken.retain(|taken| *taken != port);
        Ok(())
    }
}
