//! The source of containers against the real containerd, with runc and crun.

#[path = "host_containerd/watcher.rs"]
mod watcher;

use std::{fs, process, time::Instant};

use devgate::sources::container::{FindTask, TaskFinder, TaskProblem};
use devgate_core::{CgroupProblem, RuntimeId};
use devgate_tests::{
    containerd::{Oci, PLAIN},
    prelude::*,
};

use watcher::Watcher;

tests![
    a_container_is_found_whether_it_was_started_before_or_after,
    a_container_that_ends_and_comes_back_has_another_task,
    a_container_of_the_same_name_is_another_one,
    a_process_that_is_started_in_a_container_changes_nothing,
    a_paused_container_runs,
    b16_the_leaf_that_has_the_tasks_is_found,
    b18_a_process_that_is_not_the_containers_is_refused,
    b83_after_a_crash_of_containerd_everything_is_known_again,
    an_image_asks_for_nothing,
    an_image_that_was_replaced_leaves_no_doubt,
    a_label_counts_as_soon_as_it_is_set,
    containers_of_all_namespaces_are_found,
    containers_with_user_namespaces_are_found,
    fifty_containers_at_once_are_found,
    nothing_is_left_of_a_containerd_that_panics,
];

const WISH: &str = "devgate.dev/classes";
const LABELLED: &str = "devgate.dev/test/labelled:1";

fn a_container_is_found_whether_it_was_started_before_or_after() -> TestResult {
    let scratch = Scratch::new("order")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    let early = containerd.container("early").run()?;
    let early_by_crun = containerd.container("early-crun").oci(Oci::Crun).run()?;
    let mut watcher = Watcher::start(&containerd)?;
    let late = containerd.container("late").run()?;
    let late_by_crun = containerd.container("late-crun").oci(Oci::Crun).run()?;
    for container in [early, early_by_crun, late, late_by_crun] {
        let task = watcher.until_running(container.id(), container.pid()?)?;
        let expected = containerd.cgroup().path().join(container.id());
        assert_eq!(task.cgroup.path, expected.to_string_lossy());
    }
    Ok(())
}

fn a_container_that_ends_and_comes_back_has_another_task() -> TestResult {
    let scratch = Scratch::new("again")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    let mut watcher = Watcher::start(&containerd)?;
    let container = containerd.container("demo").run()?;
    let before = watcher.until_running("demo", container.pid()?)?;
    container.kill()?;
    watcher.until_stopped("demo")?;
    container.start_again()?;
    let after = watcher.until_running("demo", container.pid()?)?;
    assert_ne!(before.cgroup.id, after.cgroup.id);
    container.delete()?;
    watcher.until("demo is gone", |watcher| watcher.container("demo").is_none())
}

fn a_container_of_the_same_name_is_another_one() -> TestResult {
    let scratch = Scratch::new("name")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    containerd.import(LABELLED, &[(WISH, "scanner")])?;
    let mut watcher = Watcher::start(&containerd)?;
    let first = containerd.container("demo").label(WISH, "printer").run()?;
    watcher.until_running("demo", first.pid()?)?;
    assert_eq!(watcher.wishes("demo").0, ["printer"]);
    first.delete()?;
    let second = containerd.container("demo").image(LABELLED).run()?;
    watcher.until_running("demo", second.pid()?)?;
    assert_eq!(watcher.wishes("demo").0, [""; 0]);
    Ok(())
}

fn a_process_that_is_started_in_a_container_changes_nothing() -> TestResult {
    let scratch = Scratch::new("exec")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    let mut watcher = Watcher::start(&containerd)?;
    let container = containerd.container("demo").run()?;
    let pid = container.pid()?;
    watcher.until_running("demo", pid)?;
    let output = container.exec(["sh", "-c", "echo here; exit 7"])?;
    assert_eq!((output.stdout.as_slice(), output.status.code()), (&b"here\n"[..], Some(7)));
    // Events come in order: when the next container is known, the end of that process has been heard.
    let next = containerd.container("next").run()?;
    watcher.until_running("next", next.pid()?)?;
    assert_eq!(watcher.task("demo").map(|task| task.pid), Some(pid));
    Ok(())
}

fn a_paused_container_runs() -> TestResult {
    let scratch = Scratch::new("pause")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    let container = containerd.container("demo").run()?;
    container.pause()?;
    let mut watcher = Watcher::start(&containerd)?;
    watcher.until_running("demo", container.pid()?)?;
    container.resume()?;
    container.kill()?;
    watcher.until_stopped("demo")
}

