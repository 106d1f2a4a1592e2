//! Containers that do what they can against the agent, and others beside them that must not notice.

use std::{
    fs,
    os::unix::{fs::MetadataExt, net::UnixListener},
    time::{Duration, Instant},
};

use devgate_tests::{containerd::Container, prelude::*, prober::Attempt};

tests![
    nobody_waits_for_hostile_containers_and_nothing_on_the_host_changes,
    a_container_that_never_answers_keeps_no_other_waiting_when_the_agent_comes_back,
    a_container_that_never_answers_does_not_keep_the_agent_from_ending,
    a_node_in_a_container_that_did_not_answer_is_removed_once_it_does,
    a_container_with_the_hosts_dev_is_granted_and_left_alone,
    a_container_that_moves_its_process_away_gets_nothing_there,
];

const DEADLINE: Duration = Duration::from_secs(1);

/// A file system without anybody who answers for it, at `$1`.
const SILENT: &str = "exec 3<>/dev/fuse; mount -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 silent";
const SLEEP: &str = "exec sleep 1000000";

fn hostile<'a>(machine: &'a Machine, id: &str, privileged: bool, script: &str) -> anyhow::Result<Container<'a>> {
    let new = machine.containerd().container(id).label(WISH, "sensor");
    let new = if privileged { new.privileged() } else { new };
    new.command(["sh", "-c", &format!("{script}; touch /run/done; {SLEEP}")]).run()
}

/// Waits until a container has done what it does.
fn until_done(machine: &Machine, container: &Container<'_>) -> anyhow::Result<()> {
    let inside = machine.insider(container)?;
    wait_until("it has done its worst", || inside.exists("/run/done"));
    Ok(())
}

fn with_deadline(file: &mut devgate::config::File) {
    file.nodes.deadline_ms = u32::try_from(DEADLINE.as_millis()).unwrap_or(u32::MAX);
}

/// What a container could change by leading the agent astray.
fn host() -> anyhow::Result<Vec<String>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let mut seen: Vec<_> = mounts.lines().filter(|line| line.contains(" devgate ")).map(str::to_owned).collect();
    for path in ["/dev", "/etc", "/etc/passwd", "/tmp/sensor", "/sensor", "/dev/sensor", "/etc/sensor"] {
        let state = fs::symlink_metadata(path).map(|found| (found.mode(), found.uid(), found.rdev(), found.ino()));
        seen.push(format!("{path} {:?}", state.ok()));
    }
    Ok(seen)
}

