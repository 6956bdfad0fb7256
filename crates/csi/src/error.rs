//! Which gRPC code an error of the target, or of a command of the program, comes to. Both say what happened in words for people, so words are
//! what is looked for; the tests hold the table against the errors themselves.

use strongroom_block::with_foreign_parts;
use strongroom_target::operators::OperatorError;
use tonic::{Code, Status};

/// Longest message of a status, in characters: orchestrators put it into events.
const MESSAGE_CHARS_MAX: usize = 1024;

/// What an error says, and its code; the first that fits counts.
const CODES: &[(&str, Code)] = &[
    // Of the target, about volumes and snapshots.
    ("there is no volume '", Code::NotFound),
    ("has no snapshot '", Code::NotFound),
    ("there is no peer '", Code::NotFound),
    ("is not in its volume's store any more", Code::NotFound),
    ("there is a volume '", Code::AlreadyExists),
    ("a snapshot of that name exists already", Code::AlreadyExists),
    ("has clones, '", Code::FailedPrecondition),
    ("depends on the snapshot '", Code::FailedPrecondition),
    ("which has no description any more, depends on '", Code::FailedPrecondition),
    ("is in use: detach its initiators", Code::FailedPrecondition),
    ("a session uses '", Code::FailedPrecondition),
    (" sessions use '", Code::FailedPrecondition),
    ("is a clone and has the size of '", Code::FailedPrecondition),
    ("a snapshot that is being received builds on it", Code::FailedPrecondition),
    ("it is being sent, or what was written since it", Code::FailedPrecondition),
    ("are being resealed, between it and '", Code::FailedPrecondition),
    ("is just being replaced by what it was resealed as", Code::Unavailable),
    ("a volume does not shrink", Code::OutOfRange),
    ("cannot name a volume: use", Code::InvalidArgument),
    ("choose another one", Code::InvalidArgument),
    ("too many clones and snapshots of '", Code::ResourceExhausted),
    ("volumes or more, and operators make no further ones", Code::ResourceExhausted),
    ("make room, or choose another place", Code::ResourceExhausted),
    ("No space left on device", Code::ResourceExhausted),
    // Of the target, about us.
    ("as many links of operators as may be", Code::Unavailable),
    ("this node is no operator of this target", Code::PermissionDenied),
    ("that is not for operators to ask for", Code::PermissionDenied),
    // Of the program, on a node.
    (". Detach it there; ", Code::FailedPrecondition),
    ("the target refused the login", Code::PermissionDenied),
    ("this is not the key that it was formatted with", Code::FailedPrecondition),
    ("this key does not open it", Code::FailedPrecondition),
    ("others can read the key file", Code::Internal),
    ("no key is known for the target", Code::FailedPrecondition),
    ("cannot connect to", Code::Unavailable),
    ("cannot reach", Code::Unavailable),
    ("no ext4, xfs or btrfs on", Code::FailedPrecondition),
    ("close what uses it", Code::FailedPrecondition),
    ("is writing back", Code::Unavailable),
    ("the target is away", Code::Unavailable),
];

fn code_of(text: &str, otherwise: Code) -> Code {
    CODES.iter().find(|(words, _)| text.contains(words)).map_or(otherwise, |(_, code)| *code)
}

/// A status with what somebody else said, made harmless and not endless.
fn status(code: Code, text: &str) -> Status {
    let mut shown = with_foreign_parts(&text.replace('\n', "; ")).to_string();
    if shown.chars().count() > MESSAGE_CHARS_MAX {
        shown = shown.chars().take(MESSAGE_CHARS_MAX).chain("…".chars()).collect();
    }
    Status::new(code, shown)
}

/// What a request to the target came to.
pub(crate) fn of_target(error: &OperatorError) -> Status {
    let code = match error {
        OperatorError::Unreachable(_) | OperatorError::Broken(_) => Code::Unavailable,
        OperatorError::Handshake(_) => Code::Unauthenticated,
        OperatorError::NoOperators => Code::FailedPrecondition,
        OperatorError::Refused(text) => code_of(text, Code::Internal),
        OperatorError::TooLong => Code::InvalidArgument,
        OperatorError::Misbehaved => Code::Internal,
    };
    status(code, &error.to_string())
}

/// What a command of the program came to, by its last words.
pub(crate) fn of_program(what: &str, said: &str) -> Status {
    status(code_of(said, Code::Internal), &format!("{what}: {said}"))
}

