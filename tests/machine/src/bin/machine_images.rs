//! Builds the images of machines that are missing.

use anyhow::{Context as _, Result};
use devgate_machine::{ALL, Store};

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let folder = arguments.next().context("the first argument is the folder of the images")?;
    let endpoint = arguments.next().context("the second argument is the endpoint")?;
    let store = Store::new(folder, endpoint)?;
    ALL.iter().try_for_each(|row| store.prepare(*row))
}
