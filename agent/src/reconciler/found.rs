//! The nodes that an earlier run has placed in containers, which are still there.

use devgate_core::{Batch, CgroupId, ContainerEvent, FailureKind, Moment};

use super::{
    DeviceReader, Reconciler, tag,
    visits::{Asked, Listed},
};
use crate::executors::{device_nodes::DeviceNodes, enforcer::Enforcer};

/// The containers that did not let themselves be looked into.
#[derive(Debug, Default)]
pub(super) struct Unlisted {
    containers: Vec<Asked>,
    /// How often in a row some did not.
    failures: u32,
    /// When they are looked into again.
    pub(super) due: Option<Moment>,
}

impl<E: Enforcer, N: DeviceNodes, R: DeviceReader> Reconciler<E, N, R> {
    /// When the agent comes back, what it placed in containers is still there. It is looked for in the containers of the
    /// first list, before anything is planned for them.
    pub(super) async fn find_nodes(&mut self, batch: &Batch) {
        let lists = batch.containers.iter().filter_map(|event| match event {
            ContainerEvent::Listed { containers, .. } => Some(containers),
            _ => None,
        });
        let known = lists.flatten().filter_map(|container| Some((container.id.clone(), container.task()?.clone())));
        let mut asked: Vec<_> = known.map(|(id, task)| (task.cgroup.id, id, task)).collect();
        if self.found_nodes || asked.is_empty() {
            return;
        }
        self.found_nodes = true;
        // The kernel knows every container in which something was placed.
        asked.retain(|(cgroup, ..)| self.state.applied().containers.contains_key(cgroup));
        for listed in self.visits.list(asked).await {
            self.take_listed(listed);
        }
    }

    /// Takes in the nodes that a container has. One that did not answer is asked again later: what is in it is stale for
    /// as long as it does not, but denied by the kernel.
    pub(super) fn take_listed(&mut self, Listed { asked, result }: Listed) {
        let now = self.now();
        match result {
            Ok(nodes) => {
                self.take_nodes(asked.0, nodes);
                self.retry = Some(now);
            }
            Err(failure) => {
                if !matches!(failure.kind, FailureKind::ContainerGone) {
                    tracing::warn!(container = %asked.1, error = %failure, "cannot look for the nodes in a container");
                }
                if failure.kind == FailureKind::Temporary {
                    self.unlisted.containers.push(asked);
                    if self.unlisted.due.is_none() {
                        self.unlisted.failures += 1;
                        let delay = self.timings.backoff.delay(self.unlisted.failures, rand::random());
                        self.unlisted.due = Some(now + delay);
                    }
                }
            }
        }
    }

    /// Looks again into the containers that did not let themselves be looked into.
    pub(super) fn list_again(&mut self) {
        self.unlisted.due = None;
        for asked in std::mem::take(&mut self.unlisted.containers) {
            // In the meantime it may have gone.
            if self.state.inventory().container(&asked.1).and_then(|it| it.task()) == Some(&asked.2) {
                self.visits.begin_listing(asked);
            }
        }
    }

    fn take_nodes(&mut self, cgroup: CgroupId, nodes: Vec<crate::executors::device_nodes::PlacedNode>) {
        let mut applied = self.state.applied().clone();
        for node in nodes {
            let facts = node.node.as_ref();
            let (Some(facts), Some(generation)) = (facts, tag::generation(&node.tag)) else { continue };
            // What was placed since is known better.
            let known = applied.containers.get(&cgroup).is_some_and(|it| it.nodes.contains_key(node.path.as_str()));
            if !known {
                applied.found_node(cgroup, node.path.as_str().into(), facts.number, generation, node.mount_id);
            }
        }
        self.state.read_back(applied);
    }
}
