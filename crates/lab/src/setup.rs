//! What one contender of ours is made of: scheme, cipher suite, custody, unit of sealing, and who does the cryptography; and what it is
//! called.

use std::num::NonZeroU32;

use strongroom_block::{Custody, Suite};

use crate::{ProcessKind, SchemeChoice, short_size};

/// One contender of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The paper's row.
    pub scheme: SchemeChoice,
    /// The cipher of the channel and of the volume's seals.
    pub suite: Suite,
    /// Who has the keys of what is sealed.
    pub custody: Custody,
    /// Bytes that are sealed as one, at any size of I/O; `None`: 4 KiB, or less for smaller I/Os.
    pub seal_bytes: Option<u64>,
    /// Consecutive blocks that share a block key (custody `target`); `None`: one for each.
    pub blocks_per_key: Option<NonZeroU32>,
    /// What the target keeps of seal records in memory, in bytes; `None`: as much as usual.
    pub record_cache: Option<u64>,
    /// Over ECL: quanta and packets of parity in a group, as `?parity=K+M` has them; `None`: no parity.
    pub parity: Option<(u8, u8)>,
    /// Over ECL: packets are Ethernet frames, not UDP.
    pub has_frames: bool,
    /// Who does the cryptography.
    pub process: ProcessKind,
    /// What is different for the target.
    pub target: TargetTerms,
}

/// On which terms the target's process runs, where these are not the initiators'.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetTerms {
    /// Who does its cryptography; `None`: who does the initiators'.
    pub process: Option<ProcessKind>,
    /// How much of its processor it may use, in percent; `None`: all.
    pub quota_percent: Option<u32>,
}

impl Setup {
    /// The usual: AES-256-GCM by the processor's instructions, keys with the initiators.
    pub fn new(scheme: SchemeChoice) -> Setup {
        let (suite, process) = (Suite::default(), ProcessKind::default());
        Setup {
            scheme,
            suite,
            custody: Custody::KeyFile,
            seal_bytes: None,
            blocks_per_key: None,
            record_cache: None,
            parity: None,
            has_frames: false,
            process,
            target: TargetTerms::default(),
        }
    }

    /// The same with a target on other terms, as far as these make a difference: S0 has no cryptography that anyone could do.
    #[must_use]
    pub fn with_target(self, terms: TargetTerms) -> Setup {
        let process = terms.process.filter(|kind| self.scheme.is_channel() && *kind != self.process);
        Setup { target: TargetTerms { process, ..terms }, ..self }
    }

    /// Who does the target's cryptography.
    pub fn target_process(&self) -> ProcessKind {
        self.target.process.unwrap_or(self.process)
    }

    /// Every combination that differs: S0 knows no suite, and without sealing nobody has its keys.
    pub fn all(
        schemes: &[SchemeChoice],
        suites: &[Suite],
        custodies: &[Custody],
        processes: &[ProcessKind],
        seal_bytes: &[Option<u64>],
        blocks_per_key: &[Option<NonZeroU32>],
        record_caches: &[Option<u64>],
    ) -> Vec<Setup> {
        let mut all: Vec<Setup> = schemes.iter().copied().map(Setup::new).collect();
        all = each(&all, record_caches, |setup, &record_cache| Setup { record_cache, ..setup });
        all = each(&all, blocks_per_key, |setup, &blocks_per_key| Setup { blocks_per_key, ..setup });
        all = each(&all, seal_bytes, |setup, &seal_bytes| Setup { seal_bytes, ..setup });
        all = each(&all, custodies, |setup, &custody| Setup { custody, ..setup });
        all = each(&all, suites, |setup, &suite| Setup { suite, ..setup });
        all = each(&all, processes, |setup, &process| Setup { process, ..setup });
        let mut different: Vec<Setup> = Vec::new();
        for setup in all.into_iter().map(Setup::plainest) {
            if !different.contains(&setup) {
                different.push(setup);
            }
        }
        different
    }

    /// Without what makes no difference.
    fn plainest(mut self) -> Setup {
        if !self.scheme.is_channel() {
            (self.suite, self.process) = (Suite::default(), ProcessKind::default());
        }
        if self.scheme.sealing().is_none() {
            (self.custody, self.seal_bytes, self.record_cache) = (Custody::KeyFile, None, None);
        }
        // The blind custodies have one key for all.
        let has_block_keys = self.custody == Custody::Target;
        self.blocks_per_key = self.blocks_per_key.filter(|blocks| has_block_keys && blocks.get() > 1);
        self
    }

