//! What one verdict costs: ours, and those of programs like runc's.
//!
//! The kernel's own statistics say how long a program ran. All columns are there at once, and are asked in turn, each for
//! about two milliseconds, in another order in every round, by workers that share one CPU: what else the machine does falls on
//! all of them alike. The cost of an empty program, which is mostly that of the statistics, is taken off.

use std::{ops::Range, path::Path, time::Duration};

use anyhow::{Result, ensure};
use devgate::executors::enforcer::sys;
use devgate_abi::{Access, DeviceNumber, Policy};

use super::{
    figures::Figure,
    lab::Lab,
    random::Random,
    runc,
    worker::{Order, Place, Worker},
};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// How often each column is measured.
    pub rounds: u32,
    /// Questions of one column in one round.
    pub questions: usize,
}

/// Questions before those that are measured: they bring back what other columns drove out of the CPU's caches.
const WARM_UP: usize = 1000;
/// How many devices a column asks for in one round; others in the next. A container opens few devices again and again, and
/// ten thousand inodes alone would fill the CPU's caches. As many as the smallest column has: columns differ in what is
/// loaded and not in what is asked for.
const DEVICES: usize = 10;
const OURS: usize = 0;
const CONTAINERS: usize = 200;
const RULES: [usize; 4] = [10, 100, 1000, 10_000];
/// Goals in nanoseconds.
const UNINTERESTING: f64 = 6.0;
const GRANT: f64 = 60.0;
const FLAT: f64 = 5.0;
const RECORD: f64 = 200.0;
/// What runc's own program of a hundred rules costs: where it allows, which is after half of its rules on average, and where
/// it denies, after all of them. Neither should be exceeded where ours leads to the same, but for grants, which runc's
/// cannot give: they have a goal of their own.
pub const MEASURE: &str = "verdict.runc.100";
const MEASURE_DENIED: &str = "verdict.runc_deny.100";

/// One thing that is measured.
struct Column {
    name: String,
    meaning: &'static str,
    program: usize,
    worker: Worker,
    /// Whether what it asks for is allowed.
    allowed: bool,
    /// For how many devices it asks in a round.
    devices: usize,
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

/// Devices, and which nodes are theirs.
struct Devices {
    devices: Vec<DeviceNumber>,
    nodes: Range<usize>,
}

impl Devices {
    fn first(&self, count: usize) -> Self {
        Self { devices: self.devices[..count].to_vec(), nodes: self.nodes.start..self.nodes.start + count }
    }
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
        let mut set = |majors, count| {
            let devices = numbers(majors, count, &mut random);
            let nodes = self.lab.nodes.make(&devices)?;
            anyhow::Ok(Devices { devices, nodes })
        };
        let named = set(240..=254, RULES[RULES.len() - 1])?;
        let stale = set(235..=238, 100)?;
        let unnamed = set(200..=230, 1000)?;

        let (path, program) = self.lab.beside("empty", &sys::return_constant(1))?;
        self.column("empty", "a program that does nothing", program, &path, &unnamed, true)?;
        self.runc(&named, &unnamed)?;
        self.uninteresting(&unnamed)?;
        self.rules(&named)?;
        self.others(&named, &stale)
    }

    /// Programs like runc's.
    fn runc(&mut self, named: &Devices, unnamed: &Devices) -> Result<()> {
        for rules in [10, 100, 1000] {
            let named = &named.first(rules);
            let code = runc::program(&named.devices, Access::READ_WRITE);
            let (path, program) = self.lab.beside(&format!("runc-{rules}"), &code)?;
            self.column(&format!("runc.{rules}"), "straight-line: one of its devices", program, &path, named, true)?;
            if rules == 100 {
                let (path, program) = self.lab.beside("runc-denied", &code)?;
                self.column("runc_deny.100", "straight-line: none of its devices", program, &path, unnamed, false)?;
            }
        }
        Ok(())
    }

    /// Devices with a major number that no rule names.
    fn uninteresting(&mut self, unnamed: &Devices) -> Result<()> {
        let quiet = self.lab.container(false)?;
        let path = self.lab.path(quiet);
        self.column("uninteresting", "major that no rule names", OURS, &path, unnamed, true)?;
        self.column("uninteresting_watched", "same, another container records denials", OURS, &path, unnamed, true)?;
        let other = self.lab.container(false)?;
        self.with_policy(other, Policy::RECORD_DENIALS);
        self.column("uninteresting_strict", "same, another container denies others", OURS, &path, unnamed, true)?;
        self.with_policy(other, Policy::DENY_OTHERS);
        Ok(())
    }

