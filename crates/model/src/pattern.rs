//! Patterns of names, as Python's `fnmatchcase` has them: `*`, `?`, `[a-z]` and `[!a-z]`.

/// Whether a name matches: as a whole if the pattern has one of `*?[`, otherwise wherever it contains the pattern.
pub(crate) fn names(pattern: &str, name: &str) -> bool {
    if !pattern.contains(['*', '?', '[']) {
        return name.contains(pattern);
    }
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    matches(&pattern, &name)
}

/// A star takes as little as possible, and one more letter whenever the rest does not match: the last star suffices.
fn matches(pattern: &[char], name: &[char]) -> bool {
    let (mut at, mut letter) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while letter < name.len() {
        match one(&pattern[at..], name[letter]) {
            Step::Star => {
                star = Some((at, letter));
                at += 1;
            }
            Step::Matches(width) => {
                at += width;
                letter += 1;
            }
            Step::Differs => {
                let Some((place, taken)) = star else { return false };
                star = Some((place, taken + 1));
                (at, letter) = (place + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|&sign| sign == '*')
}

enum Step {
    Star,
    /// With the length of the pattern's part for one letter.
    Matches(usize),
    Differs,
}

fn one(pattern: &[char], letter: char) -> Step {
    match pattern.first() {
        None => Step::Differs,
        Some('*') => Step::Star,
        Some('?') => Step::Matches(1),
        Some('[') => match class(pattern) {
            Some((width, inside)) if inside(letter) => Step::Matches(width),
            Some(_) => Step::Differs,
            None if letter == '[' => Step::Matches(1),
            None => Step::Differs,
        },
        Some(&sign) if sign == letter => Step::Matches(1),
        Some(_) => Step::Differs,
    }
}

/// A class at the beginning of the pattern: its length, and what is in it. None without a closing bracket.
fn class(pattern: &[char]) -> Option<(usize, impl Fn(char) -> bool + '_)> {
    let not = pattern.get(1) == Some(&'!');
    let begin = 1 + usize::from(not);
    // A bracket that stands first is one of the letters.
    let end = begin + 1 + pattern.get(begin + 1..)?.iter().position(|&sign| sign == ']')?;
    let letters = &pattern[begin..end];
    let inside = move |letter: char| {
        let mut at = 0;
        let mut found = false;
        while at < letters.len() {
            if letters.get(at + 1) == Some(&'-') && at + 2 < letters.len() {
                found |= (letters[at]..=letters[at + 2]).contains(&letter);
                at += 3;
            } else {
                found |= letters[at] == letter;
                at += 1;
            }
        }
        found != not
    };
    Some((end + 1, inside))
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn names_match_as_in_python() {
        for (pattern, name) in [
            ("*/moving_*", "bn/moving_mean"),
            ("moving", "bn/moving_mean"),
            ("fc?/*", "fc6/weights"),
            ("*a*b*c", "xaxbxbxc"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]]", "]"),
            ("[x", "[x"),
            ("*", ""),
            ("a*", "a"),
        ] {
            assert!(names(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("moving_*", "bn/moving_mean"),
            ("fc?/*", "fc/weights"),
            ("[a-c]x", "dx"),
            ("[!a-c]x", "ax"),
            ("*b", "abc"),
            ("?", ""),
            ("moved", "bn/moving_mean"),
        ] {
            assert!(!names(pattern, name), "{pattern} {name}");
        }
    }

    /// Exponential if a star tried everything again.
    #[test]
    fn many_stars_are_quick() {
        assert!(!names(&"*a".repeat(60), &"a".repeat(2000).replace('a', "ab")));
    }
}
