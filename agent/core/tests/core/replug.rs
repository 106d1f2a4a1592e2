//! A recorded session of plugs and replugs, played event by event: the kernel's removals, udev's additions.

use std::collections::BTreeMap;

use devgate_core::{CgroupId, DeviceEvent, DeviceNumber, Event, Reread};
use serde_json::json;

use crate::support::{batch, class, container, millis, recorded_monitor, state};

/// What the container may open after each event that changed it.
#[test]
fn what_was_recorded_is_followed() {
    let scanner = class(
        "scanner",
        json!({ "match": [{ "subsystem": "tty", "properties": { "ID_SERIAL_SHORT": "QS-*" } }], "path": "/dev/scanner" }),
    );
    let cgroup = CgroupId(7);
    let mut state = state(&[], &[container("demo", cgroup.0, "scanner")], &[scanner]);
    let mut present = BTreeMap::new();
    let mut history: Vec<Vec<DeviceNumber>> = vec![Vec::new()];
    let mut ids = Vec::new();
    for event in recorded_monitor("replug-sequence.txt") {
        let devpath = event.devpath.as_str().into();
        let heard = match (event.kernel, event.action.as_str()) {
            (true, "remove") => {
                present.remove(&event.devpath);
                DeviceEvent::Removed { devpath, number: event.device.map(|device| device.number) }
            }
            (true, _) | (false, "remove") => continue,
            (false, _) => {
                // What is read again is what udev has said last of the device.
                present.insert(event.devpath.clone(), event.device);
                DeviceEvent::Changed { devpath }
            }
        };
        let batch = batch([Event::Device(heard)]);
        let read = |devpath: &devgate_core::DevPath| Reread {
            devpath: devpath.clone(),
            device: present.get(devpath.as_str()).cloned().flatten(),
        };
        let reread = batch.reread.iter().map(read).collect();
        state.apply(batch, reread);
        assert!(state.plan(millis(0)).0.global.is_empty(), "nothing was applied, so nothing is voided");
        let container = &state.desired().containers[&cgroup];
        let now: Vec<_> = container.grants.keys().copied().collect();
        ids.extend(container.grants.values().map(|grant| grant.device.clone()));
        assert_eq!(container.nodes.contains_key("/dev/scanner"), !now.is_empty());
        if history.last() != Some(&now) {
            history.push(now);
        }
    }
    let (first, second) = (DeviceNumber::char(188, 0), DeviceNumber::char(188, 1));
    // Plugged; replugged at once; replugged while the old one was held open; at another port; and then another device
    // under the first number, which is none of the class.
    let expected = [None, Some(first), None, Some(first), None, Some(second), None, Some(first), None];
    assert_eq!(history, expected.map(|number| number.into_iter().collect::<Vec<_>>()));
    ids.dedup();
    assert_eq!(ids.len(), 1, "one device all the time: {ids:?}");
}
