//! The choice of a function's filter: the current one, or an earlier one that is kept for rollbacks.

use std::fmt;
use std::str::FromStr;

use super::{EARLIER, Filter};

/// The programs of earlier filters by digest, in the format of [`super::program`].
const KEPT: [(&str, &[u8]); 2] = [
    (EARLIER[0], include_bytes!("earlier/5155094d.bpf")),
    (EARLIER[1], include_bytes!("earlier/e37c87f7.bpf")),
];
/// Minimum number of digits of a digest that identify a filter.
const DIGITS_LEAST: usize = 8;

/// A filter by name: `current`, or the first digits of an earlier filter's digest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilterChoice(Option<usize>);

/// No filter has this name.
#[derive(Debug, thiserror::Error)]
#[error("is no filter: say `current`, or one of {}", known().collect::<Vec<_>>().join(", "))]
pub struct UnknownFilter;

fn known() -> impl Iterator<Item = &'static str> {
    KEPT.iter().filter_map(|(digest, _)| digest.get(..DIGITS_LEAST))
}

impl FilterChoice {
    /// BLAKE3 of the program in hexadecimal. `None` for the current filter.
    #[must_use]
    pub fn earlier(self) -> Option<&'static str> {
        self.0.map(|number| KEPT[number].0)
    }
}

impl FromStr for FilterChoice {
    type Err = UnknownFilter;

    fn from_str(text: &str) -> Result<Self, UnknownFilter> {
        if text == "current" {
            return Ok(Self(None));
        }
        let found = KEPT.iter().position(|(digest, _)| digest.starts_with(text));
        let found = found.filter(|_| text.len() >= DIGITS_LEAST);
        found.map(|number| Self(Some(number))).ok_or(UnknownFilter)
    }
}

impl fmt::Display for FilterChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.earlier().unwrap_or("current"))
    }
}

impl Filter {
    /// The filter with this digest, or the current one.
    ///
    /// # Errors
    /// If no program with that digest is kept.
    pub fn chosen(digest: Option<&str>) -> Result<Self, UnknownFilter> {
        let Some(digest) = digest else {
            return Ok(Self::compile());
        };
        let (_, program) = KEPT.iter().find(|(kept, _)| *kept == digest).ok_or(UnknownFilter)?;
        Ok(Self(rekindle_confined::decode_program(program)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::bytes;
    use super::*;

    #[test]
    fn a_filter_is_chosen_by_its_first_digits() {
        let earlier: FilterChoice = "5155094d".parse().unwrap();
        assert_eq!(earlier.earlier(), Some(EARLIER[0]));
        assert_eq!(EARLIER[0].parse::<FilterChoice>().unwrap(), earlier);
        assert_eq!("current".parse::<FilterChoice>().unwrap(), FilterChoice::default());
        for unknown in ["", "5155", "00000000", "Current"] {
            let told = unknown.parse::<FilterChoice>().unwrap_err().to_string();
            assert!(told.contains("5155094d"), "{told}");
        }
    }

    #[test]
    fn a_kept_program_is_read_as_it_lies_there() {
        for (digest, program) in KEPT {
            assert_eq!(bytes(&Filter::chosen(Some(digest)).unwrap()), program);
        }
        assert!(Filter::chosen(Some("5155094d")).is_err());
    }

    #[test]
    fn an_earlier_filter_refuses_what_it_refused() {
        let answer = std::thread::spawn(|| {
            nix::sys::prctl::set_no_new_privs().unwrap();
            Filter::chosen(Some(EARLIER[0])).unwrap().apply().unwrap();
            nix::unistd::chroot("/nowhere")
        });
        assert_eq!(answer.join().unwrap(), Err(nix::errno::Errno::EPERM));
    }
}
