//! Act 6: one bit of one stored block is flipped behind the server's back. The reader gets an error that names the block,
//! never wrong data, and a person brings the previous version back.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::act_keys::{BLOCK_BYTES, Cast, VAULT, utf8};
use super::attached::{Checksums, attach};
use super::files::read_whole;
use super::report::Report;
use super::stage::Stage;
use super::tamper::Snapshot;

/// A file of this many bytes is damaged: at least a block, and quick to show.
const VICTIM_BYTES: std::ops::Range<u64> = 4096..1 << 20;

/// Plays the act.
pub(super) fn damage_and_recover(stage: &Stage, report: &mut Report, cast: &Cast, written: &Checksums) -> Result<()> {
    let [first, second] = &cast.initiators;
    let attached = attach(stage, cast, first, false, &[])?;
    let victim = choose_victim(written)?;
    let lba = first_block(stage, &attached.file, &victim)?;
    let volume = File::options().read(true).write(true).open(&attached.file)?;
    let offset = lba * BLOCK_BYTES as u64;
    let mut block = vec![0; BLOCK_BYTES];
    volume.read_exact_at(&mut block, offset)?;

    // A new version of the block, so that there is a previous one.
    let before = Snapshot::take(&cast.root.join(VAULT), BLOCK_BYTES)?;
    block[..16].copy_from_slice(b"a newer version.");
    volume.write_all_at(&block, offset)?;
    volume.sync_all()?;
    let stored = before.find_new_block(&cast.root.join(VAULT))?;
    drop(volume);
    attached.detach()?;
    report.say(format_args!("block {lba} (the start of /{}) was written again; its new version", victim.display()));
    report.say(format_args!(
        "lies at byte {} of {}; one bit of it is flipped there",
        stored.offset,
        stored.path.strip_prefix(&cast.root).unwrap_or(&stored.path).display()
    ));
    stored.flip_a_bit(BLOCK_BYTES)?;

    let attached = attach(stage, cast, second, true, &[])?;
    let outcome = read_whole(&attached.mounted.join(&victim), |_| Ok(()));
    let errno = outcome.as_ref().err().and_then(|error| error.downcast_ref::<std::io::Error>()?.raw_os_error());
    report.check(errno == Some(libc::EIO), "reading the file gives an I/O error, not wrong data")?;
    let log = attached.process.log();
    let named = log.lines().rev().find(|line| names_block(line, lba)).unwrap_or_default().to_owned();
    report.check(!named.is_empty(), format_args!("the reader names the block:\n       {}", without_time(&named)))?;
    let other = written.keys().find(|path| **path != victim).context("there is more than one file")?;
    report.check(
        read_whole(&attached.mounted.join(other), |_| Ok(()))? == written[other],
        "other files are as they were",
    )?;
    attached.detach()?;

    let lba_text = lba.to_string();
    let recover = ["volume", "recover", &cast.url(VAULT), "--lba", &lba_text, "--yes"];
    let said = stage.run(cast.command(stage, first, &recover)?)?;
    report.say(format_args!("$ strongroom volume recover … --lba {lba}"));
    for line in said.lines() {
        report.say(format_args!("  {}", without_time(line)));
    }
    let attached = attach(stage, cast, second, true, &[])?;
    let recovered = read_whole(&attached.mounted.join(&victim), |_| Ok(()))?;
    report.check(recovered == written[&victim], "after recovery the file is again, by checksum, what was copied in")?;
    attached.detach()
}

fn choose_victim(written: &Checksums) -> Result<PathBuf> {
    let fits = |path: &&PathBuf| {
        let bytes = std::fs::metadata(Path::new("/").join(path)).map_or(0, |metadata| metadata.len());
        // debugfs reads its commands as words.
        VICTIM_BYTES.contains(&bytes) && path.to_str().is_some_and(|path| !path.contains([' ', '"', '\'']))
    };
    written.keys().find(fits).cloned().context("no file is of a size that fits this act")
}

/// Where the file's first block lies on the volume, from the file system's own maps.
fn first_block(stage: &Stage, volume: &Path, path: &Path) -> Result<u64> {
    let request = format!("blocks /{}", utf8(path)?);
    let output = stage.run(stage.program("debugfs", &["-R", &request, utf8(volume)?]))?;
    let blocks = output
        .lines()
        .find(|line| line.split_ascii_whitespace().all(|word| word.parse::<u64>().is_ok()) && !line.trim().is_empty());
    let first = blocks.and_then(|line| line.split_ascii_whitespace().next()).and_then(|word| word.parse().ok());
    first.with_context(|| format!("debugfs did not say where {} lies:\n{output}", path.display()))
}

/// Whether a log line speaks of the block by number.
fn names_block(line: &str, lba: u64) -> bool {
    let number = lba.to_string();
    let words = line.split(|c: char| !c.is_ascii_alphanumeric());
    (line.contains("WARN") || line.contains("ERROR")) && words.into_iter().any(|word| word == number)
}

/// A log line without the time in front.
fn without_time(line: &str) -> &str {
    line.split_once(char::is_whitespace).filter(|(time, _)| time.ends_with('Z')).map_or(line, |(_, rest)| rest).trim()
}