/// crun's systemd driver makes a cgroup below the scope and puts the process there. Without systemd that is done by hand.
// Fault: agent/src/sources/container/cgroup_path.rs
// - let is_runtimes = own.strip_suffix(".scope").is_some() && (path == leaf || path.starts_with(&format!("{leaf}/")));
// + let is_runtimes = false;
fn b16_the_leaf_that_has_the_tasks_is_found() -> TestResult {
    let scratch = Scratch::new("leaf")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    let container = containerd.container("demo").oci(Oci::Crun).cgroup("crun-demo.scope").run()?;
    let mut watcher = Watcher::start(&containerd)?;
    let pid = container.pid()?;
    let scope = watcher.until_running("demo", pid)?;
    assert!(scope.cgroup.path.ends_with("/crun-demo.scope"), "{scope:?}");

    containerd.cgroup().child("crun-demo.scope/container")?.take(pid)?;
    container.set_label("any", "change")?;
    watcher.until("the leaf is found", |watcher| {
        watcher.task("demo").is_some_and(|task| task.cgroup.path.ends_with("/crun-demo.scope/container"))
    })?;
    let leaf = watcher.until_running("demo", pid)?;
    assert_ne!(leaf.cgroup.id, scope.cgroup.id);
    Ok(())
}

// Fault: agent/src/sources/container/task.rs
// - if has_ended(&held).map_err(|error| unreadable(pid, error.into()))? {
// + if false {
fn b18_a_process_that_is_not_the_containers_is_refused() -> TestResult {
    let scratch = Scratch::new("stranger")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    let container = containerd.container("demo").run()?;
    let finder = TaskFinder::open("/proc".as_ref(), None)?;
    let id = |id: &str| RuntimeId { runtime: "containerd".into(), namespace: "default".into(), id: id.into() };
    let demo = container.pid()?;
    assert_eq!(finder.find(&id("demo"), demo, None)?.pid, demo);
    let refused = finder.find(&id("other"), demo, None);
    assert!(matches!(refused, Err(TaskProblem::Refused { source: CgroupProblem::NotNamed { .. }, .. })), "{refused:?}");
    // This process is in the root of the hierarchy, or at least in nobody's cgroup.
    let refused = finder.find(&id("demo"), process::id(), None);
    assert!(matches!(refused, Err(TaskProblem::Refused { .. })), "{refused:?}");
    // A zombie is in its cgroup until it is waited for, but not alive.
    let mut child = process::Command::new("sleep").arg("1000000").spawn()?;
    scratch.cgroup("zombie")?.take(child.id())?;
    assert_eq!(finder.find(&id("zombie"), child.id(), None)?.pid, child.id());
    child.kill()?;
    wait_until("it is a zombie", || {
        fs::read_to_string(format!("/proc/{}/stat", child.id())).is_ok_and(|stat| stat.contains(") Z "))
    });
    let ended = finder.find(&id("zombie"), child.id(), None);
    assert!(matches!(ended, Err(TaskProblem::Ended(_))), "{ended:?}");
    child.wait()?;
    for pid in [0, u32::MAX, child.id()] {
        let ended = finder.find(&id("demo"), pid, None);
        assert!(matches!(ended, Err(TaskProblem::Ended(_))), "{ended:?}");
    }
    Ok(())
}

// Fault: agent/src/sources/containerd/session.rs
// - if matches!(lost, Lost::Listener) {
// + if !matches!(lost, Lost::Cgroups(_)) {
fn b83_after_a_crash_of_containerd_everything_is_known_again() -> TestResult {
    let scratch = Scratch::new("crash")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    let stays = containerd.container("stays").run()?.pid()?;
    let ends = containerd.container("ends").run()?.pid()?;
    let mut watcher = Watcher::start(&containerd)?;
    watcher.until_running("stays", stays)?;
    watcher.until_running("ends", ends)?;
    containerd.kill_daemon()?;
    let ends = rustix::process::Pid::from_raw(ends.cast_signed()).expect("it was a process");
    rustix::process::kill_process(ends, rustix::process::Signal::KILL)?;
    let lists = watcher.lists();
    containerd.start_daemon()?;
    watcher.until("there is another list", |watcher| watcher.lists() > lists)?;
    watcher.until_running("stays", stays)?;
    watcher.until_stopped("ends")?;
    let new = containerd.container("new").run()?;
    watcher.until_running("new", new.pid()?)?;
    Ok(())
}

// Fault: agent/src/sources/containerd/read.rs
// - if !wishes || key.namespace == WITHOUT_WISHES {
// + if wishes || key.namespace == WITHOUT_WISHES {
fn an_image_asks_for_nothing() -> TestResult {
    let scratch = Scratch::new("image")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    containerd.import(LABELLED, &[(WISH, "scanner"), ("x", "y")])?;
    let mut watcher = Watcher::start(&containerd)?;
    let asking = containerd.container("asking").label(WISH, "scanner").run()?;
    let labelled = containerd.container("labelled").image(LABELLED).run()?;
    let both = containerd.container("both").image(LABELLED).label(WISH, "printer").run()?;
    for container in [&asking, &labelled, &both] {
        watcher.until_running(container.id(), container.pid()?)?;
    }
    assert_eq!(watcher.wishes("asking"), (vec!["scanner".to_owned()], vec![]));
    for id in ["labelled", "both"] {
        // containerd has made the image's label one of the container's.
        assert!(watcher.container(id).is_some_and(|container| container.labels.contains_key(WISH)));
        let warning = format!("containerd/default/{id}: the label {WISH} is ignored, since the image carries it too");
        assert_eq!(watcher.wishes(id), (vec![], vec![warning]));
    }
    Ok(())
}