/// The target answered another question.
pub(crate) fn unexpected() -> Status {
    of_target(&OperatorError::Misbehaved)
}

/// A call of the system that failed.
pub(crate) fn of_system(what: &str, error: impl std::fmt::Display) -> Status {
    status(Code::Internal, &format!("cannot {what}: {error}"))
}

/// An error and its causes.
pub(crate) fn in_words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words.push_str(&format!(": {error}"));
        cause = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use strongroom_target::CatalogueError;
    use strongroom_target::operate::OperationError;
    use strongroom_target::pairing::PairingError;

    use super::*;

    fn name() -> String {
        "csi-a".to_owned()
    }

    #[test]
    fn what_the_target_says_comes_to_these_codes() {
        let no_space = std::io::Error::from_raw_os_error(28);
        let said: Vec<(String, Code)> = vec![
            (CatalogueError::Missing { name: name(), root: PathBuf::from("/srv") }.to_string(), Code::NotFound),
            (CatalogueError::Exists { name: name() }.to_string(), Code::AlreadyExists),
            (CatalogueError::HasClones { name: name(), clone: name() }.to_string(), Code::FailedPrecondition),
            (CatalogueError::NotInStore { name: name() }.to_string(), Code::NotFound),
            (CatalogueError::TooManyViews { name: name() }.to_string(), Code::ResourceExhausted),
            (CatalogueError::Moving { name: name(), other: name() }.to_string(), Code::FailedPrecondition),
            (CatalogueError::Succeeded { name: name() }.to_string(), Code::Unavailable),
            (CatalogueError::Room { name: name(), needed: 2, free: 1 }.to_string(), Code::ResourceExhausted),
            (CatalogueError::InUse { name: name() }.to_string(), Code::FailedPrecondition),
            (CatalogueError::Name { name: name() }.to_string(), Code::InvalidArgument),
            (
                CatalogueError::Io { what: "write", path: PathBuf::from("/srv"), source: no_space }.to_string(),
                Code::ResourceExhausted,
            ),
            (OperationError::NoSnapshot { volume: name(), snapshot: name() }.to_string(), Code::NotFound),
            (OperationError::InUse { export: name(), sessions: 1 }.to_string(), Code::FailedPrecondition),
            (OperationError::InUse { export: name(), sessions: 2 }.to_string(), Code::FailedPrecondition),
            (OperationError::BaseOfReception.to_string(), Code::FailedPrecondition),
            (OperationError::BeingSent.to_string(), Code::FailedPrecondition),
            (OperationError::ResizeOfClone { volume: name(), store: name() }.to_string(), Code::FailedPrecondition),
            (OperationError::Shrink.to_string(), Code::OutOfRange),
            (OperationError::NameTaken { name: name() }.to_string(), Code::AlreadyExists),
            (OperationError::DependentClone { clone: name(), snapshot: name() }.to_string(), Code::FailedPrecondition),
            (OperationError::DependentRemains { clone: name(), export: name() }.to_string(), Code::FailedPrecondition),
            (OperationError::StoreSilent.to_string(), Code::Internal),
            (PairingError::Missing { name: name() }.to_string(), Code::NotFound),
        ];
        for (text, code) in said {
            assert_eq!(of_target(&OperatorError::Refused(text.clone())).code(), code, "{text}");
        }
    }

    #[test]
    fn a_connection_that_fails_comes_to_these_codes() {
        for (error, code) in [
            (OperatorError::Unreachable("no route".into()), Code::Unavailable),
            (OperatorError::Broken("reset".into()), Code::Unavailable),
            (OperatorError::NoOperators, Code::FailedPrecondition),
            (OperatorError::TooLong, Code::InvalidArgument),
            (OperatorError::Misbehaved, Code::Internal),
        ] {
            assert_eq!(of_target(&error).code(), code, "{error}");
        }
    }

    #[test]
    fn a_message_is_harmless_and_not_endless() {
        let status = of_program("cannot attach", &format!("\x1b[2J{}", "x".repeat(5000)));
        assert!(!status.message().contains('\x1b') && status.message().chars().count() <= MESSAGE_CHARS_MAX + 1);
        let conflict =
            "cannot attach strongroom://h/v: alice writes to the volume. Detach it there; to write from both: --shared";
        assert_eq!(of_program("attach", conflict).code(), Code::FailedPrecondition);
        assert!(of_program("attach", conflict).message().contains("Detach it there"));
    }
}
