//! What is told, step by step.

use std::{ops::RangeInclusive, time::Instant};

use anyhow::{Context, Result};
use devgate_abi::{Access, DeviceNumber};
use serde_json::Value;

use super::{
    evidence,
    screen::{Screen, Seen},
};
use crate::{
    containerd::Container,
    machine::{Audit, Insider, Machine, WISH},
    prober::Answer,
    running_agent::RunningAgent,
    stopwatch::{Ear, Group, Mounts, meanwhile},
};

/// The device of the story, by the name that it is plugged with, and others of its kind.
const SENSOR: u8 = 1;
const STRANGERS: RangeInclusive<u8> = 2..=9;

/// Where the container finds the device, whatever it is called on the host.
const PATH: &str = "/dev/sensor";

const CLASS: &str = r#"apiVersion: devgate.dev/v1alpha1
kind: DeviceClass
metadata: { name: sensor }
spec:
  match: [ { subsystem: macvtap, properties: { ID_VENDOR_ID: "0403", ID_SERIAL_SHORT: mvt1 } } ]
  allocation: { kind: All }
  path: /dev/sensor
"#;

const REFUSED: &str = "Operation not permitted";
const ABSENT: &str = "no such file";

/// What is on the stage.
pub(super) struct Story<'a> {
    machine: &'a Machine,
    reader: Container<'a>,
    other: Container<'a>,
    inside: Insider,
    screen: Screen,
    audit: Audit,
}

/// A plug that was measured.
struct Plugged {
    number: DeviceNumber,
    /// From udev's event to a node that opens.
    microseconds: u128,
}

impl<'a> Story<'a> {
    pub(super) fn new(machine: &'a Machine) -> Result<Self> {
        println!(
            "Devgate decides which device nodes each container may open. This shows it on this machine, in a few"
        );
        println!("seconds: with a containerd, two containers and a udev of its own, all of which are gone at the end.");
        machine.write_class("sensor.yaml", CLASS)?;
        let reader = machine.containerd().container("reader").label(WISH, "sensor").run()?;
        let other = machine.containerd().container("other").run()?;
        let (inside, audit) = (machine.insider(&reader)?, machine.audit()?);
        Ok(Self { machine, reader, other, inside, audit, screen: Screen::default() })
    }

    pub(super) fn tell(mut self) -> Result<bool> {
        let agent = self.introduce()?;
        let first = self.plug()?;
        self.kill(agent, first.number)?;
        let number = self.replug(first.number)?;
        let agent = self.come_back(first.number, number)?;
        self.unplug(number)?;
        self.show_audit(first.number, number);
        figures(&first, &agent)?;
        let success = self.screen.finish();
        if !success {
            // Whoever looks for the reason has nothing else once this has ended.
            eprintln!("\nthe agent's log:\n{}", agent.log()?);
            let lines = self.machine.audit()?.news()?;
            eprintln!("the audit log:\n{}", lines.iter().map(evidence::shorten).collect::<Vec<_>>().join("\n"));
        }
        Ok(success)
    }

    /// An agent that records what it does not decide, too: `other` is denied by the program that runc gave it.
    fn agent(&self) -> Result<RunningAgent> {
        self.machine.agent_with(|config| {
            config.audit.everything = true;
            "info,devgate=debug".clone_into(&mut config.log.filter);
        })
    }

    fn introduce(&mut self) -> Result<RunningAgent> {
        self.screen.step("Two containers");
        Screen::say("ctr run --label devgate.dev/classes=sensor ... reader");
        Screen::say("ctr run                                    ... other");
        Screen::say("Devgate runs beside containerd. It knows one class of devices:");
        for line in CLASS.lines().skip(2) {
            Screen::say(&format!("   {line}"));
        }
        let agent = self.agent().context("the agent does not start")?;
        let link = devgate::executors::enforcer::status(&self.machine.scratch().config())?.link;
        let attached = matches!(link, devgate::executors::enforcer::LinkState::Attached { configured: true, .. });
        self.screen.check(
            "one eBPF program is attached above all containers; theirs stay as runc made them",
            &Seen::expect(&attached, &true),
        );
        self.absent("reader", PATH)?;
        Ok(agent)
    }

    fn plug(&mut self) -> Result<Plugged> {
        self.screen.step("A device is plugged in");
        let plugged = self.measure()?;
        let number = plugged.number;
        Screen::say(&format!("The kernel calls it {number}, and udev adds what it knows of it."));
        self.screen.check(
            &format!("reader has {PATH}, and it is {number}"),
            &Seen::expect(&self.inside.number(PATH)?, &Some(number)),
        );
        self.opens("reader", PATH)?;
        self.is_the_sensor();
        self.refused("other", number)?;
        Ok(plugged)
    }

    fn kill(&mut self, agent: RunningAgent, number: DeviceNumber) -> Result<()> {
        self.screen.step("The agent is killed (SIGKILL)");
        agent.kill()?;
        Screen::say("What it decided is in the kernel and stands.");
        self.opens("reader", PATH)?;
        self.refused("other", number)
    }

    fn replug(&mut self, old: DeviceNumber) -> Result<DeviceNumber> {
        self.screen.step("While the agent is away the device is pulled and plugged in again");
        self.machine.taps().unplug(SENSOR)?;
        self.give_away(old)?;
        let number = self.machine.taps().plug(SENSOR)?;
        Screen::say(&format!("Another device came first and is {old} now; ours is {number}."));
        self.screen.check("the device has another number than before", &Seen::expect(&(number != old), &true));
        self.screen.check(
            &format!("reader still has a node of {old}, and opening it fails: {REFUSED}"),
            &self.try_open("reader", PATH, REFUSED)?,
        );
        Screen::say("The kernel itself voided the grant as the device went, before the number was another's.");
        Ok(number)
    }

