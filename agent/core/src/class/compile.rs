use std::collections::BTreeMap;

use devgate_abi::Access;
use glob::Pattern;

use super::matcher::{CompiledSelector, Conditions};
use super::{
    AllocationKind, ClassName, DeviceClass, Enforcement, OtherDevices, Owner, PathTemplate, Problem, Selector,
};

/// A class that was checked and is ready for use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledClass {
    /// Its name.
    pub name: ClassName,
    /// What holders may do with its devices.
    pub access: Access,
    /// How its devices are given to holders.
    pub allocation: AllocationKind,
    /// The stable path of its devices.
    pub path: Option<PathTemplate>,
    /// The permission bits of nodes; as on the host if not given.
    pub mode: Option<u32>,
    /// The user that owns nodes, as the container sees it; as on the host if not given.
    pub uid: Option<u32>,
    /// The group that owns nodes, as the container sees it; as on the host if not given.
    pub gid: Option<u32>,
    /// Whether verdicts are changed.
    pub enforcement: Enforcement,
    /// What holds for devices that no class gives.
    pub other_devices: OtherDevices,
    pub(super) matches: Vec<CompiledSelector>,
    pub(super) exclude: Vec<CompiledSelector>,
}

/// Checks a class. All problems are reported at once.
pub fn compile(class: &DeviceClass) -> Result<CompiledClass, Vec<Problem>> {
    let mut check = Check { problems: Vec::new() };
    let compiled = check.class(class);
    match compiled {
        Some(compiled) if check.problems.is_empty() => Ok(compiled),
        _ => Err(check.problems),
    }
}

struct Check {
    problems: Vec<Problem>,
}

impl Check {
    fn report(&mut self, field: impl Into<String>, value: &str, reason: impl Into<String>, remedy: &str) {
        let value = value.to_owned();
        self.problems.push(Problem { field: field.into(), value, reason: reason.into(), remedy: remedy.to_owned() });
    }

    /// `None` only if a problem was reported.
    fn class(&mut self, class: &DeviceClass) -> Option<CompiledClass> {
        if class.api_version != DeviceClass::API_VERSION {
            let remedy = "write apiVersion: devgate.dev/v1alpha1";
            self.report("apiVersion", &class.api_version, "this version of the format is not known", remedy);
        }
        if class.kind != DeviceClass::KIND {
            self.report("kind", &class.kind, "this kind of document is not known", "write kind: DeviceClass");
        }
        let name = ClassName::new(&class.metadata.name);
        if name.is_none() {
            let remedy = "use 1 to 63 lower case letters, digits and -, beginning and ending with a letter or digit";
            self.report("metadata.name", &class.metadata.name, "a resource cannot have this name", remedy);
        }
        let spec = &class.spec;
        if spec.matches.is_empty() {
            let remedy = "add an item such as `- subsystem: tty`";
            self.report("spec.match", "", "no device can be of the class", remedy);
        }
        let matches = self.selectors("spec.match", &spec.matches);
        let exclude = self.selectors("spec.exclude", &spec.exclude);
        let access = self.access(&spec.access);
        let path = spec.path.as_ref().and_then(|path| self.path(path));
        let Owner { mode, uid, gid } = spec.owner.clone().unwrap_or_default();
        let mode = mode.and_then(|mode| self.mode(&mode));
        let uid = self.owner_id("spec.owner.uid", uid);
        let gid = self.owner_id("spec.owner.gid", gid);
        // Everything has been looked at; only now may a missing part end it.
        Some(CompiledClass {
            name: name?,
            access: access?,
            allocation: spec.allocation.kind,
            path,
            mode,
            uid,
            gid,
            enforcement: spec.enforcement,
            other_devices: spec.other_devices,
            matches,
            exclude,
        })
    }

    fn access(&mut self, text: &str) -> Option<Access> {
        match text.parse::<Access>() {
            Ok(access) if !access.is_empty() => return Some(access),
            Ok(_) => self.report("spec.access", text, "nothing would be granted", "write r, w or rw"),
            Err(error) => self.report("spec.access", text, error.to_string(), "write r, w or rw"),
        }
        None
    }

    fn path(&mut self, text: &str) -> Option<PathTemplate> {
        PathTemplate::new(text)
            .map_err(|problem| self.report("spec.path", text, problem.to_string(), problem.remedy()))
            .ok()
    }

