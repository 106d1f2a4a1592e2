//! Reads types from the tree of a document, noting everything that does not fit.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, EnumAccess, MapAccess, SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::de::{Error as _, Expected};
use serde::forward_to_deserialize_any;

use super::Fault;
use super::document::Document;
use super::node::{Node, Value, below, is_within};
use super::scalar::Scalar;

/// Whoever has more to put right than this sees the rest the next time.
const MAX_FAULTS: usize = 50;

impl Document {
    /// Reads a value, and everything that is wrong with it.
    ///
    /// The value is there in spite of faults where something can be put in their place, so that it can be looked at for
    /// what else is wrong. It is not to be used unless there are no faults.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> (Option<T>, Vec<Fault>) {
        let mut faults = self.faults.clone();
        let Some(mut root) = self.root.clone() else { return (None, faults) };
        while faults.len() < MAX_FAULTS {
            let problem = match T::deserialize(&root) {
                Ok(value) => return (Some(value), faults),
                Err(problem) => problem,
            };
            let Found { kind, field, line, value, reason, remedy } = *problem.0;
            let field = field.unwrap_or_default();
            let fixed = match kind {
                Kind::Unknown => root.remove(&field),
                Kind::Missing(key) => root.find_mut(&field).is_some_and(|node| fill(node, key)),
                Kind::Unfit => root.find_mut(&field).is_some_and(wildcard),
            };
            let field = if let Kind::Missing(key) = kind { below(&field, key) } else { field };
            // What stands in for a fault may have faults of its own, which say nothing.
            if !faults.iter().any(|known| !known.field.is_empty() && is_within(&field, &known.field)) {
                faults.push(Fault { line, field, value, reason, remedy });
            }
            // Of a document that is something else as a whole there is no more to say.
            if !fixed || faults.last().is_some_and(|fault| fault.field.is_empty()) {
                break;
            }
        }
        (None, faults)
    }
}

/// Puts a stand-in where a map lacks a key.
fn fill(map: &mut Node, key: &str) -> bool {
    let (line, field) = (map.line, below(&map.field, key));
    match &mut map.value {
        Value::Map(entries) => {
            entries.push((key.to_owned(), Node { line, field, value: Value::Any }));
            true
        }
        // A stand-in has no keys; nothing below it matters.
        Value::Any => {
            map.value = Value::Map(vec![(key.to_owned(), Node { line, field, value: Value::Any })]);
            true
        }
        Value::Scalar { .. } | Value::List(_) => false,
    }
}

/// Replaces a value by a stand-in; `false` if it is one already.
fn wildcard(node: &mut Node) -> bool {
    !matches!(std::mem::replace(&mut node.value, Value::Any), Value::Any)
}

/// The first thing that does not fit. It is handed up through many results, so it is one pointer.
#[derive(Debug)]
pub(super) struct Problem(Box<Found>);

#[derive(Debug)]
struct Found {
    kind: Kind,
    /// `None` until the value is known that it was found in.
    field: Option<String>,
    line: usize,
    value: String,
    reason: String,
    remedy: String,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// The value is not of the type.
    Unfit,
    /// The map has a key that nobody knows.
    Unknown,
    /// The map lacks a key.
    Missing(&'static str),
}

impl Problem {
    fn new(kind: Kind, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (reason, remedy) = (reason.into(), remedy.into());
        Self(Box::new(Found { kind, field: None, line: 0, value: String::new(), reason, remedy }))
    }

    /// The problem as found in a node, unless it was found further in.
    fn within(mut self, node: &Node) -> Self {
        let found = &mut *self.0;
        if found.field.is_none() {
            found.field = Some(node.field.clone());
            found.line = node.line;
            if !matches!(found.kind, Kind::Missing(_)) {
                node.text().clone_into(&mut found.value);
            }
        }
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.0.reason, self.0.remedy)
    }
}

impl std::error::Error for Problem {}

