//! `strongroom demo`: the whole thing at work on this machine, every claim checked as it is made.
//!
//! One function per act, in the order in which they are played. The target and the initiators are separate processes
//! of this same binary, driven by the same commands that a person would type. Absent: anything that a user could not do.

mod act_key_server;
mod act_keys;
mod act_measure;
mod act_search;
mod act_tamper;
mod act_volume;
mod attached;
mod files;
mod report;
mod search;
mod stage;
mod tamper;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;

use crate::units::{parse_size, show_size};
use report::Report;
use stage::Stage;

/// Show the whole thing on this machine: a sealed volume served, used, searched, damaged and recovered.
#[derive(Args)]
#[command(after_help = "Examples:\n  \
    sudo strongroom demo\n  \
    sudo strongroom demo --transport ecl     # over ECL instead of iSCSI\n\n\
    Needs root (loop device, mount, and reading the memory of other processes), takes under 3 minutes and about 2 GiB \
    of disk, and leaves nothing behind.")]
pub(crate) struct DemoArgs {
    /// Where to work; a directory is made there and removed at the end.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    work_dir: PathBuf,
    /// How much of this machine's own files to use.
    #[arg(long, value_name = "SIZE", default_value = "320MiB", value_parser = parse_size)]
    files: u64,
    /// How much data to measure with.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = parse_size)]
    measure: u64,
    /// How the initiators reach sealed volumes: the scheme of their URLs.
    #[arg(long, value_name = "SCHEME", default_value = "strongroom", value_parser = ["strongroom", "ecl", "ecl+tcp"])]
    transport: String,
}

/// Disk space that the demo needs beyond its input, in bytes.
const SPACE_BYTES_EXTRA: u64 = 1 << 30;

/// Runs the demo.
pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    check_machine(args)?;
    let stage = Stage::new(&args.work_dir)?;
    let outcome = play(&stage, args);
    // The stage's directory is removed when it is dropped; everything that was mounted in it is gone by now.
    drop(stage);
    outcome
}

fn check_machine(args: &DemoArgs) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "the demo needs root: it mounts a file system through a loop device, and reads the memory of the server to \
             show that no plaintext is in it. Run it with: sudo make demo"
        );
    }
    for (path, advice) in
        [("/dev/fuse", "load it with: modprobe fuse"), ("/dev/loop-control", "load it with: modprobe loop")]
    {
        if !Path::new(path).exists() {
            bail!("this machine has no {path}; {advice}");
        }
    }
    let space = rustix::fs::statvfs(&args.work_dir)?;
    let free = space.f_bavail * space.f_frsize;
    let needed = 2 * args.files + 3 * args.measure + SPACE_BYTES_EXTRA;
    if free < needed {
        bail!(
            "{} has {} free and the demo needs {}; choose another place with --work-dir, or less with --files and --measure",
            args.work_dir.display(),
            show_size(free),
            show_size(needed)
        );
    }
    Ok(())
}

/// The acts, in order. Processes that an act leaves running are stopped when its value is dropped, in reverse order.
fn play(stage: &Stage, args: &DemoArgs) -> Result<()> {
    let mut report = Report::new();
    println!("Strongroom: the initiator seals, the target stores, the initiator opens.");

    report.act("A target, two initiators, one volume key that only the initiators have");
    let cast = act_keys::prepare(stage, &mut report, args)?;

    report.act("The target serves; it can be reached only by those it knows");
    let server = cast.serve(stage, "target")?;
    act_volume::refuse_strangers(stage, &mut report, &cast)?;

    report.act("Initiator 1 formats the sealed volume, makes ext4 on it and copies real files in");
    let input = act_volume::choose_input(stage, &mut report, args.files)?;
    act_volume::format(stage, &mut report, &cast)?;
    let canaries = act_search::prepare(&mut report, &cast, &input, &server)?;
    let checksums = act_volume::write_files(stage, &mut report, &cast, &input, &canaries, &server)?;

    report.act("Initiator 2, another identity, reads them back");
    act_volume::compare_files(stage, &mut report, &cast, &checksums, &canaries, &server)?;

    report.act("What the server holds");
    act_search::search_server(&mut report, &cast, &canaries, &server)?;

    report.act("A hostile hand flips one bit of one stored block");
    act_tamper::damage_and_recover(stage, &mut report, &cast, &checksums)?;

    report.act("What it costs");
    act_measure::table(stage, &mut report, &cast, &server, args.measure)?;

    report.act("Another volume, whose keys are at a key server: one may open it, one may not, one may no more");
    act_key_server::play(stage, &mut report, &cast)?;

    server.stop()?;
    report.check(true, "the server stopped on request, with everything written back")?;
    println!(
        "\nShown in {:.0} s, by {} checks: a file system lived on a server that never held a byte of its plaintext nor its \
         key, was read back whole by a second initiator, and a single flipped bit was noticed, named, and undone.",
        report.elapsed().as_secs_f64(),
        report.checks()
    );
    Ok(())
}
