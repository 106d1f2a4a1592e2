//! From the bytes of a file to the trees of its documents.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Tag};

use super::Fault;
use super::node::{Node, Value, below};

/// Nothing that people write is as deep. What reads the tree calls itself for each level.
const MAX_DEPTH: usize = 32;
/// An alias costs a few characters and stands for as many values as it likes.
const MAX_NODES: usize = 50_000;

/// One document of a file.
#[derive(Clone, Debug)]
pub(crate) struct Document {
    /// The line where it begins, from 1.
    pub(crate) line: usize,
    /// `None` if it is empty or cannot be read at all.
    pub(super) root: Option<Node>,
    /// What was wrong with it as YAML.
    pub(crate) faults: Vec<Fault>,
}

impl Document {
    /// Whether there is nothing in it, which is no fault.
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none() && self.faults.is_empty()
    }

    /// The word at a path of keys.
    pub(crate) fn word(&self, path: &[&str]) -> Option<&str> {
        let node = path.iter().try_fold(self.root.as_ref()?, |node, key| node.get(key))?;
        match &node.value {
            Value::Scalar { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The line of a field, or of the nearest thing around it that is there.
    pub(crate) fn line_of(&self, field: &str) -> usize {
        self.root.as_ref().map_or(self.line, |root| root.line_of(field))
    }
}

/// The documents of a file. One that cannot be read does not disturb the others.
pub(crate) fn documents(bytes: &[u8]) -> Vec<Document> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    chunks(bytes).into_iter().flat_map(|(line, chunk)| parse(line, chunk)).collect()
}

/// Cuts a file where a line begins with `---`: inside of a document no line may (YAML 1.2.2, section 9.1.2). With each
/// part comes the line where it begins.
fn chunks(bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut chunks = Vec::new();
    let (mut begin, mut begin_line) = (0, 1);
    let mut at = 0;
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let marker = line.strip_prefix(b"---").is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace));
        if marker && at > begin {
            chunks.push((begin_line, &bytes[begin..at]));
            (begin, begin_line) = (at, index + 1);
        }
        at += line.len();
    }
    chunks.push((begin_line, &bytes[begin..]));
    // What stands before the first document may be comments and directives alone, which are no document.
    chunks.retain(|(_, chunk)| {
        let mut lines = chunk.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        !lines.all(|line| line.is_empty() || line.starts_with(b"#") || line.starts_with(b"%"))
    });
    chunks
}

fn parse(first_line: usize, chunk: &[u8]) -> Vec<Document> {
    let text = match str::from_utf8(chunk) {
        Ok(text) => text,
        Err(error) => {
            let before = &chunk[..error.valid_up_to()];
            let line = first_line + before.split(|byte| *byte == b'\n').count() - 1;
            let fault = fault(line, "a character is not UTF-8", "save the file as UTF-8");
            return vec![Document { line: first_line, root: None, faults: vec![fault] }];
        }
    };
    let mut documents = Vec::new();
    let mut builder = Builder::new(first_line);
    let mut parser = Parser::new_from_str(text);
    while let Some(event) = parser.next_event() {
        match event {
            Ok((event, span)) => {
                let line = first_line + span.start.line().saturating_sub(1);
                if let Event::DocumentEnd = event {
                    documents.push(std::mem::replace(&mut builder, Builder::new(line)).finish());
                } else {
                    builder.take(event, line);
                }
            }
            Err(error) => {
                let line = first_line + error.marker().line().saturating_sub(1);
                let fault = fault(line, error.info(), "look at the indentation, quotes and brackets here and above");
                builder.root = None;
                builder.faults.push(fault);
                documents.push(builder.finish());
                break;
            }
        }
    }
    documents
}

fn fault(line: usize, reason: impl Into<String>, remedy: &str) -> Fault {
    Fault { line, field: String::new(), value: String::new(), reason: reason.into(), remedy: remedy.to_owned() }
}

