//! The tree of a document.

/// A value with the place where it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// The line, from 1. For a value in a map it is that of the key.
    pub(super) line: usize,
    /// The path from the document's root: `spec.match[0].subsystem`. Empty for the root.
    pub(super) field: String,
    pub(super) value: Value,
}

#[derive(Clone, Debug)]
pub(super) enum Value {
    Scalar {
        text: String,
        /// Written without quotes, so that it may be a number, a truth value or nothing.
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
    /// Stands for a value that was found at fault or missing: any type can be read from it.
    Any,
}

impl Node {
    /// What is written there, if it is a word.
    pub(super) fn text(&self) -> &str {
        match &self.value {
            Value::Scalar { text, .. } => text,
            Value::List(_) | Value::Map(_) | Value::Any => "",
        }
    }

    /// The value of a key.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|(name, _)| name == key).map(|(_, node)| node),
            _ => None,
        }
    }

    /// The node of a field.
    pub(super) fn find_mut(&mut self, field: &str) -> Option<&mut Self> {
        if self.field == field {
            return Some(self);
        }
        self.children_mut().into_iter().find_map(|child| child.find_mut(field))
    }

    /// Takes out the entry of a map.
    pub(super) fn remove(&mut self, field: &str) -> bool {
        if let Value::Map(entries) = &mut self.value
            && let Some(index) = entries.iter().position(|(_, node)| node.field == field)
        {
            entries.remove(index);
            return true;
        }
        self.children_mut().into_iter().any(|child| child.remove(field))
    }

    /// The line of a field, or of the nearest thing around it that is there.
    pub(super) fn line_of(&self, field: &str) -> usize {
        let mut best = self;
        let mut pending = vec![self];
        while let Some(node) = pending.pop() {
            if is_within(field, &node.field) && node.field.len() >= best.field.len() {
                best = node;
            }
            pending.extend(node.children());
        }
        best.line
    }

    /// Gives the node and all below it the fields that they have at another place.
    pub(super) fn moved_to(mut self, field: &str) -> Self {
        self.value = match self.value {
            Value::List(items) => {
                let moved = |(index, item): (usize, Self)| item.moved_to(&format!("{field}[{index}]"));
                Value::List(items.into_iter().enumerate().map(moved).collect())
            }
            Value::Map(entries) => {
                let moved = |(key, node): (String, Self)| {
                    let node = node.moved_to(&below(field, &key));
                    (key, node)
                };
                Value::Map(entries.into_iter().map(moved).collect())
            }
            scalar => scalar,
        };
        field.clone_into(&mut self.field);
        self
    }

    /// How many values it is made of.
    pub(super) fn size(&self) -> usize {
        1 + self.children().into_iter().map(Self::size).sum::<usize>()
    }

    fn children(&self) -> Vec<&Self> {
        match &self.value {
            Value::List(items) => items.iter().collect(),
            Value::Map(entries) => entries.iter().map(|(_, node)| node).collect(),
            Value::Scalar { .. } | Value::Any => Vec::new(),
        }
    }

    fn children_mut(&mut self) -> Vec<&mut Self> {
        match &mut self.value {
            Value::List(items) => items.iter_mut().collect(),
            Value::Map(entries) => entries.iter_mut().map(|(_, node)| node).collect(),
            Value::Scalar { .. } | Value::Any => Vec::new(),
        }
    }
}

/// The field of a key in the map `field`.
pub(super) fn below(field: &str, key: &str) -> String {
    if field.is_empty() { key.to_owned() } else { format!("{field}.{key}") }
}

/// Whether a field is `outer` or below it.
pub(super) fn is_within(field: &str, outer: &str) -> bool {
    outer.is_empty() || field.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}
