//! `strongroom copy`: between files and volumes, with a progress bar, a checksum, and without the holes.

use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;
use strongroom_initiator::copy::{
    CopyError, CopyOptions, CopyReport, Endpoint, Phase, Progress, Resume, SparseDevice, copy_resumable,
};
use strongroom_initiator::{DamagedReads, PreviousReads, RemoteDevice, VolumeUrl};

use crate::access::AccessArgs;
use crate::keys;
use crate::progress::{Estimate, ProgressArgs, ProgressReporter, ProgressUnit};
use crate::signals::StopSignals;
use crate::units::{parse_size, show_size};
use crate::writer::WriterArgs;

/// Blocks that are named in one line.
const PREVIOUS_NAMED_MAX: usize = 20;

/// Copy between files and volumes, either way or between two volumes; what is absent is not moved.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    strongroom copy disk.img strongroom://storage/vault --key-file ~/vault.key\n  \
    strongroom copy strongroom://storage/vault backup.img --key-file ~/vault.key --sha256\n  \
    strongroom copy strongroom://a/vault strongroom://b/vault --key-file ~/vault.key --verify\n  \
    strongroom copy disk.img strongroom://far/vault --key-file ~/vault.key --resume disk.note")]
pub(crate) struct CopyArgs {
    /// A file, a block device of this machine, or a volume's URL.
    source: CopyOperand,
    /// The same; a file is made, a volume must be there and be large enough.
    destination: CopyOperand,
    /// Print the SHA-256 of the contents too.
    #[arg(long)]
    sha256: bool,
    /// Read the destination back and compare.
    #[arg(long)]
    verify: bool,
    /// The destination volume may be larger than the source; what lies behind keeps what it holds.
    #[arg(long)]
    allow_smaller: bool,
    /// Replace a destination file that exists.
    #[arg(long)]
    overwrite: bool,
    /// Note in this file how far the copy is, and go on from there if it has a note already: after the process was killed, or the
    /// machine went down. Only what the destination has made durable is noted. The note is authenticated under this node's identity;
    /// when the copy is whole it is removed. A file's changes are noticed by its time stamp and size; of a volume as source nobody knows
    /// whether it was written to meanwhile: copy a snapshot, or say --verify.
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Note it after this many bytes, or five seconds.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size, requires = "resume")]
    resume_every: u64,
    #[command(flatten)]
    progress: ProgressArgs,
    /// The key of the source volume, if `--key-file` is not right for both.
    #[arg(long, value_name = "FILE")]
    source_key_file: Option<PathBuf>,
    /// The key of the destination volume, if `--key-file` is not right for both.
    #[arg(long, value_name = "FILE")]
    destination_key_file: Option<PathBuf>,
    #[command(flatten)]
    writer: WriterArgs,
    #[command(flatten)]
    access: AccessArgs,
}

/// One end of a copy, as a person writes it.
#[derive(Clone)]
enum CopyOperand {
    File(PathBuf),
    Volume(VolumeUrl),
}

impl FromStr for CopyOperand {
    type Err = String;

    fn from_str(text: &str) -> Result<CopyOperand, String> {
        // A file's name may contain "://" only with a path in front.
        if text.contains("://") && !text.starts_with(['/', '.']) {
            return text
                .parse()
                .map(CopyOperand::Volume)
                .map_err(|error: strongroom_initiator::UrlError| error.to_string());
        }
        Ok(CopyOperand::File(PathBuf::from(text)))
    }
}

impl CopyOperand {
    /// A name that tells it from any other; a source file's also from what it was before it changed.
    fn in_words(&self, device: Option<&RemoteDevice>, is_source: bool) -> Result<String> {
        let (path, unit) = match (self, device) {
            (CopyOperand::File(path), _) => (path, None),
            (CopyOperand::Volume(url), None) => return Ok(format!("volume {}", url.place())),
            (CopyOperand::Volume(url), Some(device)) => (&PathBuf::from(url.place()), Some(device.unit())),
        };
        if let Some(unit) = unit {
            let id = unit.sealed.map_or_else(String::new, |sealed| format!(" {}", sealed.claims.volume_id));
            return Ok(format!("volume {} {} lun {}{id}", path.display(), unit.target_name, unit.lun));
        }
        let full = std::path::absolute(path).with_context(|| format!("cannot find {}", path.display()))?;
        if !is_source {
            return Ok(format!("file {}", full.display()));
        }
        let meta = full.metadata().with_context(|| format!("cannot look at {}", path.display()))?;
        let (seconds, nanoseconds) = (meta.mtime(), meta.mtime_nsec());
        Ok(format!("file {} inode {} changed {seconds}.{nanoseconds:09}", full.display(), meta.ino()))
    }
}

