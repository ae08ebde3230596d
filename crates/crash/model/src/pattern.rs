//! Patterns of paths: `*` and `?` do not match `/`, `**` does. A pattern without a `/` is compared
//! with the last name of a path only.

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `?`
    One,
    /// `*`
    Name,
    /// `**`
    Path,
}

/// A pattern of paths below the recorded directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    tokens: Vec<Token>,
    /// Whether the pattern has a slash, so that it must match the whole path.
    is_path: bool,
}

impl Pattern {
    pub fn new(text: &str) -> Pattern {
        let mut tokens = Vec::new();
        for byte in text.trim_start_matches('/').bytes() {
            match (byte, tokens.last()) {
                (b'*', Some(Token::Path)) => {}
                (b'*', Some(Token::Name)) => *tokens.last_mut().expect("there is one") = Token::Path,
                (b'*', _) => tokens.push(Token::Name),
                (b'?', _) => tokens.push(Token::One),
                (byte, _) => tokens.push(Token::Byte(byte)),
            }
        }
        Pattern { tokens, is_path: text.contains('/') || text.contains("**") }
    }

    /// Whether the path matches. The function keeps the set of all positions in the path that the
    /// tokens so far can reach. So matching costs at most the pattern's length times the path's
    /// length.
    pub fn matches(&self, path: &[u8]) -> bool {
        let text = match self.is_path {
            true => path,
            false => path.rsplit(|b| *b == b'/').next().unwrap_or(path),
        };
        let mut reached = vec![false; text.len() + 1];
        reached[0] = true;
        for token in &self.tokens {
            let mut next = vec![false; text.len() + 1];
            for at in 0..=text.len() {
                let byte = at.checked_sub(1).map(|i| text[i]);
                let before = at > 0 && reached[at - 1];
                next[at] = match token {
                    Token::Byte(b) => before && byte == Some(*b),
                    Token::One => before && byte != Some(b'/'),
                    Token::Name => reached[at] || (at > 0 && next[at - 1] && byte != Some(b'/')),
                    Token::Path => reached[at] || (at > 0 && next[at - 1]),
                };
            }
            reached = next;
        }
        reached[text.len()]
    }
}

#[cfg(test)]
#[path = "pattern_tests.rs"]
mod tests;