// Fault: agent/src/executors/device_nodes/process.rs
// - drop(turn);
// + visit.as_mut().await.ok();
fn nobody_waits_for_hostile_containers_and_nothing_on_the_host_changes() -> TestResult {
    let machine = Machine::new("hostile")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n"))?;
    let before = host()?;
    let out_of_root = "umount -l /dev; rmdir /dev; ln -s /proc/1/root/tmp /dev";
    let mut containers = Vec::new();
    for (id, privileged, script) in [
        ("symlink", false, "ln -s /etc/passwd /dev/sensor"),
        ("socket", false, ":"),
        ("folder", false, "mkdir -p /dev/sensor/sensor"),
        ("full", false, "dd if=/dev/zero of=/dev/fill bs=1M"),
        ("mount", true, "touch /dev/sensor; mount --bind /etc /mnt; mount --bind /bin/busybox /dev/sensor"),
        ("linked-dev", true, out_of_root),
        ("silent-dev", true, &format!("{SILENT} /dev")),
        ("silent-root", true, &format!("(sleep 2; touch /run/done) & {SILENT} /")),
        ("storm", false, "(while :; do (:) & (:); wait; done) & :"),
    ] {
        containers.push((id, hostile(&machine, id, privileged, script)?));
    }
    let good = machine.containerd().container("good").label(WISH, "sensor").run()?;
    for (id, container) in containers.iter().filter(|(id, _)| *id != "silent-root") {
        until_done(&machine, container).map_err(|error| error.context(*id))?;
    }
    let socket = format!("/proc/{}/root/dev/sensor", containers[1].1.pid()?);
    let _socket = UnixListener::bind(socket)?;

    let change = |file: &mut devgate::config::File| {
        with_deadline(file);
        file.nodes.parallel = 2;
    };
    let mut agent = machine.agent_with(change)?;
    let mut looping = machine.insider(&containers[0].1)?;
    let mut inside = machine.insider(&good)?;
    let looped = looping.prober().run(FUSE, Attempt::Open(0));
    for round in 1..=3 {
        let mut audit = machine.audit_from_now()?;
        let start = Instant::now();
        let number = machine.taps().plug(round)?;
        audit.wait("nodePlaced", |line| {
            line["container"] == "containerd/default/good" && line["path"] == "/dev/sensor"
        })?;
        let placed = start.elapsed();
        assert_eq!(inside.which("/dev/sensor"), Answer::of_device(round));
        let start = Instant::now();
        machine.taps().unplug(round)?;
        audit.wait("nodeRemoved", |line| {
            line["container"] == "containerd/default/good" && line["path"] == "/dev/sensor"
        })?;
        let removed = start.elapsed();
        println!("placed within {} ms, removed within {} ms", placed.as_millis(), removed.as_millis());
        assert!(placed < DEADLINE && removed < DEADLINE, "placed within {placed:?}, removed within {removed:?}");
        assert_eq!((inside.exists("/dev/sensor"), inside.open_number(number)), (false, DENIED));
    }
    let looped = looped.stop();
    assert_eq!(looped.of(DENIED), looped.total(), "{looped:?}");
    assert_eq!(host()?, before);
    agent.until_logged("a container does not let itself be visited container=containerd/default/silent-root")?;
    let log = agent.log()?;
    for id in ["symlink", "socket", "folder", "mount", "linked-dev", "silent-dev"] {
        assert!(log.contains(&format!("containerd/default/{id}\" step=\"place node\"")), "{id}: {log}");
    }
    agent.kill()
}

/// Covers the container's `/dev` with a file system that does not answer, until [`uncover`].
fn cover(container: &Container<'_>) -> TestResult {
    let silence = format!("{SILENT} /dev; touch /run/silent; read x < /run/go; umount -l /dev");
    let until = "while ! [ -e /run/silent ]; do sleep 0.1; done";
    let said = container.exec(["sh", "-c", &format!("mkfifo /run/go; ({silence}) >/dev/null 2>&1 & {until}")])?;
    anyhow::ensure!(said.status.success(), "{said:?}");
    Ok(())
}

fn uncover(container: &Container<'_>) -> TestResult {
    Ok(fs::write(format!("/proc/{}/root/run/go", container.pid()?), "go\n")?)
}

fn a_container_that_never_answers_keeps_no_other_waiting_when_the_agent_comes_back() -> TestResult {
    let machine = Machine::new("comes-back")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n"))?;
    let silent = hostile(&machine, "silent", true, "true")?;
    let good = machine.containerd().container("good").label(WISH, "sensor").run()?;
    let agent = machine.agent_with(with_deadline)?;
    let mut audit = machine.audit()?;
    machine.taps().plug(1)?;
    for _ in 0..2 {
        audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    }
    agent.kill()?;
    cover(&silent)?;
    machine.taps().unplug(1)?;
    let agent = machine.agent_with(with_deadline)?;
    let ready = Instant::now();
    audit
        .wait("nodeRemoved", |line| line["container"] == "containerd/default/good" && line["path"] == "/dev/sensor")?;
    println!("removed {} ms after the agent was ready", ready.elapsed().as_millis());
    assert!(ready.elapsed() < DEADLINE);
    assert!(!machine.insider(&good)?.exists("/dev/sensor"));
    assert!(agent.log()?.contains("no answer within"), "{}", agent.log()?);
    Ok(())
}