/// Runs the command.
pub(crate) fn run(args: CopyArgs) -> Result<()> {
    if let (CopyOperand::File(from), CopyOperand::File(to)) = (&args.source, &args.destination)
        && from == to
    {
        bail!("source and destination are the same file");
    }
    let signals = StopSignals::block().context("cannot wait for signals")?;
    let (source, source_device) = open(&args, &args.source, true)?;
    let (destination, destination_device) = open(&args, &args.destination, false)?;
    let options = CopyOptions {
        sha256: args.sha256,
        verify: args.verify,
        allow_smaller: args.allow_smaller,
        overwrite: args.overwrite,
        sparse: false,
    };
    let bar = args.progress.begin("copying", ProgressUnit::EstimatedBytes, None);
    let resume = args.resume(&source_device, &destination_device)?;
    let outcome = copy_resumable(&source, &destination, options, resume.as_ref(), &mut |progress| {
        show(&bar, progress);
        if signals.wait(Duration::ZERO).is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish();
    let report = outcome.map_err(|error| match (&error, &args.resume) {
        (CopyError::Note { .. }, _) | (_, None) => anyhow::Error::from(error),
        _ => anyhow::Error::from(error).context("the same command goes on from where it was noted last"),
    })?;
    if let Some(source) = &source_device {
        tell_of_previous(&source.previous_reads());
    }
    for device in [destination_device, source_device].into_iter().flatten() {
        device.detach()?;
    }
    let result = json!({
        "bytes": report.bytes, "data_bytes": report.data_bytes, "absent_bytes": report.hole_bytes, "verified": report.verified,
        "seconds": report.elapsed.as_secs_f64(), "checksums": report.sums.to_string(),
    });
    args.progress.print_result(&result, || print(&report));
    Ok(())
}

impl CopyArgs {
    /// Where to note how far it is, with names for both ends that tell them from any other.
    fn resume(
        &self,
        source: &Option<Arc<RemoteDevice>>,
        destination: &Option<Arc<RemoteDevice>>,
    ) -> Result<Option<Resume>> {
        let Some(path) = &self.resume else { return Ok(None) };
        let identity = self.access.identity.clone().unwrap_or_else(keys::default_identity);
        let node = keys::read_identity(&identity).context(
            "--resume authenticates its note by this node's identity; make one with 'strongroom identity new'",
        )?;
        let source = self.source.in_words(source.as_deref(), true)?;
        let destination = self.destination.in_words(destination.as_deref(), false)?;
        let mut resume = Resume::new(path, &node, &source, &destination);
        resume.every_bytes = self.resume_every.max(1);
        Ok(Some(resume))
    }

    /// The key for one side: its own, or the one for both. Plain iSCSI gets none but its own, which is then an error.
    fn key_file_for(&self, url: &VolumeUrl, is_source: bool) -> Option<PathBuf> {
        let own = if is_source { &self.source_key_file } else { &self.destination_key_file };
        let shared = self.access.key_file.as_ref().filter(|_| url.is_channel());
        own.as_ref().or(shared).cloned()
    }

    /// How one side is reached: a key file of its own comes before the key server that the other one may need.
    fn access_for(&self, url: &VolumeUrl, is_source: bool) -> AccessArgs {
        let mut access = self.access.clone();
        access.key_file = self.key_file_for(url, is_source);
        let own = if is_source { &self.source_key_file } else { &self.destination_key_file };
        if own.is_some() || !url.is_channel() {
            access.key_server.key_servers.clear();
        }
        access
    }

    /// With two volumes, one key may be right for one of them only: says how that is written.
    fn explain(&self, error: anyhow::Error) -> anyhow::Error {
        let both_are_volumes =
            matches!((&self.source, &self.destination), (CopyOperand::Volume(_), CopyOperand::Volume(_)));
        if !both_are_volumes || self.access.key_file.is_none() {
            return error;
        }
        error.context(
            "--key-file is for both volumes; if they do not share a key, or one of them is plain, give --source-key-file \
             or --destination-key-file instead",
        )
    }
}

fn open(args: &CopyArgs, place: &CopyOperand, read_only: bool) -> Result<(Endpoint, Option<Arc<RemoteDevice>>)> {
    let url = match place {
        CopyOperand::File(path) => return Ok((Endpoint::File(path.clone()), None)),
        CopyOperand::Volume(url) => url,
    };
    let access = args.access_for(url, read_only);
    access.forget_if_asked(url)?;
    let mut options = access.options(url)?;
    options.read_only = read_only;
    if !read_only {
        options.sealing.damaged_reads = DamagedReads::Fail;
    }
    options.lease = args.writer.options("copy");
    let device = access.attach_for_use(options, args.writer.way_out()).map_err(|error| args.explain(error))?;
    Ok((Endpoint::Volume(Arc::clone(&device) as Arc<dyn SparseDevice>), Some(device)))
}

/// The rate and what is left come from the copy itself: it leaves out what was absent and cost nothing.
pub(super) fn show(bar: &ProgressReporter, progress: &Progress) {
    bar.set_operation(match progress.phase {
        Phase::Copying => "copying",
        Phase::Verifying => "verifying",
    });
    bar.set_total(progress.total_bytes);
    bar.set_estimate(Estimate {
        per_second: progress.bytes_per_second,
        left: progress.time_left,
        stalled_for: progress.stalled_for,
    });
    bar.set_position(progress.done_bytes);
}

/// What was not what was written last: told apart from the report, which a script may read.
fn tell_of_previous(found: &PreviousReads) {
    if found.count == 0 {
        return;
    }
    let named: Vec<String> = found.blocks.iter().take(PREVIOUS_NAMED_MAX).map(ToString::to_string).collect();
    let more = if found.blocks.len() > named.len() { ", …" } else { "" };
    eprintln!(
        "the newest version of {} blocks did not open, and an older one was copied: {}{more}",
        found.blocks.len(),
        named.join(", ")
    );
}

/// The copy is done, whether somebody reads of it or not: a closed pipe is no failure.
fn print(report: &CopyReport) {
    use std::io::Write as _;
    let mut out = std::io::stdout();
    let seconds = report.elapsed.as_secs_f64();
    let _ = writeln!(
        out,
        "copied {} in {seconds:.1} s ({}/s): {} of data, {} absent{}",
        show_size(report.bytes),
        show_size((report.data_bytes as f64 / seconds.max(1e-9)) as u64),
        show_size(report.data_bytes),
        show_size(report.hole_bytes),
        if report.verified { "; read back and the same" } else { "" }
    );
    let _ = writeln!(out, "{}", report.sums);
}
