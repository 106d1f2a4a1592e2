//! What a visit costs: `cargo test --release -p devgate-tests --test host_device_nodes -- bench-visits`, after
//! `cargo build --release -p devgate`.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use devgate::executors::device_nodes::{Change, ContainerRef, DeviceNodes, HelperProcesses, Outcome};
use tokio::task::JoinSet;

use crate::container::Container;
use crate::executor::{block_on, config, node, path};
use crate::spec::Spec;

/// The argument that asks for it. After it may follow the numbers of containers, of rounds and of visits at once.
const ARGUMENT: &str = "bench-visits";

/// Runs it, if the arguments ask for it.
pub(crate) fn dispatch() -> Option<ExitCode> {
    let mut arguments = std::env::args().skip(1);
    if arguments.next()? != ARGUMENT {
        return None;
    }
    let result = arguments
        .map(|text| text.parse().with_context(|| format!("{text} is no number")))
        .collect::<Result<Vec<_>>>()
        .and_then(|numbers| bench(&numbers));
    if let Err(error) = &result {
        eprintln!("{ARGUMENT}: {error:#}");
    }
    Some(if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn bench(numbers: &[usize]) -> Result<()> {
    let number = |index: usize, otherwise: usize| numbers.get(index).copied().unwrap_or(otherwise);
    let (containers, rounds) = (number(0, 100), number(1, 200));
    let mut config = config()?;
    config.parallel = number(2, config.parallel);
    let containers: Vec<Container> =
        (0..containers).map(|_| Container::start(&Spec::default())).collect::<Result<_>>()?;
    let found: Vec<ContainerRef> = containers.iter().map(Container::find).collect::<Result<_>>()?;
    block_on(async {
        let executor = std::sync::Arc::new(HelperProcesses::new(config));
        let found: Vec<_> = found.into_iter().map(std::sync::Arc::new).collect();
        let mut times = [const { Vec::new() }; 4];
        // The first is not counted: whatever is started once is started then.
        for round in 0..=rounds {
            let one = found.first().context("no container")?;
            let start = Instant::now();
            let placed = executor.visit(one, vec![Change::Place(node("/dev/scanner"))]).await?;
            let place = start.elapsed();
            let change = removal(&placed)?;
            let start = Instant::now();
            executor.visit(one, vec![change]).await?;
            let remove = start.elapsed();

            let all = |changes: Vec<Change>| {
                let mut visits = JoinSet::new();
                for (container, change) in found.iter().cloned().zip(changes) {
                    let executor = executor.clone();
                    visits.spawn(async move { executor.visit(&container, vec![change]).await });
                }
                visits
            };
            let start = Instant::now();
            let placed = all(vec![Change::Place(node("/dev/scanner")); found.len()]).join_all().await;
            let place_all = start.elapsed();
            ensure!(placed.iter().all(Result::is_ok), "{placed:?}");
            let start = Instant::now();
            // Every container is listed too: which answer is whose is not told.
            let mut mounts = Vec::new();
            for container in &found {
                let node = executor.list(container).await?.pop().context("no node")?;
                mounts.push(Change::Remove { path: path("/dev/scanner"), mount_id: node.mount_id });
            }
            let list = start.elapsed() / u32::try_from(found.len())?;
            let removed = all(mounts).join_all().await;
            ensure!(removed.iter().all(Result::is_ok), "{removed:?}");
            if round > 0 {
                for (times, time) in times.iter_mut().zip([place, remove, list, place_all]) {
                    times.push(time);
                }
            }
        }
        println!("{:<28} {:>10} {:>10} {:>10}", "microseconds", "p50", "p99", "max");
        let all = format!("place in {} at once", found.len());
        for (name, mut times) in ["place in one", "remove from one", "list one (mean)", &all].into_iter().zip(times) {
            times.sort();
            let at = |hundredths: usize| times[(times.len() - 1) * hundredths / 100].as_micros();
            println!("{name:<28} {:>10} {:>10} {:>10}", at(50), at(99), at(100));
        }
        Ok(())
    })
}

fn removal(placed: &[Outcome]) -> Result<Change> {
    match placed {
        [Outcome::Placed { mount_id }] => Ok(Change::Remove { path: path("/dev/scanner"), mount_id: *mount_id }),
        other => anyhow::bail!("not placed: {other:?}"),
    }
}
