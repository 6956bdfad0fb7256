//! istgt, the target that came from FreeBSD: one daemon for one volume, with a configuration of its own.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::serve::{READY_TIMEOUT, Request, Served, TARGET_NAME, free_address};
use crate::programs::program;
use crate::{Background, BenchError};

/// Starts it at `address`.
pub(super) fn start(request: &Request<'_>, address: SocketAddr) -> Result<Served, BenchError> {
    let file = request.volume_file()?;
    let write = |name: &str, text: &str| {
        let path = request.directory.join(name);
        let written =
            fs::write(&path, text).and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o600)));
        written.map_err(|error| BenchError::file(&path, error)).map(|()| path)
    };
    let no_secrets = write("istgt.auth", "")?;
    let text = configuration(address, free_address()?, &no_secrets, request.directory, &file.path, request.block_bytes);
    let path = write("istgt.conf", &text)?;
    let mut daemon = program("istgt", &[]);
    daemon.arg("-D").arg("-c").arg(path);
    let mut daemon = Background::start("istgt", daemon, request.target_cpus(), request.directory)?;
    daemon.wait_for_port(address, READY_TIMEOUT)?;
    // It refuses InitialR2T=No.
    let mut served = Served::iscsi(address, 0, true);
    served.target.push(daemon);
    served.files.push(file);
    Ok(served)
}

fn configuration(
    address: SocketAddr,
    control: SocketAddr,
    no_secrets: &Path,
    directory: &Path,
    volume: &Path,
    block_bytes: u64,
) -> String {
    let (base, name) = TARGET_NAME.split_once(':').expect("the name has a part of its own");
    let (no_secrets, directory, volume) = (no_secrets.display(), directory.display(), volume.display());
    format!(
        "[Global]\n  NodeBase \"{base}\"\n  PidFile {directory}/istgt.pid\n  AuthFile {no_secrets}\n  \
         MediaDirectory {directory}\n  LogFacility \"local7\"\n  Timeout 30\n  NopInInterval 20\n  \
         DiscoveryAuthMethod None\n  MaxSessions 64\n  MaxConnections 4\n  MaxR2T 32\n  MaxOutstandingR2T 16\n  \
         FirstBurstLength 262144\n  MaxBurstLength 262144\n  MaxRecvDataSegmentLength 262144\n  InitialR2T Yes\n  \
         ImmediateData Yes\n  DataPDUInOrder Yes\n  DataSequenceInOrder Yes\n  ErrorRecoveryLevel 0\n\
         [UnitControl]\n  AuthMethod None\n  AuthGroup None\n  Portal UC1 {control}\n  Netmask 127.0.0.1\n\
         [PortalGroup1]\n  Portal DA1 {address}\n\
         [InitiatorGroup1]\n  InitiatorName \"ALL\"\n  Netmask ALL\n\
         [LogicalUnit1]\n  TargetName {name}\n  Mapping PortalGroup1 InitiatorGroup1\n  AuthMethod None\n  \
         AuthGroup None\n  UseDigest Auto\n  UnitType Disk\n  QueueDepth 255\n  BlockLength {block_bytes}\n  \
         LUN0 Storage {volume} Auto\n"
    )
}
