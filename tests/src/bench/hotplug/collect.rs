//! Rounds under the names of their figures.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use super::Figure;

/// A goal, for so many containers, in microseconds.
const GOALS: [(&str, f64); 5] = [
    ("hotplug.plug.100.p50", 2_000.0),
    ("hotplug.plug.100.p99", 10_000.0),
    ("hotplug.start.100.p99", 10_000.0),
    ("hotplug.fanout.100.p99", 100_000.0),
    ("agent.rss", 16_777_216.0),
];

/// What was measured, in microseconds.
#[derive(Debug, Default)]
pub(super) struct Collection {
    /// In the order in which they came first.
    order: Vec<String>,
    rounds: BTreeMap<String, Vec<f64>>,
}

impl Collection {
    /// A round of a figure.
    pub(super) fn add(&mut self, name: &str, time: Duration) {
        self.add_microseconds(name, time.as_secs_f64() * 1e6);
    }

    fn add_microseconds(&mut self, name: &str, microseconds: f64) {
        if !self.rounds.contains_key(name) {
            self.order.push(name.to_owned());
        }
        self.rounds.entry(name.to_owned()).or_default().push(microseconds);
    }

    /// What the agent says of the parts of a figure in a line of the audit log.
    pub(super) fn add_parts(&mut self, name: &str, line: &Value) {
        let parts = line["microseconds"].as_object().into_iter().flatten();
        for (part, value) in parts.filter(|(part, _)| *part != "total") {
            // The words of the goals: what is done in the kernel is the writing of maps, in the container the mount.
            let part = match part.as_str() {
                "kernel" => "map",
                "node" => "mount",
                other => other,
            };
            self.add_microseconds(&format!("{name}:{part}"), value.as_f64().unwrap_or_default());
        }
    }

    /// Median and 99th percentile of each figure, and the median of each part.
    pub(super) fn figures(self) -> Vec<Figure> {
        let mut figures = Vec::new();
        for name in &self.order {
            let rounds = &self.rounds[name];
            match name.split_once(':') {
                None => {
                    let meaning = meaning(name);
                    figures.push(figure(&format!("{name}.p50"), &meaning, rounds));
                    figures.push(figure(&format!("{name}.p99"), "", rounds).at_percentile(99));
                }
                Some((name, part)) => figures.push(figure(&format!("{name}.{part}"), part_meaning(part), rounds)),
            }
        }
        figures
    }
}

fn figure(name: &str, meaning: &str, rounds: &[f64]) -> Figure {
    Figure::new(name, meaning, goal(name), rounds.to_vec()).in_unit("us")
}

/// What the value of a figure should not exceed.
pub(super) fn goal(name: &str) -> Option<f64> {
    GOALS.iter().find(|(known, _)| *known == name).map(|(_, goal)| *goal)
}

fn meaning(name: &str) -> String {
    let kind = name.split('.').nth(1).unwrap_or_default();
    let text = match kind {
        "plug" => "udev's event -> a process in the container has opened the device",
        "unplug" => "the kernel's event -> the node is gone from the container, the number void",
        "start" => "containerd has created the container -> grant and node in place",
        "fanout" => "udev's event -> opened in the last of all containers",
        _ => "",
    };
    text.to_owned()
}

fn part_meaning(part: &str) -> &'static str {
    match part {
        "udev" => "before: the kernel's event -> udev's event",
        "source" => "  the event -> the agent's reconciler",
        "batch" => "  collecting events",
        "reread" => "  reading the device again",
        "plan" => "  what follows",
        "map" => "  writing the maps",
        "mount" => "  the visit to the container",
        "rest" => "  from there to the opened device",
        _ => "",
    }
}
