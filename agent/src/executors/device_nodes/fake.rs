//! A stand-in for tests of everything above the executor.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::DeviceNodes;
use super::change::{Change, DevPath, NodeFacts, Outcome, Place, PlacedNode};
use super::container::ContainerRef;
use super::process::VisitError;

/// Behaves as containers that resist nothing, and records every visit. Errors can be scripted.
#[derive(Debug, Default)]
pub struct RecordingNodes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    visits: Vec<(u64, Vec<Change>)>,
    errors: VecDeque<VisitError>,
    nodes: BTreeMap<(u64, DevPath), (u64, Place)>,
    last_mount_id: u64,
}

impl RecordingNodes {
    /// The visits so far: cgroup id of the container, and the changes.
    pub fn visits(&self) -> Vec<(u64, Vec<Change>)> {
        self.state().visits.clone()
    }

    /// Makes the next visit or listing that has no error yet fail with this one.
    pub fn fail_next(&self, error: VisitError) {
        self.state().errors.push_back(error);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DeviceNodes for RecordingNodes {
    async fn visit(&self, container: &ContainerRef, changes: Vec<Change>) -> Result<Vec<Outcome>, VisitError> {
        let mut state = self.state();
        let id = container.cgroup_id();
        state.visits.push((id, changes.clone()));
        match state.errors.pop_front() {
            Some(error) => Err(error),
            None => Ok(changes.into_iter().map(|change| state.apply(id, change)).collect()),
        }
    }

    async fn list(&self, container: &ContainerRef) -> Result<Vec<PlacedNode>, VisitError> {
        let mut state = self.state();
        if let Some(error) = state.errors.pop_front() {
            return Err(error);
        }
        let id = container.cgroup_id();
        let nodes = state.nodes.iter().filter(|((owner, _), _)| *owner == id);
        Ok(nodes.map(|((_, path), (mount_id, place))| listed(path, *mount_id, place)).collect())
    }
}

impl State {
    fn apply(&mut self, container: u64, change: Change) -> Outcome {
        match change {
            Change::Place(place) => {
                let key = (container, place.path.clone());
                let before = self.nodes.get(&key);
                if let Some((mount_id, there)) = before
                    && *there == place
                {
                    return Outcome::AlreadyThere { mount_id: *mount_id };
                }
                let replaced = before.is_some();
                self.last_mount_id += 1;
                let mount_id = self.last_mount_id;
                self.nodes.insert(key, (mount_id, place));
                if replaced { Outcome::Replaced { mount_id } } else { Outcome::Placed { mount_id } }
            }
            Change::Remove { mount_id, .. } => {
                let before = self.nodes.len();
                self.nodes.retain(|(owner, _), (id, _)| (*owner, *id) != (container, mount_id));
                if self.nodes.len() < before { Outcome::Removed } else { Outcome::Gone }
            }
        }
    }
}

fn listed(path: &DevPath, mount_id: u64, place: &Place) -> PlacedNode {
    let node = NodeFacts { number: place.number, mode: place.mode & 0o777, uid: place.uid, gid: place.gid };
    PlacedNode { path: path.to_string(), mount_id, tag: place.tag.clone(), node: Some(node) }
}