    /// Grants and denials, by the number of rules.
    fn rules(&mut self, named: &Devices) -> Result<()> {
        for rules in RULES {
            let named = &named.first(rules);
            let granted = self.lab.container(true)?;
            self.lab.grant(granted, &named.devices)?;
            let path = self.lab.path(granted);
            self.column(&format!("grant.{rules}"), "denied by the runtime, granted", OURS, &path, named, true)?;
            if rules == 10 {
                self.column("grant_recorded", "same with a record", OURS, &path, named, true)?;
                self.with_policy(granted, Policy::RECORD_GRANTS);
            }
            if rules == RULES[RULES.len() - 1] {
                self.column("grant_cold", "same, each question for another device", OURS, &path, named, true)?;
                self.ask_for_all(rules);
            }
            let denied = self.lab.container(false)?;
            self.lab.deny(denied, &named.devices)?;
            self.column(&format!("deny.{rules}"), "denied by a rule", OURS, &self.lab.path(denied), named, false)?;
        }
        Ok(())
    }

    fn others(&mut self, named: &Devices, stale: &Devices) -> Result<()> {
        let voided = self.lab.container(false)?;
        self.lab.grant(voided, &stale.devices)?;
        self.lab.void(&stale.devices)?;
        self.column("deny_stale", "denied by an older epoch", OURS, &self.lab.path(voided), stale, false)?;

        let named = &named.first(100);
        let strict = self.lab.container(false)?;
        self.column("deny_others", "denied, no rule", OURS, &self.lab.path(strict), named, false)?;
        self.with_policy(strict, Policy::DENY_OTHERS);
        let path = self.lab.unmanaged("unmanaged", false)?;
        self.column("unmanaged", "major of a rule, allowed", OURS, &path, named, true)?;
        let path = self.lab.unmanaged("unmanaged-denied", true)?;
        self.column("unmanaged_denied", "same, denied by the runtime", OURS, &path, named, false)?;
        while self.lab.containers() < CONTAINERS {
            let idle = self.lab.container(false)?;
            self.lab.grant(idle, &named.devices[..5])?;
        }
        Ok(())
    }

    fn column(
        &mut self,
        name: &str,
        meaning: &'static str,
        program: usize,
        path: &Path,
        devices: &Devices,
        allowed: bool,
    ) -> Result<()> {
        let (cgroup, folder) = (self.lab.folder(path), self.lab.nodes.path());
        let place = Place { cgroup: &cgroup, folder: &folder, nodes: devices.nodes.clone(), allowed };
        let worker = Worker::start(&place)?;
        let name = format!("verdict.{name}");
        self.columns.push(Column {
            name,
            meaning,
            program,
            worker,
            allowed,
            devices: DEVICES,
            policy: None,
            rounds: Vec::new(),
        });
        Ok(())
    }

    /// Sets what holds while the last column is measured.
    fn with_policy(&mut self, container: usize, policy: Policy) {
        if let Some(column) = self.columns.last_mut() {
            column.policy = Some((container, policy));
        }
    }

    /// Has the last column ask for all of its devices.
    fn ask_for_all(&mut self, devices: usize) {
        if let Some(column) = self.columns.last_mut() {
            column.devices = devices;
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
        let order = |questions| Order { questions, nodes: column.devices, seed };
        let mut reader = lab.reader()?;
        if let Some((container, policy)) = column.policy {
            lab.manage(container, policy)?;
        }
        // The reader never announces that it sleeps: no record pays for waking it.
        column.worker.ask(order(WARM_UP + 3 * column.devices), || {
            reader.drain(|_| ());
        })?;
        let before = lab.cost(column.program)?;
        column.worker.ask(order(amount.questions), || {
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
        ensure!(runs == amount.questions as u64, "{} ran {runs} times", column.name);
        let total = Duration::from_nanos(after.time - before.time).as_secs_f64() * 1e9;
        Ok(total / f64::from(u32::try_from(runs)?))
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
        let empty = Figure::new("verdict.empty", "the empty program itself", None, self.rounds("empty").to_vec());
        let floor = empty.value();
        let over_empty = |column: &Column, goal| {
            let rounds = column.rounds.iter().map(|value| value - floor).collect();
            Figure::new(&column.name, column.meaning, goal, rounds)
        };
        let measure = |name| {
            let column = self.columns.iter().find(|column| column.name == name);
            column.map(|column| over_empty(column, None).value())
        };
        let (allowed, denied) = (measure(MEASURE), measure(MEASURE_DENIED));
        let mut figures = Vec::new();
        for column in &self.columns {
            let goal = match column.name.trim_start_matches("verdict.") {
                "empty" => continue,
                "uninteresting" => Some(UNINTERESTING),
                name if name.starts_with("grant.") => Some(GRANT),
                name if name.starts_with("runc") || name == "grant_recorded" || name == "grant_cold" => None,
                _ if column.allowed => allowed,
                _ => denied,
            };
            figures.push(over_empty(column, goal));
        }
        let record = self.difference("grant_recorded", "grant.10");
        figures.push(Figure::new("verdict.audit", "what the record adds to a grant", Some(RECORD), record));
        let flat = self.difference("grant.10000", "grant.10");
        figures.push(Figure::new("verdict.flat", "10,000 rules against 10", Some(FLAT), flat));
        figures.push(empty);
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
