//! What one verdict costs: ours, and those of programs like runc's.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use devgate::executors::enforcer::sys;
use devgate_abi::{Access, DeviceNumber, Policy};

use super::{
    figures::Figure,
    lab::Lab,
    random::Random,
    runc,
    scratch::Folder,
    worker::{Place, Worker},
};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// How often each column is measured.
    pub rounds: u32,
    /// Accesses of one column in one round.
    pub accesses: usize,
    /// Nodes of each column: the same number in all, so that the file system costs them all the same. A program with
    /// fewer rules sees its devices more often.
    pub nodes: usize,
}

/// Accesses before those that are measured, which bring back what other columns drove out of the CPU's caches.
const WARM_UP: usize = 2000;
const OURS: usize = 0;
const CONTAINERS: usize = 200;
const RULES: [usize; 4] = [10, 100, 1000, 10_000];
/// Goals in nanoseconds.
const UNINTERESTING: f64 = 6.0;
const GRANT: f64 = 60.0;
const FLAT: f64 = 5.0;
const RECORD: f64 = 200.0;
/// The column that none of ours should exceed.
pub const MEASURE: &str = "verdict.runc.100";

/// One thing that is measured.
struct Column {
    name: String,
    meaning: &'static str,
    program: usize,
    worker: Worker,
    /// What holds in which container while this is measured.
    policy: Option<(usize, Policy)>,
    rounds: Vec<f64>,
}

/// Measures everything.
pub fn measure(amount: Amount) -> Result<Vec<Figure>> {
    let mut bench = Bench { lab: Lab::new()?, columns: Vec::new(), amount };
    bench.set_up()?;
    println!("the verifier looked at {} instructions of ours", bench.lab.verified_instructions()?);
    bench.run()?;
    Ok(bench.figures())
}

struct Bench {
    /// First, so that the workers are gone before their cgroups are removed.
    columns: Vec<Column>,
    lab: Lab,
    amount: Amount,
}

impl Bench {
    fn set_up(&mut self) -> Result<()> {
        let mut random = Random(1);
        let mut named = numbers(240..=254, 10_000, &mut random);
        let quiet = numbers(200..=230, 1000, &mut random);
        let stale = named.split_off(9_900);
        named.extend(numbers(235..=238, 100, &mut random));

        let unnamed = self.folder(&quiet)?;
        let (path, program) = self.lab.beside("empty", &sys::return_constant(1))?;
        self.column("empty", "a program that does nothing", program, path, &unnamed, true)?;
        self.runc(&named)?;
        self.ours(&named, &stale, &unnamed)
    }

    /// The columns of programs like runc's.
    fn runc(&mut self, named: &[DeviceNumber]) -> Result<()> {
        for rules in [10, 100, 1000] {
            let nodes = self.folder(&named[..rules])?;
            let code = runc::program(&named[..rules], Access::READ_WRITE);
            let (path, program) = self.lab.beside(&format!("runc-{rules}"), &code)?;
            self.column(&format!("runc.{rules}"), "straight-line, one of its devices", program, path, &nodes, true)?;
        }
        Ok(())
    }

    /// The columns of our program.
    fn ours(&mut self, named: &[DeviceNumber], stale: &[DeviceNumber], unnamed: &Folder) -> Result<()> {
        let quiet = self.lab.container(false)?;
        self.column("uninteresting", "major nobody named", OURS, self.lab.path(quiet), unnamed, true)?;
        let strict = self.lab.container(false)?;
        let path = self.lab.path(quiet);
        self.column("uninteresting_strict", "same, another container denies others", OURS, path, unnamed, true)?;
        self.with_policy(strict, Policy::DENY_OTHERS);

        for rules in RULES {
            let nodes = self.folder(&named[..rules])?;
            let granted = self.lab.container(true)?;
            self.lab.grant(granted, &named[..rules])?;
            let path = self.lab.path(granted);
            self.column(&format!("grant.{rules}"), "denied by the runtime, granted", OURS, path.clone(), &nodes, true)?;
            if rules == 10 {
                self.column("grant_recorded", "same with a record", OURS, path, &nodes, true)?;
                self.with_policy(granted, Policy::RECORD_GRANTS);
            }
            let denied = self.lab.container(false)?;
            self.lab.deny(denied, &named[..rules])?;
            self.column(&format!("deny.{rules}"), "denied by a rule", OURS, self.lab.path(denied), &nodes, false)?;
        }
        let nodes = self.folder(stale)?;
        let voided = self.lab.container(false)?;
        self.lab.grant(voided, stale)?;
        self.lab.void(stale)?;
        self.column("deny_stale", "denied by an older epoch", OURS, self.lab.path(voided), &nodes, false)?;

        let named = self.folder(&named[..100])?;
        let strict = self.lab.container(false)?;
        self.column("deny_others", "denied, no rule", OURS, self.lab.path(strict), &named, false)?;
        self.with_policy(strict, Policy::DENY_OTHERS);
        let path = self.lab.unmanaged("unmanaged", false)?;
        self.column("unmanaged", "major of a rule, allowed", OURS, path, &named, true)?;
        let path = self.lab.unmanaged("unmanaged-denied", true)?;
        self.column("unmanaged_denied", "same, denied by the runtime", OURS, path, &named, false)?;
        while self.lab.containers() < CONTAINERS {
            let idle = self.lab.container(false)?;
            self.lab.grant(idle, &stale[..5])?;
        }
        Ok(())
    }