/// The name of the image is all that containerd keeps: it may point at another one by the time that it is read.
fn an_image_that_was_replaced_leaves_no_doubt() -> TestResult {
    let scratch = Scratch::new("replaced")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    containerd.import(LABELLED, &[(WISH, "scanner")])?;
    let container = containerd.container("demo").image(LABELLED).run()?;
    let mut before = Watcher::start(&containerd)?;
    before.until_running("demo", container.pid()?)?;
    containerd.import(LABELLED, &[])?;
    // A source that has seen the image it was made from goes on knowing it; another one does not trust the name.
    container.kill()?;
    before.until_stopped("demo")?;
    let ignored = |why| (vec![], vec![format!("containerd/default/demo: the label {WISH} is ignored, since {why}")]);
    assert_eq!(before.wishes("demo"), ignored("the image carries it too"));
    let after = Watcher::start(&containerd)?;
    assert_eq!(after.wishes("demo"), ignored("the labels of the image could not be read"));
    Ok(())
}

fn a_label_counts_as_soon_as_it_is_set() -> TestResult {
    let scratch = Scratch::new("label")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    let mut watcher = Watcher::start(&containerd)?;
    let container = containerd.container("demo").run()?;
    watcher.until_running("demo", container.pid()?)?;
    container.set_label(WISH, "scanner")?;
    watcher.until("demo asks", |watcher| watcher.wishes("demo").0 == ["scanner"])
}

fn containers_of_all_namespaces_are_found() -> TestResult {
    let scratch = Scratch::new("namespaces")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    let mut watcher = Watcher::start(&containerd)?;
    for namespace in ["other", "k8s.io"] {
        containerd.import_into(namespace, PLAIN, &[])?;
        let new = containerd.container("demo").namespace(namespace).cgroup(&format!("{namespace}/demo"));
        new.label(WISH, "scanner").run()?;
        let name = format!("containerd/{namespace}/demo");
        watcher.until(&format!("{name} runs"), |watcher| {
            watcher.known().get(&name).and_then(|container| container.task()).is_some()
        })?;
    }
    let wishes = |namespace: &str| watcher.known()[&format!("containerd/{namespace}/demo")].all_claims().0.len();
    assert_eq!((wishes("other"), wishes("k8s.io")), (1, 0));
    Ok(())
}

fn containers_with_user_namespaces_are_found() -> TestResult {
    let scratch = Scratch::new("userns")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    let mut watcher = Watcher::start(&containerd)?;
    let container = containerd.container("demo").user_namespace().run()?;
    watcher.until_running("demo", container.pid()?)?;
    Ok(())
}

fn fifty_containers_at_once_are_found() -> TestResult {
    let scratch = Scratch::new("fifty")?;
    let containerd = Containerd::start(scratch.ancestor())?;
    let mut watcher = Watcher::start(&containerd)?;
    let ids: Vec<_> = (0..50).map(|number| format!("c{number}")).collect();
    let start = Instant::now();
    let fifty = containerd.run_all(&ids, |new| new)?;
    let started = Instant::now();
    for container in &fifty {
        watcher.until_running(container.id(), container.pid()?)?;
    }
    println!("{:.1} containers per second", 50.0 / started.duration_since(start).as_secs_f64());
    // As a list it must be the same.
    let again = Watcher::start(&containerd)?;
    assert_eq!(again.known(), watcher.known());
    Ok(())
}

fn nothing_is_left_of_a_containerd_that_panics() -> TestResult {
    let scratch = Scratch::new("left")?;
    let traces = std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let containerd = Containerd::start(scratch.ancestor()).unwrap();
                let container = containerd.container("demo").run().unwrap();
                let process = format!("/proc/{}", container.pid().unwrap()).into();
                let folder = containerd.socket().parent().unwrap().to_owned();
                let traces = vec![process, folder, containerd.cgroup().folder().to_owned()];
                assert!(traces.iter().all(|trace: &std::path::PathBuf| trace.exists()));
                std::panic::panic_any(traces);
            })
            .join()
            .unwrap_err()
            .downcast::<Vec<std::path::PathBuf>>()
            .unwrap()
    });
    let (process, rest) = traces.split_first().expect("there are three");
    wait_until("the container's process is gone", || !process.exists());
    assert!(rest.iter().all(|trace| !trace.exists()), "{rest:?}");
    Ok(())
}