/// Builds the tree of one document from events.
struct Builder {
    line: usize,
    open: Vec<Open>,
    root: Option<Node>,
    faults: Vec<Fault>,
    /// What aliases stand for.
    anchors: HashMap<usize, Node>,
    nodes: usize,
    /// The tree is of no use; the rest of the document is passed over.
    broken: bool,
}

/// A list or map that has not ended.
struct Open {
    node: Node,
    anchor: usize,
    /// In a map: the key whose value comes next, and its line.
    key: Option<(String, usize)>,
}

impl Builder {
    fn new(line: usize) -> Self {
        Self {
            line,
            open: Vec::new(),
            root: None,
            faults: Vec::new(),
            anchors: HashMap::new(),
            nodes: 0,
            broken: false,
        }
    }

    fn finish(self) -> Document {
        // A document that says nothing is an empty one.
        let root = self.root.filter(|root| {
            !matches!(&root.value, Value::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null"))
        });
        Document { line: self.line, root: root.filter(|_| !self.broken), faults: self.faults }
    }

    fn take(&mut self, event: Event<'_>, line: usize) {
        if self.broken {
            return;
        }
        match event {
            Event::DocumentStart(_) => self.line = line,
            Event::Scalar(text, style, anchor, tag) => {
                self.check_tag(tag.as_deref(), line);
                if self.key_expected() {
                    self.key(text.into_owned(), line);
                    return;
                }
                let plain = style == ScalarStyle::Plain && tag.is_none();
                let node = self.node(Value::Scalar { text: text.into_owned(), plain }, line);
                self.close(node, anchor);
            }
            Event::SequenceStart(anchor, tag) => self.begin(Value::List(Vec::new()), anchor, tag.as_deref(), line),
            Event::MappingStart(anchor, tag) => self.begin(Value::Map(Vec::new()), anchor, tag.as_deref(), line),
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(Open { node, anchor, .. }) = self.open.pop() {
                    self.close(node, anchor);
                }
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) => self.alias(node, line),
                None => self.give_up(line, "an alias stands for something that it is part of", "write it out"),
            },
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
    }

    fn alias(&mut self, node: Node, line: usize) {
        if self.key_expected() {
            return self.give_up(line, "an alias is used as a key", "write the key out");
        }
        self.nodes += node.size();
        if self.nodes > MAX_NODES {
            return self.give_up(line, "aliases stand for too much", "write less, or write it out");
        }
        let Node { field, line, .. } = self.node(Value::Any, line);
        let mut node = node.moved_to(&field);
        node.line = line;
        self.close(node, 0);
    }

    fn begin(&mut self, value: Value, anchor: usize, tag: Option<&Tag>, line: usize) {
        self.check_tag(tag, line);
        if self.key_expected() {
            return self.give_up(line, "a key is a list or a map", "write a word as key");
        }
        if self.open.len() == MAX_DEPTH {
            return self.give_up(line, "this is nested too deeply", "take out levels");
        }
        let node = self.node(value, line);
        self.open.push(Open { node, anchor, key: None });
    }

