//! When batches are due, and what they keep.

use devgate_core::{
    BatchTiming, Batcher, ContainerEvent, DevPath, DeviceEvent, DeviceNumber, Event, Moment, RemovedDevice,
};
use proptest::prelude::*;

use crate::support::{classes, container, container_id, listed, millis};

const TIMING: BatchTiming = BatchTiming { quiet: millis_const(10), max_delay: millis_const(50) };

const fn millis_const(millis: u64) -> Moment {
    Moment::from_millis(millis)
}

fn added(name: &str) -> Event {
    Event::Device(DeviceEvent::Added { devpath: name.into() })
}

fn removed(name: &str, minor: u32) -> Event {
    let number = Some(DeviceNumber::char(188, minor));
    Event::Device(DeviceEvent::Removed { devpath: name.into(), number })
}

fn paths(names: &[&str]) -> Vec<DevPath> {
    names.iter().map(|name| DevPath::from(*name)).collect()
}

// Fault: agent/core/src/batch.rs
// -             self.pending.is_none() && self.last_event.is_none_or(|last| now.saturating_sub(last) >= self.timing.quiet);
// +             self.pending.is_none() && self.last_event.is_some_and(|last| now.saturating_sub(last) >= self.timing.quiet);
#[test]
fn the_first_event_after_silence_is_handled_at_once() {
    let mut batcher = Batcher::new(TIMING);
    assert_eq!(batcher.due(), None);
    batcher.push(added("/a"), millis(100));
    assert_eq!(batcher.due(), Some(millis(100)));
    assert_eq!(batcher.take(millis(100)).map(|batch| batch.reread), Some(paths(&["/a"])));
    batcher.push(added("/b"), millis(105));
    assert_eq!(batcher.due(), Some(millis(115)), "the second event of a burst waits for the next");
    assert!(batcher.take(millis(114)).is_none());
    assert!(batcher.take(millis(115)).is_some());
    batcher.push(added("/c"), millis(116));
    assert_eq!(batcher.due(), Some(millis(116)), "silence again");
}

// Fault: agent/core/src/batch.rs
// -             pending.due = now.saturating_add(self.timing.quiet).min(latest);
// +             pending.due = now.saturating_add(self.timing.quiet).max(latest);
#[test]
fn a_burst_is_one_batch_and_does_not_wait_for_ever() {
    let mut batcher = Batcher::new(TIMING);
    batcher.push(added("/first"), millis(100));
    batcher.take(millis(100)).expect("due at once");
    for at in [102, 104, 106] {
        batcher.push(added("/a"), millis(at));
        assert_eq!(batcher.due(), Some(millis(at + 10)));
    }
    for at in (112..152).step_by(8) {
        batcher.push(added("/a"), millis(at));
    }
    assert_eq!(batcher.due(), Some(millis(152)), "50 ms after the first");
    let batch = batcher.take(millis(152)).expect("due");
    assert_eq!((batch.reread, batch.events), (paths(&["/a"]), 8));
}

// Fault: agent/core/src/batch.rs
// -         let at_once = after_silence || matches!(event, Event::Device(DeviceEvent::Removed { .. }));
// +         let at_once = after_silence || matches!(event, Event::Device(DeviceEvent::Moved { .. }));
#[test]
fn a_removal_waits_for_nothing() {
    let mut batcher = Batcher::new(TIMING);
    batcher.push(added("/first"), millis(100));
    batcher.take(millis(100)).expect("due at once");
    batcher.push(added("/a"), millis(101));
    batcher.push(removed("/b", 0), millis(102));
    batcher.push(added("/a"), millis(103));
    assert_eq!(batcher.due(), Some(millis(102)), "later events do not put it off");
}

// Fault: agent/core/src/batch.rs
// -                 self.read_again(removed.devpath.clone());
// +                 self.reread.retain(|known| *known != removed.devpath);
#[test]
fn a_replug_is_not_the_same_as_nothing() {
    let mut batcher = Batcher::new(TIMING);
    for event in [removed("/a", 0), added("/b"), added("/a"), removed("/c", 1)] {
        batcher.push(event, millis(1));
    }
    let batch = batcher.take(millis(1)).expect("due");
    let gone = |name: &str, minor| RemovedDevice { devpath: name.into(), number: Some(DeviceNumber::char(188, minor)) };
    assert_eq!(batch.removed, [gone("/a", 0), gone("/c", 1)]);
    assert_eq!(batch.reread, paths(&["/b", "/a", "/c"]));
}

// Fault: agent/core/src/batch.rs
// -                 ContainerEvent::Seen(earlier) => earlier.id != container.id,
// +                 ContainerEvent::Seen(_) => true,
#[test]
fn b83_later_news_of_a_container_replaces_earlier() {
    let seen = |name: &str, cgroup| Event::Container(ContainerEvent::Seen(container(name, cgroup, "")));
    let gone = |name: &str| Event::Container(ContainerEvent::Gone { id: container_id(name), pid: None });
    let mut batcher = Batcher::new(TIMING);
    for event in [seen("a", 1), seen("b", 2), gone("a"), seen("a", 3), seen("a", 3), gone("b")] {
        batcher.push(event, millis(1));
    }
    let batch = batcher.take(millis(1)).expect("due");
    assert_eq!(batch.containers.len(), 3, "{:?}", batch.containers);
    let mut batcher = Batcher::new(TIMING);
    for event in [seen("a", 1), gone("b"), listed(&[]), classes(&[])] {
        batcher.push(event, millis(1));
    }
    let batch = batcher.take(millis(1)).expect("due");
    assert_eq!(batch.containers.len(), 1, "a list makes void what was said before");
}

proptest! {
    /// Whatever comes when, nothing waits for longer than it may and nothing is forgotten.
    #[test]
    fn no_event_waits_for_longer_than_the_maximum(gaps in prop::collection::vec(0..30_u64, 1..60)) {
        let mut batcher = Batcher::new(TIMING);
        let mut now = millis(0);
        let mut oldest: Option<Moment> = None;
        let mut taken = 0;
        for gap in &gaps {
            let then = now + millis(*gap);
            while let Some(due) = batcher.due().filter(|due| *due <= then) {
                prop_assert!(due <= oldest.expect("an event waits") + TIMING.max_delay);
                taken += batcher.take(due.max(now)).expect("due").events;
                oldest = None;
            }
            now = then;
            batcher.push(added(&format!("/{taken}")), now);
            oldest = oldest.or(Some(now));
        }
        taken += batcher.take(now + TIMING.max_delay).expect("due").events;
        prop_assert_eq!(taken, gaps.len());
    }
}