    /// Plugs other devices until one has the number. Numbers are handed out to the whole machine, so somebody else may
    /// have taken it first; then it is another device's just the same.
    fn give_away(&self, number: DeviceNumber) -> Result<()> {
        for stranger in STRANGERS {
            if self.machine.taps().plug(stranger)? == number {
                break;
            }
        }
        Ok(())
    }

    fn come_back(&mut self, old: DeviceNumber, number: DeviceNumber) -> Result<RunningAgent> {
        self.screen.step("The agent comes back");
        let agent = self.agent().context("the agent does not start again")?;
        let placed = self.audit.wait("nodePlaced", |line| is(line, number, "/dev/sensor"));
        self.screen.check(&format!("reader has {PATH} again, and it is {number}"), &Seen::came(&placed));
        self.opens("reader", PATH)?;
        self.is_the_sensor();
        self.refused("reader", old)?;
        Ok(agent)
    }

    fn unplug(&mut self, number: DeviceNumber) -> Result<()> {
        self.screen.step("The device is unplugged");
        self.machine.taps().unplug(SENSOR)?;
        let removed = self.audit.wait("nodeRemoved", |line| is(line, number, "/dev/sensor"));
        removed.context("the node is not removed")?;
        self.absent("reader", PATH)?;
        self.refused("reader", number)
    }

    fn show_audit(&mut self, first: DeviceNumber, second: DeviceNumber) {
        self.screen.step("What the audit log says of all that (one JSON object for each event; shortened here)");
        let mut lines = Vec::new();
        for expected in evidence::expected(first, second) {
            let found = evidence::find(&mut lines, &expected, || self.machine.audit()?.news());
            match &found {
                Ok(line) => {
                    let words = format!("{:<38} {}", expected.words, evidence::shorten(line));
                    self.screen.check(&words, &Seen::AsExpected);
                }
                Err(_) => self.screen.check(expected.words, &Seen::came(&found)),
            }
        }
    }

    /// Plugs the device and measures until it opens.
    fn measure(&mut self) -> Result<Plugged> {
        let ear = Ear::new(self.machine.udev().network(), Group::Udev)?;
        let mounts = Mounts::of(self.reader.pid()?)?;
        let (taps, inside) = (self.machine.taps(), &mut self.inside);
        let plug =
            || taps.plug(SENSOR).context("the kernel needs the modules macvtap and veth: `modprobe -a macvtap veth`");
        let opened = || {
            mounts.wait("the new node opens", || {
                let held = inside.hold(PATH, Access::READ_WRITE).ok()?;
                Some((Instant::now(), held))
            })
        };
        let (number, (opened, held)) = meanwhile(plug, opened)?;
        inside.close(held);
        let heard = ear.wait("add", "macvtap")?;
        Ok(Plugged { number, microseconds: opened.saturating_duration_since(heard.at).as_micros() })
    }

    fn container(&self, who: &str) -> &Container<'a> {
        if who == self.reader.id() { &self.reader } else { &self.other }
    }

    /// Opens a path by a shell in the container.
    fn try_open(&self, who: &str, path: &str, expected: &str) -> Result<Seen> {
        self.run(who, &format!(": < {path}"), expected)
    }

    /// Runs a line in the container. What is expected is part of what it says, or nothing if it is to succeed.
    fn run(&self, who: &str, line: &str, expected: &str) -> Result<Seen> {
        let output = self.container(who).exec(["sh", "-c", line])?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let as_expected = if expected.is_empty() {
            output.status.success()
        } else {
            !output.status.success() && said.contains(expected)
        };
        Ok(if as_expected {
            Seen::AsExpected
        } else if output.status.success() {
            Seen::Otherwise("it succeeded".to_owned())
        } else {
            Seen::Otherwise(said)
        })
    }

    fn opens(&mut self, who: &str, path: &str) -> Result<()> {
        let seen = self.try_open(who, path, "")?;
        self.screen.check(&format!("{who} opens {path}"), &seen);
        Ok(())
    }

    fn absent(&mut self, who: &str, path: &str) -> Result<()> {
        let seen = self.try_open(who, path, ABSENT)?;
        self.screen.check(&format!("{who} has no {path}: {ABSENT}"), &seen);
        Ok(())
    }

    /// The container makes a node of its own, as it may, and opens it, as it may not.
    fn refused(&mut self, who: &str, number: DeviceNumber) -> Result<()> {
        let (major, minor) = (number.major(), number.minor());
        let line = format!("rm -f /tmp/node; mknod /tmp/node c {major} {minor} && : < /tmp/node");
        let seen = self.run(who, &line, REFUSED)?;
        self.screen.check(&format!("{who} cannot open {number} by a node of its own: {REFUSED}"), &seen);
        Ok(())
    }

    fn is_the_sensor(&mut self) {
        let which = self.inside.which(PATH);
        self.screen.check(
            "asked for its name, the device says that it is the one that was plugged",
            &Seen::expect(&which, &Answer::of_device(SENSOR)),
        );
    }
}

fn is(line: &Value, number: DeviceNumber, path: &str) -> bool {
    line["number"] == number.to_string() && line["path"] == path
}

fn figures(plugged: &Plugged, agent: &RunningAgent) -> Result<()> {
    Screen::part("Figures");
    Screen::say(&format!(
        "{} microseconds from udev's event to a node that opens in the container",
        plugged.microseconds
    ));
    Screen::say(&format!("{} KiB is the agent's resident memory", resident(agent.pid())?));
    Ok(())
}

/// KiB of memory of a process.
fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("the agent has ended")?;
    Ok(value.trim().trim_end_matches(" kB").parse()?)
}
