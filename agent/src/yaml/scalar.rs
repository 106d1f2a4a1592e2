//! What a word without quotes means: YAML 1.2.2, section 10.3 (core schema).

/// The meaning of a word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Scalar<'a> {
    Nothing,
    Truth(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(&'a str),
}

impl<'a> Scalar<'a> {
    pub(super) fn of_plain(text: &'a str) -> Self {
        match text {
            "" | "~" | "null" | "Null" | "NULL" => return Self::Nothing,
            "true" | "True" | "TRUE" => return Self::Truth(true),
            "false" | "False" | "FALSE" => return Self::Truth(false),
            _ => {}
        }
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let radix =
            |prefix: &str, radix| text.strip_prefix(prefix).and_then(|rest| u64::from_str_radix(rest, radix).ok());
        let has_digits_only = text
            .strip_prefix("0x")
            .or(text.strip_prefix("0o"))
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if has_digits_only && let Some(number) = radix("0x", 16).or_else(|| radix("0o", 8)) {
            return Self::Unsigned(number);
        }
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        if digits(unsigned) {
            if let Ok(number) = text.parse() {
                return Self::Unsigned(number);
            }
            if let Ok(number) = text.parse() {
                return Self::Signed(number);
            }
        }
        // Rust's own parser takes `inf` and `nan` too, which are text in YAML.
        let float = unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.')
            && unsigned.bytes().any(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if float => Self::Float(number),
            _ => Self::Text(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_mean_what_the_core_schema_says() {
        for (text, meaning) in [
            ("", Scalar::Nothing),
            ("~", Scalar::Nothing),
            ("true", Scalar::Truth(true)),
            ("yes", Scalar::Text("yes")),
            ("0660", Scalar::Unsigned(660)),
            ("0o660", Scalar::Unsigned(0o660)),
            ("0x1F", Scalar::Unsigned(31)),
            ("0x", Scalar::Text("0x")),
            ("0x+1", Scalar::Text("0x+1")),
            ("-3", Scalar::Signed(-3)),
            ("+3", Scalar::Unsigned(3)),
            ("1.5", Scalar::Float(1.5)),
            ("1e3", Scalar::Float(1000.0)),
            ("04b4", Scalar::Text("04b4")),
            ("inf", Scalar::Text("inf")),
            ("2ms", Scalar::Text("2ms")),
            ("-", Scalar::Text("-")),
            (".", Scalar::Text(".")),
            ("99999999999999999999", Scalar::Float(1e20)),
        ] {
            assert_eq!(Scalar::of_plain(text), meaning, "{text}");
        }
    }
}