impl serde::de::Error for Problem {
    /// Types that check their values say what to write behind a semicolon.
    fn custom<T: fmt::Display>(message: T) -> Self {
        let message = message.to_string();
        let (reason, remedy) = message.split_once("; ").unwrap_or((&message, "write another value"));
        Self::new(Kind::Unfit, reason, remedy)
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let wanted = expected.to_string();
        let found = match unexpected {
            Unexpected::Bool(_) => "a truth value",
            Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_) => "a number",
            Unexpected::Str(_) => "text",
            Unexpected::Unit => "nothing",
            Unexpected::Seq => "a list",
            Unexpected::Map => "a map",
            _ => "something else",
        };
        let remedy = match unexpected {
            Unexpected::Bool(_) | Unexpected::Unsigned(_) | Unexpected::Signed(_) | Unexpected::Float(_)
                if wanted == "a string" =>
            {
                "put it in quotes".to_owned()
            }
            _ => format!("write {}", in_words(&wanted)),
        };
        Self::new(Kind::Unfit, format!("this is {found}"), remedy)
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(Kind::Unfit, "the value does not fit", format!("write {}", in_words(&expected.to_string())))
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::new(Kind::Unfit, "the number of items does not fit", format!("write {expected}"))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Kind::Unfit, "this is not known here", format!("write {}", any_of(expected)))
    }

    fn unknown_field(_: &str, expected: &'static [&'static str]) -> Self {
        Self::new(Kind::Unknown, "there is no such field", format!("use {} or take it out", any_of(expected)))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(Kind::Missing(field), "the field is missing", format!("add `{field}:`"))
    }

    fn duplicate_field(field: &'static str) -> Self {
        Self::new(Kind::Unfit, format!("{field} is there twice"), "take one of them out")
    }
}

/// What serde calls types, for people.
fn in_words(expected: &str) -> String {
    match expected {
        "a string" => "text".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a sequence" => "a list".to_owned(),
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number that is not negative and not too large".to_owned(),
        "i8" | "i16" | "i32" | "i64" => "a whole number that is not too large".to_owned(),
        other if other.starts_with("struct ") || other == "a map" => "a map with keys and values".to_owned(),
        other if other.ends_with("Visitor") || other.starts_with("enum ") => "one word".to_owned(),
        other => other.to_owned(),
    }
}

fn any_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}

impl Node {
    fn scalar(&self) -> Option<Scalar<'_>> {
        match &self.value {
            Value::Scalar { text, plain: true } => Some(Scalar::of_plain(text)),
            Value::Scalar { text, plain: false } => Some(Scalar::Text(text)),
            Value::List(_) | Value::Map(_) | Value::Any => None,
        }
    }
}

/// Numbers and the like: a stand-in is read as `$nothing`.
macro_rules! deserialize_plain {
    ($($method:ident $visit:ident $nothing:expr;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
            match self.value {
                Value::Any => visitor.$visit($nothing).map_err(|problem: Problem| problem.within(self)),
                _ => self.deserialize_any(visitor),
            }
        })*
    };
}

