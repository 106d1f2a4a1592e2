//! JSON as the runtime's tools read it, who are written in Go: a key counts in any case, and if it stands there twice
//! both may count. A reader that is more exact would not see a label that they see: containerd 1.6 copies what stands
//! under `labelſ` into the labels of the container (tried).

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// A document that keeps what ordinary readers drop: keys that stand there twice. Numbers and truth values, of which
/// nothing is asked, are dropped instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Json {
    Null,
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
    Other,
}

impl Json {
    /// # Errors
    ///
    /// If it is no JSON, which includes text that is not UTF-8 and nesting beyond 128 levels.
    pub(super) fn parse(bytes: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(bytes)
    }

    /// The values of all keys that are `name` (in small letters) to Go, except for null, which counts as absent.
    /// None if this is no object.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        let members = if let Self::Object(members) = self { members.as_slice() } else { &[] };
        members.iter().filter(move |(key, value)| fold(key) == name && *value != Self::Null).map(|(_, value)| value)
    }

    pub(super) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// Go compares keys by the simple case folding of Unicode, where two letters beyond ASCII fold to ASCII ones.
fn fold(key: &str) -> String {
    key.chars()
        .map(|letter| match letter {
            '\u{17f}' => 's',
            '\u{212a}' => 'k',
            other => other.to_ascii_lowercase(),
        })
        .collect()
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyJson)
    }
}

struct AnyJson;

impl<'de> Visitor<'de> for AnyJson {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Json, E> {
        Ok(Json::Other)
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        Ok(Json::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Json, E> {
        Ok(Json::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Json, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = entries.next_entry()? {
            members.push(member);
        }
        Ok(Json::Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Fault: agent/src/sources/containerd/json.rs
    // - '\u{17f}' => 's',
    // + '\u{17f}' => 'z',
    #[test]
    fn a_key_counts_however_it_is_written() {
        let json =
            Json::parse(br#"{"Labels": "a", "LABELS": "b", "\u004cabel\u017f": "c", "label": "d", "labels": null}"#)
                .expect("it is JSON");
        assert_eq!(json.all("labels").filter_map(Json::text).collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for text in [&b"{"[..], b"{} {}", b"\xff", b"\"\xff\"", &[b'['; 1000]] {
            Json::parse(text).expect_err("it is no JSON");
        }
        assert_eq!(Json::parse(b"[1, -1, 0.5, true, null]").expect("it is JSON").all("x").count(), 0);
    }
}