    fn mode(&mut self, text: &str) -> Option<u32> {
        // from_str_radix would take a sign too.
        let octal = (3..=4).contains(&text.len()) && text.bytes().all(|byte| matches!(byte, b'0'..=b'7'));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| octal && *mode <= 0o777);
        if mode.is_none() {
            let reason = "these are no permission bits in octal";
            self.report("spec.owner.mode", text, reason, "write a string such as \"0660\", at most \"0777\"");
        }
        mode
    }

    fn owner_id(&mut self, field: &str, id: Option<u32>) -> Option<u32> {
        // chown(2) takes the last id for "leave as it is".
        if id == Some(u32::MAX) {
            self.report(field, &u32::MAX.to_string(), "Linux has no such id", "write a smaller number");
        }
        id
    }

    fn selectors(&mut self, field: &str, selectors: &[Selector]) -> Vec<CompiledSelector> {
        let numbered = selectors.iter().enumerate();
        numbered.map(|(index, selector)| self.selector(format!("{field}[{index}]"), selector)).collect()
    }

    fn selector(&mut self, field: String, selector: &Selector) -> CompiledSelector {
        let Selector { subsystem, properties, attributes, parent, device_path } = selector;
        if *selector == Selector::default() {
            let remedy = "add a condition, such as subsystem or properties";
            self.report(field.as_str(), "", "an item without conditions fits every device", remedy);
        }
        let own = self.conditions(&field, subsystem.as_ref(), properties, attributes);
        let parent = parent.as_ref().map(|parent| {
            let field = format!("{field}.parent");
            if parent.subsystem.is_none() && parent.properties.is_empty() && parent.attributes.is_empty() {
                let remedy = "add a condition, such as subsystem, or leave parent out";
                self.report(field.as_str(), "", "a parent without conditions fits almost every device", remedy);
            }
            self.conditions(&field, parent.subsystem.as_ref(), &parent.properties, &parent.attributes)
        });
        let device_path = device_path.as_ref().and_then(|path| {
            let field = format!("{field}.devicePath");
            if !path.starts_with("/dev/") || path.split('/').any(|part| part == "..") {
                let remedy = "write a path such as /dev/nvidia[0-9]*";
                self.report(field.as_str(), path, "nodes of devices are below /dev", remedy);
            }
            self.glob(field, path)
        });
        CompiledSelector { field, own, parent, device_path }
    }

    fn conditions(
        &mut self,
        field: &str,
        subsystem: Option<&String>,
        properties: &BTreeMap<String, String>,
        attributes: &BTreeMap<String, String>,
    ) -> Conditions {
        if let Some(subsystem) = subsystem {
            let fit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
            if subsystem.is_empty() || !subsystem.bytes().all(fit) {
                let remedy = "write the name of one subsystem, such as tty; it is no glob";
                self.report(format!("{field}.subsystem"), subsystem, "no subsystem has such a name", remedy);
            }
        }
        for name in attributes.keys() {
            // The name is joined to a path in sysfs and read by a process with many rights.
            if name.starts_with('/') || name.split('/').any(|part| matches!(part, "" | "." | "..")) {
                let remedy = "write a path below the device's folder, such as device/interface";
                self.report(format!("{field}.attributes.{name}"), name, "this is no attribute of the device", remedy);
            }
        }
        let mut globs = |group: &str, wanted: &BTreeMap<String, String>| -> Vec<(String, Pattern)> {
            let mut glob = |(name, glob): (&String, &String)| {
                self.glob(format!("{field}.{group}.{name}"), glob).map(|pattern| (name.clone(), pattern))
            };
            wanted.iter().filter_map(&mut glob).collect()
        };
        Conditions {
            subsystem: subsystem.cloned(),
            properties: globs("properties", properties),
            attributes: globs("attributes", attributes),
        }
    }

    fn glob(&mut self, field: String, text: &str) -> Option<Pattern> {
        Pattern::new(text)
            .map_err(|error| {
                let remedy = "use * for any text, ? for one character, [a-z] for one of several; write [*] for a star";
                self.report(field, text, format!("this is no glob: {}", error.msg), remedy);
            })
            .ok()
    }
}
