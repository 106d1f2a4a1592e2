//! Figures: what was measured in each round, and how it is shown.

use std::{fmt::Write as _, path::Path};

use anyhow::{Context, Result};
use serde_json::json;

/// One figure: the values of all rounds.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Name, such as `verdict.grant.10`.
    pub name: String,
    /// What it is, in a few words.
    pub meaning: String,
    /// What the value should not exceed.
    pub goal: Option<f64>,
    unit: &'static str,
    /// Which of all rounds in their order is the value: 50 for the median.
    percentile: u8,
    rounds: Vec<f64>,
}

impl Figure {
    /// A figure in nanoseconds, whose value is the median. There must be a round.
    pub fn new(name: &str, meaning: &str, goal: Option<f64>, mut rounds: Vec<f64>) -> Self {
        rounds.sort_by(f64::total_cmp);
        Self { name: name.to_owned(), meaning: meaning.to_owned(), goal, unit: "ns", percentile: 50, rounds }
    }

    /// The same in another unit.
    #[must_use]
    pub fn in_unit(self, unit: &'static str) -> Self {
        Self { unit, ..self }
    }

    /// The same with another percentile for its value.
    #[must_use]
    pub fn at_percentile(self, percentile: u8) -> Self {
        Self { percentile, ..self }
    }

    /// The median, or the smallest round that so many of a hundred do not exceed.
    pub fn value(&self) -> f64 {
        if self.percentile == 50 {
            return self.median();
        }
        let rank = (self.rounds.len() * usize::from(self.percentile)).div_ceil(100);
        self.rounds[rank.max(1) - 1]
    }

    /// The middle one; of two in the middle their mean.
    pub fn median(&self) -> f64 {
        let half = self.rounds.len() / 2;
        if self.rounds.len() % 2 == 1 {
            self.rounds[half]
        } else {
            f64::midpoint(self.rounds[half - 1], self.rounds[half])
        }
    }

    /// The smallest.
    pub fn min(&self) -> f64 {
        self.rounds[0]
    }

    /// The largest.
    pub fn max(&self) -> f64 {
        self.rounds[self.rounds.len() - 1]
    }

    /// Whether the value exceeds the goal.
    pub fn misses(&self) -> bool {
        self.goal.is_some_and(|goal| self.value() > goal)
    }
}

/// The figures as a table; `unit_of` is the figure that the others are compared with.
pub fn table(figures: &[Figure], unit_of: &str) -> String {
    let unit = figures.iter().find(|figure| figure.name == unit_of).map(Figure::median);
    let short = unit_of.rsplit_once("verdict.").map_or(unit_of, |(_, short)| short);
    let mut text = format!(
        "{:<28} {:>8} {:>8} {:>8} {:>6} {:>10}\n",
        "ns over empty",
        "median",
        "min",
        "max",
        "goal",
        format!("/ {short}")
    );
    for figure in figures {
        let goal = figure.goal.map_or_else(String::new, |goal| format!("{goal:.0}"));
        let ratio = unit.map_or_else(String::new, |unit| format!("{:.2}", figure.median() / unit));
        let _ = writeln!(
            text,
            "{:<28} {:>8.1} {:>8.1} {:>8.1} {goal:>6} {ratio:>10}  {}{}",
            figure.name,
            figure.median(),
            figure.min(),
            figure.max(),
            figure.meaning,
            if figure.misses() { "  MISSED" } else { "" }
        );
    }
    text
}

/// The figures one by one.
pub fn list(figures: &[Figure]) -> String {
    let mut text = format!("{:<28} {:>11} {:>11} {:>11} {:>11}\n", "", "value", "min", "max", "goal");
    for figure in figures {
        let goal = figure.goal.map_or_else(String::new, |goal| format!("{goal:.0}"));
        let missed = if figure.misses() { "  MISSED" } else { "" };
        let (value, min, max) = (figure.value(), figure.min(), figure.max());
        let Figure { name, meaning, unit, .. } = figure;
        let _ =
            writeln!(text, "{name:<28} {value:>11.0} {min:>11.0} {max:>11.0} {goal:>11}  {unit:<5} {meaning}{missed}");
    }
    text
}

/// Says which goals are missed.
pub fn verdict(figures: &[Figure]) -> String {
    let missed: Vec<_> = figures.iter().filter(|figure| figure.misses()).map(|figure| &*figure.name).collect();
    if missed.is_empty() { "every goal is met".to_owned() } else { format!("missed: {}", missed.join(", ")) }
}

/// Writes the figures as `cargo xtask bench --json` promises.
pub fn write_json(figures: &[Figure], file: &Path) -> Result<()> {
    let tenths = |value: f64| (value * 10.0).round() / 10.0;
    let array: Vec<_> = figures
        .iter()
        .map(|figure| {
            json!({
                "name": figure.name,
                "value": tenths(figure.value()),
                "unit": figure.unit,
                "goal": figure.goal.map(tenths),
                "rounds": figure.rounds.len(),
                "min": tenths(figure.min()),
                "max": tenths(figure.max()),
            })
        })
        .collect();
    let text = serde_json::to_string_pretty(&array).context("cannot write JSON")?;
    std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_numbers_of_rounds() {
        let figure = |rounds: &[f64]| Figure::new("a", "", Some(2.0), rounds.to_vec());
        assert_eq!(figure(&[9.0, 1.0, 2.0]).median().to_bits(), 2.0_f64.to_bits());
        assert_eq!(figure(&[9.0, 1.0, 2.0, 4.0]).median().to_bits(), 3.0_f64.to_bits());
        assert!(!figure(&[9.0, 1.0, 2.0]).misses());
        assert!(figure(&[9.0, 1.0, 2.0, 4.0]).misses());
    }

    #[test]
    fn a_percentile_is_one_of_the_rounds() {
        let figure = |rounds: u32| {
            let rounds = (1..=rounds).map(f64::from).collect();
            Figure::new("a", "", None, rounds).at_percentile(99).value()
        };
        assert_eq!([1, 10, 100, 200].map(figure).map(f64::to_bits), [1.0, 10.0, 99.0, 198.0].map(f64::to_bits));
    }
}