    /// A node at the place that comes next.
    fn node(&mut self, value: Value, line: usize) -> Node {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            self.give_up(line, "the document is too large", "make several of it");
        }
        let (field, line) = match self.open.last() {
            None => (String::new(), line),
            Some(Open { node, key: Some((key, line)), .. }) => (below(&node.field, key), *line),
            Some(Open { node, key: None, .. }) => {
                let count = if let Value::List(items) = &node.value { items.len() } else { 0 };
                (format!("{}[{count}]", node.field), line)
            }
        };
        Node { line, field, value }
    }

    /// Puts a node that is complete where it belongs.
    fn close(&mut self, node: Node, anchor: usize) {
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        let Some(Open { node: parent, key, .. }) = self.open.last_mut() else {
            self.root = Some(node);
            return;
        };
        match &mut parent.value {
            Value::List(items) => items.push(node),
            Value::Map(entries) => {
                let Some((key, line)) = key.take() else { return };
                if entries.iter().any(|(known, _)| *known == key) {
                    let mut fault = fault(line, "the key is there twice", "take one of them out");
                    fault.field = node.field;
                    self.faults.push(fault);
                } else {
                    entries.push((key, node));
                }
            }
            Value::Scalar { .. } | Value::Any => {}
        }
    }

    fn key_expected(&self) -> bool {
        matches!(self.open.last(), Some(Open { node: Node { value: Value::Map(_), .. }, key: None, .. }))
    }

    fn key(&mut self, key: String, line: usize) {
        if let Some(open) = self.open.last_mut() {
            open.key = Some((key, line));
        }
    }

    fn check_tag(&mut self, tag: Option<&Tag>, line: usize) {
        if let Some(tag) = tag
            && !(tag.is_yaml_core_schema() && matches!(tag.suffix.as_str(), "str" | "map" | "seq"))
        {
            self.faults.push(fault(line, format!("the tag {tag} is not known"), "leave the tag out"));
        }
    }

    fn give_up(&mut self, line: usize, reason: &str, remedy: &str) {
        self.faults.push(fault(line, reason, remedy));
        self.broken = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reasons(text: &str) -> Vec<(usize, String)> {
        documents(text.as_bytes())
            .into_iter()
            .flat_map(|document| document.faults)
            .map(|fault| (fault.line, fault.reason))
            .collect()
    }

    #[test]
    fn a_bad_document_leaves_the_others_alone() {
        let documents =
            documents(b"# head\n%YAML 1.2\n---\na: 1\n---\nb: [\n---\nc: 3\n--- # empty\n---\nd: \xff\n--- {e: 5}\n");
        let words: Vec<_> = documents
            .iter()
            .map(|document| ["a", "c", "e"].iter().find_map(|key| document.word(&[key])).unwrap_or("-"))
            .collect();
        assert_eq!(words, ["1", "-", "3", "-", "-", "5"]);
        let empty: Vec<_> = documents.iter().map(Document::is_empty).collect();
        assert_eq!(empty, [false, false, false, true, false, false]);
        assert_eq!(documents.iter().map(|document| document.line).collect::<Vec<_>>(), [3, 5, 7, 9, 10, 12]);
        assert_eq!(documents[4].faults[0].line, 11);
    }

    #[test]
    fn every_value_knows_its_line() {
        let text = "spec:\n  match:\n  - a: 1\n  - b: 2\n    c:\n      d: 3\n";
        let document = &documents(text.as_bytes())[0];
        for (field, line) in
            [("spec", 1), ("spec.match[1].b", 4), ("spec.match[1].c.d", 6), ("spec.match[1].x", 4), ("other", 1)]
        {
            assert_eq!(document.line_of(field), line, "{field}");
        }
    }

    #[test]
    fn what_yaml_allows_and_nobody_needs_is_refused() {
        assert_eq!(reasons("a: 1\nb: 2\na: 3\n"), [(3, "the key is there twice".to_owned())]);
        assert_eq!(reasons("? [a]\n: 1\n"), [(1, "a key is a list or a map".to_owned())]);
        assert_eq!(reasons("a: !x 1\n"), [(1, "the tag !x is not known".to_owned())]);
        assert_eq!(reasons(&"[".repeat(100_000)).len(), 1);
        assert_eq!(reasons("a: !!str 1\n"), []);
    }

    #[test]
    fn an_alias_stands_for_its_anchor_but_not_for_more_than_memory_holds() {
        let documents = documents(b"a: &x {b: 1}\nc: *x\n");
        assert_eq!(documents[0].word(&["c", "b"]), Some("1"));
        assert_eq!(documents[0].line_of("c.b"), 1);
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let alias = format!("*a{}, ", level - 1).repeat(10);
            bomb.extend([format!("a{level}: &a{level} [{alias}]\n")]);
        }
        assert_eq!(reasons(&bomb).len(), 1);
    }
}
