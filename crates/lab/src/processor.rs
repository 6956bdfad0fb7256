//! The paper's software and hardware rows: whether a process may use the processor's AES instructions, and whether that is so.
//!
//! The cryptographic library looks at `OPENSSL_ia32cap` once, when its process starts, and does without what is masked there.
//! Checksums and everything else go on as before. That the mask holds is measured, not believed.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use crate::BenchError;

/// What the library reads.
const VARIABLE: &str = "OPENSSL_ia32cap";
/// Takes away AES (leaf 1 ECX bit 25) and PCLMULQDQ (bit 1), then VAES (leaf 7 ECX bit 9) and VPCLMULQDQ (bit 10).
const MASK: &str = "~0x200000200000000:~0x60000000000";
/// A masked process seals at most at this share of an unmasked one's rate, or it is no software row. Measured: a thirtieth to a
/// sixtieth.
pub const MASKED_RATE_MAX: f64 = 0.25;

/// Who does the cryptography of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProcessKind {
    /// The processor's AES instructions, as everywhere outside benchmarks: the paper's S2-2, S2-4 and S2-6.
    #[default]
    Hardware,
    /// The same library without them: S2-1, S2-3 and S2-5.
    Software,
}

impl ProcessKind {
    /// As on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            ProcessKind::Hardware => "hardware",
            ProcessKind::Software => "software",
        }
    }

    /// Has `command` start such a process.
    pub fn apply(self, command: &mut Command) {
        match self {
            ProcessKind::Hardware => command.env_remove(VARIABLE),
            ProcessKind::Software => command.env(VARIABLE, MASK),
        };
    }
}

impl fmt::Display for ProcessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ProcessKind {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<ProcessKind, BenchError> {
        let kinds = [ProcessKind::Hardware, ProcessKind::Software];
        let found = kinds.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(text));
        found.ok_or_else(|| {
            BenchError::Asked(format!(
                "'{text}' is no kind of process; give hardware (with the processor's AES instructions), software (without), or both: \
                 hardware,software"
            ))
        })
    }
}

/// Holds the mask against what a masked and an unmasked process of `strongroom` measure, if any of `kinds` needs it.
///
/// # Errors
/// [`BenchError::Asked`] if there is nothing to mask here or the mask has no effect: a software row would be a lie.
pub fn check(lab_binary: &Path, kinds: &[ProcessKind]) -> Result<(), BenchError> {
    if !kinds.contains(&ProcessKind::Software) {
        return Ok(());
    }
    if !cfg!(target_arch = "x86_64") {
        return Err(BenchError::Asked(format!(
            "the AES instructions of {} cannot be masked from a process; for the software rows measure on a processor that has none, \
             and leave --process software out",
            std::env::consts::ARCH
        )));
    }
    let rate = |kind: ProcessKind| {
        let mut command = Command::new(lab_binary);
        command.args(["--log", "error", "seal-rate"]);
        kind.apply(&mut command);
        let output = command.output().map_err(|error| BenchError::file(lab_binary, error))?;
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        said.parse::<f64>().map_err(|_| BenchError::process("strongroom-lab seal-rate", format!("it said '{said}'")))
    };
    judge(rate(ProcessKind::Hardware)?, rate(ProcessKind::Software)?)
}

fn judge(hardware: f64, software: f64) -> Result<(), BenchError> {
    if software <= hardware * MASKED_RATE_MAX {
        return Ok(());
    }
    let gb = |rate: f64| rate / 1e9;
    Err(BenchError::Asked(format!(
        "with AES instructions masked a process seals {:.2} GB/s, without the mask {:.2}: more than a quarter, so this processor has no \
         such instructions or the library did not heed the mask; leave --process software out",
        gb(software),
        gb(hardware)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_without_effect_is_no_software_row() {
        judge(10e9, 0.3e9).unwrap();
        let error = judge(10e9, 9e9).unwrap_err().to_string();
        assert!(error.contains("9.00 GB/s") && error.contains("--process software"), "{error}");
        assert!(judge(0.3e9, 0.3e9).is_err(), "a processor without AES instructions has no hardware to mask");
    }

    #[test]
    fn kinds_are_read_back_and_set_for_the_child_alone() {
        for kind in [ProcessKind::Hardware, ProcessKind::Software] {
            assert_eq!(kind.name().to_uppercase().parse::<ProcessKind>().unwrap(), kind);
        }
        assert!("both".parse::<ProcessKind>().unwrap_err().to_string().contains("hardware,software"));
        let mut command = Command::new("true");
        ProcessKind::Software.apply(&mut command);
        let set: Vec<_> = command.get_envs().collect();
        assert_eq!(set, [(VARIABLE.as_ref(), Some(MASK.as_ref()))]);
    }
}