    /// As tables name it: the scheme, and what is unusual: `S2-5`, `S2-1 aes192-cbc+hmac-md5 software`.
    pub fn label(&self) -> String {
        let mut label = self.scheme.name().to_owned();
        if self.suite != Suite::default() {
            label += &format!(" {}", self.suite);
        }
        if self.custody != Custody::KeyFile {
            label += &format!(" custody {}", self.custody);
        }
        if let Some(bytes) = self.seal_bytes {
            label += &format!(" sealing {}", short_size(bytes));
        }
        if let Some(blocks) = self.blocks_per_key {
            label += &format!(" {blocks} blocks a key");
        }
        if let Some(bytes) = self.record_cache {
            label += &format!(" record cache {}", if bytes == 0 { "none".to_owned() } else { short_size(bytes) });
        }
        if let Some((quanta, parity)) = self.parity {
            label += &format!(" parity {quanta}+{parity}");
        }
        if self.has_frames {
            label += " in frames";
        }
        if self.process == ProcessKind::Software {
            label += " software";
        }
        if let Some(process) = self.target.process {
            label += &format!(" target {process}");
        }
        if let Some(percent) = self.target.quota_percent {
            label += &format!(" target at {percent}%");
        }
        label
    }

    /// The paper's row: S2-1 done by hardware is S2-2. It has none where the two ends differ, and none over ECL.
    pub fn row(&self) -> &'static str {
        if self.target.process.is_some() || self.scheme.is_ecl() {
            return "";
        }
        match (self.scheme.name(), self.process) {
            ("S2-1", ProcessKind::Hardware) => "S2-2",
            ("S2-3", ProcessKind::Hardware) => "S2-4",
            ("S2-5", ProcessKind::Hardware) => "S2-6",
            (name, _) => name,
        }
    }

    /// The label as a file's name.
    pub fn file_name(&self) -> String {
        self.label().replace(|character: char| !character.is_ascii_alphanumeric(), "-")
    }
}

/// Every setup with every choice; what was there before varies fastest.
fn each<T>(setups: &[Setup], choices: &[T], with: impl Fn(Setup, &T) -> Setup) -> Vec<Setup> {
    choices.iter().flat_map(|choice| setups.iter().map(|&setup| with(setup, choice)).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_that_do_not_differ_are_one() {
        let schemes = SchemeChoice::list("S0,S2-1,S2-5").unwrap();
        let kinds = [ProcessKind::Hardware, ProcessKind::Software];
        let suites = [Suite::Aes256Gcm, Suite::Aes192CbcHmacMd5];
        let custodies = [Custody::KeyFile, Custody::Target];
        let labels: Vec<String> = Setup::all(&schemes, &suites, &custodies, &kinds, &[None], &[None], &[None])
            .iter()
            .map(Setup::label)
            .collect();
        assert_eq!(labels.iter().filter(|label| label.starts_with("S0")).count(), 1, "{labels:?}");
        assert_eq!(labels.iter().filter(|label| label.starts_with("S2-1")).count(), 4, "{labels:?}");
        assert_eq!(labels.iter().filter(|label| label.starts_with("S2-5")).count(), 8, "{labels:?}");
        assert_eq!(labels[0], "S0");
        assert!(labels.contains(&"S2-5 aes192-cbc+hmac-md5 custody target software".to_owned()), "{labels:?}");
        let keys = [1, 16].map(NonZeroU32::new);
        let setups = Setup::all(&schemes[2..], &suites[..1], &custodies, &kinds[..1], &[None], &keys, &[None]);
        let labels: Vec<String> = setups.iter().map(Setup::label).collect();
        assert_eq!(labels, ["S2-5", "S2-5 custody target", "S2-5 custody target 16 blocks a key"]);
    }

    #[test]
    fn a_targets_own_terms_are_in_the_name_where_they_make_a_difference() {
        let setups = SchemeChoice::list("S0,S2-5").unwrap().into_iter().map(Setup::new);
        let terms = TargetTerms { process: Some(ProcessKind::Software), quota_percent: Some(40) };
        let setups: Vec<Setup> = setups.map(|setup| setup.with_target(terms)).collect();
        let labels: Vec<String> = setups.iter().map(Setup::label).collect();
        assert_eq!(labels, ["S0 target at 40%", "S2-5 target software target at 40%"]);
        assert_eq!((setups[1].target_process(), setups[1].process), (ProcessKind::Software, ProcessKind::Hardware));
        assert_eq!(Setup::new(SchemeChoice::list("ECL-S2-5").unwrap()[0]).row(), "");
        assert_eq!((setups[0].row(), setups[1].row()), ("S0", ""), "the paper has no row with ends that differ");
        let same = TargetTerms { process: Some(ProcessKind::Hardware), ..TargetTerms::default() };
        assert_eq!(Setup::new(setups[1].scheme).with_target(same).label(), "S2-5");
    }

    #[test]
    fn the_papers_rows_follow_from_who_does_the_cryptography() {
        let row = |name: &str, process| Setup { process, ..Setup::new(SchemeChoice::list(name).unwrap()[0]) }.row();
        assert_eq!((row("S2-5", ProcessKind::Hardware), row("S2-5", ProcessKind::Software)), ("S2-6", "S2-5"));
        assert_eq!((row("S2-2", ProcessKind::Hardware), row("S1-2", ProcessKind::Hardware)), ("S2-2", "S1-2"));
    }
}