impl<'de> serde::Deserializer<'de> for &'de Node {
    type Error = Problem;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        let read = match (&self.value, self.scalar()) {
            (_, Some(scalar)) => match scalar {
                Scalar::Nothing => visitor.visit_unit(),
                Scalar::Truth(truth) => visitor.visit_bool(truth),
                Scalar::Unsigned(number) => visitor.visit_u64(number),
                Scalar::Signed(number) => visitor.visit_i64(number),
                Scalar::Float(number) => visitor.visit_f64(number),
                Scalar::Text(text) => visitor.visit_borrowed_str(text),
            },
            (Value::List(items), None) => visitor.visit_seq(Items(items.iter())),
            (Value::Map(entries), None) => visitor.visit_map(Entries { rest: entries.iter(), value: None }),
            (Value::Any | Value::Scalar { .. }, None) => visitor.visit_unit(),
        };
        read.map_err(|problem| problem.within(self))
    }

    deserialize_plain! {
        deserialize_bool visit_bool false;
        deserialize_i8 visit_i8 0;
        deserialize_i16 visit_i16 0;
        deserialize_i32 visit_i32 0;
        deserialize_i64 visit_i64 0;
        deserialize_u8 visit_u8 0;
        deserialize_u16 visit_u16 0;
        deserialize_u32 visit_u32 0;
        deserialize_u64 visit_u64 0;
        deserialize_f32 visit_f32 0.0;
        deserialize_f64 visit_f64 0.0;
        deserialize_str visit_borrowed_str "";
        deserialize_string visit_borrowed_str "";
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match (&self.value, self.scalar()) {
            (Value::Any, _) | (_, Some(Scalar::Nothing)) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Problem> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match self.value {
            Value::Any => visitor.visit_seq(Items([].iter())),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Problem> {
        match (&self.value, self.scalar()) {
            // `key:` with nothing behind it is an empty map, as people write a section of which all is commented out.
            (Value::Any, _) | (_, Some(Scalar::Nothing)) => {
                let read = visitor.visit_map(Entries { rest: [].iter(), value: None });
                read.map_err(|problem: Problem| problem.within(self))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        // serde would take a list for the fields in their order.
        match &self.value {
            Value::List(_) => Err(Problem::invalid_type(Unexpected::Seq, &"a map").within(self)),
            _ => self.deserialize_map(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Problem> {
        let word = match (&self.value, self.scalar()) {
            (Value::Any, _) => variants.first().copied().unwrap_or_default(),
            (Value::Scalar { text, .. }, Some(scalar)) if scalar != Scalar::Nothing => text,
            _ => {
                let problem = Problem::new(Kind::Unfit, "this is no word", format!("write {}", any_of(variants)));
                return Err(problem.within(self));
            }
        };
        visitor.visit_enum(Word(word)).map_err(|problem: Problem| problem.within(self))
    }

    forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

struct Items<'de>(std::slice::Iter<'de, Node>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Problem;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Problem> {
        self.0.next().map(|node| seed.deserialize(node)).transpose()
    }
}

struct Entries<'de> {
    rest: std::slice::Iter<'de, (String, Node)>,
    value: Option<&'de Node>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Problem;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Problem> {
        let Some((key, node)) = self.rest.next() else { return Ok(None) };
        self.value = Some(node);
        let key = seed.deserialize(StrDeserializer::new(key)).map_err(|problem: Problem| problem.within(node))?;
        Ok(Some(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Problem> {
        let node = self.value.take().ok_or_else(|| Problem::custom("a value was asked for before its key"))?;
        // A type that checks itself fails outside of the node that it was read from.
        seed.deserialize(node).map_err(|problem| problem.within(node))
    }
}

/// A variant without content.
struct Word<'de>(&'de str);

impl<'de> EnumAccess<'de> for Word<'de> {
    type Error = Problem;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), Problem> {
        Ok((seed.deserialize(StrDeserializer::new(self.0))?, self))
    }
}

impl<'de> VariantAccess<'de> for Word<'de> {
    type Error = Problem;

    fn unit_variant(self) -> Result<(), Problem> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, _: T) -> Result<T::Value, Problem> {
        Err(Problem::custom("this word alone does not say enough"))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, _: V) -> Result<V::Value, Problem> {
        Err(Problem::custom("this word alone does not say enough"))
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], _: V) -> Result<V::Value, Problem> {
        Err(Problem::custom("this word alone does not say enough"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::super::documents;

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    struct Thing {
        name: String,
        size_bytes: u32,
        #[serde(default)]
        colour: Option<Colour>,
        #[serde(default)]
        parts: Vec<Part>,
        #[serde(default)]
        labels: BTreeMap<String, String>,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    enum Colour {
        Red,
        Green,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Part {
        fit: bool,
    }

    fn read(text: &str) -> (Option<Thing>, Vec<String>) {
        let (thing, faults) = documents(text.as_bytes())[0].read();
        (thing, faults.iter().map(|fault| format!("{}: {fault}", fault.line)).collect())
    }

    #[test]
    fn what_fits_is_read() {
        let (thing, faults) =
            read("name: a\nsizeBytes: 3\ncolour: Green\nparts: [{fit: true}]\nlabels: {x: '1', 2: b}\n");
        assert_eq!(faults, [""; 0]);
        let labels = [("x", "1"), ("2", "b")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let parts = vec![Part { fit: true }];
        assert_eq!(thing, Some(Thing { name: "a".into(), size_bytes: 3, colour: Some(Colour::Green), parts, labels }));
    }

    #[test]
    fn everything_that_is_wrong_is_said_at_once() {
        let (thing, faults) = read(
            "sizeBytes: -1\ncolour: Blue\nparts:\n- fit: maybe\n  more: 1\n- {}\n- [true]\nlabels:\n  v: 0403\nextra: {a: 1}\n",
        );
        assert!(thing.is_some(), "stand-ins make it whole");
        assert_eq!(
            faults,
            [
                "1: sizeBytes: \"-1\": the value does not fit; write a whole number that is not negative and not too large",
                "2: colour: \"Blue\": this is not known here; write Red or Green",
                "4: parts[0].fit: \"maybe\": this is text; write true or false",
                "5: parts[0].more: \"1\": there is no such field; use fit or take it out",
                "6: parts[1].fit: the field is missing; add `fit:`",
                "7: parts[2]: this is a list; write a map with keys and values",
                "9: labels.v: \"0403\": this is a number; put it in quotes",
                "10: extra: there is no such field; use name, sizeBytes, colour, parts or labels or take it out",
                "1: name: the field is missing; add `name:`",
            ]
        );
    }

    #[test]
    fn a_section_with_nothing_in_it_is_empty() {
        let (thing, faults) = read("name: a\nsizeBytes: 1\nparts: []\nlabels:\n");
        assert_eq!((thing.is_some(), faults.len()), (true, 0));
    }

    #[test]
    fn a_document_that_is_something_else_altogether_is_one_fault() {
        assert_eq!(read("just words\n").1, ["1: \"just words\": this is text; write a map with keys and values"]);
    }
}
