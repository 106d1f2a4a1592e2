//! One file of classes.

use std::io;
use std::sync::Arc;

use devgate_core::{CompiledClass, DeviceClass, compile};

use crate::yaml::{self, Document, Fault};

/// What a file says.
#[derive(Clone, Debug, Default)]
pub struct ClassFile {
    /// Its documents, without the empty ones.
    pub documents: Vec<ClassDocument>,
}

/// One document of a file.
#[derive(Clone, Debug)]
pub struct ClassDocument {
    /// The class's name, as far as it can be told.
    pub name: Option<String>,
    /// The line where it begins, from 1.
    pub line: usize,
    /// The class, or everything that is wrong with it.
    pub class: Result<Arc<CompiledClass>, Vec<Fault>>,
}

impl ClassFile {
    /// Reads the documents of a file. A bad one does not disturb the others.
    pub fn read(bytes: &[u8]) -> Self {
        let documents = yaml::documents(bytes);
        Self { documents: documents.iter().filter(|document| !document.is_empty()).map(ClassDocument::read).collect() }
    }

    /// A file that is there but cannot be read.
    pub fn unreadable(error: &io::Error) -> Self {
        let fault = Fault {
            line: 1,
            field: String::new(),
            value: String::new(),
            reason: format!("the file cannot be read: {error}"),
            remedy: "make it a file that can be, or take it out".to_owned(),
        };
        Self { documents: vec![ClassDocument { name: None, line: 1, class: Err(vec![fault]) }] }
    }
}

impl ClassDocument {
    fn read(document: &Document) -> Self {
        let name = document.word(&["metadata", "name"]).map(str::to_owned);
        Self { name, line: document.line, class: class(document) }
    }
}

fn class(document: &Document) -> Result<Arc<CompiledClass>, Vec<Fault>> {
    // A document of another kind has other fields; that it does not belong here is all there is to say.
    if let Some(kind) = document.word(&["kind"])
        && kind != DeviceClass::KIND
    {
        return Err(vec![Fault {
            line: document.line_of("kind"),
            field: "kind".to_owned(),
            value: kind.to_owned(),
            reason: "documents of this kind do not belong here".to_owned(),
            remedy: format!("write kind: {}, or keep the document elsewhere", DeviceClass::KIND),
        }]);
    }
    let (read, mut faults) = document.read::<DeviceClass>();
    let Some(read) = read else { return Err(faults) };
    let compiled = match compile(&read) {
        Ok(compiled) if faults.is_empty() => return Ok(Arc::new(compiled)),
        Ok(_) => Vec::new(),
        Err(problems) => problems,
    };
    for problem in compiled {
        // What stands in for a fault is not what the user wrote.
        let known = faults.iter().any(|fault| covers(&fault.field, &problem.field));
        if !known {
            faults.push(Fault {
                line: document.line_of(&problem.field),
                field: problem.field,
                value: problem.value,
                reason: problem.reason,
                remedy: problem.remedy,
            });
        }
    }
    faults.sort();
    Err(faults)
}

/// Whether one field is another or around it.
fn covers(outer: &str, field: &str) -> bool {
    field.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "apiVersion: devgate.dev/v1alpha1
kind: DeviceClass
metadata: { name: scanner }
spec:
  match:
  - subsystem: tty
    properties: { ID_VENDOR_ID: \"0c2e\" }
  allocation: { kind: All }
  path: /dev/scanner
";

    fn faults(text: &str) -> Vec<String> {
        let file = ClassFile::read(text.as_bytes());
        let bad = file.documents.into_iter().filter_map(|document| document.class.err());
        bad.flatten().map(|fault| format!("{}: {fault}", fault.line)).collect()
    }

    #[test]
    fn a_class_is_read() {
        let file = ClassFile::read(GOOD.as_bytes());
        let class = file.documents[0].class.as_ref().expect("it is a class");
        assert_eq!(class.name.as_str(), "scanner");
    }

    #[test]
    fn faults_of_form_and_of_meaning_are_told_together() {
        let text = GOOD
            .replace("0c2e", "[0c2e")
            .replace("  path: /dev/scanner", "  path: /dev/null\n  acces: rw\n  owner: { mode: 0660 }");
        assert_eq!(
            faults(&text),
            [
                "7: spec.match[0].properties.ID_VENDOR_ID: \"[0c2e\": this is no glob: invalid range pattern; use * for any \
                 text, ? for one character, [a-z] for one of several; write [*] for a star",
                "9: spec.path: \"/dev/null\": every container has something else there; choose a name that is not in use, \
                 such as /dev/scanner",
                "10: spec.acces: \"rw\": there is no such field; use match, exclude, access, allocation, path, owner, \
                 enforcement or otherDevices or take it out",
                "11: spec.owner.mode: \"0660\": this is a number; put it in quotes",
            ]
        );
    }

    #[test]
    fn a_missing_field_is_told_with_the_rest() {
        let text = GOOD.replace("  allocation: { kind: All }\n", "").replace("scanner }", "Scanner }");
        assert_eq!(
            faults(&text),
            [
                "3: metadata.name: \"Scanner\": a resource cannot have this name; use 1 to 63 lower case letters, digits and \
                 -, beginning and ending with a letter or digit",
                "4: spec.allocation: the field is missing; add `allocation:`",
            ]
        );
    }

    #[test]
    fn documents_of_other_kinds_are_refused_and_empty_ones_are_not() {
        let text = format!("---\n# nothing\n---\nkind: ConfigMap\ndata: {{a: b}}\n---\n{GOOD}");
        assert_eq!(
            faults(&text),
            [
                "4: kind: \"ConfigMap\": documents of this kind do not belong here; write kind: DeviceClass, or keep the \
              document elsewhere"
            ]
        );
        assert_eq!(ClassFile::read(text.as_bytes()).documents.len(), 2);
        assert!(ClassFile::read(b"").documents.is_empty());
    }

    // A class cut short could be a wider one: without its `exclude`, say. What is asked here is only that reading it ends.
    // Fault: agent/src/yaml/document.rs
    // - const MAX_DEPTH: usize = 32;
    // + const MAX_DEPTH: usize = 1;
    #[test]
    fn b34_no_damage_to_a_file_ends_the_agent() {
        let text = format!("{GOOD}---\n{GOOD}").into_bytes();
        for at in 0..text.len() {
            ClassFile::read(&text[..at]);
            for byte in [0, b'\n', b'"', b'[', b'{', b'-', b':', b'&', b'*', b'|', b'%', b'\t', 0x80, 0xff, 0xc3] {
                let mut garbled = text.clone();
                garbled[at] = byte;
                ClassFile::read(&garbled);
            }
        }
        let whole = ClassFile::read(&text);
        assert!(whole.documents.iter().all(|document| document.class.is_ok()), "and what is whole is read");
    }
}
