//! Whether a unit is protected as the caller counts on, no matter what the target claims: a key was given to be used, by us. Checked in every
//! session, before anything is sealed or sent.

use strongroom_block::{Custody, Mode};

use crate::pipeline::unit::{SealedUnit, UnitDescription};
use crate::{AttachError, AttachOptions, DamagedReads};

fn refused(what: &str) -> Result<(), AttachError> {
    Err(AttachError::Unsupported(what.to_owned()))
}

/// What holds for every question about a unit.
pub(super) fn check_any(options: &AttachOptions, unit: &UnitDescription) -> Result<(), AttachError> {
    match &unit.sealed {
        None => options.expected.check_plain().map_err(Into::into),
        Some(sealed) => {
            if !options.url.is_channel() {
                return refused("a sealed volume is only served inside a channel; use its strongroom:// URL");
            }
            options.expected.check(&sealed.claims).map_err(Into::into)
        }
    }
}

/// What holds besides for an attachment, which reads and writes.
pub(super) fn check_attachment(options: &AttachOptions, unit: &UnitDescription) -> Result<(), AttachError> {
    if let Some(sealed) = &unit.sealed {
        check_sealing(options, sealed)?;
    }
    if options.sealing.damaged_reads == DamagedReads::Previous
        && !unit.sealed.is_some_and(|sealed| sealed.allows_previous)
    {
        return refused(
            "older versions of damaged blocks were asked for, which this volume does not allow; leave --previous-versions out, \
             or allow it at the target with 'strongroom volume access'",
        );
    }
    match &unit.sealed {
        Some(sealed) => {
            check_custody(options, sealed)?;
            check_mode(options, sealed)
        }
        None if options.sealing.key_source.is_some() => refused(
            "a key was given, but the target says that the volume is plain: nothing would be sealed; leave the \
             key out if that is right, and do not trust this target if not",
        ),
        None => Ok(()),
    }
}

fn check_sealing(options: &AttachOptions, sealed: &SealedUnit) -> Result<(), AttachError> {
    if options.scheme().would_show(sealed.mode) {
        return refused(
            "the volume is sealed in the mode authenticate-only, so its blocks would be readable on the way, which the \
             chosen scheme promises against; use --scheme S1-2 (lazy-auth) or S2-1 (encrypt-all)",
        );
    }
    if sealed.claims.suite.is_for_benchmarks_only() && !options.benchmark_suites {
        return refused(
            "the target says that the volume is sealed by aes192-cbc+hmac-md5, which protects nothing today and is for \
             benchmarks alone; make a volume of another suite, and do not trust this target if it should be one",
        );
    }
    Ok(())
}

fn check_custody(options: &AttachOptions, sealed: &SealedUnit) -> Result<(), AttachError> {
    let Some(source) = &options.sealing.key_source else { return Ok(()) };
    if !sealed.claims.custody.is_blind() {
        return refused(
            "a key was given, but the target says that it holds the keys itself and would be sent the key of every \
             block; leave the key out if that is right, and do not trust this target if not",
        );
    }
    match source.custody() {
        custody if custody == sealed.claims.custody => Ok(()),
        Custody::KeyServer => refused(
            "a key server was named, but the target says that the volume's key is in a file (custody keyfile); give that \
             with --key-file if that is right, and do not trust this target if not",
        ),
        _ => refused(
            "a key file was given, but the target says that a key server has the volume's keys (custody keyserver); name it \
             with --key-server if that is right, and do not trust this target if not",
        ),
    }
}

fn check_mode(options: &AttachOptions, sealed: &SealedUnit) -> Result<(), AttachError> {
    // Reading reveals nothing in any mode.
    if options.read_only || sealed.mode == options.sealing.mode {
        return Ok(());
    }
    refused(match sealed.mode {
        Mode::AuthenticateOnly => {
            "the target says that the volume is sealed in the mode authenticate-only: it could read what is \
             written; add --authenticate-only if that is right, and do not trust this target if not"
        }
        Mode::Encrypt => "the volume is encrypted, and --authenticate-only was asked for; leave that out",
    })
}
