//! The searches: canaries of the plaintext and of the volume key, looked for where they must not be, and, by the very
//! same search, where they must.

use std::fs;

use anyhow::{Context, Result};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use strongroom_block::SealingDomain;

use super::act_keys::{Cast, Initiator, VAULT, utf8};
use super::attached::{Attached, Checksums};
use super::files::{self, Input};
use super::report::Report;
use super::search::{CANARY_BYTES, Canaries, Findings};
use super::stage::{Background, Stage};
use crate::units::show_size;

/// How many files to read again while an initiator's memory is searched.
const FILES_READ_AGAIN: usize = 40;

/// What to look for.
pub(super) struct Evidence {
    plaintext: Canaries,
    key: Canaries,
}

/// Takes canaries from the files and the key, before anything was sent.
pub(super) fn prepare(report: &mut Report, cast: &Cast, input: &Input, server: &Background) -> Result<Evidence> {
    let all = Canaries::new(input.canaries()?);
    // Libraries and tables that the server itself is made of are files of this machine too.
    let mut own = Findings::default();
    all.search_process(server.pid(), &mut own)?;
    let plaintext = all.without(&own.found);
    let key = Canaries::new(key_canaries(cast)?);
    report.say(format_args!(
        "canaries: {} pieces of {CANARY_BYTES} bytes from those files ({} left out: the server's own libraries have them), \
         {} forms of the volume key",
        plaintext.count(),
        own.found.len(),
        key.count()
    ));
    Ok(Evidence { plaintext, key })
}

/// The volume key as it could lie about: raw, as text, and as the key that is derived from it for this volume
/// (`docs/sealed-block.md`).
fn key_canaries(cast: &Cast) -> Result<Vec<[u8; CANARY_BYTES]>> {
    let file = strongroom_keyfiles::read_key_file(&cast.initiators[0].key)?;
    let raw = *file.volume_key(1)?.expose();
    let text: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut forms = vec![raw];
    forms.extend(
        text.as_bytes()
            .chunks_exact(CANARY_BYTES)
            .map(<[u8; CANARY_BYTES]>::try_from)
            .map(|half| half.expect("pieces of that size")),
    );
    let recorded = file.volumes().iter().find(|volume| volume.name == VAULT).context("the vault was formatted")?;
    forms.push(derived_key(&raw, recorded.domain));
    Ok(forms)
}

struct Bytes32;

impl KeyType for Bytes32 {
    fn len(&self) -> usize {
        CANARY_BYTES
    }
}

fn derived_key(raw: &[u8; CANARY_BYTES], domain: SealingDomain) -> [u8; CANARY_BYTES] {
    let info: [&[u8]; 3] = [b"seal", &domain.0, &1u32.to_be_bytes()];
    let mut key = [0; CANARY_BYTES];
    Salt::new(HKDF_SHA256, b"strongroom/1 volume")
        .extract(raw)
        .expand(&info, Bytes32)
        .and_then(|material| material.fill(&mut key))
        .expect("32 bytes are one block of HKDF");
    key
}

/// Finds both kinds in an initiator at work: the search can find what is there.
pub(super) fn search_initiator(
    report: &mut Report,
    who: &Initiator,
    attached: &Attached,
    evidence: &Evidence,
    files: &Checksums,
    stage: &Stage,
) -> Result<()> {
    let mut plaintext = Findings::default();
    let mut key = Findings::default();
    // Plaintext passes through: read files from the device again, not from the page cache, and look meanwhile.
    fs::write("/proc/sys/vm/drop_caches", "1").context("cannot drop the page cache")?;
    for path in files.keys().take(FILES_READ_AGAIN) {
        files::read_whole(&attached.mounted.join(path), |_| Ok(()))?;
    }
    stage.check()?;
    evidence.plaintext.search_process(attached.process.pid(), &mut plaintext)?;
    evidence.key.search_process(attached.process.pid(), &mut key)?;
    report.check(
        !plaintext.found.is_empty() && !key.found.is_empty(),
        format_args!(
            "the search finds them in {}'s memory, where they belong: {} of plaintext, {} of the key",
            who.name,
            plaintext.found.len(),
            key.found.len()
        ),
    )
}

/// Searches the server's memory while it is at work.
pub(super) fn search_server_memory(
    report: &mut Report,
    evidence: &Evidence,
    server: &Background,
    when: &str,
) -> Result<()> {
    let mut findings = Findings::default();
    evidence.plaintext.search_process(server.pid(), &mut findings)?;
    let plaintext = findings.found.len();
    findings.found.clear();
    evidence.key.search_process(server.pid(), &mut findings)?;
    report.check(
        plaintext == 0 && findings.found.is_empty(),
        format_args!("none in the server's memory {when} ({} looked at)", show_size(findings.bytes / 2)),
    )
}

/// Act 5: everything that the server has stored, and its memory once more.
pub(super) fn search_server(report: &mut Report, cast: &Cast, evidence: &Evidence, server: &Background) -> Result<()> {
    utf8(&cast.root)?;
    let mut stored = Findings::default();
    evidence.plaintext.search_files(&cast.root, &mut stored)?;
    let bytes = stored.bytes;
    evidence.key.search_files(&cast.root, &mut stored)?;
    report.check(
        stored.found.is_empty() && bytes > 0,
        format_args!("no canary of plaintext or key in {} of stored bytes", show_size(bytes)),
    )?;
    search_server_memory(report, evidence, server, "at rest")
}