fn a_container_that_never_answers_does_not_keep_the_agent_from_ending() -> TestResult {
    let machine = Machine::new("ending")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n"))?;
    let _silent = hostile(&machine, "silent", true, &format!("(sleep 1; touch /run/done) & {SILENT} /"))?;
    let good = machine.containerd().container("good").label(WISH, "sensor").run()?;
    let agent = machine.agent_with(|file| file.nodes.deadline_ms = 60_000)?;
    let mut audit = machine.audit()?;
    machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    let start = Instant::now();
    let status = agent.terminate()?;
    assert!(status.success() && start.elapsed() < Duration::from_secs(1), "{status} after {:?}", start.elapsed());
    assert_eq!(machine.insider(&good)?.which("/dev/sensor"), Answer::of_device(1));
    Ok(())
}

// Fault: agent/src/reconciler/found.rs
// - self.visits.begin_listing(asked);
// + drop(asked);
// A frozen container answers nobody who waits for a lock that it holds; a FUSE server may answer later.
fn a_node_in_a_container_that_did_not_answer_is_removed_once_it_does() -> TestResult {
    let machine = Machine::new("once")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n"))?;
    let silent = hostile(&machine, "silent", true, "true")?;
    let agent = machine.agent_with(with_deadline)?;
    let mut audit = machine.audit()?;
    let number = machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    agent.kill()?;
    cover(&silent)?;
    machine.taps().unplug(1)?;
    let mut prober = machine.insider(&silent)?;
    let agent = machine.agent_with(with_deadline)?;
    assert!(agent.log()?.contains("cannot look for the nodes in a container"), "{}", agent.log()?);
    assert_eq!(prober.open_number(number), DENIED);
    uncover(&silent)?;
    audit.wait("nodeRemoved", |line| line["path"] == "/dev/sensor")?;
    assert!(!machine.insider(&silent)?.exists("/dev/sensor"));
    Ok(())
}

// Fault: agent/src/executors/device_nodes/helper/host_node.rs
// - node_facts(node).ok()?.map(|facts| facts.number)
// + node_facts(node).ok()?.map(|_| DeviceNumber::char(0, 0))
fn a_container_with_the_hosts_dev_is_granted_and_left_alone() -> TestResult {
    let machine = Machine::new("hosts-dev")?;
    machine.write_class("sensor.yaml", &class("sensor", "*", "  path: /dev/sensor\n"))?;
    let before = host()?;
    let new = machine.containerd().container("hosts").label(WISH, "sensor");
    let container = new.option(["--mount", "type=bind,src=/dev,dst=/dev,options=rbind:rw"]).run()?;
    let agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let number = machine.taps().plug(1)?;
    let node = format!("/dev/{}", machine.udev().devpath(1, number)?.kernel_name());
    let failed = audit.wait("failed", |_| true)?;
    let message = failed["message"].as_str().unwrap_or_default();
    assert!(message.contains("file system of the host") && message.contains("not tried again"), "{failed}");
    let mut inside = machine.insider(&container)?;
    wait_until("its rule is there", || inside.open_number(number) == ALLOWED);
    assert_eq!(inside.which(&node), Answer::of_device(1), "as the host has it");
    assert_eq!(host()?, before);
    let failures = machine.audit()?.news()?.iter().filter(|line| line["event"] == "failed").count();
    assert_eq!(failures, 1, "{}", agent.log()?);
    machine.taps().unplug(1)?;
    assert_eq!(inside.open_number(number), DENIED);
    Ok(())
}

// What a container that may make cgroups does with its processes is its own affair; what it was granted it has in its own
// cgroup alone, and what is denied is denied below as well.
fn a_container_that_moves_its_process_away_gets_nothing_there() -> TestResult {
    let machine = Machine::new("moves")?;
    machine.write_class("sensor.yaml", &class("sensor", "mvt1", "  path: /dev/sensor\n"))?;
    let container = machine.containerd().container("demo").label(WISH, "sensor").run()?;
    let _agent = machine.agent()?;
    let mut audit = machine.audit()?;
    let number = machine.taps().plug(1)?;
    audit.wait("nodePlaced", |line| line["path"] == "/dev/sensor")?;
    let mut inside = machine.insider(&container)?;
    assert_eq!(inside.open_number(number), ALLOWED);
    let below = machine.containerd().cgroup().existing("demo")?.child("made")?;
    inside.prober().move_to(&below)?;
    assert_eq!(inside.open_number(number), DENIED);
    Ok(())
}
