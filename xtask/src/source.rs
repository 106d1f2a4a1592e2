//! Reading Rust source text, as far as checks need it: without comments and literals, and the paths in it.

/// The text with comments and the contents of string and character literals blanked; lines keep their numbers and lengths.
pub(crate) fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let previous = code.chars().next_back();
        let (length, blank) = match token(rest, previous) {
            Some(length) => (length, true),
            None => (first.len_utf8(), false),
        };
        let (taken, after) = rest.split_at(length);
        if blank {
            code.extend(taken.chars().map(|character| if character == '\n' { '\n' } else { ' ' }));
        } else {
            code.push_str(taken);
        }
        rest = after;
    }
    code
}

/// All paths in `code` that begin with `root::`, with the numbers of their lines, the first being 1. Groups in braces are taken apart.
pub(crate) fn paths(code: &str, root: &str) -> Vec<(usize, String)> {
    let start = format!("{root}::");
    let mut found = Vec::new();
    for (position, _) in code.match_indices(&start) {
        let before = code[..position].chars().next_back();
        let whole = before.is_none_or(|character| !is_word(character) && character != ':');
        // `::std::fs` and `crate::std::fs` differ in what stands before the colons.
        let absolute = code[..position].strip_suffix("::").is_some_and(|before| !before.ends_with(is_word));
        if whole || absolute {
            let line = code[..position].matches('\n').count() + 1;
            let mut tree = Vec::new();
            expand(&code[position + start.len()..], root, &mut tree);
            found.extend(tree.into_iter().map(|path| (line, path)));
        }
    }
    found
}

/// Whether a character may be part of a name.
pub(crate) fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// Reads one use tree behind `prefix::` and adds its paths; returns what follows it.
fn expand<'a>(text: &'a str, prefix: &str, found: &mut Vec<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut group) = text.strip_prefix('{') {
        loop {
            group = expand(group, prefix, found).trim_start();
            match group.strip_prefix(',') {
                Some(next) if !next.trim_start().starts_with('}') => group = next,
                other => return other.unwrap_or(group).trim_start().strip_prefix('}').unwrap_or_default(),
            }
        }
    }
    let end = text.find(|character| !is_word(character)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = if name.is_empty() { prefix.to_owned() } else { format!("{prefix}::{name}") };
    if let Some(deeper) = rest.trim_start().strip_prefix("::") {
        return expand(deeper, &path, found);
    }
    found.push(path);
    // Skips `as name` and `*`.
    rest.find([',', '}', ';', '\n']).map_or("", |end| &rest[end..])
}

/// The length of the comment or literal that `rest` begins with.
fn token(rest: &str, previous: Option<char>) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(block_comment(rest));
    }
    if rest.starts_with('"') {
        return Some(quoted(rest, '"'));
    }
    if rest.starts_with('r') && previous.is_none_or(|character| !is_word(character) || character == 'b') {
        let hashes = rest[1..].len() - rest[1..].trim_start_matches('#').len();
        if rest[1 + hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let body = 2 + hashes;
            return Some(rest[body..].find(&end).map_or(rest.len(), |length| body + length + end.len()));
        }
    }
    if let Some(literal) = rest.strip_prefix('\'') {
        // A character literal ends two characters on, or is an escape; else it is a lifetime.
        let mut characters = literal.chars();
        let first = characters.next()?;
        if first == '\\' || characters.next() == Some('\'') {
            return Some(quoted(rest, '\''));
        }
    }
    None
}

fn block_comment(rest: &str) -> usize {
    let mut depth = 0;
    let mut position = 0;
    while position < rest.len() {
        if rest[position..].starts_with("/*") {
            depth += 1;
            position += 2;
        } else if rest[position..].starts_with("*/") {
            depth -= 1;
            position += 2;
            if depth == 0 {
                return position;
            }
        } else {
            position += rest[position..].chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// The length of a literal that begins with its quote and may have escapes.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (position, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return position + 1,
            _ => {}
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let text = "let a = \"x // \\\" y\"; // todo!()\n/* a /* b */ c */ let b = r#\"q \" z\"#;\nlet c = '\\''; let d: &'static str = f('x');";
        let blanked = code(text);
        assert_eq!(blanked.len(), text.len());
        let words: Vec<_> = blanked.split_whitespace().collect();
        assert_eq!(words.join(" "), "let a = ; let b = ; let c = ; let d: &'static str = f( );");
        assert_eq!(blanked.lines().count(), 3);
    }

    #[test]
    fn paths_are_taken_apart() {
        let code = "use std::{fs, time::{Duration, Instant as Now}};\nlet x = std::net::UdpSocket::bind(a);\nuse my_std::fs;\nuse std::io::*;\n";
        let expected = [
            (1, "std::fs"),
            (1, "std::time::Duration"),
            (1, "std::time::Instant"),
            (2, "std::net::UdpSocket::bind"),
            (4, "std::io"),
        ];
        let expected: Vec<_> = expected.map(|(line, path)| (line, path.to_owned())).into();
        assert_eq!(paths(code, "std"), expected);
        assert_eq!(paths("fn f() -> ::std::fs::File", "std"), [(1, "std::fs::File".to_owned())]);
    }
}