    fn folder(&mut self, devices: &[DeviceNumber]) -> Result<Folder> {
        self.lab.nodes.folder(devices, self.amount.nodes.max(devices.len()))
    }

    fn column(
        &mut self,
        name: &str,
        meaning: &'static str,
        program: usize,
        path: PathBuf,
        nodes: &Folder,
        allowed: bool,
    ) -> Result<()> {
        let place = Place { cgroup: self.lab.folder(&path), nodes: nodes.path.clone(), count: nodes.count, allowed };
        let worker = Worker::start(&place)?;
        let name = format!("verdict.{name}");
        self.columns.push(Column { name, meaning, program, worker, policy: None, rounds: Vec::new() });
        Ok(())
    }

    /// Sets what holds while the last column is measured.
    fn with_policy(&mut self, container: usize, policy: Policy) {
        if let Some(column) = self.columns.last_mut() {
            column.policy = Some((container, policy));
        }
    }

    fn run(&mut self) -> Result<()> {
        let mut random = Random(2);
        let mut order: Vec<usize> = (0..self.columns.len()).collect();
        for _ in 0..self.amount.rounds {
            random.shuffle(&mut order);
            for &index in &order {
                let value = self.measure_one(index, random.next())?;
                self.columns[index].rounds.push(value);
            }
        }
        Ok(())
    }

    /// Measures one column once: nanoseconds of a run.
    fn measure_one(&mut self, index: usize, seed: u64) -> Result<f64> {
        let Self { columns, lab, amount } = self;
        let column = &mut columns[index];
        let mut reader = lab.reader()?;
        if let Some((container, policy)) = column.policy {
            lab.manage(container, policy)?;
        }
        // The reader never announces that it sleeps: no record pays for waking it.
        column.worker.ask(WARM_UP, seed, || {
            reader.drain(|_| ());
        })?;
        let before = lab.cost(column.program)?;
        column.worker.ask(amount.accesses, seed ^ 1, || {
            reader.drain(|_| ());
        })?;
        let after = lab.cost(column.program)?;
        if let Some((container, policy)) = column.policy {
            lab.manage(container, Policy::default())?;
            if policy.contains(Policy::RECORD_GRANTS) {
                let (records, lost) = lab.records(container)?;
                ensure!(records > 0 && lost == 0, "{lost} records were lost and {records} were not");
            }
        }
        let runs = after.runs - before.runs;
        ensure!(runs == amount.accesses as u64, "{} ran {runs} times", column.name);
        Ok((after.time - before.time) as f64 / runs as f64)
    }

    fn rounds(&self, name: &str) -> &[f64] {
        let name = format!("verdict.{name}");
        self.columns.iter().find(|column| column.name == name).map_or(&[], |column| &column.rounds)
    }

    /// The difference between two columns in each round.
    fn difference(&self, one: &str, other: &str) -> Vec<f64> {
        self.rounds(one).iter().zip(self.rounds(other)).map(|(one, other)| one - other).collect()
    }

    fn figures(&self) -> Vec<Figure> {
        let empty = self.rounds("empty");
        let over_empty = |column: &Column, goal| {
            let rounds = column.rounds.iter().zip(empty).map(|(value, empty)| value - empty).collect();
            Figure::new(&column.name, column.meaning, goal, rounds)
        };
        let ceiling = self.columns.iter().find(|column| column.name == MEASURE);
        let ceiling = ceiling.map(|column| over_empty(column, None).median());
        let mut figures = Vec::new();
        for column in &self.columns {
            let goal = match column.name.trim_start_matches("verdict.") {
                "empty" => continue,
                "uninteresting" => Some(UNINTERESTING),
                name if name.starts_with("grant.") => Some(GRANT),
                name if name.starts_with("runc.") || name == "grant_recorded" => None,
                _ => ceiling,
            };
            figures.push(over_empty(column, goal));
        }
        let record = self.difference("grant_recorded", "grant.10");
        figures.push(Figure::new("verdict.audit", "what the record adds to a grant", Some(RECORD), record));
        let flat = self.difference("grant.10000", "grant.10");
        figures.push(Figure::new("verdict.flat", "10,000 rules against 10", Some(FLAT), flat));
        let floor = Figure::new("verdict.empty", "the empty program itself", None, empty.to_vec());
        figures.push(floor);
        figures
    }
}

/// Different numbers of character devices, in random order.
fn numbers(majors: std::ops::RangeInclusive<u32>, count: usize, random: &mut Random) -> Vec<DeviceNumber> {
    let mut found = std::collections::BTreeSet::new();
    let majors: Vec<u32> = majors.collect();
    while found.len() < count {
        let minor = random.below(DeviceNumber::MAX_MINOR as usize + 1) as u32;
        found.insert(DeviceNumber::char(majors[random.below(majors.len())], minor));
    }
    let mut numbers: Vec<_> = found.into_iter().collect();
    random.shuffle(&mut numbers);
    numbers
}
