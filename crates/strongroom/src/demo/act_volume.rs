//! Acts 2 to 4: who is refused; a file system made, filled and read back through two initiators.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use super::act_keys::{Cast, Initiator, VAULT, utf8};
use super::act_search::{self, Evidence};
use super::attached::{Checksums, attach};
use super::files::{Input, checksums};
use super::report::Report;
use super::stage::{Background, Stage};
use crate::units::show_size;

/// Act 2: each of these has to fail, and to say why.
pub(super) fn refuse_strangers(stage: &Stage, report: &mut Report, cast: &Cast) -> Result<()> {
    let vault = cast.url(VAULT);
    let [first, second] = &cast.initiators;
    let directory = stage.make_dir("refused")?;
    let to = utf8(&directory)?;
    let attach = |url: &str| vec!["attach".to_owned(), url.to_owned(), "--to".to_owned(), to.to_owned()];
    let mut refused = |statement: &str, command: Command| -> Result<()> {
        let (status, output) = stage.try_run(command)?;
        let reason = output.lines().rev().find(|line| line.contains("strongroom: ")).unwrap_or("").trim();
        report.check(!status.success(), format_args!("{statement}:\n       {reason}"))
    };

    let command = |who: &Initiator, url: &str| {
        let arguments = attach(url);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(["--foreground"]).collect();
        cast.command(stage, who, &arguments)
    };
    refused("an identity that the target does not know is refused", command(&cast.stranger, &vault)?)?;
    let disguised = Initiator {
        name: first.name,
        identity: first.identity.clone(),
        key: first.key.clone(),
        iqn: second.iqn.clone(),
    };
    refused("a known identity under another's initiator name is refused", command(&disguised, &vault)?)?;
    refused("the sealed volume refuses plain iSCSI", command(first, &cast.plain_url(VAULT))?)
}

/// The machine's own files.
pub(super) fn choose_input(stage: &Stage, report: &mut Report, bytes: u64) -> Result<Input> {
    let input = Input::choose(stage, bytes)?;
    report.say(format_args!(
        "input: {} files of this machine, {}, from /usr/share and /usr/lib",
        input.count(),
        show_size(input.bytes())
    ));
    Ok(input)
}

/// Before it, because the key file records the volume's sealing domain, which is drawn here.
pub(super) fn format(stage: &Stage, report: &mut Report, cast: &Cast) -> Result<()> {
    let [first, second] = [&cast.initiators[0], &cast.initiators[1]];
    stage.run(cast.command(stage, first, &["volume", "format", &cast.url(VAULT), "--yes"])?)?;
    std::fs::copy(&first.key, &second.key).context("cannot hand the key file to the second initiator")?;
    report.check(true, "formatted: one sealed hole over the whole volume, so that absence cannot be forged")
}

/// Act 3.
pub(super) fn write_files(
    stage: &Stage,
    report: &mut Report,
    cast: &Cast,
    input: &Input,
    evidence: &Evidence,
    server: &Background,
) -> Result<Checksums> {
    let first = &cast.initiators[0];
    let attached = attach(stage, cast, first, false, &[])?;
    stage.run(stage.program("mkfs.ext4", &["-q", "-b", "4096", utf8(&attached.file)?]))?;
    attached.detach()?;

    let attached = attach(stage, cast, first, true, &[])?;
    let started = Instant::now();
    let written = input.copy_to(stage, &attached.mounted)?;
    stage.run(stage.program("sync", &["-f", utf8(&attached.mounted)?]))?;
    let seconds = started.elapsed().as_secs_f64();
    report.check(
        written.len() == input.count(),
        format_args!(
            "{} files copied into ext4 on the sealed volume and synced, {:.0} MiB/s",
            written.len(),
            input.bytes() as f64 / f64::from(1 << 20) / seconds
        ),
    )?;
    act_search::search_initiator(report, first, &attached, evidence, &written, stage)?;
    act_search::search_server_memory(report, evidence, server, "while the files were being written")?;
    attached.detach()?;
    report.check(true, "unmounted and detached cleanly")?;
    Ok(written)
}

/// Act 4.
pub(super) fn compare_files(
    stage: &Stage,
    report: &mut Report,
    cast: &Cast,
    written: &Checksums,
    evidence: &Evidence,
    server: &Background,
) -> Result<()> {
    let second = &cast.initiators[1];
    let attached = attach(stage, cast, second, true, &["--read-only"])?;
    let read = checksums(stage, &attached.mounted, written.keys().cloned())
        .context("the second initiator could not read what the first one wrote")?;
    report.check(read == *written, format_args!("all {} SHA-256 checksums are the same", read.len()))?;
    act_search::search_initiator(report, second, &attached, evidence, written, stage)?;
    act_search::search_server_memory(report, evidence, server, "while the files were being read")?;
    attached.detach()
}
