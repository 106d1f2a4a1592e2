//! The harness itself: what the other tests rely on.

use std::{os::fd::AsFd, path::PathBuf};

use devgate::executors::enforcer::sys;
use devgate_tests::{prelude::*, prober::Attempt};

tests![
    a_runtime_s_program_denies_until_it_is_detached,
    a_list_like_runc_s_answers_by_its_first_match,
    a_run_counts_every_answer,
    a_run_makes_a_million_attempts_in_seconds,
    nothing_is_left_of_a_scratch_that_panics,
];

fn a_runtime_s_program_denies_until_it_is_detached() -> TestResult {
    let scratch = Scratch::new("direct")?;
    let container = scratch.cgroup("container")?;
    let mut prober = scratch.prober(&container)?;
    assert_eq!(prober.open(ABSENT, Access::READ), NO_DEVICE);
    let runtime = deny_all(&container)?;
    assert_eq!(prober.open(ABSENT, Access::READ), DENIED);
    assert_eq!(prober.mknod(ABSENT), DENIED);
    assert_eq!(prober.access(ABSENT, Access::NONE), DENIED);
    assert_eq!(prober.stat(ABSENT), ALLOWED);
    drop(runtime);
    assert_eq!(prober.open(ABSENT, Access::READ), NO_DEVICE);
    assert_eq!(prober.mknod(ABSENT), ALLOWED);
    assert_eq!(sys::attached_programs(container.as_fd())?, [0_u32; 0]);
    Ok(())
}

fn a_list_like_runc_s_answers_by_its_first_match() -> TestResult {
    let scratch = Scratch::new("runc")?;
    let container = scratch.cgroup("container")?;
    let rule = |major, minor, access| RuntimeRule { kind: DeviceKind::Char, major, minor, access };
    let list = [rule(None, None, Access::MKNOD), rule(Some(10), Some(229), Access::READ)];
    let mut runtime = attach(&container, &runc_program(&list, false))?;
    let mut prober = scratch.prober(&container)?;
    assert_eq!(prober.mknod(ABSENT), ALLOWED);
    assert_eq!(prober.open(ABSENT, Access::READ), DENIED);
    assert_eq!(prober.access(FUSE, Access::READ), ALLOWED);
    assert_eq!(prober.access(FUSE, Access::READ_WRITE), DENIED);
    assert_eq!(prober.access(LOOP, Access::NONE), DENIED);
    runtime.replace(&runc_program(&[rule(Some(10), None, Access::ALL)], true))?;
    assert_eq!(prober.access(FUSE, Access::READ), DENIED);
    assert_eq!(prober.open(ABSENT, Access::READ), NO_DEVICE);
    Ok(())
}

fn a_run_counts_every_answer() -> TestResult {
    let scratch = Scratch::new("run")?;
    let container = scratch.cgroup("container")?;
    let mut prober = scratch.prober(&container)?;
    let counts = prober.repeat(ABSENT, Attempt::Open(libc::O_RDONLY), 1000);
    assert_eq!((counts.of(NO_DEVICE), counts.total()), (1000, 1000));
    let run = prober.run(ABSENT, Attempt::Access(libc::R_OK));
    run.go_on(100);
    let runtime = deny_all(&container)?;
    run.go_on(2);
    let allowed = run.counts().of(ALLOWED);
    run.go_on(100);
    let counts = run.stop();
    assert_eq!(counts.of(ALLOWED), allowed);
    assert!(counts.of(DENIED) >= 100 && allowed >= 100, "{counts:?}");
    drop(runtime);
    assert_eq!(prober.open(ABSENT, Access::READ), NO_DEVICE);
    Ok(())
}

fn a_run_makes_a_million_attempts_in_seconds() -> TestResult {
    let scratch = Scratch::new("fast")?;
    let mut prober = scratch.prober(scratch.ancestor())?;
    let start = std::time::Instant::now();
    let counts = prober.repeat(ABSENT, Attempt::Open(libc::O_RDONLY), 1_000_000);
    assert_eq!(counts.of(NO_DEVICE), 1_000_000);
    println!("{:.0} attempts per second", 1e6 / start.elapsed().as_secs_f64());
    // The machine may be busy with other things; asking for each attempt would take minutes.
    assert!(start.elapsed().as_secs() < 30);
    Ok(())
}

fn nothing_is_left_of_a_scratch_that_panics() -> TestResult {
    let traces = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let scratch = Scratch::new("panic").unwrap();
                let _enforcer = scratch.enforcer().unwrap();
                let deep = scratch.cgroup("a").unwrap().child("b").unwrap();
                let _prober = scratch.prober(&deep).unwrap();
                let config = scratch.config();
                let traces: Vec<PathBuf> =
                    vec![scratch.ancestor().folder().to_owned(), config.pin_root, config.run_dir];
                assert!(traces.iter().all(|trace| trace.exists()));
                std::panic::panic_any(traces);
            })
            .join()
            .unwrap_err()
            .downcast::<Vec<PathBuf>>()
            .unwrap()
    });
    for trace in *traces {
        anyhow::ensure!(!trace.exists(), "{} is left", trace.display());
    }
    Ok(())
}
