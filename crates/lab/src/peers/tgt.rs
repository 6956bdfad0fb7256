//! tgt, the user-space target that most distributions carry: one daemon for one volume, on sockets of its own.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::serve::{READY_TIMEOUT, Request, Served, TARGET_NAME};
use crate::programs::{program, run};
use crate::{Background, BenchError};

/// Its logical units begin at 1; 0 is the controller.
const LUN: u16 = 1;
/// Names the management socket, whose place is ours alone.
const CONTROL_PORT: &str = "1";
/// What one has to set before it takes 64 KiB of write data in one PDU: by itself it stays at 8 KiB.
const TUNED: [&str; 4] = ["MaxRecvDataSegmentLength", "MaxXmitDataSegmentLength", "FirstBurstLength", "MaxBurstLength"];

/// Starts it at `address`, with `prefix` before the command (`ip netns exec …`).
pub(super) fn start(
    request: &Request<'_>,
    address: SocketAddr,
    tuned: bool,
    prefix: &[String],
) -> Result<Served, BenchError> {
    let file = request.volume_file()?;
    let socket = request.directory.join("tgt");
    let mut daemon = program("tgtd", prefix);
    daemon.args(["-f", "-C", CONTROL_PORT, "--iscsi", &format!("portal={address}")]).env("TGT_IPC_SOCKET", &socket);
    // It ignores SIGTERM while it has a target.
    let mut daemon = Background::start("tgtd", daemon, request.target_cpus(), request.directory)?.deaf();
    let control = socket.with_extension(CONTROL_PORT);
    daemon.wait_until(READY_TIMEOUT, |_| control.exists().then_some(()))?;
    let admin = |arguments: &[&str]| {
        let mut command = tgtadm(&socket);
        command.args(arguments);
        run(command).map_err(|error| daemon.problem(&error.to_string()))
    };
    admin(&["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET_NAME])?;
    if tuned {
        for name in TUNED {
            admin(&["--op", "update", "--mode", "target", "--tid", "1", "-n", name, "-v", "262144"])?;
        }
    }
    let (lun, block) = (LUN.to_string(), request.block_bytes.to_string());
    let backing = file.path.display().to_string();
    let unit = ["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", &lun, "-b", &backing];
    admin(&[&unit[..], &["--bstype", "rdwr", "--blocksize", &block]].concat())?;
    admin(&["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"])?;
    let mut served = Served::iscsi(address, LUN, false);
    served.target.push(daemon);
    served.files.push(file);
    Ok(served)
}

fn tgtadm(socket: &Path) -> Command {
    let mut command = program("tgtadm", &[]);
    command.args(["-C", CONTROL_PORT, "--lld", "iscsi"]).env("TGT_IPC_SOCKET", socket);
    command
}
