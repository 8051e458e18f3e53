//! Versions whose copies must share no random numbers: `snapshot = "unique"`.

use rekindle_wire::api::Randomness;
use rekindle_wire::internal::VersionSpec;
use rekindle_wire::{ApiError, ErrorCode};

/// Rejects such a version if it has a generator that cannot be reseeded.
pub(super) fn refuse(spec: &VersionSpec, randomness: Option<&Randomness>) -> Result<(), ApiError> {
    let repeating = randomness.and_then(|told| told.repeating.first());
    match repeating.filter(|_| spec.config.unique) {
        None => Ok(()),
        Some(repeating) => Err(ApiError::new(
            ErrorCode::NotUnique,
            format!(
                "snapshot = \"unique\" refuses this version, whose copies would share numbers of {}: {}. Where the \
                 function does so, or needs no such numbers, set snapshot = true",
                repeating.name, repeating.advice
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use rekindle_wire::api::Repeating;

    use super::*;
    use crate::testing::spec;

    #[test]
    fn a_version_that_must_be_unique_and_is_not_has_an_error_of_its_own() {
        let repeating = Repeating {
            name: "Perl".to_owned(),
            advice: "rand repeats; call srand in an after-restore hook".to_owned(),
        };
        let told = Randomness {
            repeating: vec![repeating],
            ..Randomness::default()
        };
        let program = "runtime = \"http\"\ncommand = [\"serve\"]\n";
        let unique = spec(&format!("{program}snapshot = \"unique\""));
        let refused = refuse(&unique, Some(&told)).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotUnique);
        assert!(refused.message.contains("numbers of Perl: rand repeats"), "{refused}");
        assert!(refuse(&unique, Some(&Randomness::default())).is_ok() && refuse(&unique, None).is_ok());
        assert!(refuse(&spec(program), Some(&told)).is_ok());
    }
}
